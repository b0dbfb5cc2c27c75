//! K7 and K9: what is as it should be is left alone, also by an agent that just came up.

use super::check;

const SHAPES: [(&str, &str); 8] = [
    ("", "s0 ready; c#0 running"),
    ("run c d", "s1 ready; c#3 running; d#0 running"),
    ("init i; run c", "s0 ready; i#0 exit(0); c#0 running"),
    ("init s* i t*; run c", "s0 ready; s#0 running; i#0 exit(0); t#0 running; c#0 running"),
    ("restart Never; run c d", "s0 ready; c#0 exit(1); d#0 running"),
    ("restart OnFailure; run c d", "s0 ready; c#0 exit(0); d#2 running"),
    ("spec: {hostNetwork: true}", "s0 ready host no-ip; c#0 running"),
    ("", "s0 dead; s1 ready; c#0 exit(1) @s0; c#1 running"),
];

#[test]
fn an_agent_that_comes_up_leaves_what_runs_alone() {
    for (pod, reading) in SHAPES {
        // in any order of what it gets to know
        for order in [
            ["started", "ready", "file a", "READ"],
            ["started", "file a", "READ", "ready"],
            ["started", "READ", "ready", "file a"],
            ["started", "ready", "READ", "file a"],
        ] {
            let mut script = format!("pod a = {pod}\n");
            for line in order {
                let line = if line == "READ" { format!("read all: a = {reading}") } else { line.into() };
                script += &line;
                script += match line.as_str() {
                    "started" => " => check+driver | read all\n",
                    "ready" if order[3] == "ready" => " => read all\n",
                    "ready" => "\n",
                    _ => " => -\n",
                };
            }
            check(&script);
        }
    }
}

#[test]
fn nothing_happens_to_a_converged_pod() {
    for (pod, reading) in SHAPES {
        check(&format!(
            r"
            pod a = {pod}
            started
            ready
            file a
            read all: a = {reading}
            show status timers events
            file a                              => -
            hint a                              => read a
            read a: {reading}                   => -
            hint-images                         => -
            timer pod a                         => -
            timer check                         => check
            ready                               => -
            timer full                          => read all
            read all: a = {reading}             => -
            leftovers dirs=a logs=ns_a_a        => -
            "
        ));
    }
}

#[test]
fn a_finished_pod_is_finished_again_after_a_restart() {
    for (policy, code, phase) in [("Never", 1, "Failed"), ("OnFailure", 0, "Succeeded")] {
        check(&format!(
            r"
            pod a = restart {policy}
            started
            ready
            file a
            read all: a = s0 dead; c#0 exit({code})  => run a: stop-sandbox s0
            done a                                   => read a
            read a: s0 dead; c#0 exit({code})        => run a: tear-down > drop-cgroup kubepods/besteffort/poda
            done a                                   => -
            why a                                    => finished {phase}
            "
        ));
    }
}

#[test]
fn a_whole_life() {
    check(
        r"
        show status
        pod a = init i s*; run c
        up
        file a
            => status a Pending i=wait:PodInitializing s=wait:PodInitializing c=wait:PodInitializing
            => run a: dirs + cgroup > sandbox#0 | look img-i:1
        looked img-i:1: no                           => pull img-i:1
        done a                                       => read a
        read a: s0 ready
            => status a Pending i=wait:PodInitializing s=wait:PodInitializing c=wait:PodInitializing
        pulled img-i:1: ok                           => run a: start i#0
        done a                                       => read a
        read a: s0 ready; i#0 running
            => status a Pending i=running s=wait:PodInitializing c=wait:PodInitializing
        hint-id a.i#0                                => read a
        read a: s0 ready; i#0 exit(0)
            => status a Pending i=exit(0) s=wait:PodInitializing c=wait:PodInitializing | look img-s:1
        looked img-s:1: yes                          => run a: start s#0?
        done a                                       => read a
        read a: s0 ready; i#0 exit(0); s#0 running
            => status a Pending i=exit(0) s=running c=wait:PodInitializing | look img-c:1
        looked img-c:1: yes                          => run a: start c#0?
        done a                                       => read a
        read a: s0 ready; i#0 exit(0); s#0 running; c#0 running
            => status a Running i=exit(0) s=running c=running
        why a                                        => running
        ",
    );
}
