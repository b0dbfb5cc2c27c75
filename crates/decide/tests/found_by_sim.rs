//! What the simulation found, each as the shortest story that shows it.

#[path = "found_by_sim/node.rs"]
mod node;

use node::{Node, container, sandbox};
use node::{plan, pod, words};
use serde_json::json;

use decide::{Effect, Event};
use model::FullName;
use model::node::NodeConfig;
use model::observed::ContainerState::{Created, Exited, Running};
use model::observed::{Observation, ObservedPod, Scope};
use model::pod::Source;
use model::why::Cause;

/// Found as K8 (calm, seed 77): removed, put in again and changed, all while it was still going, it came back as it
/// had been before the change.
#[test]
fn a_change_to_a_pod_that_comes_back_is_not_lost() {
    let spec = |image: &str| pod("u", json!({"containers": [{"name": "c", "image": image}]}));
    let mut node = Node::new();
    node.want(&[spec("one")]);
    node.want(&[]);
    node.want(&[spec("one")]);
    node.want(&[spec("two")]);
    let entry = node.entry("u");
    let back = entry.standing().recreate_as().expect("it is wanted again");
    assert_eq!(back.containers()[0].image.as_deref(), Some("two"));
    assert_eq!(entry.view().containers()[0].image.as_deref(), Some("one"), "the old one ends as it was");
}

/// Found as K8 (calm, seed 47): with its work done, a pod ran on for ever because of its sidecar.
#[test]
fn a_sidecar_does_not_keep_a_finished_pod_alive() {
    let spec = json!({
        "restartPolicy": "Never",
        "initContainers": [{"name": "side", "image": "i", "restartPolicy": "Always"}],
        "containers": [{"name": "work", "image": "i"}],
    });
    let check = |side: model::observed::ContainerState, expect: &[&str]| {
        let mut node = Node::new();
        let effects = node.want(&[pod("u", spec.clone())]);
        node.succeed(&plan(&effects).expect("the sandbox"));
        let seen = vec![container("work", "i", 0, Exited, 0), container("side", "i", 0, side, 0)];
        let effects = node.see("u", vec![sandbox("s", true)], seen);
        assert_eq!(words(&effects), expect, "{side:?}");
    };
    check(Running, &["stop container", "stop pod sandbox"]);
    // Nor is it started again for a pod that is over.
    check(Exited, &["stop pod sandbox"]);
}

