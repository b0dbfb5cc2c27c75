//! Effects as short texts.

use std::collections::BTreeSet;

use model::observed::Scope;
use model::{EventType, k8s};

use crate::effect::{ApiCall, Effect, Sweep, TimerKey};
use crate::lifecycle::Lifecycle;
use crate::plan::tests::words::{show_stages, show_time};
use crate::state::NodeState;

/// `None`: not asked for.
pub fn effect(effect: &Effect, shown: &BTreeSet<String>) -> Option<String> {
    let only = |kind: &str, text: String| shown.contains(kind).then_some(text);
    match effect {
        Effect::RunProbe { uid, container, kind, .. } => {
            only("probes", format!("probe {uid}/{container} {kind:?}"))
        }
        Effect::StoreProbeRecord { uid, .. } => only("probes", format!("keep probes {uid}")),
        Effect::Observe(Scope::All) => Some("read all".into()),
        Effect::Observe(Scope::Pod(uid)) => Some(format!("read {uid}")),
        Effect::CheckRuntime { ask_cgroup_driver: false } => Some("check".into()),
        Effect::CheckRuntime { ask_cgroup_driver: true } => Some("check+driver".into()),
        Effect::RunPlan { uid, stages, .. } => {
            let own = format!(" {uid}.");
            Some(format!("run {uid}: {}", show_stages(stages).replace(&own, " ")))
        }
        Effect::CancelPlan { uid, .. } => Some(format!("cancel {uid}")),
        Effect::AskCredentialPlugins { pull, .. } => Some(format!("ask plugins {}", pull.image)),
        Effect::InspectImage { image } => Some(format!("look {image}")),
        Effect::PullImage { pull, pod_credentials: own, .. } => {
            let users: String = own.iter().map(|c| format!(" as {}", c.login.username)).collect();
            Some(format!("pull {}{users}", pull.image))
        }
        Effect::RecordImageAccess { image, secret, .. } => Some(format!("note {image} by {}", secret.name)),
        Effect::WatchObject { key } => Some(format!("watch {} {}", key.kind.word(), key.name)),
        Effect::UnwatchObject { key } => Some(format!("unwatch {} {}", key.kind.word(), key.name)),
        Effect::RequestToken { wanted } => {
            Some(format!("ask token {}/{}", wanted.pod_uid, wanted.service_account))
        }
        Effect::RequestCertificate { source, call, wanted } => Some(format!(
            "ask certificate {}/{} of {} ({call})",
            source.pod, source.volume, wanted.signer_name
        )),
        Effect::FollowCertificateRequests { node } => Some(format!("follow certificate requests of {node}")),
        Effect::ForgetPod { uid } => Some(format!("forget {uid}")),
        Effect::ReadNode => Some("read node".into()),
        Effect::ReadUserIds => Some("read ids".into()),
        Effect::ListPodArtifacts => only("sweeps", "list leftovers".into()),
        Effect::Sweep(what) => Some(format!("sweep {}", sweep(what))),
        Effect::SetTimer { key, at } => {
            let of_pod = matches!(key, TimerKey::PodWakeUp(_) | TimerKey::RetryObservation(_));
            let kind = if of_pod { "timers" } else { "clocks" };
            only(kind, format!("timer {} {}", timer(key), at.map_or("off".into(), show_time)))
        }
        Effect::StatusChanged { uid, status } => {
            only("status", format!("status {uid} {}", pod_status(status)))
        }
        Effect::PodChanged { uid } => Some(format!("changed {uid}")),
        Effect::RecordEvent { uid, event, .. } => {
            let kind = if event.kind == EventType::Normal { "N" } else { "W" };
            let about = event.container.as_ref().map(|(_, name)| format!("/{name}")).unwrap_or_default();
            only("events", format!("{kind} {uid}{about} {}: {}", event.reason, event.message.trim_end()))
        }
        Effect::CallVolume { call, .. } => Some(format!("call {call:?}")),
        Effect::CancelVolumeCall { id } => Some(format!("cancel call {}", id.0)),
        Effect::AnswerVolumeRequest { request, result } => {
            Some(format!("answer {}: {result:?}", request.uid))
        }
        Effect::WatchTrustBundles => Some("follow trust bundles".into()),
        Effect::RefreshDriverNodeInfo { driver } => Some(format!("ask driver {driver}")),
        Effect::SetDriverUpdatePeriods { periods } => only("periods", format!("periods {periods:?}")),
        Effect::RecordClaimEvent { claim, event } => {
            only("events", format!("{}/{} {}: {}", claim.namespace, claim.name, event.reason, event.message))
        }
        Effect::RecordNodeEvent { event } => {
            only("events", format!("node {}: {}", event.reason, event.message))
        }
        Effect::EnsureCgroups { specs } => {
            let burstable = specs.iter().find(|s| s.name.0.last().is_some_and(|n| n == "burstable"));
            let shares = burstable.and_then(|s| s.values.cpu_shares).unwrap_or_default();
            only("cgroups", format!("cgroups burstable={shares}"))
        }
        Effect::UpdateReservedCgroups { specs } => {
            let names: Vec<String> = specs.iter().map(|spec| spec.name.0.join("/")).collect();
            Some(format!("reserve {}", names.join(" ")))
        }
        Effect::EndAgent { reason } => Some(format!("end: {reason}")),
        Effect::ReportVolumesInUse { volumes } => Some(format!("in use {}", volumes.join(" "))),
        Effect::UpdateVolume { uid, volume } => Some(format!("update {uid} {}", volume.name)),
        Effect::MeasureDisk { uid, places } => {
            let names: String = places.volumes.keys().map(|name| format!(" {name}")).collect();
            Some(format!("measure {uid}{names}"))
        }
        Effect::CallApi(call) => only("api", api_call(call)),
        Effect::ReadStorageObject { key } => Some(format!("ask {} {}", super::claims::word(key), key.name())),
        Effect::ListImages => Some("list images".to_owned()),
        Effect::RemoveImage { image } => Some(format!("remove image {image}")),
        Effect::PrunePullRecords => only("records", "prune pull records".to_owned()),
        Effect::CallLog { id, call, .. } => only("container logs", format!("{call:?} {id}")),
        Effect::ReadNodeFigures { group } => Some(format!("figures {group:?}")),
        Effect::AwaitMemoryPressure { levels } => {
            only("notices", format!("await {}", levels.node_usage_bytes.unwrap_or_default() >> 20))
        }
        Effect::MeasurePods { call, kind, pods } => {
            let names: String = pods.iter().map(|pod| format!(" {}", pod.uid)).collect();
            Some(format!("measure pods #{call} {kind:?}:{names}"))
        }
        Effect::ReportNodePressure { pressure } => {
            Some(format!("pressure [{}]", pressure.conditions().join(" ")))
        }
        Effect::RecordFiguresAge { signal, age } => {
            only("ages", format!("age {} {}ms", signal.as_str(), age.as_millis()))
        }
        Effect::Log { message, .. } => only("logs", format!("log {message}")),
    }
}

