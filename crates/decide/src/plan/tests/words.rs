//! Pods, readings and plans as short texts, so that a case is one line.
//!
//! ```text
//! pod       restart OnFailure; init i s*; run c d; c: {imagePullPolicy: Never}; spec: {hostNetwork: true}
//! reading   s0 dead; s1 ready; c#0 exit(1) 5s; c#1 running hash=old; i#0 exit(0) @s0
//! plan      stop c#1 30s > stop-sandbox s1     (+ at the same time, > afterwards, ? goes on after a failure)
//! ```

use std::sync::Arc;
use std::time::Duration;

use model::cri::NamespaceMode;
use model::observed::{ContainerState, ObservedContainer, ObservedPod, ObservedSandbox};
use model::pod::{PodView, Source};
use model::volume::VolumeKind;
use model::why::{Cause, Why};
use model::{FullName, Mono, Now, Reason, Wall, codec, k8s};
use serde_json::{Value, json};

use crate::action::{Action, Stage};
use crate::render;

/// Wall time of the zero of the monotonic clock.
pub const EPOCH: Wall = Wall(1_700_000_000_000_000_000);

/// This many seconds after the agent came up.
pub fn at(seconds: f64) -> Now {
    let since = Duration::from_secs_f64(seconds);
    Now { mono: Mono::from_duration(since), wall: EPOCH.plus(since) }
}

/// The image that a container has unless the text says otherwise.
pub fn image_of(container: &str) -> String {
    format!("img-{container}:1")
}

// ---- pods -------------------------------------------------------------------------------------------------------

/// A defaulted pod named `uid`. Parts: `restart <policy>`, `init <names>` (`*` marks a sidecar), `run <names>`,
/// `debug <names>`,
/// `spec: {..}`, `meta: {..}`, `status: {..}`, `<container>: {..}` to add fields.
pub fn api_pod(uid: &str, text: &str) -> Arc<k8s::Pod> {
    let mut pod = json!({
        "metadata": {"uid": uid, "name": uid, "namespace": "ns"},
        "spec": {"containers": [container("c")]},
    });
    for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
        if let Some((name, fields)) = part.split_once(": ") {
            add_fields(&mut pod, name, yaml(fields));
            continue;
        }
        let mut words = part.split_whitespace();
        match words.next() {
            Some("restart") => pod["spec"]["restartPolicy"] = json!(words.next()),
            Some("run") => pod["spec"]["containers"] = words.map(container).collect(),
            Some("debug") => pod["spec"]["ephemeralContainers"] = words.map(container).collect(),
            Some("init") => pod["spec"]["initContainers"] = words.map(container).collect(),
            other => panic!("{other:?} begins no part of a pod: {text}"),
        }
    }
    let mut pod: k8s::Pod = serde_json::from_value(pod).unwrap_or_else(|e| panic!("{text}: {e}"));
    manifest::defaults(&mut pod);
    Arc::new(pod)
}

/// The same, from a file.
pub fn pod(text: &str) -> PodView {
    PodView::new(api_pod("p", text), Source::File)
}

fn container(word: &str) -> Value {
    match word.strip_suffix('*') {
        Some(name) => json!({"name": name, "image": image_of(name), "restartPolicy": "Always"}),
        None => json!({"name": word, "image": image_of(word)}),
    }
}

pub fn yaml(text: &str) -> Value {
    codec::parse_documents(text.as_bytes()).expect(text).remove(0)
}

fn add_fields(pod: &mut Value, name: &str, fields: Value) {
    let target = match name {
        "meta" => Some(&mut pod["metadata"]),
        "spec" => Some(&mut pod["spec"]),
        "status" => {
            pod["status"] = json!({});
            Some(&mut pod["status"])
        }
        name => {
            let spec = pod["spec"].as_object_mut().expect("a spec");
            let lists = spec.iter_mut().filter(|(key, _)| key.ends_with("ontainers"));
            lists.flat_map(|(_, list)| list.as_array_mut().expect("a list")).find(|c| c["name"] == name)
        }
    };
    let target = target.unwrap_or_else(|| panic!("no {name}"));
    for (key, value) in fields.as_object().expect("fields") {
        target[key] = value.clone();
    }
}

