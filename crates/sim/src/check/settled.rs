//! The state that a run must reach once there are no more faults (K8).

use model::{PodPhase, PodReason};
use std::collections::BTreeMap;
use std::sync::Arc;

use decide::state::PodEntry;
use decide::{NodeState, publish, render};
use model::k8s::{Container as Spec, Pod, PodStatus};
use model::observed::ContainerState;
use model::pod::{PodView, RestartPolicy, Source, is_sidecar};
use model::{PodUid, Wall};

use crate::drive::cluster::is_mirror;
use crate::time::{Nanos, SECOND};
use crate::workload::{CONTENT, NEW_LABEL, is_rejected, is_unmountable, objects_of};
use crate::world::{Lifetime, NODE_MEMORY, RESTART_ALL_EXIT_CODE, VERSION, World, claims_of, signers_of};

/// Why the node has not reached that state, if so.
pub fn unsettled<'a>(
    world: &World,
    state: &NodeState,
    sources: &BTreeMap<Source, BTreeMap<String, Arc<Pod>>>,
    uids: impl Iterator<Item = &'a PodUid>,
) -> Option<String> {
    let mut wanted = BTreeMap::new();
    for (source, set) in sources {
        for pod in set.values().filter(|pod| !is_mirror(pod)) {
            let view = PodView::new(pod.clone(), *source);
            wanted.insert(view.uid.clone(), view);
        }
    }
    for uid in uids {
        let problem = match wanted.get(uid) {
            Some(view) if waits_for_name(world, &wanted, view) => {
                world.anything_live(uid).then(|| "runs beside another of its name".to_owned())
            }
            Some(view) => pod(world, state, view),
            None => nothing_left(world, uid).or_else(|| {
                let known = state.pods.contains_key(uid) && !world.removed_but_listed.any_of(uid);
                known.then(|| "is still known".to_owned())
            }),
        };
        if let Some(problem) = problem {
            let why = state.pods.get(uid).map(|e| (e.lifecycle(), &e.why));
            return Some(format!("pod {uid}: {problem} (the agent says: {why:?})"));
        }
    }
    large_log(world, state)
        .or_else(|| super::cgroups::wrong_class_values(world, state))
        .or_else(|| pressure(world, state))
        .or_else(|| mirrors(state, sources))
}

/// Pressure is reported as long as memory is short, and not much longer.
fn pressure(world: &World, state: &NodeState) -> Option<String> {
    if state.config.eviction.thresholds.is_empty() {
        return None;
    }
    let left = NODE_MEMORY.saturating_sub(world.memory_used());
    let short = left < SHORT_OF_MEMORY;
    let told = state.eviction.pressure().memory;
    (short != told).then(|| format!("{left} bytes of memory are left, and MemoryPressure is {told}"))
}

/// The threshold of [`crate::workload::memory_threshold`].
const SHORT_OF_MEMORY: u64 = 200 << 20;

/// How late a full log may be noticed: the longest pause between two measurements, and slow calls.
const LOG_SLACK: Nanos = 5 * SECOND;

fn large_log(world: &World, state: &NodeState) -> Option<String> {
    let limit = state.config.log_rotation.as_ref()?.max_bytes;
    for container in world.containers.values().filter(|container| container.is_live()) {
        let most = limit + World::log_rate(&container.id) * (LOG_SLACK / SECOND);
        if let Some(size) = world.log_size(&container.id).filter(|size| *size > most) {
            return Some(format!(
                "the log of container {} of pod {} has {size} bytes",
                container.name, container.uid
            ));
        }
    }
    None
}

/// Another pod has the same name: it came first, and runs.
fn waits_for_name(world: &World, wanted: &BTreeMap<PodUid, PodView>, view: &PodView) -> bool {
    let has_it = |other: &&PodView| {
        other.uid != view.uid
            && other.full_name == view.full_name
            && (world.sandboxes_of(&other.uid).any(|(_, s)| s.ready)
                || is_unmountable(&other.pod)
                || gets_no_second_sandbox(world, other))
    };
    view.source.is_static()
        && wanted.values().filter(|o| o.source.is_static()).any(|o| has_it(&o))
        && !world.sandboxes_of(&view.uid).any(|(_, s)| s.ready)
}

