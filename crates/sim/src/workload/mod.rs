//! What users ask of the node in one run: pods are added, changed, removed and added again, on a node that has some
//! images and lacks others.

mod claims;
mod crowd;
mod extras;
mod extremes;
mod pods;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use decide::objects::CERTIFICATES_GATE;
use model::PodUid;
use model::allocatable::AllocatableConfig;
use model::eviction::{EvictionConfig, EvictionSignal, EvictionThreshold};
use model::image_garbage::ImageGarbageConfig;
use model::k8s::{Pod, Quantity};
use model::log_rotation::LogRotationConfig;
use model::node::{CapacityRules, HostFacts, NodeConfig, NodeObjectConfig, ThresholdValue};
use model::pod::Source;
use model::runtime_class::{RuntimeClass, RuntimeClasses};

use crate::rng::Rng;
use crate::time::{MILLI, Nanos, SECOND};
use crate::world::{ClaimChange, ImageFate, Images, ProgramScript};

pub use crowd::NEW_LABEL;
pub use extras::GATE;
pub use extremes::{
    ExtremeListEntry, extreme_expiry, extreme_services, extreme_storage_object, extreme_text, is_extreme,
    make_drivers_extreme, make_image_extreme, make_node_status_extreme, make_observed_extreme,
    make_runtime_status_extreme,
};
pub use pods::{CONTENT, SimulatedPod, VARIABLE, is_rejected, is_unmountable, objects_of};

pub enum Task {
    Put {
        source: Source,
        pod: Arc<Pod>,
        scripts: BTreeMap<(PodUid, String), ProgramScript>,
    },
    Remove {
        source: Source,
        name: String,
    },
    ImageArrives(String),
    /// The node evicts a pod.
    Evict {
        uid: PodUid,
        grace_secs: Option<i64>,
    },
    /// Another client deletes the mirror of a static pod.
    RemoveMirror(String),
    /// Another client sets the readiness gate of a pod.
    Gate {
        name: String,
        open: bool,
    },
    /// A config map is created, changed or (`None`) deleted.
    Object {
        name: String,
        version: Option<u64>,
    },
    Claim {
        name: String,
        change: ClaimChange,
    },
    /// The CSI driver registers or disappears.
    Driver {
        there: bool,
    },
}

impl Task {
    pub fn description(&self) -> String {
        match self {
            Task::Put { pod, .. } => {
                let spec = pod.spec.clone().unwrap_or_default();
                let container = |c: &model::k8s::Container| {
                    let policy = c.image_pull_policy.as_deref().unwrap_or_default();
                    let sidecar = if c.restart_policy.is_some() { " sidecar" } else { "" };
                    format!("{}={} {policy}{sidecar}", c.name, c.image.as_deref().unwrap_or_default())
                };
                let all = spec.init_containers.iter().flatten().chain(&spec.containers).map(container);
                let uid = pod.metadata.uid.as_deref().unwrap_or_default();
                let policy = spec.restart_policy.unwrap_or_default();
                let grace = spec.termination_grace_period_seconds.unwrap_or_default();
                format!("put {uid} restart {policy}, grace {grace}: {}", all.collect::<Vec<_>>().join(", "))
            }
            Task::Remove { name, .. } => format!("remove {name}"),
            Task::Evict { uid, grace_secs } => format!("evict {uid} with grace {grace_secs:?}"),
            Task::RemoveMirror(name) => format!("remove the mirror of {name}"),
            Task::Gate { name, open } => format!("the readiness gate of {name} is {open}"),
            Task::ImageArrives(image) => format!("image {image} arrives"),
            Task::Object { name, version } => format!("config map {name} is {version:?}"),
            Task::Claim { name, change } => format!("{name}: {change:?}"),
            Task::Driver { there } => format!("the storage driver is there: {there}"),
        }
    }
}

pub struct Workload {
    pub config: NodeConfig,
    pub facts: HostFacts,
    pub images: Images,
    pub tasks: Vec<(Nanos, Task)>,
    pub hints_by_id: bool,
    /// Volumes of the CSI driver have to be attached.
    pub attaches: bool,
}

/// How many images there are; those with numbers below [`ALWAYS_PRESENT`] are always present.
const IMAGES: u64 = 8;
const ALWAYS_PRESENT: u64 = 4;

/// An invalid image name.
const NO_IMAGE: u64 = IMAGES;

pub fn image_name(number: u64) -> String {
    if number == NO_IMAGE {
        return "No Image".into();
    }
    format!("registry.test/app-{number}:v1")
}