// ---- readings ---------------------------------------------------------------------------------------------------

/// What the runtime shows of pod `uid` at `now`. Sandboxes: `s<attempt> ready|dead`, then any of `host` (network of
/// the node), `by=<handler>`, `no-ip`, `silent` (says nothing of networks). Containers: `<name>#<restarts> created|running|unknown`
/// or `exit(<code>) [<seconds>s] [reason=<r>]`, then any of `@s<attempt>`, `hash=old`, `hash=none`, `grace=<seconds>`,
/// `age=<seconds>`. A container lives in the newest sandbox unless it says otherwise. Either may be `refused`: the runtime
/// lists it, and does not give its status.
pub fn observed(uid: &str, text: &str, now: Now) -> ObservedPod {
    let mut pod = ObservedPod::empty(uid.into(), FullName::new(uid, "ns"));
    // Ids are of the whole runtime: only those of the pod `p`, of which most tables are, have no prefix.
    let prefix = if uid == "p" { String::new() } else { format!("{uid}.") };
    for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
        let mut words = part.split_whitespace().filter(|word| *word != "refused");
        let first = words.next().expect("a word");
        let id = format!("{prefix}{first}");
        if part.ends_with(" refused") {
            pod.missing_status.insert(id.clone(), "busy".into());
        }
        match first.split_once('#') {
            Some((name, restarts)) => {
                let restarts = restarts.parse().expect("a number of restarts");
                let mut container = instance(id, name, restarts, words, now);
                if !container.sandbox_id.as_str().is_empty() {
                    container.sandbox_id = format!("{prefix}{}", container.sandbox_id).into();
                }
                pod.containers.push(container);
            }
            None => pod.sandboxes.push(sandbox(id, first, words)),
        }
    }
    pod.sort();
    let newest = pod.newest_sandbox().map(|s| s.id.clone());
    for container in &mut pod.containers {
        match (container.sandbox_id.as_str(), &newest) {
            ("", Some(newest)) => container.sandbox_id = newest.clone(),
            ("", None) => container.sandbox_id = "gone".into(),
            _ => {}
        }
    }
    pod
}

fn sandbox<'a>(id: String, name: &str, words: impl Iterator<Item = &'a str>) -> ObservedSandbox {
    let attempt: u32 = name.trim_start_matches('s').parse().expect("s<attempt>");
    let mut sandbox = ObservedSandbox {
        id: id.into(),
        attempt,
        created_at: EPOCH.plus(Duration::from_millis(u64::from(attempt))),
        ready: false,
        network: NamespaceMode::Pod,
        has_network_status: true,
        ips: Vec::new(),
        runtime_handler: String::new(),
    };
    for word in words {
        match word {
            "ready" => {
                sandbox.ready = true;
                sandbox.ips = vec!["10.0.0.1".into()];
            }
            "dead" => sandbox.ready = false,
            "host" => sandbox.network = NamespaceMode::Node,
            by if by.starts_with("by=") => sandbox.runtime_handler = by[3..].into(),
            "no-ip" => sandbox.ips.clear(),
            "silent" => {
                sandbox.ips.clear();
                sandbox.has_network_status = false;
            }
            other => panic!("{other} says nothing about a sandbox"),
        }
    }
    sandbox
}