/// What is left of a pod that no source has.
pub fn nothing_left(world: &World, uid: &PodUid) -> Option<String> {
    if let Some(container) = world.of_pod(uid).next() {
        return Some(format!("container {} is left in state {:?}", container.name, container.state));
    }
    if world.sandboxes_of(uid).next().is_some() {
        return Some("a sandbox is left".into());
    }
    if world.disk.pods.contains_key(uid) {
        return Some("its directory is left".into());
    }
    if world.storage.has_any(uid) {
        return Some("a volume of a storage driver is mounted".into());
    }
    let suffix = format!("_{uid}");
    if let Some(dir) = world.disk.logs.keys().find(|name| name.ends_with(&suffix)) {
        return Some(format!("log directory {dir} is left"));
    }
    let part = format!("pod{uid}");
    if world.cgroups.keys().any(|name| name.0.last() == Some(&part)) {
        return Some("its cgroup is left".into());
    }
    None
}

fn pod(world: &World, state: &NodeState, view: &PodView) -> Option<String> {
    let uid = &view.uid;
    let Some(entry) = state.pods.get(uid) else { return Some("is not known to the agent".into()) };
    if entry.standing().is_removed() {
        return Some("counts as removed".into());
    }
    if entry.view().pod.spec != view.pod.spec {
        return Some("the agent has another spec of it".into());
    }
    let Some(status) = entry.status.as_deref() else { return Some("has no status".into()) };
    if let Some(problem) = missing_from_api_server(view, entry) {
        return Some(problem);
    }
    let phase = PodPhase::of(status);
    if is_rejected(&view.pod) {
        let there = world.of_pod(uid).next().is_some() || world.sandboxes_of(uid).next().is_some();
        let failed = phase == Some(PodPhase::Failed);
        return (!failed || there).then(|| format!("was rejected and is {phase:?}"));
    }
    if is_unmountable(&view.pod) {
        let there = world.of_pod(uid).next().is_some() || world.sandboxes_of(uid).next().is_some();
        return there.then(|| "can't be mounted, and is there".to_owned());
    }
    match phase {
        Some(phase) if phase.is_terminal() => ended(world, view, status, phase),
        _ if past_deadline(world, view, status) => Some("is past its deadline, and goes on".into()),
        _ if ready_against_gate(view, status) => Some("is ready although its gate is shut".into()),
        // Another pod uses a claim that only one pod may use.
        _ if claims_of(&view.pod).any(|(_, claim)| world.storage.taken_from(uid, claim)) => None,
        _ if lacks_certificate(world, view) => Some("has no certificate that is good".into()),
        // A pod that is never restarted, and whose sandbox is gone, uses no volume any more.
        _ if world.sandboxes_of(uid).any(|(_, sandbox)| sandbox.ready)
            && claims_of(&view.pod).any(|(_, claim)| world.storage.too_small(uid, claim)) =>
        {
            Some("its claim does not say that its volume has grown".into())
        }
        _ if shows_old_files(world, view) => Some("its volume shows an old version".into()),
        _ => check_running(&RunningPod { world, view, status, entry, longest_wait: longest_wait(state) }),
    }
}

/// Time enough for the agent to notice.
const DEADLINE_SLACK_SECS: i64 = 30;

fn past_deadline(world: &World, view: &PodView, status: &PodStatus) -> bool {
    let Some(secs) = view.spec().active_deadline_seconds else { return false };
    let Some(start) = status.start_time.as_ref().map(|t| Wall::from_timestamp(t.0)) else { return false };
    (world.wall().0 - start.0) / SECOND as i64 > secs + DEADLINE_SLACK_SECS
}

