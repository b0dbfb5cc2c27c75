//! Many pods at once: they come, and they go without a trace.

use std::time::Instant;

use crate::support::harness::{Node, wait};
use crate::support::runtime_view::{BURST, RuntimeView, names, sleeper};

const PODS: usize = 50;

#[test]
fn fifty_pods_come_at_once_and_go_at_once() {
    let node = Node::start();
    let seen = RuntimeView::new(&node.runtime);
    let names = names("burst", PODS);

    let start = Instant::now();
    for name in &names {
        node.agent.write_manifest(name, &sleeper(name));
    }
    let running = seen.wait_running(&names, 1, BURST);
    wait("the agent to say so", BURST, || {
        let pods = node.agent.pods()?;
        let running = pods.iter().filter(|pod| pod["status"]["phase"] == "Running").count();
        if running == PODS { Ok(()) } else { Err(format!("{running} of {} pods are Running", pods.len())) }
    });
    println!("{PODS} pods ran after {:.1?}", start.elapsed());
    assert_eq!(running.len(), PODS);

    let start = Instant::now();
    for name in &names {
        node.agent.remove_manifest(name);
    }
    node.wait_clean(BURST);
    wait("the network namespaces to go", BURST, || match node.runtime.network_namespaces() {
        left if left.is_empty() => Ok(()),
        left => Err(format!("{left:?}")),
    });
    wait("the agent to forget them", BURST, || match node.agent.pods()?.len() {
        0 => Ok(()),
        some => Err(format!("{some} pods")),
    });
    println!("{PODS} pods were gone without a trace after {:.1?}", start.elapsed());
}
