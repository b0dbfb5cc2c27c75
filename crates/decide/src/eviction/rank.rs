//! Which pod goes first, and what it is told.

use std::cmp::Reverse;

use model::ApiEvent;
use model::PodReason;
use model::eviction::{ContainerFigures, EvictionSignal, PodFigures, SignalKind};
use model::k8s;
use model::pod::PodView;
use model::quantity::{Format, Quantity};

use super::signals::{FilesystemLayout, SignalReading, quantity};
use crate::resources::{Amounts, EPHEMERAL_STORAGE, MEMORY, Overhead, container_requests, pod_requests};

/// A pod that may be evicted, with what it uses. `None`: that could not be read.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub pod: &'a PodView,
    pub used: Option<&'a PodFigures>,
}

/// What counts for a signal about a filesystem.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Measured {
    layers: bool,
    logs_and_volumes: bool,
}

fn measured(signal: EvictionSignal, layout: FilesystemLayout) -> Measured {
    use EvictionSignal::*;
    let of_node = matches!(signal, NodefsAvailable | NodefsInodesFree);
    let of_images = matches!(signal, ImagefsAvailable | ImagefsInodesFree);
    match layout {
        FilesystemLayout::Single => Measured { layers: true, logs_and_volumes: true },
        FilesystemLayout::DedicatedImages => Measured { layers: !of_node, logs_and_volumes: of_node },
        // No pod keeps anything where the images are.
        FilesystemLayout::Split => Measured { layers: !of_images, logs_and_volumes: !of_images },
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// What the pod uses of what is short. What could not be read counts as nothing: that alone must not cost a pod its life.
fn usage(signal: EvictionSignal, layout: FilesystemLayout, used: Option<&PodFigures>) -> i64 {
    let Some(used) = used else { return 0 };
    let counted = measured(signal, layout);
    let sum =
        |layer: fn(&ContainerFigures) -> Option<u64>, log: fn(&ContainerFigures) -> Option<u64>, volumes| {
            let containers = || used.containers.values();
            let layers = containers().filter(|_| counted.layers).filter_map(layer);
            let logs = containers().filter(|_| counted.logs_and_volumes).filter_map(log);
            let volumes = if counted.logs_and_volumes { volumes } else { 0 };
            layers.chain(logs).fold(volumes, u64::saturating_add)
        };
    signed(match signal.kind() {
        SignalKind::Memory => used.memory_bytes.unwrap_or(0),
        SignalKind::Processes => used.processes.unwrap_or(0),
        SignalKind::Bytes => sum(|c| c.layer_bytes, |c| c.log_bytes, used.volume_bytes),
        SignalKind::Inodes => sum(|c| c.layer_inodes, |c| c.log_inodes, used.volume_inodes),
    })
}

/// With requests for the pod as a whole, only these count.
fn request(pod: &PodView, resource: &str) -> i64 {
    let whole = pod.spec().resources.as_ref();
    let asked = match whole.filter(|whole| whole.requests.is_some() || whole.limits.is_some()) {
        Some(whole) => Amounts::from_api(whole.requests.as_ref()).amount(resource),
        None => pod_requests(pod, Overhead::Excluded).amount(resource),
    };
    if asked.is_zero() {
        return 0;
    }
    (asked + Amounts::from_api(pod.spec().overhead.as_ref()).amount(resource)).value()
}

/// Those that go first, first: who uses more than was requested, then by priority, then by how much more. Of pods that
/// are alike in this the younger goes first.
pub fn rank<'a>(
    signal: EvictionSignal,
    layout: FilesystemLayout,
    mut candidates: Vec<Candidate<'a>>,
) -> Vec<Candidate<'a>> {
    let asked = |pod| match signal.kind() {
        SignalKind::Memory => request(pod, MEMORY),
        SignalKind::Bytes => request(pod, EPHEMERAL_STORAGE),
        // Nobody can request these.
        SignalKind::Inodes | SignalKind::Processes => 0,
    };
    candidates.sort_by_cached_key(|candidate| {
        let used = usage(signal, layout, candidate.used);
        let over = used.saturating_sub(asked(candidate.pod));
        let priority = candidate.pod.spec().priority.unwrap_or(0);
        // With too many processes, who has how many counts only among pods of one priority.
        let exceeds = signal.kind() != SignalKind::Processes && over > 0;
        let born = candidate.pod.pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (Reverse(exceeds), priority, Reverse(over), Reverse(born), candidate.pod.uid.clone())
    });
    candidates
}

