//! Readings: which one is the truth, when another is asked for, and that a stale one is never acted on.

use model::node::NodeConfig;
use model::pod::Source;

use super::{check, check_on};

const RUNNING: &str = r"
    started
    ready
    file a
    read all: a = s0 ready; c#0 running
";

#[test]
fn nothing_is_planned_before_the_runtime_was_read() {
    check(
        r"
        started                            => check+driver | read all
        ready                              => -
        file a                             => -
        why a                              => observing
        read all:                          => run a: dirs + cgroup > sandbox#0 | look img-c:1
        ",
    );
}

#[test]
fn a_pod_that_comes_later_needs_no_reading_of_its_own() {
    check(
        r"
        up
        +30s
        file a                             => run a: dirs + cgroup > sandbox#0 | look img-c:1
        ",
    );
}

#[test]
fn after_a_change_only_a_later_reading_counts() {
    check(
        r"
        up
        file a                             => run a: dirs + cgroup > sandbox#0 | look img-c:1
        +2s
        done a                             => read a
        # Began before the sandbox was there; the observation that was requested since is still under way.
        read a @1s:                        => -
        why a                              => creating sandbox#0; c: pulling img-c:1
        read a @2s: s0 ready               => -
        why a                              => c: pulling img-c:1
        ",
    );
}

/// A pod that comes back while it is observed is observed anew, so two answers are on their way.
#[test]
fn an_answer_to_an_earlier_request_leads_to_no_other() {
    check(
        r"
        up
        file a
        +2s
        done a                             => read a
        read a @1s:                        => -
        read a @1.5s:                      => -
        read a @1.9s:                      => -
        read a @2s: s0 ready               => -
        ",
    );
}

#[test]
fn a_full_reading_from_before_a_change_does_not_count_either() {
    check(
        r"
        up
        file a
        looked img-c:1: yes
        +1s
        hint-all                           => check | read all
        +1s
        done a                             => read a
        read all @1s:                      => -
        why a                              => creating sandbox#0; c: pulling img-c:1
        read a @2s: s0 ready               => run a: start c#0?
        ",
    );
}

#[test]
fn the_reading_that_began_later_is_the_truth() {
    check(&format!(
        r"
        {RUNNING}
        +1s
        hint-all                           => check | read all
        +1s
        hint a                             => read a
        read a @2s: s0 ready; c#0 exit(1)  => look img-c:1
        # overtaken
        read all @1s: a = s0 ready; c#0 running => -
        why a                              => c: pulling img-c:1
        "
    ));
    check(&format!(
        r"
        {RUNNING}
        +1s
        hint a                             => read a
        +1s
        hint-all                           => check | read all
        read all @2s: a = s0 ready; c#0 exit(1) => look img-c:1
        read a @1s: s0 ready; c#0 running  => -
        why a                              => c: pulling img-c:1
        "
    ));
}

#[test]
fn hints_during_a_reading_lead_to_one_more() {
    check(&format!(
        r"
        {RUNNING}
        +1s
        hint a                             => read a
        +1s
        hint a                             => -
        hint a                             => -
        read a @1s: s0 ready; c#0 running  => read a
        read a @2s: s0 ready; c#0 running  => -
        "
    ));
    check(&format!(
        r"
        {RUNNING}
        +1s
        hint-all                           => check | read all
        +1s
        hint-all                           => -
        read all @1s: a = s0 ready; c#0 running => read all
        read all @2s: a = s0 ready; c#0 running => -
        "
    ));
}

#[test]
fn equal_times_are_told_apart_by_their_order() {
    // the clock does not move at all
    check(
        r"
        up
        file a                             => run a: dirs + cgroup > sandbox#0 | look img-c:1
        looked img-c:1: yes                => -
        done a                             => read a
        why a                              => creating sandbox#0; c: pulling img-c:1
        read a: s0 ready                   => run a: start c#0?
        done a                             => read a
        hint a                             => -
        read a: s0 ready; c#0 running      => -
        why a                              => running
        ",
    );
}

#[test]
fn a_reading_that_says_the_same_changes_nothing() {
    check(&format!(
        r"
        show status timers events
        {RUNNING}
        +1s
        hint a                             => read a
        read a: s0 ready; c#0 running      => -
        hint-all                           => check | read all
        read all: a = s0 ready; c#0 running => -
        "
    ));
}

#[test]
fn ids_lead_to_their_pods() {
    check(&format!(
        r"
        {RUNNING}
        +1s
        hint-id a.c#0                      => read a
        read a: s0 ready; c#0 running
        hint-id a.s0                       => read a
        read a: s0 ready; c#0 exit(1)
        hint-id unheard-of                 => -
        hint nobody                        => -
        "
    ));
}

#[test]
fn a_hint_about_an_id_that_is_not_known_yet_is_remembered() {
    check(
        r"
        up
        file a
        looked img-c:1: yes
        done a
        read a: s0 ready
        +1s
        done a                             => read a
        +1s
        # it ended already, which a reading that began before can't show
        hint-id a.c#0                      => -
        read a @1s: s0 ready; c#0 running  => read a
        read a @2s: s0 ready; c#0 exit(1)  => look img-c:1
        ",
    );
    // a reading that shows its end has nothing left to tell
    check(
        r"
        up
        file a
        looked img-c:1: yes
        done a
        read a: s0 ready
        +1s
        done a                             => read a
        +1s
        hint-id a.c#0
        read a @1s: s0 ready; c#0 exit(1)  => look img-c:1
        ",
    );
}

