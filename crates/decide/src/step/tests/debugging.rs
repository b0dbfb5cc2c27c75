//! Ephemeral containers from the update that adds one to its end.

use model::node::NodeConfig;

use super::check_on;

fn of_api() -> NodeConfig {
    NodeConfig { sources: vec![model::pod::Source::Api], ..Default::default() }
}

const RUNNING: &str = r"
    started
    ready
    services
    pod a = run c d
    api a
    read all: a = s0 ready; c#0 running; d#0 running
";

#[test]
fn an_update_that_adds_one_is_enough_to_start_it() {
    check_on(
        of_api(),
        &format!(
            r"
            show status events
            {RUNNING}
            pod a = run c d; debug e
            api a
            => status a Running c=running d=running e=wait:ContainerCreating
            => look img-e:1
            looked img-e:1: yes
            => N a/e Pulled: Container image 'img-e:1' already present on machine and can be accessed by the pod
            => run a: dirs + cgroup
            done a                    => run a: start e#0?
            done a
            => N a/e Created: Container created | N a/e Started: Container started | read a
            read a: s0 ready; c#0 running; d#0 running; e#0 running
            => status a Running c=running d=running e=running
            # its end is shown, and that is all
            read a: s0 ready; c#0 running; d#0 running; e#0 exit(3)
            => status a Running c=running d=running e=exit(3)
            "
        )
        .replace('\'', "\""),
    );
}

#[test]
fn a_failure_of_its_image_concerns_nobody_else() {
    check_on(
        of_api(),
        &format!(
            r"
            {RUNNING}
            pod a = run c d; debug e; e: {{imagePullPolicy: Never}}
            api a                     => look img-e:1
            show status
            looked img-e:1: no        => status a Running c=running d=running e=wait:ErrImageNeverPull
            read a: s0 ready; c#0 running; d#0 exit(1)
            => status a Running c=running d=exit(1) e=wait:ErrImageNeverPull
            => look img-d:1
            "
        ),
    );
}

#[test]
fn a_target_that_comes_later_is_found_at_the_next_try() {
    check_on(
        of_api(),
        r"
        pod a = run c; debug e; e: {targetContainerName: c}
        up
        api a
        looked img-c:1: yes
        done a
        read a: s0 ready              => run a: start c#0? | look img-e:1
        looked img-e:1: yes           => -
        done a                        => read a
        read a: s0 ready; c#0 running => run a: start e#0?
        ",
    );
}

#[test]
fn an_adopted_one_is_not_started_again() {
    check_on(
        of_api(),
        r"
        pod a = debug e
        started
        ready
        api a
        read all: a = s0 ready; c#0 running; e#0 exit(0)  => -
        ",
    );
}

#[test]
fn a_pod_whose_containers_have_ended_does_not_wait_for_it() {
    check_on(
        of_api(),
        r"
        pod a = restart Never; debug e
        started
        ready
        api a
        read all: a = s0 ready; c#0 running; e#0 running
        read a: s0 ready; c#0 exit(0); e#0 running  => run a: stop e#0 30s > stop-sandbox s0
        state a                                     => terminating 30s
        ",
    );
}
