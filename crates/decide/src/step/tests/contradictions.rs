//! A runtime that contradicts itself for good costs next to nothing, and other pods don't notice.

use model::node::NodeConfig;
use model::pod::Source;

use super::{check, check_on};

/// An orphan whose sandbox and container the runtime says to have removed, and lists.
const STILL_LISTED: &str = r"
    started
    ready
    file
    read all: o = s0 dead; c#0 exit(0)
    done o
    read o: s0 dead; c#0 exit(0)       => run o: tear-down > drop-cgroup kubepods/podo + drop-cgroup kubepods/burstable/podo + drop-cgroup kubepods/besteffort/podo
    done o                             => run o: remove c#0 > remove-sandbox s0 > remove-dir + remove-logs ns_o_o
    done o                             => read o
    read o: s0 dead; c#0 exit(0)       => -
    due confirm @1s                    => read o
    read o @1s: s0 dead; c#0 exit(0)   => -
    why o                              => releasing; still listed o.s0 o.c#0 @11s
";

#[test]
fn what_can_not_be_removed_is_told_once_and_tried_ever_more_rarely() {
    check(
        &format!(
            r"
        {STILL_LISTED}
        show logs
        # nothing is doubted any more, and nothing is said again
        due pod o @11s                     => run o: remove c#0 > remove-sandbox s0
        done o                             => -
        due confirm @12s                   => read o
        read o @12s: s0 dead; c#0 exit(0)  => -
        why o                              => releasing; still listed o.s0 o.c#0 @52s
        # hints and complete readings do not wake it
        hint o                             => read o
        read o @12s: s0 dead; c#0 exit(0)  => -
        due pod o @52s                     => run o: remove c#0 > remove-sandbox s0
        done o                             => -
        due confirm @53s                   => read o
        read o @53s: s0 dead; c#0 exit(0)  => -
        due pod o @213s                    => run o: remove c#0 > remove-sandbox s0
        done o                             => -
        due confirm @214s                  => read o
        read o @214s: s0 dead; c#0 exit(0) => -
        # ten minutes from here on
        due pod o @814s                    => run o: remove c#0 > remove-sandbox s0
        done o                             => -
        due confirm @815s                  => read o
        # the runtime was restarted, and knows better
        read o @815s:                      => log pod is gone from here on | forget o
        "
        )
        .replace("log pod is gone from here on | ", ""),
    );
}

#[test]
fn many_doubts_are_answered_by_one_complete_reading() {
    let all = |text: &str| ["a", "b", "c", "d", "e"].map(|uid| format!("{uid} = {text}")).join(" / ");
    let running = all("s0 ready; c#0 running");
    check(&format!(
        r"
        started
        ready
        file a b c d e
        read all: {running}
        +5s
        hint-all                           => check | read all
        read all @5s:                      => -
        # each could be read alone at 6 s; they wait for each other a little
        due confirm @7s                    => read all
        read all @7s: {running}            => -
        why c                              => running
        "
    ));
    // A few are read one by one, as soon as that counts.
    check(
        r"
        started
        ready
        file a b
        read all: a = s0 ready; c#0 running / b = s0 ready; c#0 running
        +5s
        hint-all                           => check | read all
        read all @5s:                      => -
        due confirm @6s                    => read a | read b
        ",
    );
}

#[test]
fn many_removals_without_effect_are_looked_at_by_one_complete_reading() {
    let names = ["k", "l", "m", "n", "o"];
    let each = |text: &str| names.map(|uid| format!("{uid} = {text}")).join(" / ");
    let lines = |word: &str| names.map(|uid| format!("{word} {uid}\n")).concat();
    let dead = each("s0 dead");
    let done = lines("done");
    let read = names.map(|uid| format!("read {uid}: s0 dead => -\n")).concat();
    check(&format!(
        r"
        started
        ready
        file
        read all: {dead}
        {done}
        read all: {dead}
        {done}
        {done}
        {read}
        # every one of them was read after its removal, and is doubted
        due confirm @2s                    => read all
        read all @2s: {dead}               => -
        "
    ));
}

#[test]
fn the_rest_of_a_pod_goes_on_beside_a_container_that_can_not_be_removed() {
    // The older instance is garbage: it is removed, and listed all the same.
    check(
        r"
        started
        ready
        file a
        read all: a = s0 ready; c#2 running; c#1 exit(1) age=100; c#0 exit(1) age=200 => run a: remove c#0?
        done a                             => read a
        read a: s0 ready; c#2 running; c#1 exit(1) age=100; c#0 exit(1) age=200 => -
        due confirm @1s                    => read a
        read a @1s: s0 ready; c#2 running; c#1 exit(1) age=100; c#0 exit(1) age=200 => -
        why a                              => running; still listed a.c#0 @11s
        hint a                             => read a
        read a @1s: s0 ready; c#2 exit(1); c#1 exit(1) age=100; c#0 exit(1) age=200
                                           => run a: remove c#1? | look img-c:1
        ",
    );
}

#[test]
fn a_pod_that_no_source_has_claimed_yet_is_not_given_up_by_one_reading() {
    let config = NodeConfig { sources: vec![Source::File, Source::Http], ..Default::default() };
    let doubted = r"
        started
        ready
        read all: b = s0 ready; c#0 running
        file
        +5s
        hint-all                           => check | read all
        read all @5s:                      => -
    ";
    // It is claimed meanwhile, and is the pod that was there.
    check_on(config.clone(), &format!("{doubted}\nhttp b => -\nwhy b => running"));
    // It was there.
    check_on(
        config.clone(),
        &format!(
            r"
            {doubted}
            due confirm @6s                    => read all
            read all @6s: b = s0 ready; c#0 running => -
            http b                             => -
            why b                              => running
            "
        ),
    );
    // It is gone.
    check_on(
        config,
        &format!(
            r"
            {doubted}
            due confirm @6s                    => read all
            read all @6s:                      => -
            http b                             => run b: dirs + cgroup > sandbox#0 | look img-c:1
            "
        ),
    );
}