/// A threshold that is met, as far as messages need it.
#[derive(Clone, Copy, Debug)]
pub struct Shortage {
    pub signal: EvictionSignal,
    pub threshold: Quantity,
    pub reading: SignalReading,
}

/// What an evicted pod is told: the message of its status, and the Event with its annotations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EvictionNotice {
    pub message: String,
    pub event: ApiEvent,
}

pub fn notice(shortage: &Shortage, candidate: &Candidate<'_>) -> EvictionNotice {
    let (signal, pod) = (shortage.signal, candidate.pod);
    let word = signal.resource();
    let available = quantity(signal.kind(), shortage.reading.available);
    let mut message = format!(
        "The node was low on resource: {word}. Threshold quantity: {}, available: {available}. ",
        shortage.threshold
    );
    let Some(used) = candidate.used else {
        let event = ApiEvent::warning(PodReason::Evicted.as_str(), message.clone());
        return EvictionNotice { message, event };
    };
    let mut annotations = Vec::new();
    let of_pod = Amounts::from_api(pod.spec().resources.as_ref().and_then(|whole| whole.requests.as_ref()));
    if let (SignalKind::Memory, Some(asked), Some(bytes)) =
        (signal.kind(), of_pod.get(MEMORY), used.memory_bytes)
    {
        let bytes = bytes_quantity(bytes);
        message += &larger_consumption("Pod", pod.name(), (bytes, asked), word);
        annotations.push(("offending_pod", pod.name().to_owned()));
        annotations.push(("offending_pod_usage", bytes.to_string()));
    }
    let (mut names, mut usages) = (Vec::new(), Vec::new());
    for container in pod.containers().iter().chain(pod.init_containers()) {
        let Some((bytes, asked)) = above_request(signal, container, used) else { continue };
        message += &larger_consumption("Container", &container.name, (bytes, asked), word);
        names.push(container.name.clone());
        usages.push(bytes.to_string());
    }
    annotations.push(("offending_containers", names.join(",")));
    annotations.push(("offending_containers_usage", usages.join(",")));
    annotations.push(("starved_resource", word.to_owned()));
    let event = ApiEvent::warning(PodReason::Evicted.as_str(), message.clone()).with_annotations(annotations);
    EvictionNotice { message, event }
}

fn larger_consumption(what: &str, name: &str, (used, asked): (Quantity, Quantity), word: &str) -> String {
    format!("{what} {name} was using {used}, request is {asked}, has larger consumption of {word}. ")
}

fn bytes_quantity(bytes: u64) -> Quantity {
    Quantity::from_units(signed(bytes), Format::BinarySi)
}