/// The size of the workload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkloadSize {
    Full,
    Small,
    /// With claims behind the volumes of pods.
    WithClaims,
    /// The same, and one of the claims is for a device.
    WithDevices,
    /// With certificates in the volumes of pods.
    Certified,
}

impl WorkloadSize {
    fn has_claims(self) -> bool {
        matches!(self, WorkloadSize::WithClaims | WorkloadSize::WithDevices)
    }
}

impl Workload {
    pub fn seeded(rng: &mut Rng, during: Nanos, size: WorkloadSize) -> Self {
        let mut config = config(rng);
        if size.has_claims() {
            config.sources = vec![Source::File, Source::Api];
        }
        if size == WorkloadSize::Certified {
            config.sources = vec![Source::Api];
            config.features.insert(CERTIFICATES_GATE.to_owned(), true);
        }
        let (images, mut tasks) = images(rng, during);
        if config.sources.contains(&Source::Api) {
            objects(rng, during, &mut tasks);
        }
        if size.has_claims() {
            claims::seeded(rng, during, size == WorkloadSize::WithDevices, &mut tasks);
        }
        let names = if size == WorkloadSize::Small { rng.between(1, 3) } else { rng.between(1, 6) };
        for number in 0..names {
            let source = *rng.pick(&config.sources);
            let name = format!("p{number}");
            schedule_pods_of_name(rng, during, (source, size), &name, &mut tasks);
            let other = config.sources.iter().find(|s| **s != source && s.is_static());
            if let Some(other) = other.filter(|_| source.is_static() && rng.per_mille(300)) {
                // Two files use the same name; one at a time gets it.
                schedule_pods_of_name(rng, during, (*other, size), &name, &mut tasks);
            }
        }
        changes_by_others(rng, during, &config, names, &mut tasks);
        let hints_by_id = rng.coin();
        let attaches = size.has_claims() && rng.coin();
        Self { config, facts: facts(), images, tasks, hints_by_id, attaches }
    }

    /// Simple pods that run for ever, all added at once.
    pub fn plain(rng: &mut Rng, pods: u64) -> Self {
        let config = NodeConfig { serialize_image_pulls: false, ..config(rng) };
        let (images, _) = images(rng, SECOND);
        let mut tasks = Vec::new();
        for number in 0..pods {
            let template = SimulatedPod::plain(&format!("p{number}"), &format!("p{number}-1"));
            tasks.push((SECOND + number * MILLI, template.put(config.sources[0])));
        }
        Self { config, facts: facts(), images, tasks, hints_by_id: rng.coin(), attaches: false }
    }

    /// Removes some of its pods later.
    pub fn without(mut self, rng: &mut Rng, names: &[&str], from: Nanos, to: Nanos) -> Self {
        for name in names {
            let task = Task::Remove { source: self.config.sources[0], name: (*name).to_owned() };
            self.tasks.push((rng.between(from, to), task));
        }
        self
    }

    /// The pods of this name ask for a RuntimeClass with an overhead: see [`costly_classes`].
    pub fn with_overhead(mut self, name: &str) -> Self {
        for (_, task) in &mut self.tasks {
            if let Task::Put { pod, .. } = task
                && pod.metadata.name.as_deref() == Some(name)
                && let Some(spec) = &mut Arc::make_mut(pod).spec
            {
                spec.runtime_class_name = Some(COSTLY_CLASS.into());
            }
        }
        self
    }

    /// Logs are rotated. Some containers write nothing, some a little, some much.
    pub fn with_log_rotation(mut self) -> Self {
        self.config.log_rotation =
            Some(LogRotationConfig { max_bytes: 300_000, ..LogRotationConfig::default() });
        self
    }

    /// Pods that use more and more memory; one of them is critical.
    pub fn that_grows(rng: &mut Rng) -> Self {
        let mut made = Self::plain(rng, 0);
        made.config.sources = vec![Source::Api];
        made.config.eviction = EvictionConfig {
            thresholds: vec![memory_threshold()],
            max_pod_grace_secs: 0,
            pressure_transition: std::time::Duration::from_secs(30),
        };
        for number in 0..rng.between(3, 8) {
            let template = SimulatedPod::plain(&format!("p{number}"), &format!("p{number}-1"));
            let mut task = template.put(Source::Api);
            if let Task::Put { pod, .. } = &mut task
                && let Some(spec) = &mut Arc::make_mut(pod).spec
                && number == 0
            {
                spec.priority = Some(2_000_000_000);
            }
            made.tasks.push((SECOND + number * MILLI, task));
        }
        made
    }

