use std::sync::Arc;

use model::storage::{StorageObject, StorageState};
use model::volume::{HostPathCheck, VolumeKind};
use model::{Mono, Now, Wall};
use serde_json::{Value, json};

use super::*;
use crate::objects::ObjectCache;
use crate::pod_volumes::MountSource;
use crate::render::sample;
use crate::volumes::{measured, volume_paths, volume_setups};

const NOW: Now = Now { mono: Mono::ZERO, wall: Wall(0) };

fn pod_with(container: Value) -> PodView {
    let mut container = container;
    container["name"] = json!("c");
    let claim = json!({"claimName": "x"});
    sample::pod(json!({
        "containers": [container],
        "volumes": [{"name": "data", "persistentVolumeClaim": claim}],
    }))
}

fn mounting() -> PodView {
    pod_with(json!({"volumeMounts": [{"name": "data", "mountPath": "/d"}]}))
}

/// A claim and its volume as they should be, to be changed.
fn objects() -> (Value, Value) {
    let claim = json!({
        "metadata": {"name": "x", "namespace": "ns", "uid": "claim-uid"},
        "spec": {"volumeName": "pv"},
        "status": {"phase": "Bound"},
    });
    let volume = json!({
        "metadata": {"name": "pv", "annotations": {}},
        "spec": {"claimRef": {"namespace": "ns", "name": "x", "uid": "claim-uid"}, "hostPath": {"path": "/data"}},
    });
    (claim, volume)
}

fn desk(pod: &PodView, claim: &Value, volume: &Value) -> ObjectCache {
    let mut desk = ObjectCache::default();
    let key = StorageKey::Claim { namespace: "ns".into(), name: "x".into() };
    let pv = StorageKey::Volume { name: "pv".into() };
    desk.storage.set_wanted(&pod.uid, [key.clone(), pv.clone()].into());
    let claim = StorageObject::Claim(Arc::new(serde_json::from_value(claim.clone()).unwrap()));
    desk.storage.record_read(&key, StorageState::Present(claim), NOW);
    let volume = StorageObject::Volume(Arc::new(serde_json::from_value(volume.clone()).unwrap()));
    desk.storage.record_read(&pv, StorageState::Present(volume), NOW);
    desk
}

/// What the pod's volume becomes, or the words about why not.
fn outcome(pod: &PodView, claim: &Value, volume: &Value) -> Result<VolumeKind, String> {
    let (config, facts) = (sample::config(), sample::facts());
    let desk = desk(pod, claim, volume);
    let labels = json!({"metadata": {"name": "n", "labels": {"zone": "z1"}}});
    let node: k8s::Node = serde_json::from_value(labels).unwrap();
    let inputs = VolumeInputs {
        config: &config,
        facts: &facts,
        pod,
        cluster: Some(&desk),
        node: Some(&node),
        now: Wall(0),
    };
    let mut found = volume_setups(&inputs).unwrap();
    match found.not_ready.pop() {
        None => {
            let setup = found.ready.remove(0);
            assert_eq!((setup.name.as_str(), setup.spec_name.as_str()), ("data", "pv"));
            Ok(setup.kind)
        }
        Some(VolumeNotReady::ClaimNotUsable { message, .. }) => Err(message),
        Some(VolumeNotReady::StageFailed { spec_name, stage, block, message, .. }) => {
            assert_eq!(spec_name, "pv");
            Err(format!("{} {}: {message}", stage.reason(block), stage.failed(block)))
        }
        Some(held) => Err(format!("{held:?}")),
    }
}

#[track_caller]
fn check(change: impl FnOnce(&mut Value, &mut Value), expect: &str) {
    let (mut claim, mut volume) = objects();
    change(&mut claim, &mut volume);
    assert_eq!(outcome(&mounting(), &claim, &volume), Err(expect.to_owned()));
}

#[test]
fn a_good_claim_gives_what_stands_behind_it() {
    let (claim, volume) = objects();
    let expect = VolumeKind::HostPath { path: "/data".into(), check: HostPathCheck::None };
    assert_eq!(outcome(&mounting(), &claim, &volume), Ok(expect));
}

#[test]
fn what_a_claim_may_lack() {
    check(|claim, _| claim["status"] = json!({}), "error processing PVC ns/x: PVC is not bound");
    check(
        |claim, _| claim["spec"]["volumeName"] = json!(""),
        "error processing PVC ns/x: PVC has empty pvc.Spec.VolumeName",
    );
    let going = json!("2026-01-01T00:00:00Z");
    check(
        |claim, _| claim["metadata"]["deletionTimestamp"] = going.clone(),
        "error processing PVC ns/x: PVC is being deleted",
    );
    let (mut claim, volume) = objects();
    claim["metadata"]["deletionTimestamp"] = going;
    claim["metadata"]["finalizers"] = json!(["kubernetes.io/pvc-protection"]);
    assert!(outcome(&mounting(), &claim, &volume).is_ok(), "who protects it lets pods use it");
}