fn ready_against_gate(view: &PodView, status: &PodStatus) -> bool {
    let gates = view.spec().readiness_gates.iter().flatten();
    let shown = view.pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
    let open: Vec<&str> = shown.filter(|c| c.status == "True").map(|c| c.type_.as_str()).collect();
    let shut = gates.into_iter().any(|gate| !open.contains(&gate.condition_type.as_str()));
    let ready = status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
    shut && ready
}

/// A running container whose files are outdated.
fn shows_old_files(world: &World, view: &PodView) -> bool {
    let Some(object) = objects_of(&view.pod).1 else { return false };
    let shown = world.disk.content.get(&(view.uid.clone(), CONTENT.to_owned()));
    let newest = world.objects.text(&object).unwrap_or_default();
    world.anything_live(&view.uid)
        && !shown.is_some_and(|shown| shown.contains(&format!("{VERSION}={newest};")))
}

/// A running container whose certificate is missing or has expired.
fn lacks_certificate(world: &World, view: &PodView) -> bool {
    let shown = world.disk.content.get(&(view.uid.clone(), CONTENT.to_owned()));
    let ends = shown.and_then(|files| world.signer.ends(files));
    signers_of(&view.pod).next().is_some()
        && world.anything_live(&view.uid)
        && ends.is_none_or(|ends| ends <= world.wall())
}

/// What the API server lacks of the agent's status, or has although it should be deleted.
fn missing_from_api_server(view: &PodView, entry: &PodEntry) -> Option<String> {
    if view.source != Source::Api {
        return None;
    }
    if view.is_deleting() {
        return Some("is deleted, and its object is still there".into());
    }
    let shown = view.pod.status.clone().unwrap_or_default();
    let status = entry.status.as_deref()?;
    let merged = publish::merge(&shown, status, !entry.lifecycle().is_terminated());
    let open = publish::patch(&shown, &merged)?;
    Some(format!("the API server lacks {open}"))
}

/// Every static pod that was admitted has one mirror, and there are no other mirrors.
pub fn mirrors(state: &NodeState, sources: &BTreeMap<Source, BTreeMap<String, Arc<Pod>>>) -> Option<String> {
    let api = sources.get(&Source::Api)?;
    let entries = || {
        state.pods.values().filter(|e| {
            e.view().source.is_static() && !e.standing().is_removed() && !e.standing().is_orphan()
        })
    };
    for mirror in api.values().filter(|pod| is_mirror(pod)) {
        let view = PodView::new(mirror.clone(), Source::Api);
        if !entries().any(|e| decide::mirror::is_mirror_of(&view, e.view())) {
            return Some(format!("mirror {} stands for nobody", view.uid));
        }
    }
    // If an API pod has the name, or two static pods do, not each of them can have a mirror.
    let lacking = |e: &&PodEntry| e.standing().rejection().is_none() && !api.contains_key(e.view().name());
    entries().find(lacking).map(|e| format!("pod {} has no mirror", e.view().uid))
}

fn ended(world: &World, view: &PodView, status: &PodStatus, phase: PodPhase) -> Option<String> {
    let uid = &view.uid;
    if world.anything_live(uid) || world.sandboxes_of(uid).any(|(_, s)| s.ready) {
        return Some(format!("is {phase:?}, and something of it runs"));
    }
    if world.disk.pods.get(uid).is_some_and(|volumes| !volumes.is_empty()) {
        return Some(format!("is {phase:?}, and its volumes are set up"));
    }
    let policy = |c: &Spec| decide::restart::effective_policy(view, c);
    // The node ended the pod, so its containers' results don't count.
    let by_agent = matches!(
        PodReason::of(status),
        Some(PodReason::Evicted | PodReason::DeadlineExceeded | PodReason::Preempting)
    );
    if phase == PodPhase::Failed && (by_agent || was_refused(view, status)) {
        return None;
    }
    let init_failed = |c: &Spec| {
        let newest = world.newest(uid, &c.name);
        let failed = newest.is_some_and(|w| w.state == ContainerState::Exited && w.exit_code != 0);
        // Nobody knows how it ended, so it counts as failed.
        !is_sidecar(c) && (failed || world.removed_by_others.contains(&(uid.clone(), c.name.clone())))
    };
    let never = view.restart_policy() == RestartPolicy::Never;
    if phase == PodPhase::Failed && never && view.init_containers().iter().any(init_failed) {
        return None;
    }
    if view.containers().iter().any(|c| policy(c) == RestartPolicy::Always) {
        return Some(format!("is {phase:?} although its containers are always restarted"));
    }
    let newest = |c: &Spec| world.newest(uid, &c.name).map(|w| (w.state, w.exit_code));
    let all_good = view.containers().iter().all(|c| newest(c) == Some((ContainerState::Exited, 0)));
    if phase == PodPhase::Succeeded && !all_good {
        return Some("is Succeeded, and not all of its containers are".into());
    }
    None
}