/// What the container uses and requested, if it uses more. Nobody can request inodes and processes.
fn above_request(
    signal: EvictionSignal,
    container: &k8s::Container,
    used: &PodFigures,
) -> Option<(Quantity, Quantity)> {
    let figures = used.containers.get(&container.name)?;
    let (bytes, resource) = match signal.kind() {
        SignalKind::Memory => (figures.memory_bytes?, MEMORY),
        SignalKind::Bytes => (figures.layer_bytes?.saturating_add(figures.log_bytes?), EPHEMERAL_STORAGE),
        SignalKind::Inodes | SignalKind::Processes => return None,
    };
    let asked = container_requests(container).amount(resource);
    let bytes = bytes_quantity(bytes);
    (bytes > asked).then_some((bytes, asked))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use model::Mono;
    use model::pod::Source;
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, priority: i32, memory: Option<&str>, storage: Option<&str>) -> PodView {
        let mut requests = serde_json::Map::new();
        requests.extend(memory.map(|amount| (MEMORY.to_owned(), json!(amount))));
        requests.extend(storage.map(|amount| (EPHEMERAL_STORAGE.to_owned(), json!(amount))));
        of_spec(
            name,
            json!({
                "priority": priority,
                "containers": [{"name": "c", "resources": {"requests": requests}}],
            }),
        )
    }

    fn of_spec(name: &str, spec: Value) -> PodView {
        let pod = json!({"metadata": {"name": name, "namespace": "ns", "uid": name}, "spec": spec});
        PodView::new(Arc::new(serde_json::from_value(pod).unwrap()), Source::Api)
    }

    fn container(layer: u64, log: u64, inodes: u64) -> ContainerFigures {
        ContainerFigures {
            memory_bytes: None,
            layer_bytes: Some(layer),
            layer_inodes: Some(inodes),
            log_bytes: Some(log),
            log_inodes: Some(0),
        }
    }

    fn memory(bytes: u64) -> PodFigures {
        let of_container = ContainerFigures { memory_bytes: Some(bytes), ..ContainerFigures::default() };
        PodFigures {
            memory_bytes: Some(bytes),
            containers: BTreeMap::from([("c".to_owned(), of_container)]),
            ..PodFigures::default()
        }
    }

    fn order(
        signal: EvictionSignal,
        layout: FilesystemLayout,
        pods: &[(&PodView, Option<PodFigures>)],
    ) -> String {
        let candidates = pods.iter().map(|(pod, used)| Candidate { pod, used: used.as_ref() });
        let ranked = rank(signal, layout, candidates.collect());
        ranked.iter().map(|candidate| candidate.pod.name()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn memory_above_the_request_then_priority_then_how_much_more() {
        let modest = pod("modest", -5, Some("1Ki"), None);
        let greedy = pod("greedy", 0, None, None);
        let greedier = pod("greedier", 0, None, None);
        let needed = pod("needed", 9, None, None);
        let unread = pod("unread", -9, None, None);
        let pods = [
            (&modest, Some(memory(1024))),
            (&greedy, Some(memory(10))),
            (&needed, Some(memory(9999))),
            (&greedier, Some(memory(11))),
            (&unread, None),
        ];
        let signal = EvictionSignal::MemoryAvailable;
        let found = order(signal, FilesystemLayout::Single, &pods);
        assert_eq!(found, "greedier greedy needed unread modest");
    }

    #[test]
    fn what_counts_on_disk_depends_on_the_filesystem() {
        let writes = pod("writes", 0, None, None);
        let logs = pod("logs", 0, None, None);
        let keeps = pod("keeps", 0, None, Some("1Ki"));
        let figures = |layer, log, volumes| PodFigures {
            volume_bytes: volumes,
            containers: BTreeMap::from([("c".to_owned(), container(layer, log, 0))]),
            ..PodFigures::default()
        };
        let pods = [
            (&writes, Some(figures(100, 0, 0))),
            (&logs, Some(figures(0, 90, 0))),
            (&keeps, Some(figures(0, 0, 1025))),
        ];
        use EvictionSignal::{ContainerfsAvailable, ImagefsAvailable, NodefsAvailable};
        for (signal, layout, expect) in [
            (NodefsAvailable, FilesystemLayout::Single, "writes logs keeps"),
            (ImagefsAvailable, FilesystemLayout::Single, "writes logs keeps"),
            (NodefsAvailable, FilesystemLayout::DedicatedImages, "logs keeps writes"),
            (ImagefsAvailable, FilesystemLayout::DedicatedImages, "writes logs keeps"),
            (ContainerfsAvailable, FilesystemLayout::DedicatedImages, "writes logs keeps"),
            (ContainerfsAvailable, FilesystemLayout::Split, "writes logs keeps"),
            (ImagefsAvailable, FilesystemLayout::Split, "logs writes keeps"),
        ] {
            assert_eq!(order(signal, layout, &pods), expect, "{signal:?} {layout:?}");
        }
    }

    #[test]
    fn processes_are_compared_among_pods_of_one_priority() {
        let processes = |count| PodFigures { processes: Some(count), ..PodFigures::default() };
        let (low, high, few) =
            (pod("low", 0, None, None), pod("high", 1, None, None), pod("few", 0, None, None));
        let pods = [(&high, Some(processes(999))), (&few, Some(processes(2))), (&low, Some(processes(3)))];
        assert_eq!(order(EvictionSignal::PidAvailable, FilesystemLayout::Single, &pods), "low few high");
    }

    #[test]
    fn a_request_for_the_whole_pod_is_the_only_one_that_counts() {
        let whole = |requests: Value| {
            let containers =
                json!([{"name": "c", "resources": {"requests": {"memory": "5", "ephemeral-storage": "7"}}}]);
            let pod = json!({"containers": containers, "resources": {"requests": requests}, "overhead": {"memory": "100"}});
            of_spec("p", pod)
        };
        assert_eq!(request(&whole(json!({"memory": "10"})), MEMORY), 110);
        assert_eq!(request(&whole(json!({"memory": "10"})), EPHEMERAL_STORAGE), 0);
        assert_eq!(request(&whole(json!({"cpu": "1"})), MEMORY), 0);
        assert_eq!(request(&pod("p", 0, Some("5"), None), MEMORY), 5);
    }

    fn shortage(signal: EvictionSignal) -> Shortage {
        Shortage {
            signal,
            threshold: "100Mi".parse().unwrap(),
            reading: SignalReading { available: 10 << 20, capacity: 1 << 30, at: Mono::ZERO },
        }
    }

    #[test]
    fn an_evicted_pod_is_told_what_it_used() {
        let low = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 10Mi. ";
        let plain = pod("p", 0, Some("1Ki"), None);
        let used = memory(2048);
        let found =
            notice(&shortage(EvictionSignal::MemoryAvailable), &Candidate { pod: &plain, used: Some(&used) });
        let more = "Container c was using 2Ki, request is 1Ki, has larger consumption of memory. ";
        assert_eq!(found.message, format!("{low}{more}"));
        let annotations: Vec<_> =
            found.event.annotations.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let expect = ["offending_containers=c", "offending_containers_usage=2Ki", "starved_resource=memory"];
        assert_eq!(annotations, expect);

        let found =
            notice(&shortage(EvictionSignal::MemoryAvailable), &Candidate { pod: &plain, used: None });
        assert_eq!((found.message.as_str(), found.event.annotations.len()), (low, 0));

        let whole = of_spec(
            "w",
            json!({"containers": [{"name": "c"}], "resources": {"requests": {"memory": "4Ki"}}}),
        );
        let found =
            notice(&shortage(EvictionSignal::MemoryAvailable), &Candidate { pod: &whole, used: Some(&used) });
        let first = "Pod w was using 2Ki, request is 4Ki, has larger consumption of memory. ";
        let then = "Container c was using 2Ki, request is 0, has larger consumption of memory. ";
        assert_eq!(found.message, format!("{low}{first}{then}"));
        assert_eq!(found.event.annotations["offending_pod_usage"], "2Ki");
    }

    #[test]
    fn inodes_name_no_container() {
        let one = pod("p", 0, None, None);
        let used = PodFigures {
            containers: BTreeMap::from([("c".to_owned(), container(10, 10, 10))]),
            ..PodFigures::default()
        };
        let of = |signal| notice(&shortage(signal), &Candidate { pod: &one, used: Some(&used) });
        let inodes = of(EvictionSignal::NodefsInodesFree);
        assert!(inodes.message.starts_with("The node was low on resource: inodes. "), "{}", inodes.message);
        assert!(!inodes.message.contains("Container"), "{}", inodes.message);
        assert_eq!(inodes.event.annotations["offending_containers"], "");
        let bytes = of(EvictionSignal::NodefsAvailable);
        assert!(bytes.message.ends_with(
            "Container c was using 20, request is 0, has larger consumption of ephemeral-storage. "
        ));
    }
}
