use model::SandboxId;
use model::observed::ContainerState::{Exited, Running};
use model::observed::ObservedContainer;
use model::pod::Source;
use serde_json::{Value, json};

use crate::status::has_initialized;
use crate::status::phase::phase;
use crate::status::sample::{self, instance, observed, sandbox, status};
use model::PodPhase;

/// What a row of the table fixes beside the containers.
#[derive(Clone, Copy, Default)]
struct Setting {
    terminal: bool,
    /// A regular container was made in the current sandbox.
    initialized: bool,
    is_static: bool,
}

const LIVE: Setting = Setting { terminal: false, initialized: true, is_static: false };
const INITIALIZING: Setting = Setting { initialized: false, ..LIVE };
const STOPPED: Setting = Setting { terminal: true, ..LIVE };
const STATIC_STOPPED: Setting = Setting { is_static: true, ..STOPPED };

/// `containers` are words `<name>:<state>`: a name that starts with `i` is an init container, with `s` a sidecar,
/// with `c` a regular one; `none` is a container without a status.
fn check(policy: &str, containers: &str, setting: Setting, expect: PodPhase) {
    check_with_rules(policy, json!(null), containers, setting, expect);
}

fn check_with_rules(policy: &str, own: Value, containers: &str, setting: Setting, expect: PodPhase) {
    let mut spec = json!({"restartPolicy": policy, "containers": [], "initContainers": []});
    let mut statuses = Vec::new();
    for word in containers.split_whitespace() {
        let (name, state) = word.split_once(':').unwrap();
        let mut container = json!({"name": name});
        for (key, value) in own.as_object().into_iter().flatten() {
            container[key] = value.clone();
        }
        if name.starts_with('s') {
            container["restartPolicy"] = json!("Always");
        }
        let list = if name.starts_with('c') { "containers" } else { "initContainers" };
        spec[list].as_array_mut().unwrap().push(container);
        if state != "none" {
            statuses.push(status(name, state));
        }
    }
    let source = if setting.is_static { Source::File } else { Source::Api };
    let pod = sample::view(json!({}), spec, Value::Null, source);
    let statuses: Vec<_> = statuses.iter().collect();
    let got = phase(&pod, &statuses, setting.terminal, setting.initialized);
    assert_eq!(got, expect, "{policy} {containers} terminal={}", setting.terminal);
}

#[test]
fn regular_containers() {
    use PodPhase::*;
    for policy in ["Always", "OnFailure", "Never"] {
        check(policy, "c:none", LIVE, Pending);
        check(policy, "c:blank", LIVE, Pending);
        check(policy, "c:wait", LIVE, Pending);
        check(policy, "c:run", LIVE, Running);
        check(policy, "c:run c2:wait", LIVE, Pending);
        check(policy, "c:run c2:none", LIVE, Pending);
        check(policy, "c:run c2:blank", LIVE, Pending);
        check(policy, "c:run c2:0", LIVE, Running);
        check(policy, "c:run c2:1", LIVE, Running);
        check(policy, "c:0 c2:none", LIVE, Pending);
        check(policy, "c:all", LIVE, Running);
    }
    check("Always", "c:0", LIVE, Running);
    check("Always", "c:1", LIVE, Running);
    check("Always", "c:wait/1", LIVE, Running);
    check("Always", "c:wait/0 c2:run", LIVE, Running);
    check("OnFailure", "c:0", LIVE, Succeeded);
    check("OnFailure", "c:1", LIVE, Running);
    check("OnFailure", "c:0 c2:1", LIVE, Running);
    check("OnFailure", "c:0 c2:0", LIVE, Succeeded);
    check("OnFailure", "c:wait/1", LIVE, Running);
    // one that waits after a good end is neither restartable nor a success
    check("OnFailure", "c:wait/0", LIVE, Failed);
    check("Never", "c:0", LIVE, Succeeded);
    check("Never", "c:1", LIVE, Failed);
    check("Never", "c:0 c2:1", LIVE, Failed);
    check("Never", "c:0 c2:0", LIVE, Succeeded);
    check("Never", "c:wait/1", LIVE, Failed);
    check("Never", "c:0 c2:wait/137", LIVE, Failed);
}

#[test]
fn a_pod_that_was_stopped_for_good() {
    use PodPhase::*;
    for policy in ["Always", "OnFailure", "Never"] {
        check(policy, "c:0", STOPPED, Succeeded);
        check(policy, "c:1", STOPPED, Failed);
        check(policy, "c:0 c2:137", STOPPED, Failed);
        check(policy, "c:wait/0", STOPPED, Failed);
        check(policy, "c:wait", STOPPED, Pending);
    }
    // a static pod never reaches an end by being stopped, only by its policy
    check("Always", "c:0", STATIC_STOPPED, Running);
    check("Always", "c:1", STATIC_STOPPED, Running);
    check("OnFailure", "c:1", STATIC_STOPPED, Running);
    check("OnFailure", "c:0", STATIC_STOPPED, Succeeded);
    check("Never", "c:1", STATIC_STOPPED, Failed);
}

