//! Processes that the kernel killed.

use model::node::NodeConfig;
use model::oom_kill::{OomKill, OomVictim, OutOfMemory};
use model::text_limits::TextLimit;

use super::script::Script;
use crate::effect::Effect;
use crate::event::Event;

fn kill(ran_out: OutOfMemory, process_cgroup: Option<&str>, name: &str, pid: u32) -> Event {
    let victim = OomVictim { name: name.to_owned(), pid };
    Event::OomKilled(OomKill { ran_out, process_cgroup: process_cgroup.map(str::to_owned), victim })
}

fn limit(path: &str) -> OutOfMemory {
    OutOfMemory::Cgroup(path.to_owned())
}

fn script() -> Script {
    let mut run = Script::new(NodeConfig::default());
    for line in
        ["show events logs", "up", "pod a = run c", "file a", "done a", "read a: s0 ready; c#0 running"]
    {
        run.line(line);
    }
    run
}

#[test]
fn a_kill_is_told_of_the_node_or_of_the_pod() {
    let mut run = script();
    let mut check = |event: Event, pod: Option<&str>, expect: &[&str]| {
        assert_eq!(run.event(event), expect);
        let about = run.effects().iter().find_map(|effect| match effect {
            Effect::Log { uid, .. } => Some(uid.as_ref().map(|uid| uid.as_str())),
            _ => None,
        });
        assert_eq!(about, Some(pod), "{expect:?}");
    };
    check(
        kill(limit("/kubepods/besteffort/poda"), Some("/kubepods/besteffort/poda/a.c#0"), "tail", 7),
        Some("a"),
        &["log the kernel killed process \"tail\" (pid 7) of container c (a.c#0): \
           the memory limit of cgroup /kubepods/besteffort/poda is reached"],
    );
    check(
        kill(limit("/kubepods"), Some("/kubepods/besteffort/poda/s0"), "pause", 7),
        Some("a"),
        &["log the kernel killed process \"pause\" (pid 7) of container s0: \
           the memory limit of cgroup /kubepods is reached"],
    );
    // The line about cgroups was cut before that of the process.
    check(
        kill(limit("/kubepods/besteffort/poda"), None, "tail", 7),
        Some("a"),
        &["log the kernel killed process \"tail\" (pid 7): \
           the memory limit of cgroup /kubepods/besteffort/poda is reached"],
    );
    check(
        kill(OutOfMemory::Machine, Some("/kubepods/besteffort/poda/a.c#0"), "tail", 7),
        Some("a"),
        &[
            "node SystemOOM: System OOM encountered, victim process: tail, pid: 7",
            "log the kernel killed process \"tail\" (pid 7) of container c (a.c#0): the machine has no memory left",
        ],
    );
    check(
        kill(OutOfMemory::Machine, None, "", 7),
        None,
        &[
            "node SystemOOM: System OOM encountered",
            "log the kernel killed process \"\" (pid 7): the machine has no memory left",
        ],
    );
    check(
        kill(OutOfMemory::UnknownCgroup, Some("/kubepods/besteffort/podb/x"), "tail", 7),
        None,
        &["log the kernel killed process \"tail\" (pid 7) in cgroup /kubepods/besteffort/podb/x: \
           the memory limit of a cgroup is reached"],
    );
}

#[test]
fn no_name_breaks_a_line_or_makes_it_long() {
    let mut run = script();
    run.event(kill(limit("/x"), Some(&format!("/poda/{}", "y".repeat(1 << 20))), "a\nb\u{1b}[2J", u32::MAX));
    let [Effect::Log { message, .. }] = run.effects() else { panic!("{:?}", run.effects()) };
    assert!(
        message.starts_with("the kernel killed process \"a\\nb\\u{1b}[2J\" (pid 4294967295)"),
        "{message}"
    );
    assert!(message.len() <= TextLimit::LogLine.bytes());
}