/// The node was full when the pod came, or its new label could not be read.
fn was_refused(view: &PodView, status: &PodStatus) -> bool {
    let reason = status.reason.as_deref().unwrap_or_default();
    if reason == "NodeAffinity"
        && view.spec().node_selector.iter().flatten().any(|(key, _)| key == NEW_LABEL[0])
    {
        return true;
    }
    match decide::resources::is_critical(view) {
        true => reason == "UnexpectedAdmissionError",
        false => reason == "OutOfcpu",
    }
}

/// The longest time until a container is restarted: its back-off, a slow pull, and a margin.
fn longest_wait(state: &NodeState) -> Nanos {
    state.config.crash_back_off_max.as_nanos() as u64 + 30 * SECOND
}

struct RunningPod<'a> {
    entry: &'a PodEntry,
    world: &'a World,
    view: &'a PodView,
    status: &'a PodStatus,
    longest_wait: Nanos,
}

fn check_running(of: &RunningPod) -> Option<String> {
    let RunningPod { world, view, .. } = *of;
    let uid = &view.uid;
    let ready: Vec<_> = world.sandboxes_of(uid).filter(|(_, s)| s.ready).map(|(id, _)| id.clone()).collect();
    if ready.is_empty() && gets_no_second_sandbox(world, view) {
        return None;
    }
    let [sandbox] = ready.as_slice() else { return Some(format!("has {} ready sandboxes", ready.len())) };
    for init in view.init_containers() {
        let newest = world.newest(uid, &init.name).filter(|c| c.sandbox == *sandbox);
        let succeeded = newest.is_some_and(|c| c.state == ContainerState::Exited && c.exit_code == 0);
        if succeeded && !is_sidecar(init) {
            continue;
        }
        let image_comes = image_comes(world, init);
        if !image_comes && newest.is_none() {
            return None;
        }
        match (is_sidecar(init), life(world, uid, &init.name)) {
            (true, Lifetime::Forever) if image_comes => {
                if let Some(problem) = must_run(of, init) {
                    return Some(problem);
                }
            }
            // This sidecar exits and restarts, or its image is missing. Containers after it may or may not have
            // started, depending on whether the agent saw it running, so both are accepted.
            (true, _) => {
                if let Some(problem) = waits_too_long_for_restart(of, init) {
                    return Some(problem);
                }
                let begun = |c: &Spec| world.of_pod(uid).any(|w| w.name == c.name && w.sandbox == *sandbox);
                let down = !image_comes && !newest.is_some_and(|c| c.is_live());
                if down || !view.containers().iter().any(begun) {
                    return None;
                }
            }
            (false, Lifetime::Forever) => return must_run(of, init),
            (false, Lifetime::Ends { code: 0, .. }) => {
                return Some(format!("init {} is not done", init.name));
            }
            (false, Lifetime::Ends { .. }) => {
                let failed = view.restart_policy() == RestartPolicy::Never;
                let problem = failed.then(|| format!("init {} fails and the pod has not", init.name));
                return problem.or_else(|| waits_too_long_for_restart(of, init));
            }
        }
    }
    regular(of)
}

