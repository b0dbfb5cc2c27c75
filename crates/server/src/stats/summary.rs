//! The object of `/stats/summary`. What is not known is left out.

mod json;

use std::sync::Arc;

use model::Wall;
use model::cri::FilesystemUsage;
use ports::{CgroupUsage, FilesystemFigures, InterfaceFigures, PsiData, PsiStats, TreeFigures};

use super::disks::DiskReading;
use super::reading::SystemContainerStats;
use super::volumes::{VolumeFigures, VolumeStatsByPod};
use super::{ContainerFigures, PodFigures, StatsReading};
use json::*;

/// The interface that a summary shows by itself.
const MAIN_INTERFACE: &str = "eth0";

pub(super) fn to_json(summary: &Summary<'_>) -> Vec<u8> {
    // Numbers, texts and lists can always be written.
    serde_json::to_vec(summary).unwrap_or_default()
}

/// CPU and memory alone.
pub(super) fn cpu_and_memory_summary<'a>(node: &'a str, reading: &'a StatsReading) -> Summary<'a> {
    let root = &reading.machine.root;
    let system = reading.system.iter().map(|one| SystemStats { io: None, swap: None, ..system(one) });
    let pods = reading.pods.iter().map(|pod| {
        let containers = pod.containers.iter().map(cpu_and_memory_of_container).collect();
        let usage = pod.usage.as_ref();
        PodStats {
            containers,
            cpu: usage.map(cpu),
            memory: usage.map(memory),
            ..PodStats::new(reference(pod), pod.started)
        }
    });
    let node = NodeStatsJson {
        system_containers: system.collect(),
        cpu: Some(cpu(root)),
        memory: Some(memory(root)),
        ..NodeStatsJson::new(node, reading.machine.boot)
    };
    Summary { node, pods: pods.collect() }
}

pub(super) fn full_summary<'a>(
    node: &'a str,
    reading: &'a StatsReading,
    disks: &DiskReading,
    volumes: &'a VolumeStatsByPod,
) -> Summary<'a> {
    let machine = &reading.machine;
    let root = &machine.root;
    let at = root.at;
    let used = |usage: &Option<FilesystemUsage>| {
        let tree =
            |usage: &FilesystemUsage| TreeFigures { bytes: usage.used_bytes, inodes: usage.inodes_used };
        disk(&disks.image_fs, at, usage.as_ref().map(tree))
    };
    let of_pod = |pod: &'a PodFigures| {
        let volumes = volumes.get(&pod.uid).map(Vec::as_slice).unwrap_or_default();
        full_pod(pod, disks, volumes, at)
    };
    let swap_used = root.swap_bytes.unwrap_or(0);
    let node = NodeStatsJson {
        system_containers: reading.system.iter().map(system).collect(),
        cpu: Some(cpu(root)),
        memory: Some(memory(root)),
        io: Some(io(root)),
        network: network(None, &machine.interfaces, at),
        fs: Some(disk(&disks.root, at, None)),
        runtime: Some(RuntimeStats {
            image_fs: used(&disks.image_use),
            container_fs: used(&disks.container_use),
        }),
        rlimit: Some(Rlimit { time: Time(at), maxpid: machine.process_limit, curproc: machine.processes }),
        swap: Some(SwapStats {
            time: Time(at),
            available: Some(machine.swap_capacity_bytes.saturating_sub(swap_used)),
            usage: root.swap_bytes,
        }),
        ..NodeStatsJson::new(node, machine.boot)
    };
    Summary { node, pods: reading.pods.iter().map(of_pod).collect() }
}

fn full_pod<'a>(
    pod: &'a PodFigures,
    disks: &DiskReading,
    volumes: &'a [Arc<VolumeFigures>],
    at: Wall,
) -> PodStats<'a> {
    let mut used = disks.pods.get(pod.uid.as_str()).copied().unwrap_or_default();
    let mut add = |part: TreeFigures| {
        used.bytes = used.bytes.saturating_add(part.bytes);
        used.inodes = used.inodes.saturating_add(part.inodes);
    };
    let mut containers = Vec::new();
    for container in &pod.containers {
        let layer = container.layer.as_ref().or_else(|| disks.layers.get(container.id.as_str()));
        let layer = layer.map(|layer| TreeFigures { bytes: layer.used_bytes, inodes: layer.inodes_used });
        let logs = disks.logs.get(container.id.as_str()).copied();
        [layer, logs].into_iter().flatten().for_each(&mut add);
        containers.push(ContainerStats {
            io: Some(io(&container.usage)),
            rootfs: layer.map(|layer| disk(&disks.image_fs, at, Some(layer))),
            logs: logs.map(|logs| disk(&disks.root, at, Some(logs))),
            swap: Some(swap(&container.usage)),
            ..cpu_and_memory_of_container(container)
        });
    }
    volumes.iter().filter(|one| one.volume.on_disk).map(|one| one.used).for_each(&mut add);
    let usage = pod.usage.as_ref();
    PodStats {
        containers,
        cpu: usage.map(cpu),
        memory: usage.map(memory),
        io: usage.map(io),
        network: network(pod.default_interface.as_ref(), &pod.interfaces, at),
        volume: volumes.iter().map(|one| volume(one, &pod.namespace)).collect(),
        ephemeral_storage: Some(disk(&disks.root, at, Some(used))),
        process_stats: usage.and_then(|usage| Some(ProcessStats { process_count: usage.tasks? })),
        swap: usage.map(swap),
        ..PodStats::new(reference(pod), pod.started)
    }
}