fn timer(key: &TimerKey) -> String {
    match key {
        TimerKey::Unstage(volume) => format!("unstage {volume}"),
        TimerKey::ListVolumes => "list volumes".into(),
        TimerKey::Probe(uid) => format!("probe {uid}"),
        TimerKey::PodWakeUp(uid) => format!("pod {uid}"),
        TimerKey::RetryObservation(uid) => format!("observe {uid}"),
        TimerKey::ObserveStart(uid) => format!("start {uid}"),
        TimerKey::MeasureDisk(uid) => format!("disk {uid}"),
        TimerKey::Token(wanted) => format!("token {}", wanted.pod_uid),
        TimerKey::Certificate(source) => format!("certificate {}/{}", source.pod, source.volume),
        TimerKey::Storage(key) => format!("{} {}", super::claims::word(key), key.name()),
        TimerKey::RetryStatusPatch(uid) => format!("report {uid}"),
        TimerKey::Mirror(name) => format!("mirror {}", name.name),
        TimerKey::FullRelist => "full".into(),
        TimerKey::ConfirmObservations => "confirm".into(),
        TimerKey::RuntimeCheck => "check".into(),
        TimerKey::Sweep => "sweep".into(),
        TimerKey::MeasureLog(id) => format!("log {id}"),
        TimerKey::NodeFigures(group) => format!("figures {group:?}"),
        TimerKey::NodePressure => "pressure".into(),
        TimerKey::EvictionStep => "eviction".into(),
        TimerKey::ImageGarbage => "image-garbage".into(),
        TimerKey::NodeCgroups => "node-cgroups".into(),
        TimerKey::UserIds => "user-ids".into(),
    }
}

