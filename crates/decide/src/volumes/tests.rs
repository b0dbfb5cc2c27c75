use serde_json::{Value, json};

use super::*;
use crate::pod_volumes::MountSource;
use crate::render::sample;

fn pod_with(volume: Value) -> PodView {
    pod_with_resources(volume, json!({}))
}

fn pod_with_resources(volume: Value, resources: Value) -> PodView {
    let mut volume = volume;
    volume["name"] = json!("v");
    sample::pod(json!({
        "containers": [{"name": "c", "resources": resources, "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
        "volumes": [volume],
        "securityContext": {"fsGroup": 7},
    }))
}

fn setups_of(pod: &PodView) -> Result<Vec<VolumeSetup>, VolumeError> {
    let (config, facts) = (sample::config(), sample::facts());
    let now = model::Wall(0);
    volume_setups(&VolumeInputs { config: &config, facts: &facts, pod, cluster: None, node: None, now })
        .map(|found| found.ready)
}

fn medium_of(volume: Value, resources: Value) -> Result<EmptyDirMedium, String> {
    match setups_of(&pod_with_resources(volume, resources)) {
        Ok(mut setups) => match setups.remove(0).kind {
            VolumeKind::EmptyDir { medium, .. } => Ok(medium),
            other => panic!("not an emptyDir: {other:?}"),
        },
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn an_empty_dir_has_its_place_below_the_pod() {
    let expect = VolumeSetup::inline(
        "v",
        VolumeKind::EmptyDir {
            path: "/r/pods/u-1/volumes/kubernetes.io~empty-dir/v".into(),
            ready_marker: "/r/pods/u-1/plugins/kubernetes.io~empty-dir/v/ready".into(),
            medium: EmptyDirMedium::Disk,
            fs_group: Some(7),
            project_quota: false,
        },
    );
    assert_eq!(setups_of(&pod_with(json!({"emptyDir": {}}))), Ok(vec![expect.clone()]));
    assert_eq!(setups_of(&pod_with(json!({}))), Ok(vec![expect]), "no source at all");
}

#[test]
fn only_a_disk_of_a_pod_with_users_of_its_own_gets_a_quota() {
    let with_quota = |gate: bool, host_users: Option<bool>, source: Value| {
        let mut config = sample::config();
        config.features.insert(crate::disk_limits::QUOTA_GATE.into(), gate);
        let mut pod = pod_with(json!({ "emptyDir": source })).spec().clone();
        pod.host_users = host_users;
        let pod = sample::pod(serde_json::to_value(pod).unwrap());
        let (facts, now) = (sample::facts(), model::Wall(0));
        let inputs =
            VolumeInputs { config: &config, facts: &facts, pod: &pod, cluster: None, node: None, now };
        match volume_setups(&inputs).unwrap().ready.remove(0).kind {
            VolumeKind::EmptyDir { project_quota, .. } => project_quota,
            other => panic!("not an emptyDir: {other:?}"),
        }
    };
    assert!(with_quota(true, Some(false), json!({})));
    assert!(with_quota(true, Some(false), json!({"sizeLimit": "1Mi"})));
    assert!(!with_quota(true, Some(false), json!({"medium": "Memory"})));
    assert!(!with_quota(true, Some(true), json!({})));
    assert!(!with_quota(true, None, json!({})), "its users are the host's by default");
    assert!(!with_quota(false, Some(false), json!({})));
}

#[test]
fn memory_is_bounded_by_the_smallest_limit() {
    let check = |source: Value, resources: Value, expect: u64| {
        let medium = medium_of(json!({ "emptyDir": source }), resources);
        assert_eq!(medium, Ok(EmptyDirMedium::Memory { size_bytes: Some(expect) }));
    };
    let memory = || json!({"medium": "Memory"});
    let sized = |size: &str| json!({"medium": "Memory", "sizeLimit": size});
    check(memory(), json!({}), 8 << 30);
    check(sized("8Mi"), json!({}), 8 << 20);
    check(sized("100Gi"), json!({}), 8 << 30);
    check(sized("0"), json!({}), 8 << 30);
    check(memory(), json!({"limits": {"memory": "1Gi"}}), 1 << 30);
    check(sized("2Gi"), json!({"limits": {"memory": "1Gi"}}), 1 << 30);
    check(sized("2Mi"), json!({"limits": {"memory": "1Gi"}}), 2 << 20);
    let unknown_node = HostFacts { memory_bytes: 0, ..sample::facts() };
    let pod = pod_with(json!({"emptyDir": {"medium": "Memory"}}));
    assert_eq!(memory_size(&sample::config(), &unknown_node, &pod, None), None);
}

#[test]
fn huge_page_media() {
    let check = |medium: &str, requests: Value, expect: Result<(u64, u64), &str>| {
        let got = medium_of(
            json!({"emptyDir": {"medium": medium}}),
            json!({"requests": requests, "limits": requests}),
        );
        let expect = expect
            .map(|(page_size_bytes, size_bytes)| EmptyDirMedium::HugePages { page_size_bytes, size_bytes });
        assert_eq!(got, expect.map_err(str::to_owned), "{medium}");
    };
    let one = || json!({"hugepages-2Mi": "8Mi", "memory": "1Mi"});
    let two = || json!({"hugepages-2Mi": "8Mi", "hugepages-1Gi": "1Gi"});
    check("HugePages", one(), Ok((2 << 20, 8 << 20)));
    check("HugePages-2Mi", two(), Ok((2 << 20, 8 << 20)));
    let most = "9223372036852678656";
    let same_size = json!({"hugepages-2Mi": most, "hugepages-2048Ki": most});
    check("HugePages", same_size, Ok((2 << 20, i64::MAX as u64)));
    check("HugePages-1Gi", two(), Ok((1 << 30, 1 << 30)));
    check(
        "HugePages",
        two(),
        Err("medium: HugePages can't be used if container requests multiple huge page sizes"),
    );
    check(
        "HugePages-1Gi",
        one(),
        Err(
            "medium HugePages-1Gi: hugePages storage requested, but there is no resource request for huge pages",
        ),
    );
    check("Floppy", one(), Err("unknown storage medium \"Floppy\""));
}

#[test]
fn host_paths_and_their_checks() {
    let check = |kind: Value, expect: Result<HostPathCheck, &str>| {
        let setups = setups_of(&pod_with(json!({"hostPath": {"path": "/data", "type": kind}})));
        let expect = expect.map(|check| {
            vec![VolumeSetup::inline("v", VolumeKind::HostPath { path: "/data".into(), check })]
        });
        assert_eq!(setups.map_err(|error| error.to_string()), expect.map_err(str::to_owned), "{kind}");
    };
    check(Value::Null, Ok(HostPathCheck::None));
    check(json!(""), Ok(HostPathCheck::None));
    check(json!("DirectoryOrCreate"), Ok(HostPathCheck::DirectoryOrCreate));
    check(json!("Directory"), Ok(HostPathCheck::Directory));
    check(json!("FileOrCreate"), Ok(HostPathCheck::FileOrCreate));
    check(json!("File"), Ok(HostPathCheck::File));
    check(json!("Socket"), Ok(HostPathCheck::Socket));
    check(json!("CharDevice"), Ok(HostPathCheck::CharDevice));
    check(json!("BlockDevice"), Ok(HostPathCheck::BlockDevice));
    check(json!("Tape"), Err("Tape is an invalid volume type"));
    let error = setups_of(&pod_with(json!({"hostPath": {"path": "/a/../b"}}))).unwrap_err();
    assert_eq!(
        mount_failure(error.volume(), &error.to_string()),
        "MountVolume.SetUp failed for volume \"v\" : invalid HostPath `/a/../b`: must not contain '..'"
    );
}

#[test]
fn only_what_is_mounted_is_set_up() {
    let pod = sample::pod(json!({
        "containers": [{"name": "c", "volumeMounts": [{"name": "a", "mountPath": "/a"}]}],
        "initContainers": [{"name": "i", "volumeMounts": [{"name": "b", "mountPath": "/b"}]}],
        "ephemeralContainers": [{"name": "e", "volumeMounts": [{"name": "c", "mountPath": "/c"}]}],
        "volumes": [
            {"name": "unused", "configMap": {"name": "x"}},
            {"name": "c", "emptyDir": {}},
            {"name": "a", "emptyDir": {}},
            {"name": "b", "hostPath": {"path": "/b"}},
        ],
    }));
    let names: Vec<String> = setups_of(&pod).unwrap().into_iter().map(|setup| setup.name).collect();
    assert_eq!(names, ["c", "a", "b"]);
}

#[test]
fn other_types_are_named() {
    let check = |volume: Value, expect: Option<&str>| {
        let got = setups_of(&pod_with(volume.clone())).err().map(|error| error.to_string());
        assert_eq!(got.as_deref(), expect, "{volume}");
    };
    check(json!({"configMap": {"name": "x"}}), Some("volume \"v\" of type configMap is not supported yet"));
    check(
        json!({"iscsi": {"targetPortal": "p", "iqn": "q", "lun": 0}}),
        Some("volume \"v\" of type iscsi is not supported yet"),
    );
    // CVE-2024-10220: a repository's hooks ran on the node, as root. Nothing here runs git.
    check(
        json!({"gitRepo": {"repository": "https://example.com/r", "directory": "."}}),
        Some("volume \"v\" of type gitRepo is not supported yet"),
    );
    check(json!({"image": {"reference": "x"}}), None);
}

#[test]
fn sources_behind_mounts() {
    let check = |volume: Value, expect: (&str, bool, bool)| {
        let pod = pod_with(volume);
        let volume = &pod.spec().volumes.as_ref().unwrap()[0];
        let (path, read_only, managed) = expect;
        let expect = MountSource { path: path.into(), read_only, managed };
        assert_eq!(host_path(&sample::config(), &pod, volume), Ok(expect));
    };
    check(json!({"emptyDir": {}}), ("/r/pods/u-1/volumes/kubernetes.io~empty-dir/v", false, true));
    check(json!({"hostPath": {"path": "/x"}}), ("/x", false, false));
    check(json!({"configMap": {"name": "x"}}), ("/r/pods/u-1/volumes/kubernetes.io~configmap/v", true, true));
    check(json!({"secret": {}}), ("/r/pods/u-1/volumes/kubernetes.io~secret/v", true, true));
    check(json!({"downwardAPI": {}}), ("/r/pods/u-1/volumes/kubernetes.io~downward-api/v", true, true));
    check(
        json!({"projected": {"sources": []}}),
        ("/r/pods/u-1/volumes/kubernetes.io~projected/v", true, true),
    );
}

#[test]
fn sizes_are_told_of_what_is_made_for_the_pod_or_served_to_it() {
    let check = |volume: Value, expect: Option<(&str, bool, bool)>| {
        let (config, facts, pod) = (sample::config(), sample::facts(), pod_with(volume));
        let now = model::Wall(0);
        let inputs =
            VolumeInputs { config: &config, facts: &facts, pod: &pod, cluster: None, node: None, now };
        let found = measured(&inputs);
        let found = found.first().map(|volume| (volume.plugin.as_str(), volume.ephemeral, volume.on_disk));
        assert_eq!(found, expect);
    };
    check(json!({"emptyDir": {}}), Some(("kubernetes.io/empty-dir", true, true)));
    check(json!({"emptyDir": {"medium": "Memory"}}), Some(("kubernetes.io/empty-dir", true, false)));
    check(json!({"configMap": {"name": "x"}}), Some(("kubernetes.io/configmap", true, true)));
    check(json!({"secret": {}}), Some(("kubernetes.io/secret", true, false)));
    check(json!({"hostPath": {"path": "/x"}}), None);
    check(json!({"nfs": {"server": "x", "path": "/x"}}), Some(("kubernetes.io/nfs", false, false)));
    check(json!({"csi": {"driver": "d"}}), Some(("kubernetes.io/csi", false, false)));
    check(json!({"persistentVolumeClaim": {"claimName": "x"}}), None);
}

#[test]
fn a_volume_may_name_its_server() {
    let check = |source: Value, expect: (&str, bool)| {
        let mut setups = setups_of(&pod_with(json!({ "nfs": source }))).unwrap();
        let VolumeKind::Nfs(nfs) = setups.remove(0).kind else { panic!("{source}") };
        assert_eq!((nfs.source.as_str(), nfs.read_only), expect);
        assert_eq!(nfs.target, "/r/pods/u-1/volumes/kubernetes.io~nfs/v");
    };
    check(json!({"server": "s", "path": "/p"}), ("s:/p", false));
    check(json!({"server": "2001:db8::1", "path": "/", "readOnly": true}), ("[2001:db8::1]:/", true));
}
