//! Kills in the records of the kernel's log.
//!
//! ```text
//! <priority>,<sequence>,<time>,<flags>;<message>
//!  <KEY>=<value>
//! ```
//!
//! One kill takes several messages, the last of which need not be there. The kernel writes about one kill at a time.
//!
//! ```text
//! <name> invoked oom-killer: ..
//! oom-kill:constraint=..,oom_memcg=<cgroup>,task_memcg=<cgroup>,task=<name>,pid=<n>,uid=<n>     ends it
//! Task in <cgroup> killed as a result of limit of <cgroup>                                     before Linux 5.0
//! Memory cgroup out of memory: Killed process <n> (<name>) ..                                  ends it
//! ```
//!
//! Names of processes are chosen by containers, have up to 15 bytes, and may look like parts of these messages. Names of
//! cgroups are the host's.

use model::oom_kill::{OomKill, OomVictim, OutOfMemory};
use model::text_limits::{TextLimit, truncate_text};

/// The kernel's own limit for a record with all its keys is about half of this.
pub(crate) const MAX_RECORD: usize = 16 << 10;

const BEGIN: &str = "invoked oom-killer:";
const CONSTRAINT: &str = "oom-kill:constraint=";
const BY_MEMORY_CGROUP: &str = "CONSTRAINT_MEMCG";
const LEGACY: &str = "Task in ";
const LEGACY_LIMIT: &str = " killed as a result of limit of ";
const KILLED: &str = "Killed process ";
const KILLED_BY_CGROUP: &str = "Memory cgroup out of memory";

#[derive(Default)]
pub(crate) struct KillReader {
    begun: Option<Begun>,
}

/// What is known of a kill that is being written about.
#[derive(Default)]
struct Begun {
    ran_out: Option<OutOfMemory>,
    process_cgroup: Option<String>,
}

impl KillReader {
    /// One record as it was read. Answers with the kill that it completes.
    pub fn record(&mut self, record: &[u8]) -> Option<OomKill> {
        let message = kernel_message(record)?;
        if message.contains(BEGIN) {
            self.begun = Some(Begun::default());
            return None;
        }
        let kill = self.begun.as_mut()?.message(&message)?;
        self.begun = None;
        Some(kill)
    }

    /// What comes next may be about another kill.
    pub fn records_lost(&mut self) {
        self.begun = None;
    }
}

/// The message of a record that the kernel itself wrote. Programs may write to its log too, but never as the kernel,
/// which is facility 0.
fn kernel_message(record: &[u8]) -> Option<String> {
    if record.len() > MAX_RECORD {
        return None;
    }
    let text = String::from_utf8_lossy(record);
    let (header, rest) = text.split_once(';')?;
    let priority: u32 = header.split(',').next()?.parse().ok()?;
    (priority >> 3 == 0).then(|| rest.lines().next().unwrap_or_default().to_owned())
}

impl Begun {
    fn message(&mut self, message: &str) -> Option<OomKill> {
        if let Some(fields) = message.strip_prefix(CONSTRAINT) {
            let victim = self.constraint(fields)?;
            let by_cgroup = fields.starts_with(BY_MEMORY_CGROUP);
            return Some(self.completed(victim, by_cgroup));
        }
        if let Some(cgroups) = message.strip_prefix(LEGACY) {
            if let Some((process, limit)) = cgroups.split_once(LEGACY_LIMIT) {
                self.process_cgroup = Some(absolute(process));
                self.ran_out = Some(limited(limit));
            }
            return None;
        }
        let victim = killed_process(message)?;
        Some(self.completed(victim, message.starts_with(KILLED_BY_CGROUP)))
    }

    /// Remembers what a line says that was cut before its end; the line about the killed process completes it.
    fn constraint(&mut self, fields: &str) -> Option<OomVictim> {
        // The first one: what comes behind it was chosen by the process.
        let (cgroups, task) = match fields.split_once(",task=") {
            Some((cgroups, task)) => (cgroups, Some(task)),
            None => (fields, None),
        };
        let (limit, process) = match cgroups.split_once(",task_memcg=") {
            Some((limit, process)) => (limit, Some(process)),
            None => (cgroups, None),
        };
        if let Some((_, path)) = limit.split_once(",oom_memcg=") {
            // Without the next field, it may have been cut anywhere.
            self.ran_out = process.or(task).map(|_| limited(path)).or(self.ran_out.take());
        } else if limit.ends_with(",global_oom") {
            self.ran_out = Some(OutOfMemory::Machine);
        }
        let task = task?;
        self.process_cgroup = process.map(absolute);
        let (name, numbers) = task.rsplit_once(",pid=")?;
        victim(name, numbers.split(',').next()?)
    }

    fn completed(&mut self, victim: OomVictim, by_cgroup: bool) -> OomKill {
        let unnamed = || if by_cgroup { OutOfMemory::UnknownCgroup } else { OutOfMemory::Machine };
        OomKill {
            ran_out: self.ran_out.take().unwrap_or_else(unnamed),
            process_cgroup: self.process_cgroup.take(),
            victim,
        }
    }
}

/// `<why>: Killed process <n> (<name>) <figures>`; old kernels do not say why.
fn killed_process(message: &str) -> Option<OomVictim> {
    let at = message.find(KILLED)?;
    let (why, rest) = (&message[..at], &message[at + KILLED.len()..]);
    if !(why.is_empty() || why.ends_with(": ")) {
        return None;
    }
    let (pid, rest) = rest.split_once(" (")?;
    let (name, _) = rest.rsplit_once(')')?;
    victim(name, pid)
}

fn victim(name: &str, pid: &str) -> Option<OomVictim> {
    let pid = pid.parse().ok()?;
    Some(OomVictim { name: truncate_text(name, TextLimit::Name), pid })
}

fn limited(cgroup: &str) -> OutOfMemory {
    match absolute(cgroup) {
        root if root == "/" => OutOfMemory::Machine,
        path => OutOfMemory::Cgroup(path),
    }
}

fn absolute(cgroup: &str) -> String {
    format!("/{}", cgroup.trim_start_matches('/'))
}

#[cfg(test)]
mod tests;
