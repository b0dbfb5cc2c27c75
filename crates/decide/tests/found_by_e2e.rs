//! What the end-to-end tests found, each as the shortest story that shows it.

// A part of it is for other stories.
#[allow(dead_code)]
#[path = "found_by_sim/node.rs"]
mod node;

use node::{Node, pod};
use serde_json::json;

use decide::Event;
use decide::event::RuntimeCheck;
use model::why::Cause;

/// Without a runtime since the start, `why` said that the pod waits for a look at the runtime, and not that there is
/// none.
#[test]
fn a_pod_that_was_never_read_tells_that_the_runtime_is_away() {
    let mut node = Node::unread();
    node.want(&[pod("u", json!({"containers": [{"name": "c", "image": "i"}]}))]);
    let cause = |node: &Node| node.entry("u").why[0].why.cause.clone();
    assert_eq!(cause(&node), Cause::Observing);
    node.tell(Event::RuntimeChecked(RuntimeCheck::Failed { message: "/run/x.sock: refused".into() }));
    let message = "container runtime is down: /run/x.sock: refused".to_owned();
    assert_eq!(cause(&node), Cause::RuntimeNotReady { message });
}
