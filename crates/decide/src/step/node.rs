//! The Node object of this node.

use std::sync::Arc;

use model::k8s::Node;

use super::{Context, api, csi};
use crate::state::NodeState;

/// The Node object, or `None` if there is none. Pods are touched if they depend on what changed.
pub(super) fn observed(state: &mut NodeState, cx: &mut Context, node: Option<Arc<Node>>) {
    let before = (state.host_ips(), node_identity(state));
    let volumes = |state: &NodeState| {
        let status = state.node.as_ref().and_then(|node| node.status.clone());
        status.map(|status| (status.volumes_attached, status.volumes_in_use))
    };
    let volumes_before = volumes(state);
    state.node = node;
    if volumes_before != volumes(state) {
        csi::touch_users(state, cx);
    }
    csi::report_volumes_in_use(state, cx);
    cx.room_changed(state);
    if before != (state.host_ips(), node_identity(state)) {
        cx.touched.extend(state.pods.keys().cloned());
        api::all_mirrors(state, cx);
    }
}

/// Whether `read` is an older version of `known`. Versions that are no numbers can't be compared.
pub(super) fn is_older(read: &Node, known: Option<&Node>) -> bool {
    let Some(known) = known.filter(|known| known.metadata.uid == read.metadata.uid) else { return false };
    let version = |node: &Node| node.metadata.resource_version.as_ref()?.parse::<u64>().ok();
    matches!((version(read), version(known)), (Some(read), Some(known)) if read < known)
}

/// Which Node object it is, and whether it is going: all that pods need to know of it beside its addresses.
fn node_identity(state: &NodeState) -> Option<(Option<String>, bool)> {
    let meta = &state.node.as_ref()?.metadata;
    Some((meta.uid.clone(), meta.deletion_timestamp.is_some()))
}