/// `patch a phase=Running`, with the words of the status that change.
fn api_call(call: &ApiCall) -> String {
    match call {
        ApiCall::PatchStatus { pod, patch, .. } => {
            let words = ["phase", "reason"].into_iter().filter_map(|key| {
                let value = patch["status"].get(key)?;
                Some(format!(" {key}={}", value.as_str().unwrap_or("-")))
            });
            format!("patch {}{}", pod.uid, words.collect::<String>())
        }
        ApiCall::DeletePod { pod, .. } => format!("delete {}", pod.uid),
        ApiCall::CreateMirror { full_name, .. } => format!("mirror {}", full_name.name),
        ApiCall::DeleteMirror { uid, .. } => format!("unmirror {uid}"),
    }
}

fn sweep(sweep: &Sweep) -> String {
    let list =
        |what: &str, names: Vec<String>| (!names.is_empty()).then(|| format!("{what}={}", names.join(",")));
    let parts = [
        list("dirs", sweep.pod_dirs.iter().map(ToString::to_string).collect()),
        list("logs", sweep.log_dirs.clone()),
        list("links", sweep.links.clone()),
        list("cgroups", sweep.cgroups.iter().map(|n| n.0.join("/")).collect()),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// The phase, and of each container its state, restarts and reason: `Running c=running d=wait:ErrImagePull`.
fn pod_status(status: &k8s::PodStatus) -> String {
    let mut text = status.phase.clone().unwrap_or_default();
    if let Some(reason) = &status.reason {
        text.push_str(&format!("({reason})"));
    }
    let init = status.init_container_statuses.iter().flatten();
    let regular = status.container_statuses.iter().flatten();
    for container in init.chain(regular).chain(status.ephemeral_container_statuses.iter().flatten()) {
        let state = container.state.clone().unwrap_or_default();
        let state = match (state.waiting, state.running, state.terminated) {
            (Some(waiting), _, _) => format!("wait:{}", waiting.reason.unwrap_or_default()),
            (_, Some(_), _) => "running".into(),
            (_, _, Some(end)) => format!("exit({})", end.exit_code),
            _ => "-".into(),
        };
        text.push_str(&format!(" {}={state}", container.name));
    }
    text
}

/// What was counted so far, without what never happened.
pub fn counts(state: &NodeState) -> String {
    let counts = &state.counters;
    let plain = [
        ("orphans", counts.orphans),
        ("static-back", counts.static_pods_recreated),
        ("api-back", counts.api_pods_recreated),
    ];
    let mut shown: Vec<String> =
        plain.iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name} {count}")).collect();
    shown.extend(
        counts.preemptions.iter().map(|(resource, count)| format!("preempted for {resource} {count}")),
    );
    let collected = counts.images_collected.iter();
    shown.extend(collected.map(|(reason, count)| format!("collected by {reason} {count}")));
    shown.extend(counts.evictions.iter().map(|(signal, count)| format!("evicted {signal} {count}")));
    shown.join(", ")
}

/// Where the pod is in its life.
pub fn state(state: &NodeState, uid: &str) -> String {
    match state.pods.get(&uid.into()).map(|e| e.lifecycle()) {
        None => "gone".into(),
        Some(Lifecycle::Syncing) => "syncing".into(),
        Some(Lifecycle::Terminating(t)) => format!("terminating {}s", t.grace_secs),
        Some(Lifecycle::Terminated) => "terminated".into(),
        Some(Lifecycle::Finished) => "finished".into(),
    }
}

/// The block of ids of each pod: `a=1 b=2`.
pub fn user_ids(state: &NodeState) -> String {
    let one = |(uid, ids): (&model::PodUid, &Option<model::cri::IdMapping>)| match ids {
        Some(ids) => format!("{uid}={}", ids.host_id / ids.length),
        None => format!("{uid}=?"),
    };
    let all: Vec<String> = state.user_ids.iter().map(one).collect();
    if all.is_empty() { "none".into() } else { all.join(" ") }
}
