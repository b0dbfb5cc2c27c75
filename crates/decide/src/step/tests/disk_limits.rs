//! Pods whose local storage is limited: measured while they run, evicted when they have outgrown it.

use model::node::NodeConfig;
use model::pod::Source;

use super::check_on;

fn of_the_api() -> NodeConfig {
    NodeConfig { sources: vec![Source::Api], ..Default::default() }
}

const LIMITED: &str =
    r#"pod b = spec: {terminationGracePeriodSeconds: 20, volumes: [{name: v, emptyDir: {sizeLimit: "10"}}]}"#;

#[test]
fn a_volume_that_outgrows_its_limit_ends_the_pod() {
    check_on(
        of_the_api(),
        &format!(
            r#"
            {LIMITED}
            pod a = spec: {{terminationGracePeriodSeconds: 20}}
            started
            ready
            api a b
            read all: a = s0 ready; c#0 running / b = s0 ready; c#0 running
            due disk b @10s    => measure b
            used b v=10           => -
            due disk b @20s    => measure b
            used b v=11           => run b: stop c#0 2s > stop-sandbox s0
            used b v=12           => -
            counted               => evicted emptydirfs.limit 1
            done b                => read b
            show status
            read b: s0 dead; c#0 exit(137)
                => status b Failed(Evicted) c=exit(137) | run b: tear-down > drop-cgroup kubepods/besteffort/podb
            timer disk b       => -
            timer disk a       => -
            "#
        ),
    );
}

#[test]
fn nobody_is_measured_before_and_after() {
    check_on(
        of_the_api(),
        &format!(
            r#"
            {LIMITED}
            started
            ready
            read all: -
            api b
            timer disk b       => -
            api
            used b v=11           => -
            "#
        ),
    );
}
