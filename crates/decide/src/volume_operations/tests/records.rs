//! When the records of volumes are read, and what follows from those that can't be read.

use super::*;

/// The controller may detach a volume that is no longer said to be on the node.
#[test]
fn a_volume_with_an_unreadable_record_stays_on_the_node() {
    for broken in ["/staged/v/vol_data.json", "/pods/b/v/vol_data.json"] {
        let mut script = Script::default();
        script.list_records();
        script.set_up("a", "v");
        script.until("");
        // Another pod, of which this agent knows nothing else.
        let record = script.records["/pods/a/v/vol_data.json"].clone();
        if broken.starts_with("/pods/b") {
            script.records.insert(broken.into(), record);
        }
        script.unreadable.insert(broken.into());
        script.told();
        script.request("a", VolumeRequest::TearDown);
        script.until("");
        let retry = "Unstage(VolumeId { driver: \"d\", handle: \"v\" })";
        assert_eq!(script.told(), ["a ok", retry], "{broken}");
        assert!(script.is_on_node("v"), "{broken}");
        assert!(script.records.contains_key("/staged/v/vol_data.json"), "{broken}");
        // Somebody has written the record anew, or removed it with what it was of.
        script.unreadable.clear();
        script.records.remove("/pods/b/v/vol_data.json");
        script.unstage_due("v");
        script.until("");
        assert!(!script.is_on_node("v"), "{broken}");
        assert_eq!((script.records.len(), script.volumes.remembered()), (0, 0), "{broken}");
    }
}

/// A mount keeps the label that it was made with, so another label needs another mount.
#[test]
fn an_unreadable_record_keeps_a_volume_from_being_unstaged_for_another_label() {
    // Unreadable, and whether the volume is unstaged for a pod that wants another label.
    let rows = [
        (None, true),
        (Some("/pods/a/v/vol_data.json"), false),
        (Some("/staged/v/vol_data.json"), false),
        (Some("/staged/other/vol_data.json"), true),
    ];
    for (unreadable, expect) in rows {
        let mut script = Script::default();
        script.set_up_labelled("a", "v", "one");
        script.until("");
        script.set_up("a", "other");
        script.until("");
        let used = unreadable.is_some_and(|path| path.starts_with("/pods"));
        script.records.retain(|path, _| used || !path.starts_with("/pods"));
        script.unreadable.extend(unreadable.map(str::to_owned));
        script.told();
        script.set_up_labelled("b", "v", "two");
        script.until("unstage v");
        assert_eq!(script.open() == ["unstage v"], expect, "{unreadable:?}");
        let told = script.told().join(" ");
        assert_eq!(told.contains("can't be read"), !expect, "{unreadable:?} {told}");
    }
}

#[test]
fn a_failed_unstaging_leaves_the_label_of_the_mount_known() {
    // The label that the next pod wants, and whether the volume is unstaged for it.
    for (label, unstaged) in [("one", false), ("", true), ("two", true)] {
        let mut script = Script::default();
        script.set_up_labelled("a", "v", "one");
        script.until("");
        script.request("a", VolumeRequest::TearDown);
        script.until("unstage v");
        script.end("unstage v", Some(VolumeCallFailureKind::Open));
        script.set_up_labelled("b", "v", label);
        while script.open() != ["stage v"] && script.open() != ["unstage v"] {
            let [only] = script.open()[..] else { panic!("{:?}", script.open()) };
            let only = only.to_owned();
            script.end(&only, None);
        }
        assert_eq!(script.open() == ["unstage v"], unstaged, "{label:?}");
        script.until("");
        let record = &script.records["/staged/v/vol_data.json"];
        assert_eq!(record.se_linux_mount_context, label, "it is that of the mount");
    }
}

#[test]
fn all_records_are_read_only_for_volumes_that_may_have_to_be_unstaged() {
    let all_read = |script: &Script| script.called.iter().filter(|call| *call == "list").count();

    let mut inline = Script::default();
    let volume = CsiVolume { ephemeral: true, ..volume("a", "v") };
    inline.request("a", VolumeRequest::SetUp { volume: Box::new(volume) });
    inline.until("");
    inline.request("a", VolumeRequest::TearDown);
    inline.until("");
    assert_eq!(inline.told(), ["a ok", "a ok"]);
    assert_eq!((all_read(&inline), inline.volumes.remembered()), (0, 0), "it was never staged");

    // The call that fails, and whether the pod may have the volume no longer.
    for (call, gone) in [("unpublish /pods/a/v/mount", false), ("remove /pods/a/v/mount", true)] {
        let mut script = Script::default();
        script.set_up("a", "v");
        script.until("");
        script.request("a", VolumeRequest::TearDown);
        script.until(call);
        script.end(call, Some(VolumeCallFailureKind::Open));
        script.until("");
        assert_eq!(all_read(&script) > 0, gone, "{call}");
        script.request("a", VolumeRequest::TearDown);
        script.until("");
        assert_eq!((script.records.len(), script.volumes.remembered()), (0, 0), "{call}");
    }
}

#[test]
fn all_records_are_read_once_for_all_volumes_of_an_earlier_agent() {
    let mut script = Script::default();
    for number in 0..20 {
        script.set_up("a", &format!("v{number}"));
        script.until("");
    }
    let mut script = Script { records: script.records, ..Script::default() };
    script.list_records();
    let all_read = script.called.iter().filter(|call| *call == "list").count();
    assert_eq!((all_read, script.open().len()), (2, 0), "first what is there, then whether it is used");
}

#[test]
fn records_that_were_read_too_early_are_read_again() {
    let mut script = Script::default();
    for (uid, handle) in [("a", "v"), ("b", "w")] {
        script.set_up(uid, handle);
        script.until("");
    }
    script.request("a", VolumeRequest::TearDown);
    script.until("list");
    script.request("b", VolumeRequest::TearDown);
    for call in ["list b", "wait /pods/b/w/mount", "unpublish /pods/b/w/mount", "remove /pods/b/w/mount"] {
        script.end(call, None);
    }
    assert_eq!(script.open(), ["list"], "it began while the pod had its volume");
    script.end("list", None);
    assert_eq!(script.open(), ["capabilities", "list"]);
    script.end("capabilities", None);
    script.end("unstage v", None);
    script.end("remove /staged/v/globalmount", None);
    script.until("");
    assert_eq!((script.records.len(), script.volumes.remembered()), (0, 0));
}
