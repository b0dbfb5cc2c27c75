use super::*;

const HEADER: &str = "4,1,1,-;";
const BEGUN: &str = "tail invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=999";

/// What these messages of the kernel tell, one after the other.
fn told(messages: &[&str]) -> Vec<(OutOfMemory, Option<String>, String, u32)> {
    let mut reader = KillReader::default();
    let record = |message: &&str| reader.record(format!("{HEADER}{message}\n SUBSYSTEM=x\n").as_bytes());
    let kills = messages.iter().filter_map(record);
    kills.map(|kill| (kill.ran_out, kill.process_cgroup, kill.victim.name, kill.victim.pid)).collect()
}

#[track_caller]
fn check(messages: &[&str], ran_out: OutOfMemory, process_cgroup: Option<&str>, name: &str, pid: u32) {
    let messages = [&[BEGUN], messages].concat();
    let expect = (ran_out, process_cgroup.map(str::to_owned), name.to_owned(), pid);
    assert_eq!(told(&messages), [expect], "{messages:?}");
}

fn limit(path: &str) -> OutOfMemory {
    OutOfMemory::Cgroup(path.to_owned())
}

fn constraint(task: &str) -> String {
    format!(
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=abc,mems_allowed=0,\
         oom_memcg=/kubepods/podu,task_memcg=/kubepods/podu/abc,{task}"
    )
}

#[test]
fn kills_of_every_kernel() {
    use OutOfMemory::Machine;
    const CUT: &str =
        "Memory cgroup out of memory: Killed process 6583 (sh) total-vm:51428kB, UID:0 oom_score_adj:999";
    check(
        &["CPU: 1 PID: 6583 Comm: sh", &constraint("task=sh,pid=6583,uid=0")],
        limit("/kubepods/podu"),
        Some("/kubepods/podu/abc"),
        "sh",
        6583,
    );
    // What follows is about the same kill.
    assert_eq!(told(&[BEGUN, &constraint("task=sh,pid=6583,uid=0"), CUT, CUT]).len(), 1);
    check(
        &["oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,\
           task_memcg=/kubepods/podu/abc,task=sh,pid=6583,uid=0"],
        Machine,
        Some("/kubepods/podu/abc"),
        "sh",
        6583,
    );
    check(
        &[
            "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,task=sh,pid=6583,uid=0",
        ],
        Machine,
        None,
        "sh",
        6583,
    );
    check(
        &["oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/,\
           task_memcg=/,task=sh,pid=6583,uid=0"],
        Machine,
        Some("/"),
        "sh",
        6583,
    );
    check(
        &[
            "Task in /kubepods/podu/abc killed as a result of limit of /kubepods/podu",
            "memory: usage 1kB",
            "Killed process 6583 (sh) total-vm:51428kB, anon-rss:24064kB",
        ],
        limit("/kubepods/podu"),
        Some("/kubepods/podu/abc"),
        "sh",
        6583,
    );
    check(&["Out of memory: Killed process 6583 (sh) total-vm:51428kB"], Machine, None, "sh", 6583);
    // The line with the cgroups was cut: that one of them ran out is still known, and where it was cut is not used.
    check(&[CUT], OutOfMemory::UnknownCgroup, None, "sh", 6583);
    let whole = constraint("task=sh,pid=6583,uid=0");
    let cut = |before: &str| whole[..whole.find(before).expect("in the line") + before.len()].to_owned();
    check(&[&cut("oom_memcg=/kube"), CUT], OutOfMemory::UnknownCgroup, None, "sh", 6583);
    check(&[&cut("task_memcg=/kube"), CUT], limit("/kubepods/podu"), None, "sh", 6583);
    check(
        &[&cut(",pid=")[..whole.len() - 15], CUT],
        limit("/kubepods/podu"),
        Some("/kubepods/podu/abc"),
        "sh",
        6583,
    );
    // One that killed nobody is followed by another.
    check(
        &["Task in /a killed as a result of limit of /a", BEGUN, "Out of memory: Killed process 6583 (sh) x"],
        Machine,
        None,
        "sh",
        6583,
    );
}

