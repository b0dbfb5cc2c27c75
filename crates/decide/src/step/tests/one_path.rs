//! However a pod's end is asked for, it ends in one way: stop within the grace, release, last status, and gone when
//! nobody wants it any more.

use model::node::NodeConfig;
use model::pod::Source;

use super::{check, check_on};

fn of_both() -> NodeConfig {
    NodeConfig { sources: vec![Source::File, Source::Api], ..Default::default() }
}

/// A file's pod `a` and the API's pod `b` run.
const RUNNING: &str = r"
    pod a = spec: {terminationGracePeriodSeconds: 20}
    pod b = spec: {terminationGracePeriodSeconds: 20}
    started
    ready
    file a
    api b
    read all: a = s0 ready; c#0 running / b = s0 ready; c#0 running
";

const DELETED: &str = "pod b = spec: {terminationGracePeriodSeconds: 20}; \
    meta: {deletionTimestamp: \"2024-01-01T00:00:00Z\", deletionGracePeriodSeconds: 7}";

/// Name, what asks for the end, whose, and the grace that it gives.
fn ways() -> Vec<(&'static str, String, &'static str, i64)> {
    vec![
        ("a file is removed", "file".into(), "a", 20),
        ("the API lets go of it", "api".into(), "b", 20),
        ("deletionTimestamp is set", format!("{DELETED}\napi b"), "b", 7),
        ("it is evicted", "evict a".into(), "a", 20),
        ("it is evicted in a hurry", "evict b 0".into(), "b", 2),
        ("it is evicted with a grace of its own", "evict b 9".into(), "b", 9),
    ]
}

#[test]
fn every_way_stops_and_releases_alike() {
    for (name, ask, uid, grace) in ways() {
        println!("{name}");
        check_on(
            of_both(),
            &format!(
                r"
                {RUNNING}
                {ask}
                => run {uid}: stop c#0 {grace}s > stop-sandbox s0
                done {uid}                        => read {uid}
                read {uid}: s0 dead; c#0 exit(0)  => run {uid}: tear-down > drop-cgroup kubepods/besteffort/pod{uid}
                state {uid}                       => terminated
                "
            ),
        );
    }
}

#[test]
fn every_way_takes_the_retry_of_a_stop_that_was_refused() {
    for (name, ask, uid, grace) in ways() {
        println!("{name}");
        check_on(
            of_both(),
            &format!(
                r"
                {RUNNING}
                {ask}
                fail {uid}: stop c#0 {grace}s = busy     => read {uid}
                read {uid}: s0 ready; c#0 running        => -
                why {uid}                                => stop container failed (busy) @1s
                due pod {uid} @1s                        => run {uid}: stop c#0 {}s > stop-sandbox s0
                ",
                (grace - 1).max(2)
            ),
        );
    }
}

#[test]
fn every_way_forbids_starts() {
    for (name, ask, uid, _) in ways() {
        println!("{name}");
        check_on(
            of_both(),
            &format!(
                r"
                {RUNNING}
                {ask}
                done {uid}                        => read {uid}
                # it looks as if it should be restarted
                read {uid}: s0 dead; c#0 exit(1)  => run {uid}: tear-down > drop-cgroup kubepods/besteffort/pod{uid}
                "
            ),
        );
    }
}

#[test]
fn every_way_is_cut_short_by_a_shorter_one() {
    for (name, ask, uid, grace) in ways() {
        println!("{name}");
        let shorter = format!("evict {uid} 1");
        let expect = if grace > 2 { format!("cancel {uid}") } else { "-".into() };
        check_on(of_both(), &format!("{RUNNING}\n{ask}\n{shorter} => {expect}"));
        // and never drawn out by a longer one
        check_on(of_both(), &format!("{RUNNING}\n{ask}\nevict {uid} 3600 => -"));
    }
}

#[test]
fn a_deadline_takes_the_path_of_the_others() {
    check(
        r"
        show status
        pod a = spec: {terminationGracePeriodSeconds: 20, activeDeadlineSeconds: 60}
        up
        file a
        looked img-c:1: yes
        done a
        read a: s0 ready
        done a
        read a: s0 ready; c#0 running   => status a Running c=running
        due pod a @60s
        => status a Failed(DeadlineExceeded) c=running
        => run a: stop c#0 20s > stop-sandbox s0
        state a                         => terminating 20s
        # another reason does not replace the first
        evict a                         => -
        done a                          => read a
        read a: s0 dead; c#0 exit(137)
        => status a Failed(DeadlineExceeded) c=exit(137)
        => run a: tear-down > drop-cgroup kubepods/besteffort/poda
        ",
    );
}

#[test]
fn an_evicted_pod_fails_with_its_reason_whatever_its_containers_end_with() {
    check_on(
        of_both(),
        &format!(
            r"
            {RUNNING}
            show status
            evict b 0
            => status b Failed(Evicted) c=running
            => run b: stop c#0 2s > stop-sandbox s0
            done b                          => read b
            read b: s0 dead; c#0 exit(0)
            => status b Failed(Evicted) c=exit(0)
            => run b: tear-down > drop-cgroup kubepods/besteffort/podb
            done b                          => run b: remove c#0 > remove-sandbox s0
            state b                         => finished
            # told once more
            evict b 0                       => -
            "
        ),
    );
}

#[test]
fn the_last_status_is_told_before_the_pod_is_forgotten() {
    for (name, ask, uid, _) in ways() {
        println!("{name}");
        let mut run = super::script::Script::new(of_both());
        let script = format!("{RUNNING}\n{ask}\ndone {uid}\nread {uid}: s0 dead; c#0 exit(3)\ndone {uid}");
        for line in script.lines().map(str::trim).filter(|l| !l.is_empty()) {
            run.line(line);
        }
        let entry = &run.state.pods[&uid.into()];
        let status = entry.status.clone().expect("a status");
        let end =
            status.container_statuses.iter().flatten().find_map(|c| c.state.as_ref()?.terminated.clone());
        assert_eq!(end.map(|end| end.exit_code), Some(3), "{name}");
        if uid == "b" {
            assert_eq!(status.phase.as_deref(), Some("Failed"), "{name}");
        }
    }
}

#[test]
fn a_deleted_pod_is_known_until_its_source_lets_go() {
    check_on(
        of_both(),
        &format!(
            r"
            {RUNNING}
            {DELETED}
            api b
            done b
            read b: s0 dead; c#0 exit(0)
            done b                        => -
            state b                       => finished
            # an echo of its status changes nothing
            api b                         => -
            state b                       => finished
            api                           => run b: remove c#0 > remove-sandbox s0 > remove-dir + remove-logs ns_b_b
            done b                        => read b
            read b:                       => forget b
            "
        ),
    );
}
