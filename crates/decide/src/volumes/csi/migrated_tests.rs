//! Migrated in-tree volumes, inline and with claims, up to the calls to their driver.

use std::sync::Arc;

use model::csi::CsiVolume;
use model::pod::PodView;
use model::storage::{StorageKey, StorageObject, StorageState};
use model::volume::VolumeKind;
use model::{Mono, Now, Wall};
use serde_json::{Value, json};

use super::csi_volume_needs;
use crate::objects::ObjectCache;
use crate::pod_volumes::VolumePath;
use crate::render::sample;
use crate::volumes::{VolumeInputs, csi_volume_names, measured, volume_paths, volume_setups};

const NOW: Now = Now { mono: Mono::ZERO, wall: Wall(0) };

fn pod(volume: Value) -> PodView {
    sample::pod(json!({
        "containers": [{"name": "c", "volumeMounts": [{"name": "data", "mountPath": "/d"}]}],
        "volumes": [volume],
    }))
}

/// With a driver of that name, which need not attach.
fn with<T>(
    pod: &PodView,
    volume: Option<Value>,
    driver: &str,
    run: impl FnOnce(&VolumeInputs<'_>) -> T,
) -> T {
    let mut desk = ObjectCache::default();
    let claim = StorageKey::Claim { namespace: "ns".into(), name: "x".into() };
    let key = StorageKey::Volume { name: "pv".into() };
    desk.storage.translate_inline(pod);
    desk.storage.set_wanted(&pod.uid, [claim.clone(), key.clone()].into());
    let object = json!({
        "metadata": {"name": "x", "namespace": "ns", "uid": "u"},
        "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"},
    });
    let object = StorageObject::Claim(Arc::new(serde_json::from_value(object).unwrap()));
    desk.storage.record_read(&claim, StorageState::Present(object), NOW);
    if let Some(volume) = volume {
        let object = StorageObject::Volume(Arc::new(serde_json::from_value(volume).unwrap()));
        desk.storage.record_read(&key, StorageState::Present(object), NOW);
    }
    let object = json!({"metadata": {"name": driver}, "spec": {"attachRequired": false}});
    desk.storage.set_drivers(&[Arc::new(serde_json::from_value(object).unwrap())]);
    desk.csi.set_registered([driver.to_owned()].into());
    let (config, facts) = (sample::config(), sample::facts());
    let node =
        serde_json::from_value(json!({"metadata": {"labels": {"topology.ebs.csi.aws.com/zone": "a"}}}));
    let node = node.unwrap();
    run(&VolumeInputs {
        config: &config,
        facts: &facts,
        pod,
        cluster: Some(&desk),
        node: Some(&node),
        now: Wall(0),
    })
}

fn set_up(inputs: &VolumeInputs<'_>) -> Result<CsiVolume, String> {
    let mut found = volume_setups(inputs).map_err(|error| error.to_string())?;
    match (found.ready.pop().map(|setup| setup.kind), found.not_ready.pop()) {
        (Some(VolumeKind::Csi(volume)), None) => Ok(*volume),
        (_, held) => Err(format!("{held:?}")),
    }
}

#[test]
fn a_volume_in_the_pod_is_staged_and_published_by_its_driver() {
    let pod = pod(json!({"name": "data", "gcePersistentDisk": {"pdName": "disk", "fsType": "ext4"}}));
    assert_eq!(csi_volume_names(&pod), ["data"]);
    with(&pod, None, "pd.csi.storage.gke.io", |inputs| {
        let volume = set_up(inputs).unwrap();
        assert_eq!(volume.id.handle, "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/disk");
        assert!(!volume.ephemeral, "it outlives the pod");
        assert_eq!(volume.spec_name, "pd.csi.storage.gke.io-disk");
        let found = volume_paths(inputs).unwrap().volumes.remove("data");
        assert!(matches!(found, Some(VolumePath::Directory(place)) if place.path == volume.paths.target));
        let figures = measured(inputs);
        assert_eq!((figures.len(), figures[0].claim.as_ref()), (1, None));
        assert_eq!(csi_volume_needs(inputs, false).volumes.len(), 1, "it is told that the node uses it");
    });
}

#[test]
fn a_name_that_is_a_path_makes_one_directory() {
    let pod = pod(json!({"name": "data", "azureDisk": {"diskName": "d", "diskURI": "/subscriptions/s/d"}}));
    with(&pod, None, "disk.csi.azure.com", |inputs| {
        let volume = set_up(inputs).unwrap();
        assert!(volume.paths.target.ends_with("/kubernetes.io~csi/~subscriptions~s~d/mount"), "{volume:?}");
        assert_eq!(volume.spec_name, "/subscriptions/s/d");
    });
}

#[test]
fn a_persistent_volume_becomes_its_drivers() {
    let volume = |zone: &str| {
        json!({
            "metadata": {"name": "pv", "labels": {"topology.kubernetes.io/zone": zone}},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "claimRef": {"namespace": "ns", "name": "x", "uid": "u"},
                "awsElasticBlockStore": {"volumeID": "aws://a/vol-1"},
            },
        })
    };
    let pod = pod(json!({"name": "data", "persistentVolumeClaim": {"claimName": "x"}}));
    with(&pod, Some(volume("a")), "ebs.csi.aws.com", |inputs| {
        let volume = set_up(inputs).unwrap();
        assert_eq!((volume.id.handle.as_str(), volume.spec_name.as_str()), ("vol-1", "pv"));
        assert_eq!(volume.volume_attributes["partition"], "0");
    });
    // The zone counts as the driver's own topology does.
    with(&pod, Some(volume("b")), "ebs.csi.aws.com", |inputs| {
        assert!(set_up(inputs).unwrap_err().contains("no matching NodeSelectorTerms"));
    });
}

#[test]
fn what_cant_be_translated_says_why() {
    let says =
        |pod: &PodView, volume: Option<Value>| with(pod, volume, "d", |inputs| set_up(inputs).unwrap_err());
    let inline = pod(json!({"name": "data", "awsElasticBlockStore": {"volumeID": "aws://a/disk"}}));
    let said = says(&inline, None);
    assert!(
        said.contains("failed to translate in-tree pv to CSI: failed to translate Kubernetes ID"),
        "{said}"
    );
    let claimed = pod(json!({"name": "data", "persistentVolumeClaim": {"claimName": "x"}}));
    let volume = json!({
        "metadata": {"name": "pv"},
        "spec": {
            "claimRef": {"namespace": "ns", "name": "x", "uid": "u"},
            "azureDisk": {"diskName": "d", "diskURI": "/u", "kind": "Shared"},
        },
    });
    let said = says(&claimed, Some(volume));
    assert!(said.contains("kind(Shared) is not supported in csi migration"), "{said}");
}
