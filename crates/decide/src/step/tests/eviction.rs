//! Pods that are evicted for the sake of the node.

use std::collections::BTreeMap;
use std::time::Duration;

use model::eviction::{
    ContainerFigures, DiskFigures, EvictionConfig, EvictionSignal, EvictionThreshold, MemoryFigures,
    NodeFigures, PodFigures,
};
use model::image_garbage::ImageGarbageConfig;
use model::node::{NodeConfig, ThresholdValue};
use model::pod::Source;
use model::{Mono, k8s};

use super::check_on;
use super::script::Script;
use crate::event::Event;
use crate::eviction::{Activity, ImageReclaim};

const MIB: u64 = 1 << 20;

/// `memory <MiB>`, `nodefs <MiB>`, `imagefs <MiB>`: what is available, read now. `memory 100 @0.5`: the reading began then.
pub fn figures(word: &str, rest: &str, now: Mono) -> Event {
    let (text, at) = rest.split_once(" @").unwrap_or((rest, ""));
    let at = at.parse().map_or(now, |secs| Mono::from_duration(Duration::from_secs_f64(secs)));
    let available = text.parse::<u64>().unwrap() * MIB;
    let disk = |device| DiskFigures {
        device,
        available_bytes: available,
        capacity_bytes: 1000 * MIB,
        inodes_free: 0,
        inodes: 0,
    };
    let figures = match word {
        "memory" => {
            let working_set_bytes = (1000 * MIB).saturating_sub(available);
            let usage_bytes = working_set_bytes;
            let node = MemoryFigures { limit_bytes: 1000 * MIB, usage_bytes, working_set_bytes };
            NodeFigures::Memory { node, pods: None }
        }
        "nodefs" => NodeFigures::NodeFilesystem(disk(1)),
        _ => NodeFigures::ImageFilesystem { images: disk(2), containers: None },
    };
    Event::NodeFiguresRead { group: figures.group(), at, result: Ok(figures) }
}

/// `<call> <pod>=<MiB> ..`: of memory, and of the disk.
pub fn pods_use(rest: &str) -> Event {
    let mut words = rest.split_whitespace();
    let call = words.next().expect("pods-use <call>").parse().unwrap();
    let pod = |(uid, mib): (&str, &str)| {
        let bytes = Some(mib.parse::<u64>().unwrap() * MIB);
        let container = ContainerFigures {
            memory_bytes: bytes,
            layer_bytes: bytes,
            log_bytes: Some(0),
            ..ContainerFigures::default()
        };
        let containers = BTreeMap::from([("c".to_owned(), container)]);
        (uid.into(), PodFigures { memory_bytes: bytes, containers, ..PodFigures::default() })
    };
    Event::PodFiguresRead { call, pods: words.filter_map(|word| word.split_once('=')).map(pod).collect() }
}

fn config(thresholds: &[(EvictionSignal, u64)]) -> NodeConfig {
    let threshold = |(signal, grace): &(EvictionSignal, u64)| EvictionThreshold {
        signal: *signal,
        value: ThresholdValue::Amount(k8s::Quantity("100Mi".into())),
        grace: Duration::from_secs(*grace),
        minimum_reclaim: None,
    };
    NodeConfig {
        sources: vec![Source::Api],
        eviction: EvictionConfig {
            thresholds: thresholds.iter().map(threshold).collect(),
            max_pod_grace_secs: 7,
            pressure_transition: Duration::from_secs(60),
        },
        ..NodeConfig::default()
    }
}

const PODS: &str = r#"
    pod a = spec: {terminationGracePeriodSeconds: 20}
    pod b = spec: {terminationGracePeriodSeconds: 20}
    pod k = spec: {terminationGracePeriodSeconds: 20, priority: 2000000000}
"#;

const RUNNING: &str = r#"
    ready
    services
    api a b k
    read all: a = s0 ready; c#0 running / b = s0 ready; c#0 running / k = s0 ready; c#0 running
"#;