    /// The filesystem of the images has room for some of them, and they are removed when they are seconds old. One is
    /// pinned, and two names stand for the same image.
    pub fn with_image_garbage(mut self, rng: &mut Rng) -> Self {
        let max_age = rng.coin().then(|| Duration::from_secs(rng.between(6, 40)));
        self.config.image_garbage = Some(ImageGarbageConfig {
            high_percent: 50,
            low_percent: rng.between(1, 40) as u8,
            min_age: Duration::from_secs(rng.below(6)),
            max_age,
        });
        self.images.capacity_bytes = rng.between(3, 12) * 1000;
        self.images.same_as = [(image_name(IMAGES - 1), image_name(ALWAYS_PRESENT - 1))].into();
        if let Some(first) = self.images.known.get_mut(&image_name(0)) {
            first.pinned = true;
        }
        self
    }

    /// Adds some more simple pods later.
    pub fn with_late(mut self, rng: &mut Rng, from: Nanos, to: Nanos) -> Self {
        for number in 0..3 {
            let template = SimulatedPod::plain(&format!("late{number}"), &format!("late{number}-1"));
            self.tasks.push((rng.between(from, to), template.put(self.config.sources[0])));
        }
        self
    }
}

/// The only threshold of [`Workload::that_grows`].
pub fn memory_threshold() -> EvictionThreshold {
    EvictionThreshold {
        signal: EvictionSignal::MemoryAvailable,
        value: ThresholdValue::Amount(model::k8s::Quantity("200Mi".into())),
        grace: std::time::Duration::ZERO,
        minimum_reclaim: None,
    }
}

const COSTLY_CLASS: &str = "costly";

/// The class of the default handler, with an overhead that is not in the pods of files.
pub fn costly_classes() -> RuntimeClasses {
    let overhead = [("memory".to_owned(), Quantity("8Mi".to_owned()))].into();
    [(COSTLY_CLASS.to_owned(), RuntimeClass { handler: String::new(), overhead })].into()
}

fn config(rng: &mut Rng) -> NodeConfig {
    let sources = match rng.below(10) {
        0..5 => vec![Source::File],
        5..7 => vec![Source::File, Source::Http],
        7..9 => vec![Source::File, Source::Api],
        _ => vec![Source::File, Source::Http, Source::Api],
    };
    NodeConfig {
        sources,
        crash_back_off_initial: Duration::from_secs(rng.between(1, 11)),
        crash_back_off_max: Duration::from_secs(rng.between(10, 60)),
        serialize_image_pulls: rng.coin(),
        max_dead_containers_per_container: *rng.pick(&[0, 1, 1, 3]),
        max_dead_containers: *rng.pick(&[-1, -1, -1, 4]),
        min_container_ttl: Duration::from_secs(*rng.pick(&[0, 0, 30])),
        node_object: NodeObjectConfig { capacity: reserved(), ..NodeObjectConfig::default() },
        allocatable: AllocatableConfig { reserved_memory_percent: Some(50), ..AllocatableConfig::default() },
        ..NodeConfig::default()
    }
}

/// What is kept from pods.
pub const RESERVED_MEMORY: u64 = 192 << 20;
pub const RESERVED_PIDS: u64 = 768;

fn reserved() -> CapacityRules {
    let list = |amounts: &[(&str, u64)]| {
        amounts.iter().map(|(name, amount)| ((*name).to_owned(), Quantity(amount.to_string()))).collect()
    };
    CapacityRules {
        system_reserved: list(&[("memory", RESERVED_MEMORY / 2), ("pid", RESERVED_PIDS)]),
        kube_reserved: list(&[("memory", RESERVED_MEMORY / 2)]),
        ..CapacityRules::default()
    }
}

fn facts() -> HostFacts {
    HostFacts {
        pid_limit: Some(32_768),
        memory_bytes: 8 << 30,
        cpus: 4,
        node_ips: vec!["192.0.2.7".into()],
        kernel_release: "6.6.0".into(),
        ..HostFacts::default()
    }
}

fn images(rng: &mut Rng, during: Nanos) -> (Images, Vec<(Nanos, Task)>) {
    let mut images = Images::default();
    let mut tasks = Vec::new();
    for number in 0..IMAGES {
        let name = image_name(number);
        let mut fate = ImageFate { present: true, failing_pulls: 0, pullable_from: Some(0), pinned: false };
        if number >= ALWAYS_PRESENT {
            fate.present = rng.per_mille(200);
            fate.failing_pulls = if rng.coin() { 0 } else { rng.below(4) as u32 };
            fate.pullable_from = match rng.below(4) {
                0 => None,
                1 => Some(rng.below(during)),
                _ => Some(0),
            };
            if rng.per_mille(250) {
                tasks.push((rng.below(during), Task::ImageArrives(name.clone())));
            }
        }
        images.known.insert(name, fate);
    }
    (images, tasks)
}

