//! Eviction for the sake of the node: the signals, their thresholds, and what is measured for them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::node_object_config::ThresholdValue;
use crate::{ContainerId, PodUid};

macro_rules! signals {
    ($($name:ident = $word:literal),* $(,)?) => {
        /// What the node may run short of, with the names that configuration and metrics use.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
        pub enum EvictionSignal { $($name),* }
        impl EvictionSignal {
            pub const ALL: &'static [EvictionSignal] = &[$(EvictionSignal::$name),*];
            pub fn as_str(self) -> &'static str {
                match self { $(EvictionSignal::$name => $word),* }
            }
            pub fn parse(text: &str) -> Option<Self> {
                match text { $($word => Some(EvictionSignal::$name),)* _ => None }
            }
        }
    };
}

// In the order in which they are acted upon: memory first, because the kernel does not wait.
signals!(
    MemoryAvailable = "memory.available",
    AllocatableMemoryAvailable = "allocatableMemory.available",
    NodefsAvailable = "nodefs.available",
    NodefsInodesFree = "nodefs.inodesFree",
    ImagefsAvailable = "imagefs.available",
    ImagefsInodesFree = "imagefs.inodesFree",
    ContainerfsAvailable = "containerfs.available",
    ContainerfsInodesFree = "containerfs.inodesFree",
    PidAvailable = "pid.available",
);

/// What is measured for a signal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum SignalKind {
    Memory,
    /// Bytes of a filesystem.
    Bytes,
    Inodes,
    Processes,
}

impl EvictionSignal {
    pub fn kind(self) -> SignalKind {
        use EvictionSignal::*;
        match self {
            MemoryAvailable | AllocatableMemoryAvailable => SignalKind::Memory,
            NodefsAvailable | ImagefsAvailable | ContainerfsAvailable => SignalKind::Bytes,
            NodefsInodesFree | ImagefsInodesFree | ContainerfsInodesFree => SignalKind::Inodes,
            PidAvailable => SignalKind::Processes,
        }
    }

    /// The word for what is short, as messages have it.
    pub fn resource(self) -> &'static str {
        match self.kind() {
            SignalKind::Memory => "memory",
            SignalKind::Bytes => "ephemeral-storage",
            SignalKind::Inodes => "inodes",
            SignalKind::Processes => "pids",
        }
    }

    pub fn is_about_disk(self) -> bool {
        matches!(self.kind(), SignalKind::Bytes | SignalKind::Inodes)
    }
}

/// A threshold: `evictionHard`, or `evictionSoft` with its grace period.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct EvictionThreshold {
    pub signal: EvictionSignal,
    pub value: ThresholdValue,
    /// How long it must be met. Zero: the threshold is a hard one.
    pub grace: Duration,
    /// How much more must be available before it counts as no longer met.
    pub minimum_reclaim: Option<ThresholdValue>,
}

impl EvictionThreshold {
    pub fn is_hard(&self) -> bool {
        self.grace.is_zero()
    }
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct EvictionConfig {
    /// Those of `containerfs` are not configured: they follow from the layout of the filesystems.
    pub thresholds: Vec<EvictionThreshold>,
    /// `evictionMaxPodGracePeriod`: the longest grace period of a pod that is evicted at a soft threshold.
    pub max_pod_grace_secs: i64,
    /// `evictionPressureTransitionPeriod`: how long a condition stays after the last pressure.
    pub pressure_transition: Duration,
}

impl Default for EvictionConfig {
    fn default() -> Self {
        Self { thresholds: Vec::new(), max_pod_grace_secs: 0, pressure_transition: Duration::from_secs(300) }
    }
}

/// The resources that the node is short of, as the conditions of the Node object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodePressure {
    pub memory: bool,
    pub disk: bool,
    pub pid: bool,
}

impl NodePressure {
    pub fn add(&mut self, signal: EvictionSignal) {
        match signal.kind() {
            SignalKind::Memory => self.memory = true,
            SignalKind::Bytes | SignalKind::Inodes => self.disk = true,
            SignalKind::Processes => self.pid = true,
        }
    }