fn check_memory(script: &str) -> Script {
    let config = config(&[(EvictionSignal::MemoryAvailable, 0)]);
    check_on(config, &format!("{PODS}\nstarted\n{RUNNING}\n{script}"))
}

#[test]
fn one_pod_at_a_time_on_figures_newer_than_the_end_of_the_last() {
    let run = check_memory(
        "
        memory 500          => -
        +5s
        timer memory        => figures Memory
        show events ages
        memory 90           => pressure [MemoryPressure] | node EvictionThresholdMet: Attempting to reclaim memory
            => age memory.available 0ms | measure pods #1 Memory: a b
        +0.1s
        timer memory        => figures Memory
        memory 80           => -
        pods-use 1 a=10 b=20
            => W b Evicted: The node was low on resource: memory. Threshold quantity: 100Mi, available: 80Mi. \
               Container c was using 20Mi, request is 0, has larger consumption of memory.
            => N b/c Killing: Stopping container c
            => run b: stop c#0 2s > stop-sandbox s0
        pods-use 1 a=10 b=20 => -
        +0.1s
        timer memory        => figures Memory
        memory 70           => -
        done b              => read b
        show status
        read b: s0 dead; c#0 exit(137)
            => status b Failed(Evicted) c=exit(137) | run b: tear-down > drop-cgroup kubepods/besteffort/podb
        timer memory        => figures Memory
        +0.1s
        done b              => run b: remove c#0 > remove-sandbox s0
        memory 90 @5.2      => figures Memory
        +0.1s
        memory 90
            => node EvictionThresholdMet: Attempting to reclaim memory
            => age memory.available 0ms | measure pods #2 Memory: a
        counted             => evicted memory.available 1
        ",
    );
    let why = run.state.pods.get(&"b".into()).and_then(|entry| entry.standing().eviction().cloned()).unwrap();
    assert_eq!(why.disruption.as_deref(), Some(why.message.as_str()));
    let status = run.state.pods.get(&"b".into()).and_then(|entry| entry.status.clone()).unwrap();
    let conditions = status.conditions.clone().unwrap_or_default();
    let target = conditions.iter().find(|condition| condition.type_ == "DisruptionTarget").unwrap();
    assert_eq!((target.status.as_str(), target.reason.as_deref()), ("True", Some("TerminationByKubelet")));
}

#[test]
fn nobody_goes_when_the_shortage_is_over_meanwhile() {
    check_memory(
        "
        memory 90           => pressure [MemoryPressure] | measure pods #1 Memory: a b
        timer memory        => figures Memory
        memory 300          => -
        pods-use 1 a=10 b=20 => -
        timer eviction      => -
        counted             => -
        +61s
        timer pressure      => pressure []
        ",
    );
}

#[test]
fn a_pod_that_does_not_end_holds_up_the_next_for_a_bound() {
    check_memory(
        "
        memory 90           => pressure [MemoryPressure] | measure pods #1 Memory: a b
        pods-use 1 a=30 b=20 => run a: stop c#0 2s > stop-sandbox s0
        show events
        +10s
        timer eviction      => W a ExceededGracePeriod: Container runtime did not kill the pod within specified grace period.
        memory 90           => -
        +30s
        timer eviction      => figures Memory
        +0.1s
        memory 90           => node EvictionThresholdMet: Attempting to reclaim memory | measure pods #2 Memory: b
        ",
    );
}

#[test]
fn critical_pods_stay_and_it_is_said_that_nobody_can_go() {
    let config = config(&[(EvictionSignal::MemoryAvailable, 0)]);
    check_on(
        config,
        &format!(
            r#"
            {PODS}
            started
            ready
            services
            api k
            read all: k = s0 ready; c#0 running
            show logs
            memory 90
                => log pressure on the node: [MemoryPressure] | pressure [MemoryPressure]
                => log memory.available: Attempting to reclaim memory
                => log memory.available: there is no pod that may be evicted
            +1s
            timer memory    => figures Memory
            memory 90       => -
            +9s
            timer memory    => figures Memory
            memory 90
                => log memory.available: Attempting to reclaim memory
                => log memory.available: there is no pod that may be evicted
            "#
        ),
    );
}