/// The container has exited, should and could be restarted, and is not.
fn waits_too_long_for_restart(of: &RunningPod, container: &Spec) -> Option<String> {
    let newest = of.world.newest(&of.view.uid, &container.name)?;
    let since = newest.ended?;
    let waits = of.world.now.saturating_sub(since);
    let too_long = !newest.is_live() && waits > of.longest_wait && image_comes(of.world, container);
    too_long
        .then(|| format!("container {} ended {} s ago and was not restarted", container.name, waits / SECOND))
}

/// As upstream, a pod with restartPolicy Never gets no second sandbox once a container of it has run. If another
/// container never ran, it then stays as it is.
fn gets_no_second_sandbox(world: &World, view: &PodView) -> bool {
    let never = view.restart_policy() == RestartPolicy::Never;
    never && world.sandboxes_of(&view.uid).next().is_some() && world.of_pod(&view.uid).next().is_some()
}

fn regular(of: &RunningPod) -> Option<String> {
    let RunningPod { world, view, .. } = *of;
    let uid = &view.uid;
    let mut open = false;
    for container in view.containers() {
        let newest = world.newest(uid, &container.name);
        let policy = decide::restart::effective_policy(view, container);
        let over = newest.is_some_and(|c| {
            // A container that was stopped for a new image is restarted whatever its policy.
            c.state == ContainerState::Exited
                && !of.entry.ledger.must_restart.contains_key(&container.name)
                && c.exit_code != RESTART_ALL_EXIT_CODE
                && (policy == RestartPolicy::Never || policy == RestartPolicy::OnFailure && c.exit_code == 0)
        });
        if over {
            continue;
        }
        open = true;
        if !image_comes(world, container) {
            continue;
        }
        let problem = match (life(world, uid, &container.name), policy) {
            (Lifetime::Forever, _) => must_run(of, container),
            (Lifetime::Ends { .. }, RestartPolicy::Never) => {
                Some(format!("container {} has not ended", container.name))
            }
            (Lifetime::Ends { code: 0, .. }, RestartPolicy::OnFailure) => {
                Some(format!("container {} has not succeeded", container.name))
            }
            (Lifetime::Ends { .. }, _) => waits_too_long_for_restart(of, container),
        };
        if problem.is_some() {
            return problem;
        }
    }
    (!open).then(|| "all its containers are over, and it is not".to_owned())
}

fn life(world: &World, uid: &PodUid, name: &str) -> Lifetime {
    world.scripts.get(&(uid.clone(), name.to_owned())).map_or(Lifetime::Forever, |s| s.life.clone())
}

fn image_comes(world: &World, container: &Spec) -> bool {
    let may_pull = container.image_pull_policy.as_deref() != Some("Never");
    let always = container.image_pull_policy.as_deref() == Some("Always");
    let image = container.image.as_deref().unwrap_or_default();
    let pullable = world.images.known.get(image).is_some_and(|i| i.pullable_from.is_some());
    world.images.will_come(image, may_pull) && (!always || pullable)
}

/// The container runs with its present spec, and the status says so.
fn must_run(of: &RunningPod, container: &Spec) -> Option<String> {
    let RunningPod { world, view, status, .. } = *of;
    let name = &container.name;
    let Some(live) = world.of_pod(&view.uid).find(|c| c.name == *name && c.is_live()) else {
        return Some(format!("container {name} does not run"));
    };
    let hash = render::container_hash(name, container.image.as_deref().unwrap_or_default());
    let old_init = view.init_containers().iter().any(|c| c.name == *name && !is_sidecar(c));
    if live.hash != Some(hash) && !old_init {
        return Some(format!("container {name} runs with an old image"));
    }
    if live.lost {
        return Some(format!("container {name} is lost"));
    }
    let statuses = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    let shown = statuses.into_iter().find(|s| s.name == *name);
    let says_so = shown.is_some_and(|s| {
        s.state.as_ref().is_some_and(|st| st.running.is_some())
            && s.container_id.as_deref().is_some_and(|id| id.ends_with(live.id.as_str()))
    });
    (!says_so).then(|| format!("container {name} runs, and the status says {shown:?}"))
}
