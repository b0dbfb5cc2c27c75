//! The API server's side: statuses, the end of objects, mirrors.

use std::sync::Arc;

use model::k8s::{Node, Pod};
use model::node::NodeConfig;
use model::pod::{ANNOTATION_MIRROR, Source};
use serde_json::{Value, json};

use super::check_on;
use super::script::Script;
use crate::effect::ApiCall;
use crate::event::{ApiCallResult, ApiFailure, ApiFailureKind, Event};

pub fn node(uid: &str) -> Arc<Node> {
    let addresses =
        json!([{"type": "InternalIP", "address": "192.0.2.1"}, {"type": "Hostname", "address": "n"}]);
    let node = json!({"metadata": {"name": "node", "uid": uid}, "status": {"addresses": addresses}});
    Arc::new(serde_json::from_value(node).expect("a node"))
}

/// `labels <key>=<value>`, or `fails`.
pub fn node_read(text: &str) -> Result<Arc<Node>, String> {
    let (word, label) = text.split_once(' ').unwrap_or((text, ""));
    if word == "fails" {
        return Err("no answer".into());
    }
    let (key, value) = label.split_once('=').expect("labels <key>=<value>");
    let mut node = Node::clone(&node("n"));
    node.metadata.labels = Some([(key.to_owned(), value.to_owned())].into());
    Ok(Arc::new(node))
}

impl Script {
    /// `<call> [<how>]` ends the oldest open call that is shown so: `ok`, `gone`, `refused`, `away`.
    pub fn answer(&mut self, rest: &str) -> Vec<String> {
        let (kind, how) = rest.split_once(' ').unwrap_or((rest, "ok"));
        let is = |call: &ApiCall| match call {
            ApiCall::PatchStatus { .. } => kind == "patch",
            ApiCall::DeletePod { .. } => kind == "delete",
            ApiCall::CreateMirror { .. } => kind == "mirror",
            ApiCall::DeleteMirror { .. } => kind == "unmirror",
        };
        let at = self.calls.iter().position(is).unwrap_or_else(|| panic!("no open {kind}: {:?}", self.calls));
        let call = self.calls.remove(at);
        let failure = match how {
            "ok" => None,
            "gone" => Some(ApiFailureKind::Gone),
            "refused" => Some(ApiFailureKind::Refused),
            "away" => Some(ApiFailureKind::Unavailable),
            other => panic!("no answer {other}"),
        };
        let failure = failure.map(|kind| ApiFailure { kind, retry_after: None, message: how.into() });
        let fails = |_: ()| failure.clone().map_or(Ok(()), Err);
        let answer = match call {
            ApiCall::PatchStatus { uid, pod, patch } => {
                let result = fails(()).map(|()| Arc::new(self.patched(&pod.uid, &patch["status"])));
                ApiCallResult::StatusPatched { uid, object: pod.uid, result }
            }
            ApiCall::DeletePod { uid, .. } => ApiCallResult::PodDeleted { uid, result: fails(()) },
            ApiCall::CreateMirror { full_name, pod } => {
                let mut made = Pod::clone(&pod);
                made.metadata.uid = Some(format!("m-{}", full_name.name));
                made.metadata.resource_version = Some("100".into());
                self.objects.insert(made.metadata.uid.as_deref().unwrap().into(), made.clone());
                ApiCallResult::MirrorCreated { full_name, result: fails(()).map(|()| Arc::new(made)) }
            }
            ApiCall::DeleteMirror { full_name, uid } => {
                ApiCallResult::MirrorDeleted { full_name, uid, result: fails(()) }
            }
        };
        self.event(Event::ApiAnswered(answer))
    }

    /// The object after a patch, as a server would merge it: good enough for the fields that these tests look at.
    fn patched(&mut self, uid: &model::PodUid, patch: &Value) -> Pod {
        let known = self.objects.get(uid).cloned().or_else(|| {
            let set = self.state.sources.get(&Source::Api)?;
            set.pods.get(uid).map(|view| Pod::clone(&view.pod))
        });
        let mut object = serde_json::to_value(known.expect("an object")).unwrap();
        let mut status = object.get("status").cloned().unwrap_or_else(|| json!({}));
        for (key, value) in patch.as_object().unwrap().iter().filter(|(key, _)| !key.starts_with('$')) {
            match key.as_str() {
                "conditions" => merge_by(&mut status["conditions"], value, "type"),
                "podIPs" | "hostIPs" => merge_by(&mut status[key], value, "ip"),
                _ if value.is_null() => drop(status.as_object_mut().unwrap().remove(key)),
                _ => merge(&mut status[key], value),
            }
        }
        object["status"] = status;
        let mut pod: Pod = serde_json::from_value(object).expect("a pod");
        pod.metadata.resource_version = Some(next_version(&pod));
        self.objects.insert(uid.clone(), pod.clone());
        pod
    }