fn instance<'a>(
    id: String,
    name: &str,
    restarts: u32,
    words: impl Iterator<Item = &'a str>,
    now: Now,
) -> ObservedContainer {
    let mut c = ObservedContainer {
        stop_signal: 0,
        image_mounts: Default::default(),
        id: id.clone().into(),
        sandbox_id: "".into(),
        name: name.into(),
        state: ContainerState::Running,
        restart_count: restarts,
        hash: Some(render::container_hash(name, &image_of(name))),
        pre_stop: None,
        created_at: EPOCH.plus(Duration::from_millis(u64::from(restarts))),
        started_at: EPOCH,
        finished_at: Wall::default(),
        exit_code: 0,
        reason: String::new(),
        message: String::new(),
        image: image_of(name),
        image_ref: "sha256:i".into(),
        image_id: String::new(),
        log_path: format!("/log/{id}"),
        pod_grace: None,
        resources: None,
        user: None,
    };
    for word in words {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        let code = word.strip_prefix("exit(").and_then(|w| w.strip_suffix(')'));
        match key {
            "running" => c.state = ContainerState::Running,
            "created" => c.state = ContainerState::Created,
            "unknown" => c.state = ContainerState::Unknown,
            "reason" => c.reason = value.into(),
            "hash" => c.hash = (value != "none").then_some(1),
            "grace" => c.pod_grace = Some(value.parse().expect("seconds")),
            "age" => c.created_at = before(now, value),
            _ if code.is_some() => {
                c.state = ContainerState::Exited;
                c.exit_code = code.and_then(|code| code.parse().ok()).expect("an exit code");
                c.reason = if c.exit_code == 0 { "Completed" } else { "Error" }.into();
                c.finished_at = now.wall;
            }
            _ if key.starts_with('@') => c.sandbox_id = key[1..].into(),
            ago => c.finished_at = before(now, ago.strip_suffix('s').expect("seconds")),
        }
    }
    c
}

fn before(now: Now, seconds: &str) -> Wall {
    let seconds: f64 = seconds.parse().expect("seconds");
    Wall(now.wall.0 - (seconds * 1e9) as i64)
}

// ---- plans ------------------------------------------------------------------------------------------------------

pub fn show_stages(stages: &[Stage]) -> String {
    if stages.is_empty() {
        return "-".into();
    }
    let stage = |s: &Stage| {
        let actions: Vec<String> = s.actions.iter().map(show_action).collect();
        format!("{}{}", actions.join(" + "), if s.stop_on_failure { "" } else { "?" })
    };
    stages.iter().map(stage).collect::<Vec<_>>().join(" > ")
}

pub fn show_action(action: &Action) -> String {
    match action {
        Action::MakePodDirs { .. } => "dirs".into(),
        Action::EnsureCgroup { .. } => "cgroup".into(),
        Action::SetUpVolume { volume } => match &volume.kind {
            VolumeKind::Content(content) => {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let files = content.files.iter().map(|(path, file)| format!("{path}={}", text(&file.bytes)));
                format!("volume {} {{{}}}", volume.name, files.collect::<Vec<_>>().join(" "))
            }
            _ => format!("volume {}", volume.name),
        },
        Action::ReadEnvFiles { container, files } => {
            let paths: Vec<_> = files.iter().map(|file| format!("{}/{}", file.volume, file.path)).collect();
            format!("read {container} {}", paths.join(" "))
        }
        Action::StoreUserIds { ids } => format!("ids {}", ids.host_id / ids.length.max(1)),
        Action::RunSandbox { config, handler } => {
            let by = if handler.is_empty() { String::new() } else { format!(" by {handler}") };
            format!("sandbox#{}{by}", config.metadata.attempt)
        }
        Action::StartContainer(start) => format!("start {}#{}", start.name, start.config.metadata.attempt),
        Action::StopContainer { id, grace_secs, .. } => format!("stop {id} {grace_secs}s"),
        Action::PreStop { id, .. } => format!("pre-stop {id}"),
        Action::StopSandbox { id } => format!("stop-sandbox {id}"),
        Action::RemoveContainer { id, log: Some(_), .. } => format!("remove {id}"),
        Action::RemoveContainer { id, log: None, .. } => format!("reset {id}"),
        Action::RemoveSandbox { id } => format!("remove-sandbox {id}"),
        Action::ExpandVolume { volume, expansion } => format!("expand {} to {}", volume.name, expansion.size),
        Action::TearDownVolumes => "tear-down".into(),
        Action::DestroyCgroup { name } => format!("drop-cgroup {}", name.0.join("/")),
        Action::RemovePodDir => "remove-dir".into(),
        Action::RemoveLogDir { name } => format!("remove-logs {name}"),
    }
}

