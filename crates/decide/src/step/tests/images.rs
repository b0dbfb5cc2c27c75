//! Image pulls: what is inspected, what is pulled, which containers wait, and which Events are recorded.

use model::node::NodeConfig;

use super::{check, check_on};

/// A pod with a good sandbox, and the script that brings it there.
const IN_SANDBOX: &str = r"
    started
    ready
    file a
    read all: a = s0 ready
";

/// `^` stands for a quotation mark.
#[track_caller]
fn check_quoted(script: &str) {
    check(&script.replace('^', "\""));
}

#[test]
fn policies_and_what_the_runtime_has() {
    // policy, what the first effect is, the answer to it, what follows
    for (policy, first, answer, follows) in [
        ("IfNotPresent", "look img-c:1", "looked img-c:1: yes", "run a: dirs + cgroup"),
        ("IfNotPresent", "look img-c:1", "looked img-c:1: no", "pull img-c:1"),
        ("Never", "look img-c:1", "looked img-c:1: yes", "run a: dirs + cgroup"),
        ("Never", "look img-c:1", "looked img-c:1: no", "-"),
        ("Always", "pull img-c:1", "pulled img-c:1: ok", "run a: dirs + cgroup"),
        ("Always", "pull img-c:1", "pulled img-c:1: denied", "-"),
    ] {
        check(&format!(
            r"
            pod a = c: {{imagePullPolicy: {policy}}}
            started
            ready
            file a
            read all: a = s0 ready         => {first}
            {answer}                       => {follows}
            ",
        ));
    }
}

/// Metrics of image requests: policy, whether the image was present, whether a pull was required; and access checks.
#[test]
fn requests_and_checks_are_counted() {
    for (container, answer, request, check_result) in [
        (
            "{imagePullPolicy: IfNotPresent}",
            "looked img-c:1: yes",
            "ifnotpresent Some(true) Some(false)",
            true,
        ),
        (
            "{imagePullPolicy: IfNotPresent}",
            "looked img-c:1: no",
            "ifnotpresent Some(false) Some(true)",
            false,
        ),
        ("{imagePullPolicy: Never}", "looked img-c:1: yes", "never Some(true) Some(false)", true),
        ("{imagePullPolicy: Never}", "looked img-c:1: no", "never Some(false) None", false),
        ("{imagePullPolicy: Always}", "pulled img-c:1: ok", "always None Some(true)", false),
        ("{image: 'UPPER'}", "", "ifnotpresent None None", false),
    ] {
        let script = check(&format!(
            r"
            pod a = c: {container}
            started
            ready
            file a
            read all: a = s0 ready
            {answer}
            "
        ));
        let counts = &script.state.counters;
        let shown = |one: &model::report::ImageRequests| {
            format!("{} {:?} {:?} {}", one.policy, one.present, one.pull_required, one.count)
        };
        let requests: Vec<String> = counts.image_requests.iter().map(shown).collect();
        assert_eq!(requests, [format!("{request} 1")], "{container} {answer}");
        // Nobody of this agent pulled it, and then the default policy asks nothing.
        let checks: Vec<_> =
            counts.access_checks.iter().map(|(word, count)| (word.as_str(), *count)).collect();
        let expect: &[(&str, u64)] = if check_result { &[("credentialPolicyAllowed", 1)] } else { &[] };
        assert_eq!(checks, expect, "{container} {answer}");
    }
}

#[test]
fn a_present_image_is_told_and_used_for_one_start() {
    check_quoted(&format!(
        r"
        show events
        {IN_SANDBOX}                       => look img-c:1
        looked img-c:1: yes
            => N a/c Pulled: Container image ^img-c:1^ already present on machine and can be accessed by the pod
            => run a: dirs + cgroup
        done a                             => run a: start c#0?
        done a                             => N a/c Created: Container created | N a/c Started: Container started | read a
        # the next start looks again
        read a: s0 ready; c#0 exit(1)      => look img-c:1
        ",
    ));
}

#[test]
fn a_pull_is_told_with_its_times_and_size() {
    check_quoted(&format!(
        r"
        show events
        {IN_SANDBOX}
        looked img-c:1: no                 => N a/c Pulling: Pulling image ^img-c:1^ | pull img-c:1
        +2.25s
        pulled img-c:1: ok
            => N a/c Pulled: Successfully pulled image ^img-c:1^ in 1.5s (2.25s including waiting). Image size: 42 bytes.
            => run a: dirs + cgroup
        ",
    ));
}

