//! Pods whose volumes have to be attached to a node that has no room for them.

use std::sync::Arc;

use model::csi::{CsiVolumeOnDisk, VolumeId, VolumeRecord};
use model::k8s::Node;
use model::node::NodeConfig;
use model::pod::Source;
use model::storage::{StorageKey, StorageObject, StorageState};
use serde_json::json;

use super::check_on;
use super::script::Script;
use crate::csi::{VolumeCall, VolumeCallAnswer, VolumeCallFailure, VolumeCallFailureKind, attachment_name};
use crate::effect::{Effect, TimerKey};
use crate::event::Event;
use crate::plan::tests::words::yaml;

/// `{spec}` of the driver `d`, which is the only one.
pub fn driver(rest: &str) -> Event {
    let object = json!({"metadata": {"name": "d"}, "spec": yaml(rest)});
    Event::CsiDrivers(vec![Arc::new(serde_json::from_value(object).expect("a driver"))])
}

/// `{status}` of the attachment of volume `h`.
pub fn attachment(rest: &str) -> Event {
    let object = json!({
        "metadata": {"name": name()}, "spec": {"attacher": "d", "nodeName": "n", "source": {}}, "status": yaml(rest),
    });
    let object = serde_json::from_value(object).expect("an attachment");
    let state = StorageState::Present(StorageObject::Attachment(Arc::new(object)));
    Event::StorageRead { key: StorageKey::Attachment { name: name() }, state }
}

fn name() -> String {
    let id = VolumeId { driver: "d".into(), handle: "h".into() };
    attachment_name(&id, &config().node_name)
}

fn config() -> NodeConfig {
    NodeConfig { sources: vec![Source::Api], ..Default::default() }
}