#[test]
fn a_hint_about_what_nobody_has_claimed_is_not_lost() {
    for hint in ["hint-id a.c#0", "hint a"] {
        check(&format!(
            r"
            started
            ready
            read all: a = s0 ready; c#0 running
            +1s
            {hint}                             => read all
            file a                             => -
            read all @1s: a = s0 ready; c#0 exit(1) => look img-c:1
            "
        ));
    }
}

#[test]
fn a_failed_reading_is_repeated() {
    check(&format!(
        r"
        show timers
        {RUNNING}
        +1s
        hint a                             => read a
        read-failed a                      => timer observe a @2s | check
        due observe a @2s                  => read a
        read-failed a                      => timer observe a @3s
        # a full one does as well
        hint-all                           => read all
        read all: a = s0 ready; c#0 exit(1) => look img-c:1
        due observe a @3s                  => -
        "
    ));
    check(
        r"
        show clocks
        started
        ready
        file a
        read-failed all                    => timer full @1s | check
        due full @1s                       => read all
        read all:
            => timer full @61s | run a: dirs + cgroup > sandbox#0 | look img-c:1
        ",
    );
}

#[test]
fn everything_is_read_again_now_and_then() {
    check(
        r"
        show clocks
        started
        ready
        file
        read all:                          => timer full @60s
        due full @60s                      => read all
        +2s
        read all:                          => timer full @122s
        ",
    );
}

#[test]
fn what_vanishes_between_two_full_readings_is_noticed() {
    check(&format!(
        r"
        {RUNNING}
        due full
        read all:                          => -
        due confirm                        => read a
        read a:                            => run a: dirs + cgroup > sandbox#0 | look img-c:1
        "
    ));
}

#[test]
fn a_pod_that_is_gone_is_not_taken_for_an_orphan() {
    let dropped = format!(
        r"
        {RUNNING}
        +1s
        hint-all                           => check | read all
        +1s
        file
        done a
        read a: s0 dead; c#0 exit(0)
        done a
        done a
        read a:                            => forget a
        "
    );
    // the full reading began while it was still there
    check(&format!(
        r"
        {dropped}
        read all @1s: a = s0 ready; c#0 running => -
        state a                            => gone
        due full                           => read all
        read all: a = s0 ready; c#0 running => run a: stop c#0 2s > stop-sandbox s0
        "
    ));
    // nor for what runs, when it is wanted again
    check(&format!(
        r"
        {dropped}
        +1s
        file a                             => run a: dirs + cgroup > sandbox#0 | look img-c:1
        read all @1s: a = s0 ready; c#0 running => -
        done a                             => read a
        read a: s0 ready                   => -
        why a                              => c: pulling img-c:1
        "
    ));
}

#[test]
fn a_pod_wanted_before_the_other_sources_spoke_takes_what_is_there() {
    let config = NodeConfig { sources: vec![Source::File, Source::Http], ..Default::default() };
    check_on(
        config,
        r"
        started
        ready
        read all: a = s0 ready; c#0 running / b = s0 ready; c#0 running
        file a                             => -
        why a                              => running
        hint-id a.c#0                      => read a
        http b                             => -
        why b                              => running
        hint-id b.c#0                      => read b
        ",
    );
}

#[test]
fn no_status_before_the_runtime_has_told_its_name() {
    // Ids of containers begin with it: a status without would show another container than the one that runs.
    check(
        r"
        show status
        started                            => check+driver | read all
        file a                             => -
        read all: a = s0 ready; c#0 running => -
        ready                              => read all | status a Running c=running
        ",
    );
}

#[test]
fn a_list_that_lacks_what_was_there_has_to_be_confirmed() {
    let doubted = format!(
        r"
        {RUNNING}
        +5s
        hint a                             => read a
        read a @5s: s0 ready               => -
        why a                              => running
        due confirm @6s                    => read a
        "
    );
    // It was not true.
    check(&format!(
        r"
        {doubted}
        read a @6s: s0 ready; c#0 running  => -
        why a                              => running
        "
    ));
    // Somebody has removed it.
    check(&format!(
        r"
        {doubted}
        read a @6s: s0 ready               => look img-c:1
        why a                              => c: pulling img-c:1
        "
    ));
    // A complete reading is held against the same.
    check(&format!(
        r"
        {RUNNING}
        +5s
        hint-all                           => check | read all
        read all @5s:                      => -
        due confirm @6s                    => read a
        read a @6s: s0 ready; c#0 running  => -
        "
    ));
}

#[test]
fn a_list_older_than_the_runtimes_own_answers_has_to_be_confirmed() {
    check(
        r"
        up
        file a
        looked img-c:1: yes
        +1s
        done a                             => read a
        # the runtime said that the sandbox runs
        read a @1s:                        => -
        due confirm @2s                    => read a
        read a @2s: s0 ready               => run a: start c#0?
        +1s
        done a                             => read a
        read a @3s: s0 ready               => -
        due confirm @4s                    => read a
        read a @4s: s0 ready; c#0 running  => -
        why a                              => running
        ",
    );
}
