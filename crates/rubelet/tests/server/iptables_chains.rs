//! `makeIPTablesUtilChains`: the chains and rules of iptables that others on the host expect from a kubelet. What they
//! hold is tested in `host::iptables`.

use std::process::Command;

use serde_json::json;

use crate::support::harness::{Agent, Runtime, SLOW, wait_until};
use crate::support::runtime_view::{RuntimeView, sleeper};

/// The chains in the agent's network namespace.
fn chains(agent: &Agent) -> Vec<String> {
    let pid = agent.pid().expect("an agent that runs").to_string();
    let tables = ["filter", "mangle"].map(|table| {
        let mut list = Command::new("nsenter");
        let output = list.args(["-t", &pid, "-n", "iptables", "-w", "5", "-t", table, "-S"]).output();
        String::from_utf8_lossy(&output.expect("run iptables").stdout).into_owned()
    });
    let lines = tables.iter().flat_map(|rules| rules.lines());
    lines.filter_map(|line| line.strip_prefix("-N KUBE-")).map(str::to_owned).collect()
}

#[test]
fn chains_are_made_where_they_are_wanted() {
    let runtime = Runtime::start();
    let seen = RuntimeView::new(&runtime);
    for wanted in [false, true] {
        let mut agent =
            Agent::prepare(&runtime, &[], |config| config["makeIPTablesUtilChains"] = json!(wanted));
        agent.launch_in_own_network();
        // The chains are begun before the first pod is.
        let pod = format!("pod-{wanted}");
        agent.write_manifest(&pod, &sleeper(&pod));
        seen.wait_pod(&pod, SLOW, |pod| pod.running().next().is_some());
        let expect = ["FIREWALL", "KUBELET-CANARY", "IPTABLES-HINT", "KUBELET-CANARY"];
        if wanted {
            wait_until("the chains", SLOW, || chains(&agent) == expect);
        } else {
            assert_eq!(chains(&agent), [""; 0]);
        }
        assert!(agent.is_running(), "{}", agent.log_tail());
    }
}