/// A pod that waits for its volume to be attached. `driver`: what is said of it.
fn waiting(driver: &str) -> String {
    format!(
        "
        show events
        pod a = c: {{volumeMounts: [{{name: v, mountPath: /v}}]}}; spec: {{volumes: [{{name: v, persistentVolumeClaim: {{claimName: x}}}}]}}
        up
        driver {driver}
        api a
        looked img-c:1: yes
        claim x: bound p
        pv p: of x {{csi: {{driver: d, volumeHandle: h}}}} => -
        why a => waits for volume v of x (Volume has not been added to the list of VolumesInUse in the node's volume status)
        "
    )
}

const LISTS: &str = "unmounted volumes=[v], unattached volumes=[v], failed to process volumes=[]";

#[test]
fn a_pod_is_rejected_when_the_node_takes_no_more_volumes() {
    check_on(
        config(),
        &format!(
            "
            {}
            due pod a @123s => ask attachment {}
            => W a FailedMount: Unable to attach or mount volumes: {LISTS}: context deadline exceeded
            attachment {{attached: false, attachError: {{message: slow, errorCode: 4}}}} => -
            attachment {{attached: false, attachError: {{message: full, errorCode: 8}}}} => ask driver d
            => W a VolumeAttachmentLimitExceeded: Node has reached its volume attachment limit, rejecting pod. {LISTS}: context deadline exceeded
            => run a: tear-down > drop-cgroup kubepods/besteffort/poda
            ",
            waiting("{nodeAllocatableUpdatePeriodSeconds: 60}"),
            name(),
        ),
    );
}

/// Whoever placed it could not know better.
#[test]
fn a_driver_that_does_not_tell_its_room_is_waited_for() {
    check_on(
        config(),
        &format!(
            "
            {}
            due pod a @123s
            => W a FailedMount: Unable to attach or mount volumes: {LISTS}: context deadline exceeded
            attachment {{attached: false, attachError: {{message: full, errorCode: 8}}}} => -
            ",
            waiting("{attachRequired: true}"),
        ),
    );
}

/// What an earlier agent has left on the node, as one record that can't be read: `v` is staged, and nothing is of `other`.
/// The controller detaches what the Node does not show in volumesInUse.
#[test]
fn volumes_in_use_keep_what_may_be_staged_by_an_unreadable_record() {
    let record_path = "/r/plugins/kubernetes.io/csi/d/HASH/vol_data.json"
        .replace("HASH", "4c94485e0c21ae6c41ce1dfe7b6bfaceea5ab68e40a2476f50208e526f506080");
    let staged = |record| CsiVolumeOnDisk {
        pod: None,
        block: false,
        spec_name: String::new(),
        mount_dir: "/m".into(),
        record_path: record_path.clone(),
        record,
        device: None,
    };
    let node = json!({"status": {"volumesInUse": ["kubernetes.io/csi/d^v", "kubernetes.io/csi/d^other"]}});
    let node: Node = serde_json::from_value(node).expect("a node");
    let node = || Event::NodeObserved(Some(Arc::new(node.clone())));
    let in_use = |run: &Script| {
        run.effects().iter().find_map(|effect| match effect {
            Effect::ReportVolumesInUse { volumes } => Some(volumes.join(" ")),
            _ => None,
        })
    };
    let list = |run: &mut Script, begin: Event, found: Vec<CsiVolumeOnDisk>| {
        run.event(begin);
        let call = run.effects().iter().find_map(|effect| match effect {
            Effect::CallVolume { id, call: VolumeCall::ListRecords } => Some(*id),
            _ => None,
        });
        let id = call.expect("the records are read");
        run.event(Event::VolumeCallEnded { id, result: Ok(VolumeCallAnswer::Records(found)) });
    };
    for node_first in [true, false] {
        let mut run = Script::new(config());
        run.line("up");
        run.event(driver("{}"));
        if node_first {
            run.event(node());
        }
        list(&mut run, Event::CsiEnabled, vec![staged(Err("it is no JSON".into()))]);
        let told = run.effects().iter().any(|effect| matches!(effect, Effect::RecordNodeEvent { .. }));
        assert!(told, "somebody has to mend it");
        if !node_first {
            assert_eq!(in_use(&run), None, "what the Node shows is not known");
            run.event(node());
        }
        assert_eq!(in_use(&run).as_deref(), Some("kubernetes.io/csi/d^v"), "{node_first}");
        // The record is read again, and was removed with the mount meanwhile.
        list(&mut run, Event::Timer(TimerKey::ListVolumes), Vec::new());
        assert_eq!(in_use(&run).as_deref(), Some(""), "{node_first}");
    }
}

/// Records are read before drivers register, so the first try after a start always fails.
#[test]
fn a_volume_that_nobody_uses_is_unstaged_when_its_driver_registers() {
    let called = |run: &Script| {
        run.effects().iter().find_map(|effect| match effect {
            Effect::CallVolume { id, call } => Some((*id, call.clone())),
            _ => None,
        })
    };
    let record =
        VolumeRecord { driver_name: "d".into(), volume_handle: "h".into(), ..VolumeRecord::default() };
    let staged = CsiVolumeOnDisk {
        pod: None,
        block: false,
        spec_name: String::new(),
        mount_dir: "/m".into(),
        record_path: "/vol_data.json".into(),
        record: Ok(Some(record)),
        device: None,
    };
    let mut run = Script::new(config());
    run.line("up");
    run.event(Event::CsiEnabled);
    while let Some((id, VolumeCall::ListRecords)) = called(&run) {
        let result = Ok(VolumeCallAnswer::Records(vec![staged.clone()]));
        run.event(Event::VolumeCallEnded { id, result });
    }
    let Some((id, VolumeCall::NodeGetCapabilities { .. })) = called(&run) else {
        panic!("{:?}", called(&run))
    };
    let failure = VolumeCallFailure { kind: VolumeCallFailureKind::NotRegistered, message: "no".into() };
    run.event(Event::VolumeCallEnded { id, result: Err(failure) });
    assert_eq!(called(&run), None);
    run.event(Event::CsiDriversRegistered(["d".to_owned()].into()));
    assert!(matches!(called(&run), Some((_, VolumeCall::ListRecords))), "{:?}", called(&run));
    run.event(Event::CsiDriversRegistered(["d".to_owned()].into()));
    assert_eq!(called(&run), None, "it is no news");
}