    /// The names of the conditions that hold.
    pub fn conditions(self) -> Vec<&'static str> {
        let all = [(self.memory, "MemoryPressure"), (self.disk, "DiskPressure"), (self.pid, "PIDPressure")];
        all.into_iter().filter(|(holds, _)| *holds).map(|(_, name)| name).collect()
    }
}

/// Figures that are read together, at a pace of their own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum FigureGroup {
    Memory,
    /// The filesystem of the root directory.
    NodeFilesystem,
    /// The filesystems of the runtime, which the runtime is asked for.
    ImageFilesystem,
    Processes,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MemoryFigures {
    /// Of the node all its memory, of a cgroup its limit.
    pub limit_bytes: u64,
    /// As the kernel counts it, with everything that it could take back.
    pub usage_bytes: u64,
    /// Without what the kernel can take back at once.
    pub working_set_bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DiskFigures {
    /// The number of the device, to tell filesystems apart.
    pub device: u64,
    pub available_bytes: u64,
    pub capacity_bytes: u64,
    pub inodes_free: u64,
    /// Zero: the filesystem does not count them.
    pub inodes: u64,
}

/// One reading of a group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NodeFigures {
    Memory {
        node: MemoryFigures,
        /// Of all pods. `None`: they have no limit, or no cgroup.
        pods: Option<MemoryFigures>,
    },
    NodeFilesystem(DiskFigures),
    ImageFilesystem {
        images: DiskFigures,
        /// `None`: the runtime does not tell where containers write.
        containers: Option<DiskFigures>,
    },
    Processes {
        most: u64,
        running: u64,
    },
}

impl NodeFigures {
    pub fn group(&self) -> FigureGroup {
        match self {
            NodeFigures::Memory { .. } => FigureGroup::Memory,
            NodeFigures::NodeFilesystem(_) => FigureGroup::NodeFilesystem,
            NodeFigures::ImageFilesystem { .. } => FigureGroup::ImageFilesystem,
            NodeFigures::Processes { .. } => FigureGroup::Processes,
        }
    }
}

/// At which usage, as the kernel counts it, a threshold is met. Kernels that can't be told a usage give notice when
/// processes have to wait for memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MemoryNoticeLevels {
    pub node_usage_bytes: Option<u64>,
    pub pods_usage_bytes: Option<u64>,
}

/// Where to measure what one pod uses.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PodToMeasure {
    pub uid: PodUid,
    /// As the cgroup driver spells it. `None`: pods have no cgroups.
    pub cgroup: Option<String>,
    pub sandbox: String,
    /// The newest instance of each container, by name.
    pub containers: BTreeMap<String, ContainerId>,
    /// Directories of its volumes and of the logs of its containers.
    pub volumes: Vec<String>,
    pub logs: BTreeMap<String, String>,
}

/// What one container uses of what the node is short of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ContainerFigures {
    pub memory_bytes: Option<u64>,
    pub layer_bytes: Option<u64>,
    pub layer_inodes: Option<u64>,
    pub log_bytes: Option<u64>,
    pub log_inodes: Option<u64>,
}

/// What one pod uses of it. Absent numbers could not be read.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PodFigures {
    pub memory_bytes: Option<u64>,
    pub processes: Option<u64>,
    /// Of all volumes on the node's own disk.
    pub volume_bytes: u64,
    pub volume_inodes: u64,
    pub containers: BTreeMap<String, ContainerFigures>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for signal in EvictionSignal::ALL {
            assert_eq!(EvictionSignal::parse(signal.as_str()), Some(*signal));
        }
        assert_eq!(EvictionSignal::parse("memory.free"), None);
    }

    #[test]
    fn each_signal_has_its_condition() {
        let conditions = |signal| {
            let mut pressure = NodePressure::default();
            pressure.add(signal);
            pressure.conditions().join(",")
        };
        let found: Vec<_> = EvictionSignal::ALL.iter().map(|signal| conditions(*signal)).collect();
        let (memory, disk) = ("MemoryPressure", "DiskPressure");
        assert_eq!(found, [memory, memory, disk, disk, disk, disk, disk, disk, "PIDPressure"]);
    }
}
