//! Programs of the host that work on disks and mounts: their error output, and whether they make progress.
//!
//! Formatting or checking a large disk takes many minutes without output. So the program and its children are watched:
//! CPU time and bytes read or written count as steps of the work. A program that only waits makes no steps and counts
//! as hung after a while, as all other work ([`super::workers`]).

use std::io;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use model::text_limits::{TextLimit, truncate_output};
use ports::FilesError;

use super::steps::WorkProgress;

/// How often a long program is checked for progress.
const LOOK: Duration = Duration::from_secs(5);
/// Generations of children that are checked: `fsck` starts a child that does the work.
const DEEPEST: usize = 4;

/// Fails with the program's error output.
pub fn run(program: &str, words: &[&str]) -> Result<(), FilesError> {
    let output = Command::new(program).args(words).stdin(Stdio::null()).output();
    judge(program, words, output)
}

/// The same for a program that may take long. It keeps `stdin` open even if the agent ends.
pub fn run_long(program: &str, words: &[&str], stdin: Stdio) -> Result<(), FilesError> {
    judge(program, words, long_output(Command::new(program).args(words).stdin(stdin)))
}

fn judge(program: &str, words: &[&str], output: io::Result<Output>) -> Result<(), FilesError> {
    let refused = |message: String| FilesError::Refused { message };
    let output = output.map_err(|error| refused(format!("{program}: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    Err(refused(format!(
        "{program} failed: {}\nMounting command: {program}\nMounting arguments: {}\nOutput: {}",
        output.status,
        words.join(" "),
        truncate_output(said.trim_ascii(), TextLimit::ProgramOutput)
    )))
}

/// Counts the program's activity as steps of the work that waits for it.
pub fn long_output(command: &mut Command) -> io::Result<Output> {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (pid, pulse) = (child.id(), WorkProgress::current());
    let (running, ended) = channel();
    std::thread::scope(|scope| {
        let look = move || watch(pid, &pulse, &ended, LOOK);
        // Without the watcher thread only the progress is unknown.
        let watcher = std::thread::Builder::new().name("watch".into()).spawn_scoped(scope, look);
        if let Err(error) = watcher {
            tracing::warn!(%error, "no thread to watch a program");
        }
        let output = child.wait_with_output();
        drop(running);
        output
    })
}

fn watch(pid: u32, pulse: &WorkProgress, ended: &Receiver<()>, every: Duration) {
    let mut seen = activity(pid, 0);
    while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
        let now = activity(pid, 0);
        if now != seen {
            pulse.record_step();
            seen = now;
        }
    }
}

/// Grows while the process or its children compute, read or write. Children that have ended still count.
fn activity(pid: u32, depth: usize) -> u64 {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let mut sum = ticks(&read("stat")) + bytes(&read("io"));
    if depth < DEEPEST {
        let children = read(&format!("task/{pid}/children"));
        let children = children.split_whitespace().filter_map(|child| child.parse().ok());
        sum = children.fold(sum, |sum, child| sum.wrapping_add(activity(child, depth + 1)));
    }
    sum
}

/// utime, stime, cutime and cstime: fields 14 to 17. The second field is a name in brackets, which may contain
/// anything.
fn ticks(stat: &str) -> u64 {
    let Some((_, after_name)) = stat.rsplit_once(')') else { return 0 };
    after_name.split_whitespace().skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum()
}

fn bytes(io: &str) -> u64 {
    io.lines().filter_map(|line| line.split_once(": ")?.1.parse::<u64>().ok()).fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_fails_tells_why() {
        let error = run("false", &["-x"]).unwrap_err().to_string();
        assert!(error.starts_with("false failed: exit status: 1\nMounting command: false"), "{error}");
        let error = run_long("sh", &["-c", "echo why >&2; exit 3"], Stdio::null()).unwrap_err().to_string();
        assert!(error.starts_with("sh failed: exit status: 3") && error.ends_with("Output: why"), "{error}");
        let error = run("no-such-program", &[]).unwrap_err().to_string();
        assert!(error.starts_with("no-such-program: "), "{error}");
    }

    #[test]
    fn figures_of_processes() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194560 2018 77 0 0 10 200 3000 40000 20 0 1 0 50";
        assert_eq!((ticks(stat), ticks(""), ticks("7 (x) S 1")), (43210, 0, 0));
        assert_eq!((bytes("rchar: 5\nwchar: 7\nodd\n"), bytes("")), (12, 0));
    }

    /// The child is busy, as with `fsck`; its parent waits for input and does nothing.
    #[test]
    fn what_gets_on_is_told_from_what_waits() {
        let looked_at = |script: &str, until: &dyn Fn(&WorkProgress) -> bool| {
            let mut child =
                Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).spawn().expect("a shell");
            let (pulse, pid) = (WorkProgress::default(), child.id());
            let (running, ended) = channel();
            std::thread::scope(|scope| {
                let counted = pulse.clone();
                scope.spawn(move || watch(pid, &counted, &ended, Duration::from_millis(50)));
                let (_never, pause) = channel::<()>();
                for _ in 0..400 {
                    let _ = pause.recv_timeout(Duration::from_millis(50));
                    if until(&pulse) {
                        break;
                    }
                }
                drop(running);
            });
            // Closing the input ends both.
            drop(child.stdin.take());
            child.wait().expect("the end of the shell");
            pulse.steps_taken()
        };
        let busy = "yes >/dev/null & read -r line; kill $!";
        assert!(looked_at(busy, &|pulse| pulse.steps_taken() >= 3) >= 3);
        let rounds = std::cell::Cell::new(0);
        let some_rounds = |_: &WorkProgress| rounds.replace(rounds.get() + 1) >= 20;
        let waits = looked_at("read -r line", &some_rounds);
        assert!(waits <= 2, "only its start may have been seen, not {waits} steps");
    }
}