#[test]
fn init_containers() {
    use PodPhase::*;
    for policy in ["Always", "OnFailure", "Never"] {
        check(policy, "i:none c:wait", INITIALIZING, Pending);
        check(policy, "i:wait c:wait", INITIALIZING, Pending);
        check(policy, "i:run c:wait", INITIALIZING, Pending);
        check(policy, "i:blank c:run", LIVE, Pending);
        check(policy, "i:0 c:wait", INITIALIZING, Pending);
        check(policy, "i:0 c:run", LIVE, Running);
        check(policy, "i:0 i2:run c:wait", INITIALIZING, Pending);
        check(policy, "i:none c:run", LIVE, Pending);
        check(policy, "i:wait/0 c:run", LIVE, Running);
        check(policy, "i:all c:wait", INITIALIZING, Pending);
    }
    check("Always", "i:1 c:wait", INITIALIZING, Pending);
    check("OnFailure", "i:1 c:wait", INITIALIZING, Pending);
    check("Never", "i:1 c:wait", INITIALIZING, Failed);
    check("Never", "i:wait/1 c:wait", INITIALIZING, Failed);
    check("OnFailure", "i:wait/1 c:wait", INITIALIZING, Pending);
    check("Never", "i:0 i2:3 c:wait", INITIALIZING, Failed);
    check("Never", "i:1 i2:none c:run", LIVE, Failed);
    check("Always", "i:1 c:run", LIVE, Running);
    check("Never", "i:0 c:0", LIVE, Succeeded);
    check("Never", "i:0 c:1", LIVE, Failed);
}

#[test]
fn sidecars() {
    use PodPhase::*;
    check("Always", "s:none c:wait", INITIALIZING, Pending);
    check("Always", "s:none c:run", LIVE, Pending);
    check("Always", "s:wait c:run", LIVE, Pending);
    check("Always", "s:blank c:run", LIVE, Pending);
    check("Always", "s:run! c:wait", INITIALIZING, Pending);
    check("Always", "s:run! c:wait/1", INITIALIZING, Pending);
    check("Always", "s:run! c:run", LIVE, Running);
    check("Always", "s:run c:run", LIVE, Running);
    check("Always", "s:wait/1 c:run", LIVE, Running);
    check("Always", "s:1 c:run", LIVE, Running);
    // as long as a sidecar runs, the pod does
    check("Never", "s:run c:0", LIVE, Running);
    check("Never", "s:run c:1", LIVE, Running);
    check("Never", "s:0 c:0", LIVE, Succeeded);
    check("Never", "s:137 c:0", LIVE, Succeeded);
    check("Never", "s:wait/1 c:0", LIVE, Succeeded);
    check("Never", "s:0 c:1", LIVE, Failed);
    check("Never", "s:1 c:wait", INITIALIZING, Pending);
    check("Never", "i:0 s:run c:wait", INITIALIZING, Pending);
    check("Never", "s:run i:1 c:wait", INITIALIZING, Failed);
}

#[test]
fn policies_and_rules_of_containers() {
    use PodPhase::*;
    let own = |policy: &str, action: &str| {
        let rule = json!({"action": action, "exitCodes": {"operator": "In", "values": [42]}});
        json!({"restartPolicy": policy, "restartPolicyRules": [rule]})
    };
    check_with_rules("Never", own("Never", "Restart"), "c:42", LIVE, Running);
    check_with_rules("Never", own("Never", "Restart"), "c:1", LIVE, Failed);
    check_with_rules("Never", own("Never", "RestartAllContainers"), "c:42", LIVE, Running);
    check_with_rules("Always", own("Never", "Restart"), "c:1", LIVE, Failed);
    check_with_rules("Always", own("Never", "Restart"), "c:0", LIVE, Succeeded);
    check_with_rules("Never", own("OnFailure", "Restart"), "c:1", LIVE, Running);
    check_with_rules("Never", own("Never", "Restart"), "i:42 c:wait", INITIALIZING, Pending);
    check_with_rules("Never", own("Never", "Restart"), "i:1 c:wait", INITIALIZING, Failed);
}

#[test]
fn initialisation_counts_in_the_current_sandbox() {
    let check = |init: Value, containers: Vec<ObservedContainer>, ready: bool, expect: bool| {
        let pod = sample::pod(json!({"containers": [{"name": "c"}], "initContainers": init}));
        let mut observed = observed(containers);
        observed.sandboxes = vec![sandbox(sample::SANDBOX, 0, ready)];
        assert_eq!(has_initialized(&pod, &observed), expect, "{init} {observed:?}");
    };
    let init = || json!([{"name": "i"}]);
    let mut elsewhere = instance("c", 0, Exited, 0);
    elsewhere.sandbox_id = SandboxId::from("old");
    check(json!([]), vec![], false, true);
    check(init(), vec![], true, false);
    check(init(), vec![instance("i", 0, Exited, 0)], true, false);
    check(init(), vec![instance("c", 0, Running, 0)], true, true);
    check(init(), vec![instance("c", 0, Exited, 1)], true, true);
    check(init(), vec![instance("c", 0, Running, 0)], false, false);
    check(init(), vec![elsewhere], true, false);
}