#[test]
fn a_missing_image_that_may_not_be_pulled_is_told_once_and_looked_for_again() {
    check_quoted(
        r"
        show events status timers
        pod a = c: {imagePullPolicy: Never}
        started
        ready
        file a
        read all: a = s0 ready             => status a Pending c=wait:ContainerCreating | look img-c:1
        looked img-c:1: no
            => W a/c ErrImageNeverPull: Container image ^img-c:1^ is not present with pull policy of Never
            => W a/c Failed: Error: ErrImageNeverPull
            => status a Pending c=wait:ErrImageNeverPull | timer pod a @10s
        why a
            => c: ErrImageNeverPull (Container image ^img-c:1^ is not present with pull policy of Never) @10s
        due pod a @10s                     => look img-c:1
        looked img-c:1: no                 => timer pod a @20s
        due pod a @20s                     => look img-c:1
        looked img-c:1: yes
            => N a/c Pulled: Container image ^img-c:1^ already present on machine and can be accessed by the pod
            => status a Pending c=wait:ContainerCreating | run a: dirs + cgroup
        ",
    );
}

#[test]
fn a_look_that_failed_is_repeated() {
    check_quoted(&format!(
        r"
        show events timers
        {IN_SANDBOX}
        looked img-c:1: broken
            => W a/c InspectFailed: Failed to inspect image ^^: broken | W a/c Failed: Error: ImageInspectError | timer pod a @10s
        why a                              => c: ImageInspectError (Failed to inspect image ^^: broken) @10s
        due pod a @10s                     => look img-c:1
        looked img-c:1: !gone away
            => W a/c InspectFailed: Failed to inspect image ^^: gone away | W a/c Failed: Error: ImageInspectError | check | timer pod a @20s
        ",
    ));
}

#[test]
fn a_failed_pull_backs_off() {
    check_quoted(&format!(
        r"
        show events status timers
        {IN_SANDBOX}
        looked img-c:1: no                 => N a/c Pulling: Pulling image ^img-c:1^ | pull img-c:1
        +3s
        # shown as what it is for a second, then as a wait
        pulled img-c:1: denied
            => W a/c Failed: Failed to pull image ^img-c:1^: denied | W a/c Failed: Error: ErrImagePull
            => status a Pending c=wait:ErrImagePull | timer pod a @4s
        due pod a @4s
            => N a/c BackOff: Back-off pulling image ^img-c:1^ | W a/c Failed: Error: ImagePullBackOff | timer pod a @13s
            => status a Pending c=wait:ImagePullBackOff
        why a                              => c: image back-off 10s ErrImagePull @13s
        hint a                             => read a
        read a: s0 ready                   => -
        due pod a @13s                     => look img-c:1
        looked img-c:1: no                 => N a/c Pulling: Pulling image ^img-c:1^ | pull img-c:1
        pulled img-c:1: denied
            => W a/c Failed: Failed to pull image ^img-c:1^: denied | W a/c Failed: Error: ErrImagePull
            => status a Pending c=wait:ErrImagePull | timer pod a @14s
        due pod a @14s
            => N a/c BackOff: Back-off pulling image ^img-c:1^ | W a/c Failed: Error: ImagePullBackOff | timer pod a @33s
            => status a Pending c=wait:ImagePullBackOff
        why a                              => c: image back-off 20s ErrImagePull @33s
        ",
    ));
}

#[test]
fn the_wait_for_a_pull_repeats_the_last_error() {
    let run = check(&format!("{IN_SANDBOX}\nlooked img-c:1: no\npulled img-c:1: denied\n+1s\ntimer pod a"));
    let failure = &run.state.pods[&"a".into()].ledger.start_failures["c"];
    assert_eq!(failure.reason, model::Reason::ImagePullBackOff);
    assert_eq!(failure.message, "Back-off pulling image \"img-c:1\": ErrImagePull: denied");
}

#[test]
fn some_errors_have_reasons_of_their_own() {
    for (message, reason) in [
        ("RegistryUnavailable: later", "RegistryUnavailable"),
        ("SignatureValidationFailed: who", "SignatureValidationFailed"),
        ("anything else", "ErrImagePull"),
    ] {
        check(&format!(
            "{IN_SANDBOX}\nlooked img-c:1: no\npulled img-c:1: {message}\nwhy a => c: image back-off 10s {reason} @10s"
        ));
    }
}