/// Found as broken restart counts (calm, seed 5): with a limit on dead containers over the whole node, the newest
/// instance of a container went too, and with it the knowledge that it had run.
#[test]
fn the_limit_over_all_pods_leaves_the_newest_instances() {
    let mut node = Node::with(NodeConfig {
        max_dead_containers: 0,
        max_dead_containers_per_container: -1,
        ..NodeConfig::default()
    });
    let spec = json!({"restartPolicy": "Never", "containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]});
    let effects = node.want(&[pod("u", spec)]);
    node.succeed(&plan(&effects).expect("the sandbox"));
    let seen = vec![
        container("a", "i", 1, Exited, 0),
        container("a", "i", 0, Exited, 0),
        container("b", "i", 0, Running, 0),
    ];
    node.see("u", vec![sandbox("s", true)], seen);
    let excess: Vec<_> =
        node.entry("u").ledger.excess_dead_containers.iter().map(|id| id.to_string()).collect();
    assert_eq!(excess, ["a-0"]);
}

/// Found as K1 and K8 (faults, seeds 19, 75): the clock was set back between two instances, the later one was taken for
/// the older, and the container that ran was started again (and, since its name was taken, never shown as running).
#[test]
fn the_newest_instance_is_found_although_the_clock_was_set_back() {
    let spec = json!({"containers": [{"name": "c", "image": "i"}]});
    let mut node = Node::new();
    let effects = node.want(&[pod("u", spec)]);
    node.succeed(&plan(&effects).expect("the sandbox"));
    let ended = container("c", "i", 0, Exited, 1);
    let mut runs = container("c", "i", 1, Running, 0);
    runs.created_at = model::Wall(ended.created_at.0 - 500);
    let effects = node.see("u", vec![sandbox("s", true)], vec![ended, runs]);
    assert_eq!(words(&effects), [""; 0]);
    assert_eq!(
        node.entry("u").observed.as_ref().expect("a reading").pod.newest("c").expect("c").restart_count,
        1
    );
}

/// Found as K8 (faults, seed 241): put in again when all of it had just been removed, but not yet seen to be, a pod took
/// the old end of its container for its own, and never ran.
#[test]
fn a_pod_comes_back_only_from_a_fresh_reading() {
    let spec = pod("u", json!({"restartPolicy": "OnFailure", "containers": [{"name": "c", "image": "i"}]}));
    let mut node = Node::new();
    let effects = node.want(std::slice::from_ref(&spec));
    node.succeed(&plan(&effects).expect("the sandbox"));
    let effects = node.see("u", vec![sandbox("s", true)], vec![container("c", "i", 0, Exited, 0)]);
    node.succeed(&plan(&effects).expect("the end of the sandbox"));
    node.want(&[]);
    let effects = node.see("u", vec![sandbox("s", false)], vec![container("c", "i", 0, Exited, 0)]);
    let effects = node.succeed(&plan(&effects).expect("volumes and cgroup go"));
    let removal = plan(&effects).expect("everything is removed");
    assert!(words(&effects).contains(&"remove pod directory"));
    node.succeed(&removal);
    node.want(std::slice::from_ref(&spec));
    let effects = node.see("u", vec![], vec![]);
    assert!(words(&effects).contains(&"create pod sandbox"), "{:?}", words(&effects));
}

/// Found as K1 (faults, seed 573): the first reading of everything failed, a pod was read alone and came up while one of
/// its name, which nobody had seen yet, still ran.
#[test]
fn nothing_is_planned_before_everything_was_read_once() {
    let mut node = Node::unread();
    node.tell(Event::ObserveFailed { scope: Scope::All, message: "away".into() });
    node.want(&[pod("new", json!({"containers": [{"name": "c", "image": "i"}]}))]);
    let effects = node.see("new", vec![], vec![]);
    assert_eq!(words(&effects), [""; 0]);
    // Nor is that a loop of readings.
    assert!(!effects.iter().any(|e| matches!(e, Effect::Observe(_))), "{effects:?}");
    let mut old = ObservedPod::empty("old".into(), FullName::new("p", "ns"));
    old.sandboxes.push(sandbox("s", true));
    old.containers.push(container("c", "i", 0, Running, 0));
    let effects = node.see_everything(vec![old]);
    assert_eq!(words(&effects), ["stop container", "stop pod sandbox"]);
    // Without the other, the first reading of everything is enough to begin.
    let mut node = Node::unread();
    node.want(&[pod("new", json!({"containers": [{"name": "c", "image": "i"}]}))]);
    node.see("new", vec![], vec![]);
    let effects = node.see_everything(vec![]);
    assert!(words(&effects).contains(&"create pod sandbox"));
}

/// Found as K4 (faults, seed 1218): a slow reading of everything that had begun before a pod was removed and forgotten
/// brought it back as an orphan, and would have been the truth for one put in again under its UID.
#[test]
fn a_reading_from_before_a_pod_was_forgotten_does_not_show_it() {
    let spec = pod("u", json!({"containers": [{"name": "c", "image": "i"}]}));
    let ghost = || {
        let mut pod = ObservedPod::empty("u".into(), FullName::new("p", "ns"));
        pod.sandboxes.push(sandbox("s", true));
        pod.containers.push(container("c", "i", 0, Running, 0));
        std::sync::Arc::new(pod)
    };
    let gone = || {
        let mut node = Node::new();
        let effects = node.want(std::slice::from_ref(&spec));
        node.succeed(&plan(&effects).expect("the sandbox"));
        let began = node.now.mono;
        let effects = node.want(&[]);
        assert_eq!(words(&effects), [""; 0], "it has to be read first");
        let effects = node.see_for_long("u", vec![]);
        let effects = node.succeed(&plan(&effects).expect("volumes and cgroup go"));
        node.succeed(&plan(&effects).expect("its directories go"));
        assert!(node.state.pods.is_empty());
        (node, Event::Observed(Observation { at: began, scope: Scope::All, pods: vec![ghost()] }))
    };
    let (mut node, late) = gone();
    let effects = node.tell(late);
    assert_eq!(words(&effects), [""; 0]);
    assert!(node.state.pods.is_empty());
    // Nor is it what there is of a pod that was put in again meanwhile.
    let (mut node, late) = gone();
    let effects = node.want(std::slice::from_ref(&spec));
    assert!(words(&effects).contains(&"create pod sandbox"));
    node.tell(late);
    assert!(node.entry("u").observed.as_ref().expect("a reading").pod.is_empty());
}

/// Found as K1 (faults, seed 48): a start that timed out had its effect a minute later, when another instance had been
/// made and started in its place.
#[test]
fn what_was_made_for_a_lost_start_goes_first() {
    let mut node = Node::new();
    let effects = node.want(&[pod("u", json!({"containers": [{"name": "c", "image": "i"}]}))]);
    node.succeed(&plan(&effects).expect("the sandbox"));
    let image = model::cri::Image { id: "i".into(), ..Default::default() };
    node.tell(Event::ImageInspected {
        image: "i:latest".into(),
        result: Ok(Some(image)),
        history: Default::default(),
    });
    let see_created =
        |node: &mut Node| node.see("u", vec![sandbox("s", true)], vec![container("c", "i", 0, Created, 0)]);
    assert_eq!(words(&see_created(&mut node)), [""; 0], "it may still be started");
    node.pass(std::time::Duration::from_secs(60));
    let effects = see_created(&mut node);
    assert_eq!(words(&effects), ["remove container"]);
    node.succeed(&plan(&effects).expect("the removal"));
    let effects = node.see("u", vec![sandbox("s", true)], vec![]);
    assert_eq!(words(&effects), ["start container"]);
}

/// Found as K7 (faults, seed 184): after a restart a pod that ran was claimed by its source only after another source had
/// wanted another pod of the same name; each then waited for the other.
#[test]
fn who_ran_before_keeps_the_name() {
    let mut node = Node::unread_with(&[Source::File, Source::Http]);
    let running = || {
        let mut pod = ObservedPod::empty("old".into(), FullName::new("p", "ns"));
        pod.sandboxes.push(sandbox("s", true));
        pod.containers.push(container("c", "i", 0, Running, 0));
        pod
    };
    let spec = |uid: &str| pod(uid, json!({"containers": [{"name": "c", "image": "i"}]}));
    node.see_everything(vec![running()]);
    let effects = node.want(&[spec("new")]);
    assert_eq!(words(&effects), [""; 0], "the name is taken by one whom nobody claimed yet");
    let effects = node.want_from(Source::Http, &[spec("old")]);
    assert_eq!(words(&effects), [""; 0], "it runs, and the other waits");
    let causes =
        |node: &Node, uid: &str| node.entry(uid).why.iter().map(|w| w.why.cause.clone()).collect::<Vec<_>>();
    assert_eq!(causes(&node, "old"), [Cause::Running]);
    assert_eq!(causes(&node, "new"), [Cause::NameTaken { holder: "p_ns(old)".into() }]);
}

/// Found as broken restart counts (faults, seed 6): somebody removed a running container, and the next one was made with
/// count 0 and the log file of the first.
#[test]
fn a_container_that_vanished_still_counts() {
    let mut node = Node::new();
    let effects = node.want(&[pod("u", json!({"containers": [{"name": "c", "image": "i"}]}))]);
    node.succeed(&plan(&effects).expect("the sandbox"));
    let image = || model::cri::Image { id: "i".into(), ..Default::default() };
    let mut counts = Vec::new();
    for number in 0..2 {
        // Each time the runtime has no trace of it.
        let seen = match number {
            0 => node.see("u", vec![sandbox("s", true)], vec![]),
            _ => node.see_for_long("u", vec![sandbox("s", true)]),
        };
        let told = node.tell(Event::ImageInspected {
            image: "i:latest".into(),
            result: Ok(Some(image())),
            history: Default::default(),
        });
        let start = plan(&seen).or(plan(&told)).expect("a start");
        counts.extend(start.actions.iter().filter_map(|(_, _, action)| match action {
            decide::Action::StartContainer(start) => Some(start.config.metadata.attempt),
            _ => None,
        }));
        node.succeed(&start);
    }
    assert_eq!(counts, [0, 1]);
}

/// Found as K1 (faults, seed 823): the same as above, with both sources faster than the first reading.
#[test]
fn who_ran_before_keeps_the_name_although_both_sources_spoke_first() {
    let mut node = Node::unread_with(&[Source::File, Source::Http]);
    let spec = |uid: &str| pod(uid, json!({"containers": [{"name": "c", "image": "i"}]}));
    node.want(&[spec("new")]);
    node.want_from(Source::Http, &[spec("old")]);
    let mut old = ObservedPod::empty("old".into(), FullName::new("p", "ns"));
    old.sandboxes.push(sandbox("s", true));
    old.containers.push(container("c", "i", 0, Running, 0));
    let effects = node.see_everything(vec![old]);
    assert_eq!(words(&effects), [""; 0], "it runs, and the other waits");
    let cause = &node.entry("new").why[0].why.cause;
    assert_eq!(*cause, Cause::NameTaken { holder: "p_ns(old)".into() });
}

/// Seen beside seed 901 (faults): with a minimum age and a clock that was set back, garbage waited for the clock.
#[test]
fn garbage_does_not_wait_for_a_clock_that_was_set_back() {
    let mut node = Node::with(NodeConfig {
        min_container_ttl: std::time::Duration::from_secs(30),
        ..NodeConfig::default()
    });
    let effects = node.want(&[pod("u", json!({"containers": [{"name": "c", "image": "i"}]}))]);
    node.succeed(&plan(&effects).expect("the sandbox"));
    let made = |count, state, at: i64| {
        let mut container = container("c", "i", count, state, 1);
        container.created_at = model::Wall(at);
        container
    };
    let now = node.now.wall.0;
    let hour = 3_600_000_000_000;
    let second = 1_000_000_000;
    let seen = |first, second| vec![made(0, Exited, first), made(1, Exited, second), made(2, Running, now)];
    let effects = node.see("u", vec![sandbox("s", true)], seen(now - second, now));
    assert_eq!(words(&effects), [""; 0], "too young");
    let effects = node.see("u", vec![sandbox("s", true)], seen(now + hour, now));
    assert_eq!(words(&effects), ["remove container"]);
}

/// Found as K5 (faults, seeds 1421, 1596): an init container of the old sandbox could not be removed, the new sandbox was
/// made all the same, and the old success let the next container start.
#[test]
fn a_new_sandbox_waits_until_old_init_containers_are_gone() {
    let spec = json!({
        "initContainers": [{"name": "init", "image": "i"}],
        "containers": [{"name": "c", "image": "i"}],
    });
    let mut node = Node::new();
    let effects = node.want(&[pod("u", spec)]);
    node.succeed(&plan(&effects).expect("the sandbox"));
    let effects = node.see("u", vec![sandbox("s", false)], vec![container("init", "i", 0, Exited, 0)]);
    node.succeed(&plan(&effects).expect("the old sandbox is stopped"));
    let effects = node.see("u", vec![sandbox("s", false)], vec![container("init", "i", 0, Exited, 0)]);
    let again = words(&effects);
    assert_eq!(again[0], "remove container");
    assert!(again.contains(&"create pod sandbox"));
    let purge = effects.iter().find_map(|e| match e {
        Effect::RunPlan { stages, .. } => Some(stages[0].stop_on_failure),
        _ => None,
    });
    assert_eq!(purge, Some(true));
}

/// Found as K8 (storage, seed 1204): that a mirror was made was told a second time when it had long been replaced. The one
/// in its place was forgotten, and stayed when its pod had gone.
#[test]
fn an_old_answer_about_a_mirror_does_not_hide_the_one_there_is() {
    let mut node = Node::unread_with(&[Source::File, Source::Api]);
    node.see_everything(vec![]);
    node.want_from(Source::Api, &[]);
    node.want(&[pod("u", json!({"containers": [{"name": "c", "image": "i"}]}))]);
    let full_name = FullName::new("p", "ns");
    let made = |uid: &str| {
        let mut mirror: model::k8s::Pod =
            serde_json::from_value(pod(uid, json!({"containers": []}))).expect("a pod");
        mirror.metadata.annotations =
            Some([(model::pod::ANNOTATION_MIRROR.to_owned(), "h".to_owned())].into());
        let (full_name, result) = (full_name.clone(), Ok(std::sync::Arc::new(mirror)));
        Event::ApiAnswered(decide::event::ApiCallResult::MirrorCreated { full_name, result })
    };
    node.tell(made("new"));
    node.tell(made("old"));
    let seen = node.state.mirrors[&full_name].seen.as_ref().expect("the mirror");
    assert_eq!(seen.uid.as_str(), "new");
}
