//! The events of a run, for people: the last ones are kept, and shown when an invariant breaks.

use std::collections::VecDeque;
use std::fmt::Write as _;

use decide::effect::ApiCall;
use decide::event::ApiCallResult;
use decide::{Effect, Event, NodeState};
use model::{Now, PodUid, Wall};

use crate::record;
use crate::time::{MILLI, Nanos, SECOND};

const KEPT: usize = 120;

enum TailLine {
    Note(String),
    Step { wall: Wall, event: Box<Event>, effects: Vec<Effect> },
}

/// The last events of a run, and a digest of all of them.
#[derive(Default)]
pub struct Log {
    tail: VecDeque<(Nanos, TailLine)>,
    print: bool,
    pub digest: Option<u64>,
    /// All events, if the run is to be replayed later.
    pub record: Option<Vec<record::LogLine>>,
}

impl Log {
    /// `print`: prints every event when it happens. The digest costs time.
    pub fn new(print: bool, digest: bool, record: bool) -> Self {
        Self {
            tail: VecDeque::new(),
            print,
            digest: digest.then_some(0xcbf2_9ce4_8422_2325),
            record: record.then(Vec::new),
        }
    }

    pub fn started(&mut self, start: impl FnOnce() -> record::Start) {
        if let Some(record) = &mut self.record {
            record.push(record::LogLine::Start(Box::new(start())));
        }
    }

    pub fn note(&mut self, now: Nanos, text: impl FnOnce() -> String) {
        let text = text();
        if self.print {
            println!("{} {text}", format_time(now));
        }
        if let Some(record) = &mut self.record {
            record.push(record::LogLine::Note { world: now, text: text.clone() });
        }
        self.keep(now, TailLine::Note(text));
    }

    pub fn step(&mut self, now: Nanos, at: Now, event: &Event, effects: &[Effect], state: &NodeState) {
        let wall = at.wall;
        if let Some(record) = &mut self.record {
            record.push(record::LogLine::Step { world: now, now: at, event: Box::new(event.clone()) });
        }
        if let Some(digest) = &mut self.digest {
            let mut sum = DigestWriter(*digest);
            // Writing into a number can't fail.
            let _ = write!(sum, "{now}{event:?}{effects:?}");
            *digest = sum.0;
        }
        if self.print {
            print!("{}", describe_step(now, wall, event, effects));
            print!("{}", describe_reasons(state, event, None));
        }
        self.keep(now, TailLine::Step { wall, event: Box::new(event.clone()), effects: effects.to_vec() });
    }

    fn keep(&mut self, now: Nanos, line: TailLine) {
        if self.tail.len() == KEPT {
            self.tail.pop_front();
        }
        self.tail.push_back((now, line));
    }

    pub fn tail(&self) -> String {
        let mut text = String::new();
        for (now, line) in &self.tail {
            match line {
                TailLine::Note(note) => {
                    let _ = writeln!(text, "{} {note}", format_time(*now));
                }
                TailLine::Step { wall, event, effects } => {
                    text.push_str(&describe_step(*now, *wall, event, effects))
                }
            }
        }
        text
    }
}

struct DigestWriter(u64);

impl std::fmt::Write for DigestWriter {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        Ok(())
    }
}

pub fn format_time(now: Nanos) -> String {
    format!("{:>6}.{:06}", now / SECOND, now % SECOND / (MILLI / 1000))
}

pub fn describe_step(now: Nanos, wall: Wall, event: &Event, effects: &[Effect]) -> String {
    let mut text = format!("{} event {} (wall {wall:?})\n", format_time(now), describe_event(event));
    for effect in effects {
        let _ = writeln!(text, "{:>14}  -> {}", "", describe_effect(effect));
    }
    text
}

fn describe_event(event: &Event) -> String {
    match event {
        Event::PodSetDelivered { source, pods } => {
            let uids: Vec<_> = pods.iter().filter_map(|p| p.metadata.uid.as_deref()).collect();
            format!("pods of {} are {uids:?}", source.as_str())
        }
        Event::Observed(seen) => {
            let mut text = format!("observed {:?} at {:?}:", seen.scope, seen.at);
            for pod in &seen.pods {
                let _ = write!(text, " {}[", pod.uid);
                for s in &pod.sandboxes {
                    let _ = write!(
                        text,
                        " {}#{}{}",
                        &s.id.as_str()[..4],
                        s.attempt,
                        if s.ready { "+" } else { "-" }
                    );
                }
                for c in &pod.containers {
                    let _ =
                        write!(text, " {}:{}#{}={:?}", c.name, &c.id.as_str()[..4], c.restart_count, c.state);
                    if c.state == model::observed::ContainerState::Exited {
                        let _ = write!(text, "({})", c.exit_code);
                    }
                }
                text.push_str(" ]");
            }
            text
        }
        Event::ActionDone { uid, epoch, stage, action, result } => {
            format!("{uid} plan {} action {stage}.{action}: {result:?}", epoch.0)
        }
        Event::PodChanged { pod, .. } => format!("watch shows {}", describe_object(pod)),
        Event::NodeObserved(node) => {
            format!("node {:?}", node.as_ref().and_then(|n| n.metadata.uid.as_deref()))
        }
        Event::ApiAnswered(answer) => describe_answer(answer),
        other => format!("{other:?}"),
    }
}