fn cpu_and_memory_of_container(container: &ContainerFigures) -> ContainerStats<'_> {
    let usage = &container.usage;
    ContainerStats {
        name: &container.name,
        start_time: Time(container.started),
        cpu: cpu(usage),
        memory: memory(usage),
        io: None,
        rootfs: None,
        logs: None,
        swap: None,
    }
}

fn system(one: &SystemContainerStats) -> SystemStats<'_> {
    let usage = &one.usage;
    SystemStats {
        name: one.name,
        start_time: one.started.map(Time),
        cpu: cpu(usage),
        memory: memory(usage),
        io: Some(io(usage)),
        swap: Some(swap(usage)),
    }
}

fn reference(pod: &PodFigures) -> PodRef<'_> {
    PodRef { name: &pod.name, namespace: &pod.namespace, uid: pod.uid.as_str() }
}

fn cpu(usage: &CgroupUsage) -> CpuStats {
    CpuStats {
        time: Time(usage.at),
        usage_nano_cores: usage.cpu_nano_cores,
        usage_core_nano_seconds: usage.cpu_nanos,
        psi: usage.pressure.cpu.as_ref().map(psi),
    }
}

fn memory(usage: &CgroupUsage) -> MemoryStats {
    let working_set = usage.working_set_bytes.unwrap_or(0);
    MemoryStats {
        time: Time(usage.at),
        available_bytes: usage.memory_limit_bytes.map(|limit| limit.saturating_sub(working_set)),
        usage_bytes: usage.memory_bytes,
        working_set_bytes: usage.working_set_bytes,
        rss_bytes: usage.rss_bytes,
        page_faults: usage.page_faults,
        major_page_faults: usage.major_page_faults,
        psi: usage.pressure.memory.as_ref().map(psi),
    }
}

fn io(usage: &CgroupUsage) -> IoStats {
    IoStats { time: Time(usage.at), psi: usage.pressure.io.as_ref().map(psi) }
}

fn psi(pressure: &PsiStats) -> Psi {
    let stall = |stall: &PsiData| {
        let [avg10, avg60, avg300] = stall.averages;
        PsiStall { total: stall.total_micros, avg10, avg60, avg300 }
    };
    Psi { full: stall(&pressure.full), some: stall(&pressure.some) }
}

fn swap(usage: &CgroupUsage) -> SwapStats {
    let used = usage.swap_bytes.unwrap_or(0);
    SwapStats {
        time: Time(usage.at),
        available: usage.swap_limit_bytes.map(|limit| limit.saturating_sub(used)),
        usage: usage.swap_bytes,
    }
}

/// Where nobody has said which the default interface is, its name tells.
fn network<'a>(
    default: Option<&'a InterfaceFigures>,
    interfaces: &'a [InterfaceFigures],
    at: Wall,
) -> Option<NetworkStats<'a>> {
    let show = |one: &'_ InterfaceFigures| InterfaceCounts {
        rx_bytes: one.rx.bytes,
        rx_errors: one.rx.errors,
        tx_bytes: one.tx.bytes,
        tx_errors: one.tx.errors,
    };
    if interfaces.is_empty() && default.is_none() {
        return None;
    }
    let main = default.or_else(|| interfaces.iter().find(|one| one.name == MAIN_INTERFACE));
    let all = interfaces.iter().map(|one| Interface { name: &one.name, counts: Some(show(one)) });
    let main = Interface { name: main.map_or("", |one| &one.name), counts: main.map(show) };
    Some(NetworkStats { time: Time(at), main, interfaces: all.collect() })
}

/// Without a use of its own, that of the whole filesystem.
fn disk(of: &FilesystemFigures, at: Wall, used: Option<TreeFigures>) -> FsStats {
    FsStats {
        time: Time(at),
        available_bytes: of.available_bytes,
        capacity_bytes: of.capacity_bytes,
        used_bytes: used.map_or(of.used_bytes, |used| used.bytes),
        inodes_free: of.inodes_free,
        inodes: of.inodes,
        inodes_used: used.map_or(of.inodes.saturating_sub(of.inodes_free), |used| used.inodes),
    }
}

fn volume<'a>(one: &'a VolumeFigures, namespace: &'a str) -> VolumeStats<'a> {
    let claim = one.volume.claim.as_deref();
    VolumeStats {
        name: &one.volume.name,
        pvc_ref: claim.map(|name| ClaimRef { name, namespace }),
        fs: disk(&one.filesystem, one.at, Some(one.used)),
        health: one.abnormal.map(|abnormal| VolumeHealth { abnormal }),
    }
}
