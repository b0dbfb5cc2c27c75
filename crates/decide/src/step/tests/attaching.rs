//! Pods whose volumes have to be attached to a node that has no room for them.

use std::sync::Arc;

use model::csi::VolumeId;
use model::node::NodeConfig;
use model::pod::Source;
use model::storage::{StorageKey, StorageObject, StorageState};
use serde_json::json;

use super::check_on;
use crate::csi::attachment_name;
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