/// Seconds of the monotonic clock, in the shortest form.
pub fn show_time(at: Mono) -> String {
    format!("@{}s", at.as_duration().as_secs_f64())
}

pub fn show_why(why: &[Why]) -> String {
    if why.is_empty() {
        return "-".into();
    }
    let one = |why: &Why| {
        let who = why.container.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
        let next = why.next_attempt.map(|at| format!(" {}", show_time(at))).unwrap_or_default();
        format!("{who}{}{next}", show_cause(&why.cause))
    };
    why.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn show_cause(cause: &Cause) -> String {
    let reason = |reason: &Reason, message: &str| format!("{reason} ({message})");
    match cause {
        Cause::Rejected { reason, .. } => format!("rejected {reason}"),
        Cause::Unreadable { problem } => format!("unreadable ({problem})"),
        Cause::SetAside { message } => format!("set aside ({message})"),
        Cause::RuntimeNotReady { message } => format!("runtime not ready ({message})"),
        Cause::NetworkNotReady { .. } => "network not ready".into(),
        Cause::Observing => "observing".into(),
        Cause::StatusMissing { of, message } => format!("no status of {of} ({message})"),
        Cause::StillListed { ids } => format!("still listed {}", ids.join(" ")),
        Cause::NameTaken { holder } => format!("name taken by {holder}"),
        Cause::PreparingDirectories => "preparing".into(),
        Cause::PreparingCgroup => "preparing cgroup".into(),
        Cause::PreparingVolumes { volumes } => format!("preparing volumes {}", volumes.join(" ")),
        Cause::WaitingForObject { kind, name, message } if message.is_empty() => {
            format!("waits for {kind} {name}")
        }
        Cause::WaitingForObject { kind, name, message } => format!("waits for {kind} {name} ({message})"),
        Cause::WaitingForCertificate { signer_name } => format!("waits for certificate of {signer_name}"),
        Cause::WaitingForNode => "waits for the node".to_owned(),
        Cause::WaitingForRoom { resources, pods } => {
            format!("waits for {} of {}", resources.join(" "), pods.join(" "))
        }
        Cause::WaitingForTrustBundles => "waits for trust bundles".to_owned(),
        Cause::WaitingForToken { service_account } => format!("waits for token of {service_account}"),
        Cause::WaitingForVolume { volume, claim, message } => {
            format!("waits for volume {volume} of {claim} ({message})")
        }
        Cause::WaitingForServices => "waits for services".into(),
        Cause::CreatingSandbox { attempt } => format!("creating sandbox#{attempt}"),
        Cause::StepFailed { step, message } => format!("{step} failed ({message})"),
        Cause::PullingImage { image } => format!("pulling {image}"),
        Cause::PullQueued { image } => format!("queued {image}"),
        Cause::ImageBackOff { reason, back_off_secs, .. } => {
            format!("image back-off {back_off_secs}s {reason}")
        }
        Cause::ImageUnavailable { reason: r, message } | Cause::StartFailed { reason: r, message } => {
            reason(r, message)
        }
        Cause::Starting => "starting".into(),
        Cause::CrashBackOff { back_off_secs, exit_code, restarts, .. } => {
            format!("crash back-off {back_off_secs}s exit({exit_code}) restarts={restarts}")
        }
        Cause::Completed { exit_code } => format!("completed({exit_code})"),
        Cause::WaitingForInit { init } => format!("waits for {init}"),
        Cause::RestartingAll => "restarting all".into(),
        Cause::Stopping { grace_secs, .. } => format!("stopping {grace_secs}s"),
        Cause::Releasing => "releasing".into(),
        Cause::ReleasingVolumes { volumes } => format!("releasing volumes {}", volumes.join(" ")),
        Cause::Running => "running".into(),
        Cause::Finished { phase } => format!("finished {phase}"),
    }
}