#[test]
fn new_pods_are_refused_while_the_node_is_short() {
    check_memory(
        "
        pod n = spec: {terminationGracePeriodSeconds: 20}
        memory 90           => pressure [MemoryPressure] | measure pods #1 Memory: a b
        show events
        api a b k n
            => W n Evicted: The node had condition: [MemoryPressure].
            => run n: tear-down > drop-cgroup kubepods/besteffort/podn
        ",
    );
}

#[test]
fn a_soft_threshold_leaves_the_pod_its_time() {
    let config = config(&[(EvictionSignal::MemoryAvailable, 30)]);
    check_on(
        config,
        &format!(
            "
            {PODS}
            started
            {RUNNING}
            memory 90           => pressure [MemoryPressure]
            +30s
            timer pressure      => measure pods #1 Memory: a b
            pods-use 1 a=10 b=20 => run b: stop c#0 7s > stop-sandbox s0
            "
        ),
    );
}

#[test]
fn what_nobody_needs_goes_before_pods() {
    let mut config = config(&[(EvictionSignal::NodefsAvailable, 0)]);
    config.image_garbage = Some(ImageGarbageConfig {
        high_percent: 100,
        low_percent: 80,
        min_age: Duration::ZERO,
        max_age: None,
    });
    let mut run = check_on(
        config,
        &format!(
            "
            {PODS}
            pod j = spec: {{restartPolicy: Never}}
            started
            ready
            services
            api a b k j
            read all: a = s0 ready; c#0 running / b = s0 ready; c#0 running / k = s0 ready; c#0 running / j = s0 ready; c#0 exit(0)
            done j
            read j: s0 dead; c#0 exit(0)
            done j
            state j             => finished
            nodefs 500
            nodefs 90           => pressure [DiskPressure] | run j: remove c#0 > remove-sandbox s0
            nodefs 80           => -
            +1s
            done j              => read j
            +1s
            # The first list of images is still under way; the removal begins when it has come.
            read j:             => -
            "
        ),
    );
    let reclaiming = Activity::Reclaiming {
        signal: EvictionSignal::NodefsAvailable,
        containers: Default::default(),
        images: ImageReclaim::Running { collected: 0 },
    };
    assert_eq!(run.state.eviction.activity, reclaiming, "images go after the containers that used them");
    assert!(run.state.image_garbage.reclaim_running());
    // A runtime that does not answer does not hold up the eviction for ever.
    run.line("+61s");
    assert_eq!(run.line("timer eviction"), ["figures NodeFilesystem"], "the other reading is under way");
    run.line("+1s");
    assert_eq!(run.line("nodefs 85"), ["measure pods #1 Bytes: a b"]);
    assert_eq!(run.line("pods-use 1 a=30 b=20"), ["run a: stop c#0 2s > stop-sandbox s0"]);
}

#[test]
fn nobody_goes_while_the_runtime_can_stop_nobody() {
    let mut run = check_memory("memory 500          => -");
    run.line("away");
    // The condition is reported; a pod that can't be stopped would free nothing.
    assert_eq!(run.line("memory 90"), ["pressure [MemoryPressure]"]);
    run.line("ready");
    let seen = "read all: a = s0 ready; c#0 running / b = s0 ready; c#0 running / k = s0 ready; c#0 running";
    run.line("+1s");
    let acted = run.line(seen);
    assert!(acted.contains(&"measure pods #1 Memory: a b".to_owned()), "{acted:?}");
}

#[test]
fn nobody_goes_before_everything_was_observed() {
    let config = config(&[(EvictionSignal::MemoryAvailable, 0)]);
    let mut run = check_on(config, &format!("{PODS}\nstarted\nready\nservices\napi a b k"));
    assert_eq!(run.line("memory 90"), ["pressure [MemoryPressure]"]);
    let acted = run
        .line("read all: a = s0 ready; c#0 running / b = s0 ready; c#0 running / k = s0 ready; c#0 running");
    assert!(acted.contains(&"measure pods #1 Memory: a b".to_owned()), "{acted:?}");
}