fn describe_object(pod: &model::k8s::Pod) -> String {
    let meta = &pod.metadata;
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let phase = pod.status.as_ref().map(|s| text(&s.phase)).unwrap_or_default();
    format!("{} v{} {phase}", text(&meta.uid), text(&meta.resource_version))
}

fn describe_answer(answer: &ApiCallResult) -> String {
    let pod = |result: &Result<std::sync::Arc<model::k8s::Pod>, _>| match result {
        Ok(pod) => describe_object(pod),
        Err(failure) => format!("{failure:?}"),
    };
    match answer {
        ApiCallResult::StatusPatched { uid, result, .. } => format!("patched {uid}: {}", pod(result)),
        ApiCallResult::PodDeleted { uid, result } => format!("object of {uid} deleted: {result:?}"),
        ApiCallResult::MirrorCreated { full_name, result } => {
            format!("mirror {full_name} made: {}", pod(result))
        }
        ApiCallResult::MirrorDeleted { uid, result, .. } => format!("mirror {uid} deleted: {result:?}"),
    }
}

fn describe_api_call(call: &ApiCall) -> String {
    match call {
        ApiCall::PatchStatus { pod, patch, .. } => {
            let keys = patch["status"].as_object().into_iter().flatten();
            let words: Vec<_> = keys
                .map(|(key, value)| value.as_str().map_or(key.clone(), |value| format!("{key}={value}")))
                .collect();
            format!("patch {}: {}", pod.uid, words.join(" "))
        }
        ApiCall::DeletePod { pod, .. } => format!("delete object {}", pod.uid),
        ApiCall::CreateMirror { full_name, .. } => format!("make mirror {full_name}"),
        ApiCall::DeleteMirror { uid, .. } => format!("delete mirror {uid}"),
    }
}

fn describe_effect(effect: &Effect) -> String {
    match effect {
        Effect::RunPlan { uid, epoch, stages } => {
            let stage =
                |s: &decide::Stage| s.actions.iter().map(describe_action).collect::<Vec<_>>().join(" & ");
            let stages: Vec<_> = stages.iter().map(stage).collect();
            format!("run {uid} plan {}: {}", epoch.0, stages.join(" ; "))
        }
        Effect::StatusChanged { uid, status } => {
            format!("status {uid} {}", status.phase.as_deref().unwrap_or_default())
        }
        Effect::RecordEvent { uid, event, .. } => format!("record {uid} {}: {}", event.reason, event.message),
        Effect::CallApi(call) => describe_api_call(call),
        Effect::EnsureCgroups { specs } => format!("ensure {} cgroups", specs.len()),
        Effect::UpdateVolume { uid, volume } => format!("update volume {} of {uid}", volume.name),
        other => format!("{other:?}"),
    }
}

fn describe_action(action: &decide::Action) -> String {
    use decide::Action;
    match action {
        Action::StartContainer(start) => {
            format!("start container {} #{}", start.name, start.config.metadata.attempt)
        }
        Action::RunSandbox { config, .. } => format!("create sandbox #{}", config.metadata.attempt),
        Action::StopContainer { id, name, grace_secs, .. } => {
            format!("stop {name}:{} in {grace_secs}s", &id.as_str()[..4])
        }
        Action::RemoveContainer { id, name, .. } => format!("remove {name}:{}", &id.as_str()[..4]),
        other => other.name().to_owned(),
    }
}

/// The reasons of the pods that an event is about; with `only`, of that pod alone.
pub fn describe_reasons(state: &NodeState, event: &Event, only: Option<&PodUid>) -> String {
    let about = match event {
        Event::ActionDone { uid, .. } | Event::PlanEnded { uid, .. } => Some(uid.clone()),
        Event::Timer(decide::TimerKey::PodWakeUp(uid)) | Event::Hint(decide::Hint::Pod(uid)) => {
            Some(uid.clone())
        }
        Event::Observed(o) => match &o.scope {
            model::observed::Scope::Pod(uid) => Some(uid.clone()),
            model::observed::Scope::All => None,
        },
        _ => None,
    };
    let mut text = String::new();
    for (uid, entry) in &state.pods {
        let concerned = about.as_ref().is_none_or(|about| about == uid);
        if !concerned || only.is_some_and(|only| only != uid) {
            continue;
        }
        let container = |w: &decide::state::WhySince| match &w.why.container {
            Some(name) => format!("{name}: {:?}", w.why.cause),
            None => format!("{:?}", w.why.cause),
        };
        let causes: Vec<_> = entry.why.iter().map(container).collect();
        let _ = writeln!(text, "{:>14}  why {uid} {:?}: {}", "", entry.lifecycle(), causes.join("; "));
    }
    text
}
