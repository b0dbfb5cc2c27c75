//! The event log of a run as a file: one JSON value per line. Decisions depend only on the state and the events, so the
//! log can be replayed without the simulated world, also by another build.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use decide::{Event, NodeState};
use model::cri::IdMapping;
use model::node::{HostFacts, NodeConfig};
use model::panic_record::PanicRecord;
use model::probe::ProbeRecord;
use model::{Now, PodUid, Wall};
use serde::{Deserialize, Serialize};

use crate::report;
use crate::time::Nanos;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum LogLine {
    /// An agent starts, with what an earlier one left on disk.
    Start(Box<Start>),
    Step {
        world: Nanos,
        now: Now,
        event: Box<Event>,
    },
    /// Something that the agent does not see.
    Note {
        world: Nanos,
        text: String,
    },
    /// The invariant that was broken in the end.
    End {
        world: Nanos,
        invariant: String,
        message: String,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Start {
    pub config: NodeConfig,
    pub facts: HostFacts,
    pub wall: Wall,
    pub probe_records: BTreeMap<PodUid, ProbeRecord>,
    pub user_ids: BTreeMap<PodUid, IdMapping>,
    #[serde(default)]
    pub panic_records: Vec<PanicRecord>,
}

impl Start {
    pub fn state(&self) -> NodeState {
        let mut state = NodeState::new(self.config.clone(), self.facts.clone(), self.wall);
        state.probe_records = self.probe_records.clone();
        state.user_ids = self.user_ids.iter().map(|(uid, ids)| (uid.clone(), Some(ids.clone()))).collect();
        state.set_aside = decide::set_aside::pods_to_set_aside(&self.panic_records);
        state
    }
}

pub fn write(path: &Path, lines: &[LogLine]) -> io::Result<()> {
    let mut text = String::new();
    for line in lines {
        text.push_str(&serde_json::to_string(line).map_err(io::Error::other)?);
        text.push('\n');
    }
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    fs::write(path, text)
}

pub fn read(path: &Path) -> io::Result<Vec<LogLine>> {
    let text = fs::read_to_string(path)?;
    let line = |(number, line): (usize, &str)| {
        serde_json::from_str(line)
            .map_err(|error| io::Error::other(format!("{}: line {}: {error}", path.display(), number + 1)))
    };
    text.lines().enumerate().map(line).collect()
}

/// The part of a log that is shown.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// The first event that is shown, and how many.
    pub from: usize,
    pub count: Option<usize>,
    /// Show only the reasons of this pod.
    pub pod: Option<PodUid>,
}

/// Replays a log and prints each event, what was decided, and why each pod that it concerns is in its state.
pub fn replay_log(lines: &[LogLine], window: &Window, tell: &mut dyn FnMut(&str)) {
    let mut state = None;
    let mut number = 0;
    for line in lines {
        let shown = number >= window.from && window.count.is_none_or(|count| number < window.from + count);
        match line {
            LogLine::Start(start) => {
                state = Some(start.state());
                if shown {
                    tell("an agent starts\n");
                }
            }
            LogLine::Step { world, now, event } => {
                number += 1;
                let Some(state) = &mut state else { continue };
                let effects = decide::step(state, *now, (**event).clone());
                if shown {
                    let words = report::describe_step(*world, now.wall, event, &effects);
                    let whys = report::describe_reasons(state, event, window.pod.as_ref());
                    tell(&format!("{number:>5} {words}{whys}"));
                }
            }
            LogLine::Note { world, text } => {
                if shown {
                    tell(&format!("      {} {text}\n", report::format_time(*world)));
                }
            }
            LogLine::End { world, invariant, message } => {
                tell(&format!("      {} breaks {invariant}: {message}\n", report::format_time(*world)));
            }
        }
    }
}