#[test]
fn every_delay_of_a_pull() {
    let mut script = String::from(IN_SANDBOX);
    let mut now = 0;
    for delay in [10, 20, 40, 80, 160, 300, 300] {
        now += delay;
        script += &format!(
            "looked img-c:1: no => pull img-c:1\npulled img-c:1: no\ndue pod a\ndue pod a @{now}s => look img-c:1\n"
        );
    }
    check(&script);
}

#[test]
fn a_runtime_that_was_away_is_asked_how_it_is() {
    check(&format!("{IN_SANDBOX}\nlooked img-c:1: no\npulled img-c:1: !refused => check"));
}

#[test]
fn one_look_and_one_pull_serve_all_who_wait() {
    check(
        r"
        pod a = run c d; c: {image: x:1}; d: {image: x:1}
        pod b = c: {image: x:1}
        started
        ready
        file a b
        read all: a = s0 ready / b = s0 ready      => look x:1
        looked x:1: no                              => pull x:1
        pulled x:1: ok                              => run a: dirs + cgroup | run b: dirs + cgroup
        done a                                      => run a: start c#0? > start d#0?
        done b                                      => run b: start c#0?
        ",
    );
    check(
        r"
        pod a = c: {image: x:1}
        pod b = c: {image: x:1}
        started
        ready
        file a b
        read all: a = s0 ready / b = s0 ready
        looked x:1: no
        pulled x:1: denied                          => -
        why a                                       => c: image back-off 10s ErrImagePull @10s
        why b                                       => c: image back-off 10s ErrImagePull @10s
        ",
    );
}

#[test]
fn serial_pulls_wait_in_line() {
    let script = |second: &str, third: &str| {
        format!(
            r"
            pod a = c: {{imagePullPolicy: Always}}
            pod b = c: {{image: x:1, imagePullPolicy: Always}}
            pod d = c: {{image: y:1, imagePullPolicy: Always}}
            started
            ready
            read all: a = s0 ready / b = s0 ready / d = s0 ready
            file a b d                              => pull img-c:1{second}
            pulled img-c:1: ok                      => {third}run a: dirs + cgroup
            "
        )
    };
    check(&script("", "pull x:1 | "));
    let parallel = |limit| NodeConfig {
        serialize_image_pulls: false,
        max_parallel_image_pulls: limit,
        ..Default::default()
    };
    check_on(parallel(None), &script(" | pull x:1 | pull y:1", ""));
    check_on(parallel(Some(2)), &script(" | pull x:1", "pull y:1 | "));
}

#[test]
fn who_leaves_the_line_frees_its_place() {
    check(
        r"
        pod a = c: {imagePullPolicy: Always}
        pod b = c: {image: x:1, imagePullPolicy: Always}
        pod d = c: {image: y:1, imagePullPolicy: Always}
        started
        ready
        read all: a = s0 ready / b = s0 ready / d = s0 ready
        file a b d                                  => pull img-c:1
        file a d                                    => run b: stop-sandbox s0
        pulled img-c:1: ok                          => pull y:1 | run a: dirs + cgroup
        # a pull that runs goes on, but nobody starts from it
        file a                                      => run d: stop-sandbox s0
        pulled y:1: ok                              => -
        ",
    );
}

#[test]
fn an_image_that_arrives_ends_the_waits_for_it() {
    // waits in a back-off
    check(&format!(
        r"
        {IN_SANDBOX}
        looked img-c:1: no
        pulled img-c:1: denied
        +2s
        hint-images                                 => look img-c:1
        looked img-c:1: yes                         => run a: dirs + cgroup
        "
    ));
    // was refused
    check(
        r"
        pod a = c: {imagePullPolicy: Never}
        started
        ready
        file a
        read all: a = s0 ready
        looked img-c:1: no
        +2s
        hint-images                                 => look img-c:1
        looked img-c:1: yes                         => run a: dirs + cgroup
        ",
    );
    // it was another one: the back-off goes on as it was
    check(&format!(
        r"
        {IN_SANDBOX}
        looked img-c:1: no
        pulled img-c:1: denied
        +2s
        hint-images                                 => look img-c:1
        looked img-c:1: no                          => -
        why a                                       => c: image back-off 10s ErrImagePull @10s
        hint-images                                 => look img-c:1
        looked img-c:1: no
        due pod a @10s                              => look img-c:1
        looked img-c:1: no                          => pull img-c:1
        "
    ));
    // whoever always pulls is not helped by it
    check(
        r"
        pod a = c: {imagePullPolicy: Always}
        started
        ready
        file a
        read all: a = s0 ready
        pulled img-c:1: denied
        hint-images                                 => -
        ",
    );
    // nobody waits
    check("started\nready\nfile a\nread all: a = s0 ready; c#0 running\nhint-images => -");
}

