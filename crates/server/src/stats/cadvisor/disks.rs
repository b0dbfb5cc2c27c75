//! Disks: what each cgroup moved, and how full and busy the machine's are.

use ports::{DiskCounters, DiskTraffic, MachineDisk};

use super::LabeledCgroup;
use crate::stats::StatsReading;
use crate::stats::family::Family;

type Traffic = fn(&DiskTraffic) -> u64;

/// Of every cgroup that the kernel keeps an account for.
const TRAFFIC: [(&str, &str, Traffic); 4] = [
    ("container_fs_reads_bytes_total", "Bytes read from the disk.", |disk| disk.read_bytes),
    ("container_fs_writes_bytes_total", "Bytes written to the disk.", |disk| disk.written_bytes),
    ("container_fs_reads_total", "Reads from the disk.", |disk| disk.reads),
    ("container_fs_writes_total", "Writes to the disk.", |disk| disk.writes),
];

type Counter = fn(&DiskCounters) -> f64;

/// Of the machine.
const COUNTERS: [(&str, &str, &str, Counter); 9] = [
    ("container_fs_reads_merged_total", "counter", "Reads of the disk that were merged.", |c| {
        c.reads_merged as f64
    }),
    ("container_fs_sector_reads_total", "counter", "Sectors read from the disk.", |c| c.sectors_read as f64),
    ("container_fs_read_seconds_total", "counter", "Time spent reading from the disk, in seconds.", |c| {
        c.read_millis as f64 / 1e3
    }),
    ("container_fs_writes_merged_total", "counter", "Writes to the disk that were merged.", |c| {
        c.writes_merged as f64
    }),
    ("container_fs_sector_writes_total", "counter", "Sectors written to the disk.", |c| {
        c.sectors_written as f64
    }),
    ("container_fs_write_seconds_total", "counter", "Time spent writing to the disk, in seconds.", |c| {
        c.write_millis as f64 / 1e3
    }),
    ("container_fs_io_current", "gauge", "I/O operations in progress on the disk.", |c| c.in_flight as f64),
    (
        "container_fs_io_time_seconds_total",
        "counter",
        "Time with I/O in progress on the disk, in seconds.",
        |c| c.io_millis as f64 / 1e3,
    ),
    (
        "container_fs_io_time_weighted_seconds_total",
        "counter",
        "Time with I/O in progress, weighted by the number of operations in progress.",
        |c| c.weighted_io_millis as f64 / 1e3,
    ),
];

type Room = fn(&MachineDisk) -> u64;

const ROOM: [(&str, &str, Room); 4] = [
    ("container_fs_limit_bytes", "Capacity of the filesystem in bytes.", |disk| {
        disk.filesystem.capacity_bytes
    }),
    ("container_fs_usage_bytes", "Used bytes of the filesystem.", |disk| disk.filesystem.used_bytes),
    ("container_fs_inodes_total", "Capacity of the filesystem in inodes.", |disk| disk.filesystem.inodes),
    ("container_fs_inodes_free", "Free inodes of the filesystem.", |disk| disk.filesystem.inodes_free),
];

pub(super) fn families(owned: &[LabeledCgroup<'_>], reading: &StatsReading) -> Vec<Family> {
    let mut traffic = TRAFFIC.map(|(name, about, _)| Family::new(name, "counter", about));
    let mut usage = Family::new(
        "container_blkio_device_usage_total",
        "counter",
        "Bytes read from and written to the device, by operation.",
    );
    for one in owned {
        let disks = one.usage.detail.as_ref().map(|detail| detail.disks.as_slice()).unwrap_or_default();
        for disk in disks {
            let at = Some(one.usage.at);
            let labels = one.labels.with(&[("device", &disk.device)]);
            for (family, (.., count)) in traffic.iter_mut().zip(TRAFFIC) {
                family.add(&labels, Some(count(disk) as f64), at);
            }
            let (major, minor) = (disk.major.to_string(), disk.minor.to_string());
            for (operation, bytes) in [("Read", disk.read_bytes), ("Write", disk.written_bytes)] {
                let more = [
                    ("device", disk.device.as_str()),
                    ("major", &major),
                    ("minor", &minor),
                    ("operation", operation),
                ];
                usage.add(&one.labels.with(&more), Some(bytes as f64), at);
            }
        }
    }
    let mut families: Vec<Family> = traffic.into();
    families.push(usage);
    if let Some(machine) = owned.first() {
        of_machine(machine, reading, &mut families);
    }
    families
}

fn of_machine(machine: &LabeledCgroup<'_>, reading: &StatsReading, families: &mut Vec<Family>) {
    let at = Some(machine.usage.at);
    let known = machine.usage.detail.as_ref().map(|detail| detail.disks.as_slice()).unwrap_or_default();
    let disks: Vec<_> = reading
        .machine
        .disks
        .iter()
        .map(|disk| (machine.labels.with(&[("device", &disk.device)]), disk))
        .collect();
    for (name, kind, about, count) in COUNTERS {
        let mut family = Family::new(name, kind, about);
        for (labels, disk) in &disks {
            family.add(labels, disk.traffic.as_ref().map(count), at);
        }
        families.push(family);
    }
    for (name, about, room) in ROOM {
        let mut family = Family::new(name, "gauge", about);
        for (labels, disk) in &disks {
            family.add(labels, Some(room(disk) as f64), at);
        }
        families.push(family);
    }
    // Where the root cgroup has no account of its own, the machine's is the whole.
    for (labels, disk) in &disks {
        let Some(traffic) = &disk.traffic else { continue };
        if known.iter().any(|one| one.device == disk.device) {
            continue;
        }
        families[2].add(labels, Some(traffic.reads as f64), at);
        families[3].add(labels, Some(traffic.writes as f64), at);
    }
}