/// How many config maps there are.
const OBJECTS: u64 = 3;

pub fn object_name(number: u64) -> String {
    format!("map-{number}")
}

/// They are created late, changed, deleted and created again; in the end each exists.
fn objects(rng: &mut Rng, during: Nanos, tasks: &mut Vec<(Nanos, Task)>) {
    for number in 0..OBJECTS {
        let name = object_name(number);
        let mut now = rng.below(during / 4);
        let mut version = 1;
        while now < during {
            let there = version == 1 || rng.per_mille(700);
            tasks.push((now, Task::Object { name: name.clone(), version: there.then_some(version) }));
            version += 1;
            now += if rng.coin() { rng.between(MILLI, SECOND) } else { rng.between(SECOND, 60 * SECOND) };
        }
        tasks.push((during - 1, Task::Object { name, version: Some(version) }));
    }
}

/// Changes to pods by other clients.
fn changes_by_others(
    rng: &mut Rng,
    during: Nanos,
    config: &NodeConfig,
    names: u64,
    tasks: &mut Vec<(Nanos, Task)>,
) {
    if !config.sources.contains(&Source::Api) {
        return;
    }
    for number in 0..names {
        let name = format!("p{number}");
        if rng.per_mille(300) {
            tasks.push((rng.below(during), Task::RemoveMirror(name.clone())));
        }
        for _ in 0..rng.below(3) {
            tasks.push((rng.below(during), Task::Gate { name: name.clone(), open: rng.coin() }));
        }
    }
}

/// All events of the pods of one name, one after the other.
fn schedule_pods_of_name(
    rng: &mut Rng,
    during: Nanos,
    (source, size): (Source, WorkloadSize),
    name: &str,
    tasks: &mut Vec<(Nanos, Task)>,
) {
    let mut now = rng.below(during / 4);
    let mut next_uid = 1;
    let mut fresh = |rng: &mut Rng| {
        let uid = format!("{name}-{}{next_uid}", &source.as_str()[..1]);
        next_uid += 1;
        let template = SimulatedPod::seeded(rng, name, &uid);
        match size {
            WorkloadSize::WithClaims => template.with_claim(rng, false),
            WorkloadSize::WithDevices => template.with_claim(rng, true),
            WorkloadSize::Certified => template.with_certificate(rng),
            WorkloadSize::Full | WorkloadSize::Small => template,
        }
    };
    let mut template = fresh(rng);
    tasks.push((now, template.put(source)));
    let mut there = true;
    loop {
        now += match rng.below(4) {
            0 => rng.between(MILLI, 300 * MILLI),
            1 => rng.between(300 * MILLI, 5 * SECOND),
            _ => rng.between(5 * SECOND, 45 * SECOND),
        };
        if now >= during {
            return;
        }
        match (there, rng.below(100)) {
            (true, 0..30) => template.change_an_image(rng),
            (true, 30..40) if source == Source::Api => template.add_ephemeral_container(rng),
            (true, 30..40) => {
                let grace_secs = rng.coin().then(|| rng.below(20) as i64);
                tasks.push((now, Task::Evict { uid: template.uid(), grace_secs }));
                continue;
            }
            (true, 40..60) => template = fresh(rng),
            (true, _) => {
                // Sometimes a forced deletion: the object is removed before the pod has ended.
                if source == Source::Api && !rng.per_mille(150) {
                    now = deletion(rng, now, during, &template, tasks);
                }
                tasks.push((now, Task::Remove { source, name: name.to_owned() }));
                there = false;
                continue;
            }
            // The same pod again, with its old UID.
            (false, 0..60) if source.is_static() => {}
            (false, _) => template = fresh(rng),
        }
        tasks.push((now, template.put(source)));
        there = true;
    }
}

/// The API server marks a pod for deletion before it removes it, and may shorten the grace period later. Returns the
/// time of the removal.
fn deletion(
    rng: &mut Rng,
    mut now: Nanos,
    during: Nanos,
    template: &SimulatedPod,
    tasks: &mut Vec<(Nanos, Task)>,
) -> Nanos {
    let mut grace = rng.below(40);
    for _ in 0..rng.between(1, 4) {
        tasks.push((now, template.put_deleting(Source::Api, grace)));
        grace = rng.below(grace + 1);
        now = (now + rng.between(10 * MILLI, 20 * SECOND)).min(during - 1);
    }
    now
}