    /// A change to the definition leaves the status that was reported.
    pub fn as_the_server_has_it(&mut self, source: Source, pod: Arc<Pod>) -> Arc<Pod> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default().into();
        if source != Source::Api {
            return pod;
        }
        let Some(object) = self.objects.get_mut(&uid) else {
            let mut pod = Pod::clone(&pod);
            pod.metadata.resource_version.get_or_insert("1".into());
            return Arc::new(pod);
        };
        let version = next_version(object);
        object.spec = pod.spec.clone();
        object.metadata = pod.metadata.clone();
        object.metadata.resource_version = Some(version);
        Arc::new(object.clone())
    }

    /// The watch shows the object as it is now.
    fn echo(&mut self, uid: &str) -> Vec<String> {
        let pod = Arc::new(self.objects[&uid.into()].clone());
        self.event(Event::PodChanged { source: Source::Api, pod })
    }
}

fn next_version(pod: &Pod) -> String {
    let version: u64 = pod.metadata.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(1);
    (version + 1).to_string()
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

fn merge_by(list: &mut Value, changes: &Value, by: &str) {
    let mut entries = list.as_array().cloned().unwrap_or_default();
    for change in changes.as_array().into_iter().flatten() {
        let at = entries.iter().position(|e| e[by] == change[by]);
        match (at, change.get("$patch")) {
            (Some(at), Some(_)) => drop(entries.remove(at)),
            (Some(at), None) => merge(&mut entries[at], change),
            (None, Some(_)) => {}
            (None, None) => entries.push(change.clone()),
        }
    }
    *list = Value::Array(entries);
}

fn cluster() -> NodeConfig {
    NodeConfig { sources: vec![Source::Api], ..Default::default() }
}

fn cluster_with_files() -> NodeConfig {
    NodeConfig { sources: vec![Source::Api, Source::File], ..Default::default() }
}

const RUNNING: &str = r"
    started
    ready
    node n1
    api a
    read all: a = s0 ready; c#0 running
";

const DELETED: &str =
    r#"pod a = meta: {deletionTimestamp: "2024-01-01T00:00:00Z", deletionGracePeriodSeconds: 30}"#;

#[test]
fn a_status_goes_out_once_and_its_echo_is_silent() {
    let mut script = check_on(
        cluster(),
        r"
        show api
        started
        ready
        node n1
        api a
        read all: a = s0 ready; c#0 running  => patch a phase=Running
        read a: s0 ready; c#0 running        => -   # nothing new while it is on its way
        answer patch                         => -
        ",
    );
    assert_eq!(script.echo("a"), Vec::<String>::new());
    assert_eq!(script.line("read a: s0 ready; c#0 running"), Vec::<String>::new());
}

#[test]
fn what_changes_meanwhile_goes_with_the_next_call() {
    check_on(
        cluster(),
        &format!(
            r"
            pod a = restart Never
            {RUNNING}
            show api
            hint a                         => read a
            read a: s0 ready; c#0 exit(3)  => run a: stop-sandbox s0
            answer patch                   => patch a      # not over while something may run
            answer patch                   => -
            done a                         => read a
            read a: s0 dead; c#0 exit(3)   => run a: tear-down > drop-cgroup kubepods/besteffort/poda | patch a phase=Failed
            "
        ),
    );
}

#[test]
fn the_object_goes_when_everything_is_released() {
    check_on(
        cluster(),
        &format!(
            r"
            {RUNNING}
            answer patch
            {DELETED}
            show api
            api a                        => run a: stop c#0 30s > stop-sandbox s0
            done a                       => read a
            read a: s0 dead; c#0 exit(0) => run a: tear-down > drop-cgroup kubepods/besteffort/poda | patch a phase=Succeeded
            answer patch                 => -
            state a                      => terminated
            done a                       => delete a
            state a                      => finished
            answer delete                => -
            gone a                       => run a: remove c#0 > remove-sandbox s0 > remove-dir + remove-logs ns_a_a
            done a                       => read a
            read a:                      => forget a
            "
        ),
    );
}

#[test]
fn the_end_of_a_sandbox_is_told_with_the_end_of_its_pod() {
    check_on(
        cluster(),
        &format!(
            r"
            {RUNNING}
            answer patch
            {DELETED}
            show api
            api a                        => run a: stop c#0 30s > stop-sandbox s0
            hint a                       => read a
            read a: s0 ready; c#0 exit(0) => patch a
            answer patch                 => -
            hint a                       => read a
            read a: s0 dead; c#0 exit(0) => -
            done a                       => read a
            read a: s0 dead; c#0 exit(0) => run a: tear-down > drop-cgroup kubepods/besteffort/poda | patch a phase=Succeeded
            "
        ),
    );
}

#[test]
fn a_server_that_is_away_is_asked_again_with_growing_waits() {
    check_on(
        cluster(),
        &format!(
            r"
            {RUNNING}
            show api clocks
            answer patch away      => timer report a @1s
            due report a @1s       => patch a phase=Running
            answer patch away      => timer report a @3s
            due report a @3s       => patch a phase=Running
            answer patch away      => timer report a @7s
            due report a @7s       => patch a phase=Running
            answer patch           => -
            "
        ),
    );
}

#[test]
fn when_the_server_is_back_nobody_waits_out_the_rest() {
    check_on(
        cluster(),
        r"
        started
        ready
        node n1
        api a b
        read all: a = s0 ready; c#0 running / b = s1 ready; c#0 running
        show api
        answer patch away
        answer patch away
        +1
        timer report a            => patch a phase=Running
        answer patch              => patch b phase=Running
        ",
    );
}

#[test]
fn an_object_that_is_gone_is_not_written_to() {
    check_on(
        cluster(),
        &format!(
            r"
            {RUNNING}
            show api
            answer patch gone    => -
            gone a               => run a: stop c#0 30s > stop-sandbox s0
            "
        ),
    );
}

#[test]
fn a_foreign_change_of_our_part_is_put_right_but_not_in_a_hot_loop() {
    let mut script = check_on(
        cluster(),
        &format!(
            r"
            {RUNNING}
            answer patch
            show api
            "
        ),
    );
    let spoil = |script: &mut Script| {
        let object = script.objects.get_mut(&"a".into()).unwrap();
        object.status.as_mut().unwrap().phase = Some("Pending".into());
        object.metadata.resource_version = Some(next_version(object));
        script.echo("a")
    };
    assert_eq!(spoil(&mut script), ["patch a phase=Running"]);
    assert_eq!(script.line("answer patch"), Vec::<String>::new());
    assert_eq!(spoil(&mut script), Vec::<String>::new(), "the same difference again: later");
    assert_eq!(script.line("due report a"), ["patch a phase=Running"]);
}

#[test]
fn static_pods_get_a_mirror_and_report_to_it() {
    check_on(
        cluster_with_files(),
        r#"
        pod a = meta: {annotations: {kubernetes.io/config.hash: h1}}
        started
        ready
        file a
        read all: a = s0 ready; c#0 running
        show api
        api                       => -                # the node has no object yet
        node n1                   => mirror a
        answer mirror             => patch m-a phase=Running
        answer patch              => -
        node n1                   => -
        gone m-a                  => -                # the watch never showed it
        "#,
    );
}

#[test]
fn a_mirror_that_vanishes_is_made_again() {
    let mut script = mirrored();
    let mut lines = |line: &str| script.line(line);
    assert_eq!(lines("gone m-a"), ["mirror a"]);
    assert_eq!(lines("answer mirror"), ["patch m-a phase=Running"]);
}

/// Found by the simulation: the late answer of a call to the mirror before was taken for one about this one.
#[test]
fn an_answer_about_an_earlier_mirror_says_nothing_of_this_one() {
    let mut script = mirrored();
    script.line("hint a");
    assert_eq!(script.line("read a: s0 ready; c#0 exit(1)").last().map(String::as_str), Some("patch m-a"));
    let late = script.calls.pop().expect("the patch");
    assert_eq!(script.line("gone m-a"), ["mirror a"]);
    script.line("answer mirror");
    let mut other = script.objects[&"m-a".into()].clone();
    other.metadata.uid = Some("m-b".into());
    let view = model::pod::PodView::new(Arc::new(other), Source::Api);
    script.state.mirrors.values_mut().for_each(|m| m.seen = Some(view.clone()));
    script.line("read a: s0 ready; c#0 exit(1)");
    script.calls = vec![late];
    script.line("answer patch gone");
    assert!(script.state.mirrors.values().all(|m| m.seen.is_some()));
}

#[test]
fn a_mirror_that_is_deleted_is_ended_at_once_and_made_again() {
    let mut script = mirrored();
    let object = script.objects.get_mut(&"m-a".into()).unwrap();
    object.metadata.deletion_timestamp = Some(model::Wall(0).api_time());
    assert_eq!(script.echo("m-a"), ["unmirror m-a"]);
    assert_eq!(script.line("answer unmirror"), ["mirror a"]);
}

#[test]
fn the_mirror_goes_with_its_pod_not_before() {
    let mut script = mirrored();
    let table = [
        ("file", vec!["run a: stop c#0 30s > stop-sandbox s0"]),
        ("done a", vec!["read a"]),
        (
            "read a: s0 dead; c#0 exit(0)",
            vec!["run a: tear-down > drop-cgroup kubepods/besteffort/poda", "patch m-a"],
        ),
        // the last status first
        ("answer patch", vec!["unmirror m-a"]),
    ];
    for (line, expect) in table {
        assert_eq!(script.line(line), expect, "{line}");
    }
}

/// Whoever watches the mirror of a static pod that was changed sees the old pod until that has ended.
#[test]
fn the_mirror_of_a_changed_pod_stays_until_the_old_pod_has_ended() {
    let mut script = mirrored();
    script.line("pod b = meta: {name: a, annotations: {kubernetes.io/config.hash: h2}}");
    let table = [
        ("file b", vec!["run a: stop c#0 30s > stop-sandbox s0"]),
        ("done a", vec!["read a"]),
        (
            "read a: s0 dead; c#0 exit(0)",
            vec!["run a: tear-down > drop-cgroup kubepods/besteffort/poda", "patch m-a"],
        ),
        ("answer patch", vec!["unmirror m-a"]),
        ("answer unmirror", vec!["mirror a"]),
    ];
    for (line, expect) in table {
        assert_eq!(script.line(line), expect, "{line}");
    }
}

/// The API server refuses every status in which a container left the terminated state against its policy.
#[test]
fn a_container_that_is_killed_to_be_started_again_is_never_shown_as_ended() {
    for policy in ["Never", "OnFailure", "Always"] {
        let mut script = check_on(
            cluster(),
            &format!(
                "pod a = restart {policy}\nstarted\nready\nnode n1\nshow api\napi a\nread all: a = s0 ready; c#0 running"
            ),
        );
        script.line(&format!("pod a = restart {policy}; c: {{image: another:1}}"));
        assert!(script.line("api a").contains(&"run a: stop c#0 30s".to_owned()), "{policy}");
        for line in ["done a", "read a: s0 ready; c#0 exit(0)"] {
            script.line(line);
        }
        let entry = &script.state.pods[&"a".into()];
        let status = entry.status.as_ref().expect("a status");
        assert_eq!(status.phase.as_deref(), Some("Running"), "{policy}");
        let shown = &status.container_statuses.as_ref().expect("statuses")[0];
        let waiting = shown.state.as_ref().and_then(|state| state.waiting.as_ref());
        assert!(waiting.is_some(), "{policy}: {shown:?}");
        let ended = shown.last_state.as_ref().and_then(|state| state.terminated.as_ref());
        assert_eq!(ended.map(|end| end.exit_code), Some(0), "{policy}");
    }
}

/// This node does not resize pods: the allocated resources are still reported and counted, and the pending resize is
/// reported.
#[test]
fn a_resize_that_nobody_applies_does_not_look_done() {
    let text = |generation: u32, cpu: &str| {
        format!("pod a = meta: {{generation: {generation}}}; c: {{resources: {{requests: {{cpu: {cpu}}}}}}}")
    };
    let begin = format!(
        "{}\nstarted\nready\nnode n1\nshow events\napi a\nread all: a = s0 ready; c#0 running",
        text(1, "100m")
    );
    let mut script = check_on(cluster(), &begin);
    let told = |script: &Script| {
        let entry = &script.state.pods[&"a".into()];
        let status = serde_json::to_value(entry.status.as_deref().expect("a status")).expect("JSON");
        let conditions = status["conditions"].as_array().expect("conditions").iter();
        let pending = conditions.into_iter().find(|c| c["type"] == "PodResizePending");
        let allocated = &status["containerStatuses"][0]["allocatedResources"]["cpu"];
        let words = (
            allocated.clone(),
            status["allocatedResources"]["cpu"].clone(),
            pending.map(|c| (c["reason"].clone(), c["observedGeneration"].clone())),
        );
        (words, entry.requests().cpu_millis(), script.state.pods.requests().burstable_milli_cpu())
    };
    let as_admitted = || (json!("100m"), json!("100m"));
    let (allocated, whole) = as_admitted();
    assert_eq!(told(&script), ((allocated, whole, None), 100, 100));
    script.line(&text(2, "300m"));
    let effects = script.line("api a");
    let count = |reason: &str, effects: &[String]| effects.iter().filter(|e| e.contains(reason)).count();
    assert_eq!(count("W a ResizeInfeasible: Pod resize Infeasible: ", &effects), 1, "{effects:?}");
    assert_eq!(count("run a", &effects), 0, "{effects:?}");
    let (allocated, whole) = as_admitted();
    let pending = Some((json!("Infeasible"), json!(2)));
    assert_eq!(told(&script), ((allocated, whole, pending), 100, 100));
    // reported once, and withdrawn when the spec requests the allocated resources again
    assert_eq!(count("ResizeInfeasible", &script.line("api a")), 0);
    script.line(&text(3, "100m"));
    assert_eq!(count("ResizeInfeasible", &script.line("api a")), 0);
    let (allocated, whole) = as_admitted();
    assert_eq!(told(&script), ((allocated, whole, None), 100, 100));
}

/// The Event names the features that a node must declare for such a resize; this one declares neither.
#[test]
fn a_resize_that_needs_features_names_those_that_are_missing() {
    let text = |generation: u32, cpu: &str| {
        format!(
            "pod a = meta: {{generation: {generation}}}; init i; run c; \
             i: {{resources: {{requests: {{cpu: {cpu}}}}}}}; spec: {{resources: {{requests: {{cpu: {cpu}}}}}}}"
        )
    };
    let missing = |declares: bool| {
        let mut config = cluster();
        config.features.insert("NodeDeclaredFeatures".into(), declares);
        let begin = format!("{}\nstarted\nready\nnode n1\nshow events\napi a", text(1, "100m"));
        let mut script = check_on(config, &begin);
        script.line(&text(2, "300m"));
        let mut told = || {
            let mut effects = script.line("api a");
            effects.retain(|effect| effect.contains("FailedNodeDeclaredFeaturesCheck"));
            effects
        };
        let first = told();
        assert_eq!(told(), [""; 0], "told once");
        first
    };
    let expect = "W a FailedNodeDeclaredFeaturesCheck: Pod requires node features that are not available: \
                  InPlacePodLevelResourcesVerticalScaling, InPlacePodVerticalScalingInitContainers";
    assert_eq!(missing(true), [expect]);
    assert_eq!(missing(false), [""; 0]);
}

#[test]
fn a_last_status_that_cannot_be_told_keeps_no_mirror() {
    let mut script = mirrored();
    for line in ["file", "done a", "read a: s0 dead; c#0 exit(0)"] {
        script.line(line);
    }
    assert!(script.line("answer patch refused").contains(&"unmirror m-a".to_owned()));
}

#[test]
fn a_mirror_of_nobody_is_deleted_once_all_sources_have_spoken() {
    let mut script = check_on(cluster_with_files(), "show api\nstarted\nready\nnode n1\nread all:");
    let pod = json!({
        "metadata": {"name": "x-node", "namespace": "ns", "uid": "m1", "annotations": {ANNOTATION_MIRROR: "h"}},
        "spec": {"containers": []},
    });
    let pod = Arc::new(serde_json::from_value(pod).unwrap());
    assert_eq!(
        script.event(Event::PodSetDelivered { source: Source::Api, pods: vec![pod] }),
        Vec::<String>::new()
    );
    assert_eq!(script.line("file"), ["unmirror m1"]);
    assert_eq!(script.line("answer unmirror"), Vec::<String>::new());
}

/// A static pod that runs, with a mirror that the watch has shown.
fn mirrored() -> Script {
    let mut script = check_on(
        cluster_with_files(),
        r#"
        pod a = meta: {annotations: {kubernetes.io/config.hash: h1}}
        started
        ready
        node n1
        file a
        read all: a = s0 ready; c#0 running
        api
        answer mirror
        answer patch
        show api
        "#,
    );
    assert_eq!(script.echo("m-a"), Vec::<String>::new());
    script
}
