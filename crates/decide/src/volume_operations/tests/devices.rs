//! Block volumes: when their device is mapped for a pod.

use super::*;

#[test]
fn a_device_is_mapped_after_it_is_published_and_unmapped_before_it_is_not() {
    let mut script = Script::default();
    script.set_up_device("a", "v");
    let record = "write /devices/v/vol_data.json";
    let expect = [
        "wait /devices/publish/v/a",
        "capabilities",
        record,
        "mkdir /devices/staging/v",
        "stage v",
        "list a",
        record,
        "mkdir /devices/publish/v",
        "link /links/a/v",
        "publish /devices/publish/v/a",
        "map /devices/v/dev/a",
    ];
    assert_eq!(script.rest(), expect);
    assert_eq!(script.told(), ["a ok"]);
    // Another pod has a map of its own, and the first takes only its own away.
    script.set_up_device("b", "v");
    let of_b = script.rest();
    assert_eq!(of_b.last().map(String::as_str), Some("map /devices/v/dev/b"));
    assert!(!of_b.contains(&"stage v".to_owned()), "{of_b:?}");
    script.request("a", VolumeRequest::TearDown);
    let of_pod = |uid: &str| {
        [
            "wait /devices/publish/v",
            "unmap /devices/v/dev",
            "unpublish /devices/publish/v",
            "remove /devices/publish/v",
        ]
        .map(|call| format!("{call}/{uid}"))
    };
    let mut expect = vec!["list a".to_owned()];
    expect.extend(of_pod("a"));
    expect.extend(["unlink /links/a/v".to_owned(), "list".to_owned()]);
    assert_eq!(script.rest(), expect);
    script.request("b", VolumeRequest::TearDown);
    let mut expect = vec!["list b".to_owned()];
    expect.extend(of_pod("b"));
    let last = ["unlink /links/b/v", "list", "capabilities", "unstage v", "remove /devices/staging/v"];
    expect.extend(last.map(str::to_owned));
    assert_eq!(script.rest(), expect);
    assert_eq!((script.records.len(), script.links.len(), script.volumes.remembered()), (0, 0, 0));
}

#[test]
fn a_device_that_can_not_be_mapped_fails_its_pod_and_is_unmapped_with_it() {
    let mut script = Script::default();
    script.set_up_device("a", "v");
    script.until("map /devices/v/dev/a");
    script.end("map /devices/v/dev/a", Some(VolumeCallFailureKind::Open));
    let told = script.told();
    assert!(told[0].contains("VolumeFailed { stage: MapDevice"), "{told:?}");
    // The lane is free, and the driver is asked again: only it knows whether the device is the same.
    script.set_up_device("a", "v");
    let again = script.rest();
    assert!(again.contains(&"publish /devices/publish/v/a".to_owned()), "{again:?}");
    assert_eq!(script.told(), ["a ok"]);
    script.request("a", VolumeRequest::TearDown);
    script.until("unmap /devices/v/dev/a");
    script.end("unmap /devices/v/dev/a", Some(VolumeCallFailureKind::Open));
    assert_eq!(script.open(), Vec::<&str>::new(), "the driver is not asked while the device is mapped");
    assert!(script.told()[0].contains("UnmountVolume.TearDown failed for volume"), "it is told");
    assert_eq!((script.records.len(), script.links.len()), (1, 1));
    script.request("a", VolumeRequest::TearDown);
    script.rest();
    assert_eq!((script.records.len(), script.links.len(), script.volumes.remembered()), (0, 0, 0));
}

#[test]
fn a_pod_that_goes_while_its_device_is_mapped_is_waited_for() {
    for call in ["link /links/a/v", "publish /devices/publish/v/a", "map /devices/v/dev/a"] {
        let mut script = Script::default();
        let epoch = script.set_up_device("a", "v");
        script.until(call);
        script.cancel("a", epoch);
        assert_eq!(script.told(), ["a interrupted"], "{call}");
        script.request("a", VolumeRequest::TearDown);
        script.end("list a", None);
        assert_eq!(script.open(), [call], "its end comes first");
        script.end(call, None);
        let ended = script.rest();
        assert!(
            !ended.iter().any(|ended| ended.starts_with("publish") || ended.starts_with("map ")),
            "{ended:?}"
        );
        assert!(ended.contains(&"unmap /devices/v/dev/a".to_owned()), "{call}: {ended:?}");
        assert_eq!(
            (script.records.len(), script.links.len(), script.volumes.remembered()),
            (0, 0, 0),
            "{call}"
        );
    }
}

#[test]
fn a_map_without_a_record_is_removed_without_its_driver() {
    let mut script = Script::default();
    script.links.insert("/links/a/v".into(), "/devices/publish/v/a".into());
    script.request("a", VolumeRequest::TearDown);
    let expect = ["list a", "unmap /devices/v/dev/a", "remove /devices/publish/v/a", "unlink /links/a/v"]
        .map(str::to_owned);
    assert_eq!(script.rest(), expect);
    assert_eq!((script.told(), script.links.len()), (vec!["a ok".to_owned()], 0));
}