#[test]
fn what_is_no_image_name_is_refused() {
    check_quoted(
        r"
        show events status timers
        pod a = run c d; c: {image: UPPER, imagePullPolicy: IfNotPresent}
        started
        ready
        file a
        read all: a = s0 ready; d#0 running
            => status a Pending c=wait:ContainerCreating d=running
            => W a/c InspectFailed: Failed to apply default image tag ^UPPER^: couldn't parse image name ^UPPER^: invalid reference format: repository name (library/UPPER) must be lowercase
            => W a/c Failed: Error: InvalidImageName
            => status a Pending c=wait:InvalidImageName d=running | timer pod a @10s
        due pod a @10s                              => timer pod a @20s
        # nor does an image that arrives help it
        hint-images                                 => -
        ",
    );
}

#[test]
fn a_new_image_in_the_spec_is_what_is_waited_for() {
    // the old pull ends while the new one runs
    check(&format!(
        r"
        {IN_SANDBOX}
        looked img-c:1: no                          => pull img-c:1
        pod a = c: {{image: img-c:2}}
        file a                                      => look img-c:2
        looked img-c:2: no                          => -
        pulled img-c:1: ok                          => pull img-c:2
        pulled img-c:2: ok                          => run a: dirs + cgroup
        "
    ));
    // the old look ends while the new one runs
    check(&format!(
        r"
        {IN_SANDBOX}
        pod a = c: {{image: img-c:2}}
        file a                                      => look img-c:2
        looked img-c:1: yes                         => -
        looked img-c:2: yes                         => run a: dirs + cgroup
        "
    ));
    // the failure of the old one is not the new one's
    check(
        &format!(
            r"
        show events
        {IN_SANDBOX}
        looked img-c:1: no
        pod a = c: {{image: img-c:2}}
        file a                                      => look img-c:2
        pulled img-c:1: denied                      => -
        looked img-c:2: no                          => N a/c Pulling: Pulling image ^img-c:2^ | pull img-c:2
        "
        )
        .replace('^', "\""),
    );
    // a back-off or a refusal ends with the image it was for
    check(&format!(
        r"
        {IN_SANDBOX}
        looked img-c:1: no
        pulled img-c:1: denied
        pod a = c: {{image: img-c:2}}
        file a                                      => look img-c:2
        "
    ));
}

#[test]
fn a_container_that_left_the_spec_waits_for_nothing() {
    check(
        r"
        show events
        pod a = run c d
        started
        ready
        file a
        read all: a = s0 ready; c#0 running         => look img-d:1
        looked img-d:1: no
        pod a = run c
        file a                                      => -
        pulled img-d:1: ok                          => -
        why a                                       => running
        ",
    );
}

#[test]
fn images_are_fetched_while_the_sandbox_is_made() {
    check(
        r"
        up
        file a                                      => run a: dirs + cgroup > sandbox#0 | look img-c:1
        looked img-c:1: no                          => pull img-c:1
        done a                                      => read a
        read a: s0 ready                            => -
        why a                                       => c: pulling img-c:1
        pulled img-c:1: ok                          => run a: start c#0?
        ",
    );
    check(
        r"
        up
        file a
        looked img-c:1: yes                         => -
        done a                                      => read a
        read a: s0 ready                            => run a: start c#0?
        ",
    );
}

#[test]
fn nobody_is_woken_for_a_pod_that_ends() {
    check(&format!(
        r"
        show events
        {IN_SANDBOX}
        looked img-c:1: no
        file                                        => run a: stop-sandbox s0
        pulled img-c:1: ok                          => -
        "
    ));
    check(&format!(
        r"
        {IN_SANDBOX}
        file                                        => run a: stop-sandbox s0
        looked img-c:1: no                          => -
        hint-images                                 => -
        "
    ));
}
