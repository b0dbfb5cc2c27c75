//! Tells of processes that the kernel killed. What becomes of their containers, the runtime says.

use model::oom_kill::{OomKill, OutOfMemory};
use model::{ApiEvent, PodUid};

use super::Context;
use crate::cgroups::{PodPath, pod_of_path};
use crate::effect::{Effect, LogLevel};
use crate::state::NodeState;

pub(super) fn seen(state: &NodeState, cx: &mut Context, kill: &OomKill) {
    if kill.ran_out == OutOfMemory::Machine {
        cx.emit(Effect::RecordNodeEvent { event: ApiEvent::warning("SystemOOM", system_message(kill)) });
    }
    let known =
        |path: &PodPath| state.pods.contains_key(&path.uid) || state.unclaimed.contains_key(&path.uid);
    let pod = places(kill).find_map(pod_of_path).filter(known);
    let place = match (&pod, &kill.process_cgroup) {
        (Some(path), _) => within_pod(state, path),
        (None, Some(cgroup)) => format!(" in cgroup {cgroup}"),
        (None, None) => String::new(),
    };
    let cause = match &kill.ran_out {
        OutOfMemory::Machine => "the machine has no memory left".to_owned(),
        OutOfMemory::Cgroup(path) => format!("the memory limit of cgroup {path} is reached"),
        OutOfMemory::UnknownCgroup => "the memory limit of a cgroup is reached".to_owned(),
    };
    let (name, pid) = (&kill.victim.name, kill.victim.pid);
    let uid = pod.as_ref().map(|path| &path.uid);
    cx.log(LogLevel::Warn, uid, format!("the kernel killed process {name:?} (pid {pid}){place}: {cause}"));
}

/// Upstream's words.
fn system_message(kill: &OomKill) -> String {
    match (kill.victim.name.as_str(), kill.victim.pid) {
        ("", _) | (_, 0) => "System OOM encountered".to_owned(),
        (name, pid) => format!("System OOM encountered, victim process: {name}, pid: {pid}"),
    }
}

/// Where the pod can be seen; the process's own cgroup says most.
fn places(kill: &OomKill) -> impl Iterator<Item = &str> {
    let limit = match &kill.ran_out {
        OutOfMemory::Cgroup(path) => Some(path.as_str()),
        OutOfMemory::Machine | OutOfMemory::UnknownCgroup => None,
    };
    kill.process_cgroup.as_deref().into_iter().chain(limit)
}

fn within_pod(state: &NodeState, path: &PodPath) -> String {
    let Some(id) = path.container else { return String::new() };
    match container_name(state, &path.uid, id) {
        Some(name) => format!(" of container {name} ({id})"),
        None => format!(" of container {id}"),
    }
}

fn container_name<'a>(state: &'a NodeState, uid: &PodUid, id: &str) -> Option<&'a str> {
    let claimed = state.pods.get(uid).and_then(|entry| entry.observed.as_ref()).map(|reading| &reading.pod);
    let pod = claimed.or_else(|| state.unclaimed.get(uid))?;
    let container = pod.containers.iter().find(|container| container.id.as_str() == id)?;
    Some(&container.name)
}
