//! The object of `/stats/summary`. What is not known is left out.

use std::collections::BTreeMap;

use model::Wall;
use model::cri::FilesystemUsage;
use ports::{CgroupUsage, FilesystemFigures, InterfaceFigures};
use serde_json::{Value, json};

use super::{ContainerFigures, PodFigures, Reading};

/// The interface that a summary shows by itself.
const MAIN_INTERFACE: &str = "eth0";

pub(super) struct Disks {
    pub root: FilesystemFigures,
    pub image_fs: FilesystemFigures,
    pub image_use: Option<FilesystemUsage>,
    pub container_use: Option<FilesystemUsage>,
    /// Writable layers by container.
    pub layers: BTreeMap<String, FilesystemUsage>,
    /// Bytes and files of logs by container.
    pub logs: BTreeMap<String, (u64, u64)>,
}

/// CPU and memory alone.
pub(super) fn lean(node: &str, reading: &Reading) -> Value {
    let root = &reading.machine.root;
    let pods = reading.pods.iter().map(|pod| {
        let containers: Vec<Value> = pod.containers.iter().map(lean_container).collect();
        let usage = pod.usage.as_ref();
        json!({
            "podRef": pod_ref(pod), "startTime": time(pod.started), "containers": containers,
            "cpu": usage.map(cpu), "memory": usage.map(memory),
        })
    });
    let pods: Vec<Value> = pods.collect();
    known(json!({
        "node": {
            "nodeName": node, "startTime": time(reading.machine.boot), "cpu": cpu(root), "memory": memory(root),
        },
        "pods": pods,
    }))
}

fn lean_container(container: &ContainerFigures) -> Value {
    let usage = &container.usage;
    json!({
        "name": container.name, "startTime": time(container.started), "cpu": cpu(usage), "memory": memory(usage),
    })
}

pub(super) fn full(node: &str, reading: &Reading, disks: &Disks) -> Value {
    let machine = &reading.machine;
    let root = &machine.root;
    let at = root.at;
    let pods: Vec<Value> = reading.pods.iter().map(|pod| full_pod(pod, disks, at)).collect();
    let used = |usage: &Option<FilesystemUsage>| {
        let usage = usage.as_ref();
        disk(&disks.image_fs, at, usage.map(|u| u.used_bytes), usage.map(|u| u.inodes_used))
    };
    let swap_free = machine.swap_capacity_bytes.saturating_sub(root.swap_bytes.unwrap_or(0));
    known(json!({
        "node": {
            "nodeName": node,
            "startTime": time(machine.boot),
            "cpu": cpu(root),
            "memory": memory(root),
            "network": network(&machine.interfaces, at),
            "fs": disk(&disks.root, at, Some(disks.root.used_bytes), None),
            "runtime": { "imageFs": used(&disks.image_use), "containerFs": used(&disks.container_use) },
            "rlimit": { "time": time(at), "maxpid": machine.most_processes, "curproc": machine.processes },
            "swap": { "time": time(at), "swapAvailableBytes": swap_free, "swapUsageBytes": root.swap_bytes },
        },
        "pods": pods,
    }))
}

fn full_pod(pod: &PodFigures, disks: &Disks, at: Wall) -> Value {
    let mut used = (0, 0);
    let mut containers = Vec::new();
    for container in &pod.containers {
        let layer = disks.layers.get(container.id.as_str());
        let logs = disks.logs.get(container.id.as_str());
        used.0 += layer.map_or(0, |layer| layer.used_bytes) + logs.map_or(0, |logs| logs.0);
        used.1 += layer.map_or(0, |layer| layer.inodes_used) + logs.map_or(0, |logs| logs.1);
        let mut shown = lean_container(container);
        shown["rootfs"] =
            layer.map(|l| disk(&disks.image_fs, at, Some(l.used_bytes), Some(l.inodes_used))).into();
        shown["logs"] = logs.map(|logs| disk(&disks.root, at, Some(logs.0), Some(logs.1))).into();
        shown["swap"] = swap(&container.usage);
        containers.push(shown);
    }
    let usage = pod.usage.as_ref();
    json!({
        "podRef": pod_ref(pod),
        "startTime": time(pod.started),
        "containers": containers,
        "cpu": usage.map(cpu),
        "memory": usage.map(memory),
        "network": network(&pod.interfaces, at),
        "ephemeral-storage": disk(&disks.root, at, Some(used.0), Some(used.1)),
        "process_stats": { "process_count": usage.and_then(|usage| usage.processes) },
        "swap": usage.map(swap),
    })
}

fn pod_ref(pod: &PodFigures) -> Value {
    json!({ "name": pod.name, "namespace": pod.namespace, "uid": pod.uid })
}

fn cpu(usage: &CgroupUsage) -> Value {
    json!({
        "time": time(usage.at),
        "usageNanoCores": usage.cpu_nano_cores,
        "usageCoreNanoSeconds": usage.cpu_nanos,
    })
}

fn memory(usage: &CgroupUsage) -> Value {
    let working_set = usage.working_set_bytes.unwrap_or(0);
    json!({
        "time": time(usage.at),
        "availableBytes": usage.memory_limit_bytes.map(|limit| limit.saturating_sub(working_set)),
        "usageBytes": usage.memory_bytes,
        "workingSetBytes": usage.working_set_bytes,
        "rssBytes": usage.rss_bytes,
        "pageFaults": usage.page_faults,
        "majorPageFaults": usage.major_page_faults,
    })
}

fn swap(usage: &CgroupUsage) -> Value {
    let used = usage.swap_bytes.unwrap_or(0);
    json!({
        "time": time(usage.at),
        "swapAvailableBytes": usage.swap_limit_bytes.map(|limit| limit.saturating_sub(used)),
        "swapUsageBytes": usage.swap_bytes,
    })
}

fn network(interfaces: &[InterfaceFigures], at: Wall) -> Value {
    let show = |one: &InterfaceFigures| {
        json!({
            "name": one.name, "rxBytes": one.rx_bytes, "rxErrors": one.rx_errors,
            "txBytes": one.tx_bytes, "txErrors": one.tx_errors,
        })
    };
    if interfaces.is_empty() {
        return Value::Null;
    }
    let main = interfaces.iter().find(|one| one.name == MAIN_INTERFACE);
    let mut shown = main.map_or_else(|| json!({ "name": "" }), show);
    shown["time"] = time(at);
    shown["interfaces"] = interfaces.iter().map(show).collect();
    shown
}

fn disk(of: &FilesystemFigures, at: Wall, used: Option<u64>, inodes_used: Option<u64>) -> Value {
    json!({
        "time": time(at),
        "availableBytes": of.available_bytes,
        "capacityBytes": of.capacity_bytes,
        "usedBytes": used,
        "inodesFree": of.inodes_free,
        "inodes": of.inodes,
        "inodesUsed": inodes_used.unwrap_or(of.inodes.saturating_sub(of.inodes_free)),
    })
}

/// Seconds are what the API's times have.
fn time(at: Wall) -> Value {
    at.timestamp().strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into()
}

/// Without what is null.
fn known(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(fields.map(|(name, value)| (name, known(value))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(known).collect()),
        other => other,
    }
}
