//! What upstream's translation makes of the same volumes (`fixtures.json`: the output of k8s.io/csi-translation-lib
//! v0.36.4 for each input).

use model::k8s::{PersistentVolume, Volume};
use model::volume_source::VolumeSource;
use serde::Deserialize;

use super::{translate_inline, translate_volume};

#[derive(Deserialize)]
struct Case {
    name: String,
    #[serde(default)]
    namespace: String,
    volume: Option<Volume>,
    pv: Option<PersistentVolume>,
    output: Option<PersistentVolume>,
    error: Option<String>,
}

/// `None`: the volume is of no kind that a driver took over.
fn inline(volume: &Volume, namespace: &str) -> Option<Result<PersistentVolume, String>> {
    let VolumeSource::Migrated(source) = VolumeSource::of(volume) else { return None };
    Some(translate_inline(&volume.name, source, namespace))
}

#[test]
fn volumes_become_what_upstream_makes_of_them() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("fixtures.json")).unwrap();
    assert!(cases.len() > 100, "{}", cases.len());
    for case in cases {
        let seen = match (&case.volume, &case.pv) {
            (Some(volume), _) => inline(volume, &case.namespace),
            (None, Some(volume)) => translate_volume(volume),
            (None, None) => panic!("{} has no input", case.name),
        };
        let expect = match (case.output, case.error) {
            (Some(output), None) => Ok(output),
            (_, error) => Err(error.expect("an output or an error")),
        };
        let without_status = |volume: PersistentVolume| PersistentVolume { status: None, ..volume };
        assert_eq!(seen.expect(&case.name).map(without_status), expect.map(without_status), "{}", case.name);
    }
}

#[test]
fn other_kinds_are_left_alone() {
    let volume: Volume =
        serde_json::from_str(r#"{"name": "v", "nfs": {"server": "s", "path": "/"}}"#).unwrap();
    assert!(inline(&volume, "ns").is_none());
    let volume: PersistentVolume =
        serde_json::from_str(r#"{"spec": {"csi": {"driver": "d", "volumeHandle": "h"}}}"#).unwrap();
    assert!(translate_volume(&volume).is_none());
    assert!(translate_volume(&PersistentVolume::default()).is_none());
}

#[test]
fn the_policy_of_a_pods_vsphere_volume_is_told() {
    // Upstream's library ends here with a panic.
    let volume: Volume = serde_json::from_str(
        r#"{"name": "v", "vsphereVolume": {"volumePath": "p", "storagePolicyName": "gold"}}"#,
    )
    .unwrap();
    let made = inline(&volume, "ns").unwrap().unwrap();
    let source = made.spec.unwrap().csi.unwrap();
    assert_eq!(source.volume_attributes.unwrap()["storagepolicyname"], "gold");
}