/// Names have up to 15 bytes, and the kernel escapes what is not printed.
#[test]
fn names_do_not_pass_for_something_else() {
    for name in [
        "",
        " ",
        ")",
        "(",
        "a) total-vm:1kB",
        ",pid=1,uid=0",
        "x,task=y,pid=1",
        "x,oom_memcg=/",
        ",task_memcg=/a",
        "a\\x0a4,1,1,-;b",
        "oom-kill:constr",
        "Killed process ",
        ": Killed process",
        "invoked oom-kil",
        "\u{e9}\u{e8}",
    ] {
        let line = constraint(&format!("task={name},pid=6583,uid=0"));
        check(&[&line], limit("/kubepods/podu"), Some("/kubepods/podu/abc"), name, 6583);
        let line =
            format!("Memory cgroup out of memory: Killed process 6583 ({name}) total-vm:51428kB, UID:0");
        check(&[&line], OutOfMemory::UnknownCgroup, None, name, 6583);
        let begin = format!("{name} {}", &BEGUN[5..]);
        assert_eq!(told(&[&begin, "Out of memory: Killed process 7 (x) y"]).len(), 1, "{name}");
        // Lists of processes show names between the first message and the last.
        assert_eq!(told(&[BEGUN, &format!("[   7]     0     7      512  {name}")]), []);
    }
}

#[test]
fn what_the_kernel_did_not_write_is_no_kill() {
    let killed = "Out of memory: Killed process 6583 (sh) total-vm:51428kB";
    assert_eq!(told(&[killed]), [], "nothing had begun");
    for (header, believed) in
        [("0,1,1,-;", true), ("7,1,1,c;", true), ("4,1,1,-,caller=T1;", true)].into_iter().chain([
            ("12,1,1,-;", false),
            ("30,1,1,-;", false),
            ("-4,1,1,-;", false),
            ("x;", false),
            (";", false),
        ])
    {
        let mut reader = KillReader::default();
        assert_eq!(reader.record(format!("{header}{BEGUN}").as_bytes()), None);
        let kill = reader.record(format!("{header}{killed}").as_bytes());
        assert_eq!(kill.is_some(), believed, "{header}");
    }
    for end in [
        "Out of memory: Killed process 99999999999999999999 (sh) x",
        "Out of memory: Killed process -1 (sh) x",
        "Out of memory: Killed process 6583 sh",
        "Out of memory: Killed process 6583 (sh",
        "Not Killed process 6583 (sh) x",
        "oom-kill:constraint=CONSTRAINT_MEMCG",
        "oom-kill:constraint=,task=sh,pid=none,uid=0",
    ] {
        assert_eq!(told(&[BEGUN, end]), [], "{end}");
    }
}

#[test]
fn long_and_broken_records_cost_nothing() {
    let mut reader = KillReader::default();
    let long = "x".repeat(1 << 20);
    for record in [
        format!("{HEADER}{BEGUN}{long}"),
        format!("{HEADER}{long}"),
        long.clone(),
        format!("{HEADER}Out of memory: Killed process 7 ({long}) x"),
    ] {
        assert_eq!(reader.record(record.as_bytes()), None);
        assert!(reader.begun.is_none(), "no record is as long as that");
    }
    for record in [&b""[..], b";", b"4", b"\xff\xfe;\xff", b"4,1,1,-;\xff\xff"] {
        assert_eq!(reader.record(record), None, "{record:?}");
    }
    let name = "y".repeat(MAX_RECORD - 200);
    let told = told(&[BEGUN, &format!("Out of memory: Killed process 7 ({name}) x")]);
    assert!(
        matches!(&told[..], [(_, _, name, 7)] if name.len() <= TextLimit::Name.bytes()),
        "{}",
        told.len()
    );
}

#[test]
fn after_a_gap_nothing_is_put_together() {
    let mut reader = KillReader::default();
    assert_eq!(reader.record(format!("{HEADER}{BEGUN}").as_bytes()), None);
    reader.records_lost();
    assert_eq!(reader.record(format!("{HEADER}Out of memory: Killed process 7 (x) y").as_bytes()), None);
}