#[test]
fn what_a_volume_may_lack() {
    check(
        |_, volume| volume["spec"]["claimRef"] = Value::Null,
        "error processing PVC ns/x: found PV object pv but it has a nil pv.Spec.ClaimRef indicating it is not yet \
         bound to the claim",
    );
    check(
        |_, volume| volume["spec"]["claimRef"]["uid"] = json!("other"),
        "error processing PVC ns/x: found PV object pv but its pv.Spec.ClaimRef.UID other does not point to \
         claim.UID claim-uid",
    );
    check(
        |_, volume| volume["spec"]["volumeMode"] = json!("Block"),
        "volume data has volumeMode Block, but is specified in volumeMounts",
    );
    let (claim, volume) = objects();
    let pod = pod_with(json!({"volumeDevices": [{"name": "data", "devicePath": "/dev/d"}]}));
    let words = "volume data has volumeMode Filesystem, but is specified in volumeDevices";
    assert_eq!(outcome(&pod, &claim, &volume), Err(words.to_owned()));
    check(
        |_, volume| volume["spec"]["mountOptions"] = json!(["noatime"]),
        "FailedMount MountVolume.MountOptionSupport check failed: Mount options are not supported for this volume type",
    );
    check(
        |_, volume| volume["spec"]["hostPath"]["path"] = json!("/a/../b"),
        "FailedMount MountVolume.SetUp failed: invalid HostPath `/a/../b`: must not contain '..'",
    );
    check(
        |_, volume| {
            volume["spec"]["hostPath"] = Value::Null;
            volume["spec"]["iscsi"] = json!({"iqn": "q", "lun": 0, "targetPortal": "p"});
        },
        "FailedMount MountVolume.NewMounter initialization failed: a persistent volume of type iscsi is not supported \
         yet",
    );
}

#[test]
fn a_volume_may_be_of_another_node() {
    let affinity = |zone: &str| {
        let term = json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]});
        json!({"required": {"nodeSelectorTerms": [term]}})
    };
    check(
        |_, volume| volume["spec"]["nodeAffinity"] = affinity("z2"),
        "FailedMount MountVolume.NodeAffinity check failed: no matching NodeSelectorTerms",
    );
    let (claim, mut volume) = objects();
    volume["spec"]["nodeAffinity"] = affinity("z1");
    assert!(outcome(&mounting(), &claim, &volume).is_ok());
}

#[test]
fn what_stands_behind_it_decides_the_step() {
    let (claim, mut volume) = objects();
    volume["spec"]["hostPath"] = Value::Null;
    volume["spec"]["mountOptions"] = json!(["noatime"]);
    volume["spec"]["local"] = json!({"path": "/disk", "fsType": "xfs"});
    let local = LocalVolume {
        name: "pv".into(),
        path: "/disk".into(),
        target: "/r/pods/u-1/volumes/kubernetes.io~local-volume/pv".into(),
        read_only: false,
        fs_type: Some("xfs".into()),
        mount_options: vec!["noatime".into()],
        fs_group: None,
        on_root_mismatch: false,
        create: false,
    };
    assert_eq!(outcome(&mounting(), &claim, &volume), Ok(VolumeKind::Local(Box::new(local))));
    for (path, expect) in [
        ("", "LocalVolume volume \"pv\" path is empty"),
        ("/a/..", "invalid path: /a/.. must not contain '..'"),
    ] {
        volume["spec"]["local"]["path"] = json!(path);
        let got = outcome(&mounting(), &claim, &volume);
        assert_eq!(got, Err(format!("FailedMount MountVolume.SetUp failed: {expect}")));
    }
    volume["spec"]["local"]["path"] = json!("/dev/sdx");
    volume["spec"]["volumeMode"] = json!("Block");
    let pod = pod_with(json!({"volumeDevices": [{"name": "data", "devicePath": "/dev/d"}]}));
    let paths = DevicePaths {
        link: "/r/pods/u-1/volumeDevices/kubernetes.io~local-volume/pv".into(),
        map: "/r/plugins/kubernetes.io~local-volume/volumeDevices/pv/u-1".into(),
    };
    let device = DeviceVolume { device: "/dev/sdx".into(), paths };
    assert_eq!(outcome(&pod, &claim, &volume), Ok(VolumeKind::Device(device)));
    volume["spec"]["local"] = Value::Null;
    volume["spec"]["nfs"] = json!({"server": "s", "path": "/p"});
    let words = "FailedMapVolume MapVolume.NewBlockVolumeMapper initialization failed: a persistent volume of type nfs and \
                 volumeMode Block is not supported yet";
    assert_eq!(outcome(&pod, &claim, &volume), Err(words.to_owned()));
    volume["spec"]["volumeMode"] = json!("Filesystem");
    let nfs = NfsVolume {
        source: "s:/p".into(),
        target: "/r/pods/u-1/volumes/kubernetes.io~nfs/pv".into(),
        mount_options: vec!["noatime".into()],
        read_only: false,
    };
    assert_eq!(outcome(&mounting(), &claim, &volume), Ok(VolumeKind::Nfs(Box::new(nfs))));
}

