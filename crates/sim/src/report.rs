//! What happened, for people: a tail of it is kept, and shown when an invariant breaks.

use std::collections::VecDeque;
use std::fmt::Write as _;

use decide::effect::ApiCall;
use decide::event::ApiAnswer;
use decide::{Effect, Event, NodeState};
use model::{Now, PodUid, Wall};

use crate::record;
use crate::time::{MILLI, Nanos, SECOND};

const KEPT: usize = 120;

enum Line {
    Note(String),
    Step { wall: Wall, event: Box<Event>, effects: Vec<Effect> },
}

/// The tail of a run, and a digest of all of it.
#[derive(Default)]
pub struct Log {
    tail: VecDeque<(Nanos, Line)>,
    print: bool,
    pub digest: Option<u64>,
    /// All of it, when somebody wants to step through it later.
    pub record: Option<Vec<record::Line>>,
}

impl Log {
    /// `print`: everything as it happens. The digest costs time.
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
            record.push(record::Line::Start(Box::new(start())));
        }
    }

    pub fn note(&mut self, now: Nanos, text: impl FnOnce() -> String) {
        let text = text();
        if self.print {
            println!("{} {text}", stamp(now));
        }
        if let Some(record) = &mut self.record {
            record.push(record::Line::Note { world: now, text: text.clone() });
        }
        self.keep(now, Line::Note(text));
    }

    pub fn step(&mut self, now: Nanos, at: Now, event: &Event, effects: &[Effect], state: &NodeState) {
        let wall = at.wall;
        if let Some(record) = &mut self.record {
            record.push(record::Line::Step { world: now, now: at, event: Box::new(event.clone()) });
        }
        if let Some(digest) = &mut self.digest {
            let mut sum = Sum(*digest);
            // Writing into a number can't fail.
            let _ = write!(sum, "{now}{event:?}{effects:?}");
            *digest = sum.0;
        }
        if self.print {
            print!("{}", step_words(now, wall, event, effects));
            print!("{}", whys(state, event, None));
        }
        self.keep(now, Line::Step { wall, event: Box::new(event.clone()), effects: effects.to_vec() });
    }

    fn keep(&mut self, now: Nanos, line: Line) {
        if self.tail.len() == KEPT {
            self.tail.pop_front();
        }
        self.tail.push_back((now, line));
    }

    pub fn tail(&self) -> String {
        let mut text = String::new();
        for (now, line) in &self.tail {
            match line {
                Line::Note(note) => {
                    let _ = writeln!(text, "{} {note}", stamp(*now));
                }
                Line::Step { wall, event, effects } => {
                    text.push_str(&step_words(*now, *wall, event, effects))
                }
            }
        }
        text
    }
}

struct Sum(u64);

impl std::fmt::Write for Sum {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        Ok(())
    }
}

pub fn stamp(now: Nanos) -> String {
    format!("{:>6}.{:06}", now / SECOND, now % SECOND / (MILLI / 1000))
}

pub fn step_words(now: Nanos, wall: Wall, event: &Event, effects: &[Effect]) -> String {
    let mut text = format!("{} event {} (wall {wall:?})\n", stamp(now), event_words(event));
    for effect in effects {
        let _ = writeln!(text, "{:>14}  -> {}", "", effect_words(effect));
    }
    text
}

fn event_words(event: &Event) -> String {
    match event {
        Event::Pods { source, pods } => {
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
        Event::StepDone { uid, epoch, stage, action, result } => {
            format!("{uid} plan {} action {stage}.{action}: {result:?}", epoch.0)
        }
        Event::PodChanged { pod, .. } => format!("watch shows {}", object_words(pod)),
        Event::NodeSeen(node) => {
            format!("node {:?}", node.as_ref().and_then(|n| n.metadata.uid.as_deref()))
        }
        Event::ApiAnswered(answer) => answer_words(answer),
        other => format!("{other:?}"),
    }
}

fn object_words(pod: &model::k8s::Pod) -> String {
    let meta = &pod.metadata;
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let phase = pod.status.as_ref().map(|s| text(&s.phase)).unwrap_or_default();
    format!("{} v{} {phase}", text(&meta.uid), text(&meta.resource_version))
}

fn answer_words(answer: &ApiAnswer) -> String {
    let pod = |result: &Result<std::sync::Arc<model::k8s::Pod>, _>| match result {
        Ok(pod) => object_words(pod),
        Err(failure) => format!("{failure:?}"),
    };
    match answer {
        ApiAnswer::StatusPatched { uid, result, .. } => format!("patched {uid}: {}", pod(result)),
        ApiAnswer::PodDeleted { uid, result } => format!("object of {uid} deleted: {result:?}"),
        ApiAnswer::MirrorCreated { full_name, result } => {
            format!("mirror {full_name} made: {}", pod(result))
        }
        ApiAnswer::MirrorDeleted { uid, result, .. } => format!("mirror {uid} deleted: {result:?}"),
    }
}

fn call_words(call: &ApiCall) -> String {
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

fn effect_words(effect: &Effect) -> String {
    match effect {
        Effect::Run { uid, epoch, stages } => {
            let stage =
                |s: &decide::Stage| s.actions.iter().map(action_words).collect::<Vec<_>>().join(" & ");
            let stages: Vec<_> = stages.iter().map(stage).collect();
            format!("run {uid} plan {}: {}", epoch.0, stages.join(" ; "))
        }
        Effect::PublishStatus { uid, status } => {
            format!("status {uid} {}", status.phase.as_deref().unwrap_or_default())
        }
        Effect::RecordEvent { uid, event, .. } => format!("record {uid} {}: {}", event.reason, event.message),
        Effect::CallApi(call) => call_words(call),
        Effect::EnsureCgroups { specs } => format!("ensure {} cgroups", specs.len()),
        Effect::UpdateVolume { uid, volume } => format!("update volume {} of {uid}", volume.name),
        other => format!("{other:?}"),
    }
}

fn action_words(action: &decide::Action) -> String {
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

/// The reasons of the pod that an event is about, or of all; of one pod alone, when `only` names it.
pub fn whys(state: &NodeState, event: &Event, only: Option<&PodUid>) -> String {
    let about = match event {
        Event::StepDone { uid, .. } | Event::PlanEnded { uid, .. } => Some(uid.clone()),
        Event::Timer(decide::TimerKey::Pod(uid)) | Event::Hint(decide::Hint::Pod(uid)) => Some(uid.clone()),
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
        let _ = writeln!(text, "{:>14}  why {uid} {:?}: {}", "", entry.lifecycle, causes.join("; "));
    }
    text
}