#[test]
fn where_containers_find_it_and_who_may() {
    let (claim, mut volume) = objects();
    volume["metadata"]["annotations"]["pv.beta.kubernetes.io/gid"] = json!("4321");
    let pod = mounting();
    let (config, facts) = (sample::config(), sample::facts());
    let desk = desk(&pod, &claim, &volume);
    let cluster = Some(&desk);
    let inputs =
        VolumeInputs { config: &config, facts: &facts, pod: &pod, cluster, node: None, now: Wall(0) };
    let found = volume_paths(&inputs).unwrap();
    let source = MountSource { path: "/data".into(), read_only: false, managed: false };
    assert_eq!(found.volumes, [("data".to_owned(), VolumePath::Directory(source))].into());
    assert_eq!(found.groups, [4321]);
}

#[test]
fn options_of_the_annotation_replace_those_of_the_spec() {
    let spec: PersistentVolumeSpec =
        serde_json::from_value(json!({"mountOptions": ["b", "a", "b"]})).unwrap();
    assert_eq!(mount_options(Some(&spec), None), ["a", "b"]);
    assert_eq!(mount_options(Some(&spec), Some(&"ro,noatime".to_owned())), ["noatime", "ro"]);
    assert_eq!(mount_options(None, None), [""; 0]);
}

#[test]
fn sizes_are_told_with_the_name_of_the_claim() {
    let check = |source: Value, mode: &str, expect: Option<(&str, &str)>| {
        let (claim, mut volume) = objects();
        volume["spec"]["hostPath"] = Value::Null;
        volume["spec"].as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        volume["spec"]["volumeMode"] = json!(mode);
        let device = pod_with(json!({"volumeDevices": [{"name": "data", "devicePath": "/dev/x"}]}));
        let pod = if mode == "Block" { device } else { mounting() };
        let (config, facts, desk) = (sample::config(), sample::facts(), desk(&pod, &claim, &volume));
        let inputs = VolumeInputs {
            config: &config,
            facts: &facts,
            pod: &pod,
            cluster: Some(&desk),
            node: None,
            now: Wall(0),
        };
        let found = measured(&inputs);
        let shown = found.first().map(|one| {
            assert_eq!((one.name.as_str(), one.claim.as_deref()), ("data", Some("x")));
            assert!(!one.ephemeral && !one.on_disk, "{one:?}");
            assert_eq!(one.of_driver.is_some(), one.plugin == "kubernetes.io/csi", "{one:?}");
            (one.plugin.as_str(), one.path.as_str())
        });
        assert_eq!(shown, expect, "{source}");
    };
    let local = ("kubernetes.io/local-volume", "/r/pods/u-1/volumes/kubernetes.io~local-volume/pv");
    check(json!({"local": {"path": "/mnt"}}), "Filesystem", Some(local));
    let nfs = ("kubernetes.io/nfs", "/r/pods/u-1/volumes/kubernetes.io~nfs/pv");
    check(json!({"nfs": {"server": "s", "path": "/p"}}), "Filesystem", Some(nfs));
    check(json!({"local": {"path": "/dev/sdx"}}), "Block", None);
    check(json!({"hostPath": {"path": "/data"}}), "Filesystem", None);
    // Its driver also tells of a device.
    let csi = json!({"csi": {"driver": "d", "volumeHandle": "h"}});
    let mount = ("kubernetes.io/csi", "/r/pods/u-1/volumes/kubernetes.io~csi/pv/mount");
    check(csi.clone(), "Filesystem", Some(mount));
    let device = "/r/plugins/kubernetes.io/csi/volumeDevices/pv/dev/u-1";
    check(csi, "Block", Some(("kubernetes.io/csi", device)));
}
