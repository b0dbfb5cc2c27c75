//! The machine, from /proc, /sys and the root of the cgroups.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use model::Wall;
use ports::{
    CgroupDetailLevel, CgroupUsage, DiskCounters, FilesystemFigures, InterfaceFigures, MachineDisk,
    MachineFacts, MachineUsage, PsiByResource, TrafficFigures,
};

use super::pressure;

/// Times in /proc/stat, for user space on the architectures that we run on.
const TICK_NANOS: u64 = 10_000_000;

/// `root`: the numbers of the root cgroup.
pub(super) fn read(
    proc: &Path,
    root: CgroupUsage,
    now: Wall,
    depth: CgroupDetailLevel,
) -> io::Result<MachineUsage> {
    let read = |name: &str| fs::read_to_string(proc.join(name));
    let number = |name: &str| read(name).ok().and_then(|text| text.trim().parse::<u64>().ok());
    let stat = read("stat")?;
    let memory = meminfo(&read("meminfo")?);
    let bytes = |name: &str| memory.get(name).copied().unwrap_or_default();
    let most = [number("sys/kernel/pid_max"), number("sys/kernel/threads-max")].into_iter().flatten().min();
    let mut root = with_proc(root, &stat, &memory);
    let stalls = |name: &str| pressure::parse(&read(name).ok()?);
    root.pressure = PsiByResource {
        cpu: stalls("pressure/cpu"),
        memory: stalls("pressure/memory"),
        io: stalls("pressure/io"),
    };
    Ok(MachineUsage {
        root,
        boot: boot(&stat).unwrap_or(now),
        memory_capacity_bytes: bytes("MemTotal"),
        swap_capacity_bytes: bytes("SwapTotal"),
        interfaces: read("net/dev").map(|text| interfaces(&text)).unwrap_or_default(),
        processes: read("loadavg").ok().and_then(|text| processes(&text)).unwrap_or_default(),
        process_limit: most.unwrap_or_default(),
        disks: match depth {
            CgroupDetailLevel::Basic => Vec::new(),
            CgroupDetailLevel::Full => disks(&read("self/mounts")?, &read("diskstats").unwrap_or_default()),
        },
        facts: MachineFacts::default(),
    })
}

/// The root cgroup's numbers, with those of /proc where it has none (memory, in v2).
fn with_proc(mut root: CgroupUsage, stat: &str, memory: &BTreeMap<String, u64>) -> CgroupUsage {
    let bytes = |name: &str| memory.get(name).copied().unwrap_or_default();
    if root.cpu_nanos.is_none_or(|nanos| nanos == 0) {
        root.cpu_nanos = busy_nanos(stat);
    }
    if root.memory_bytes.is_none_or(|bytes| bytes == 0) {
        let usage = bytes("MemTotal").saturating_sub(bytes("MemFree"));
        root.memory_bytes = Some(usage);
        root.working_set_bytes = Some(usage.saturating_sub(bytes("Inactive(file)")));
        root.rss_bytes = Some(bytes("AnonPages"));
    }
    root.swap_bytes = Some(bytes("SwapTotal").saturating_sub(bytes("SwapFree")));
    root.memory_limit_bytes = Some(bytes("MemTotal"));
    root
}

/// In bytes.
fn meminfo(text: &str) -> BTreeMap<String, u64> {
    let line = |line: &str| {
        let (name, rest) = line.split_once(':')?;
        let kilobytes: u64 = rest.split_whitespace().next()?.parse().ok()?;
        Some((name.to_owned(), kilobytes.saturating_mul(1024)))
    };
    text.lines().filter_map(line).collect()
}

/// All CPU time but idle and iowait.
fn busy_nanos(stat: &str) -> Option<u64> {
    let line = stat.lines().find(|line| line.starts_with("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().skip(1).map_while(|word| word.parse().ok()).collect();
    let busy: u64 =
        ticks.iter().take(8).enumerate().filter(|(at, _)| !matches!(at, 3 | 4)).map(|(_, t)| t).sum();
    Some(busy.saturating_mul(TICK_NANOS))
}

fn boot(stat: &str) -> Option<Wall> {
    let seconds: i64 = stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(Wall::from_seconds(seconds))
}

/// The total of the fourth field.
pub(super) fn processes(loadavg: &str) -> Option<u64> {
    loadavg.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
}

/// All interfaces but the loopback.
pub(crate) fn interfaces(text: &str) -> Vec<InterfaceFigures> {
    let line = |line: &str| {
        let (name, rest) = line.split_once(':')?;
        let numbers: Vec<u64> = rest.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let traffic = |from: usize| {
            let [bytes, packets, errors, dropped] = numbers.get(from..from + 4)?.try_into().ok()?;
            Some(TrafficFigures { bytes, packets, errors, dropped })
        };
        Some(InterfaceFigures { name: name.trim().to_owned(), rx: traffic(0)?, tx: traffic(8)? })
    };
    text.lines().filter_map(line).filter(|found| found.name != "lo").collect()
}

/// Filesystems of block devices, each device once.
fn disks(mounts: &str, diskstats: &str) -> Vec<MachineDisk> {
    let mut disks: Vec<MachineDisk> = Vec::new();
    for line in mounts.lines() {
        let mut words = line.split(' ');
        let (Some(device), Some(place), Some(kind)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        // A filesystem that a user process serves (fuse, often from `/dev/fuse`) may hang.
        let is_local = kind.starts_with("ext") || matches!(kind, "btrfs" | "xfs" | "zfs" | "f2fs" | "vfat");
        if !is_local || !device.starts_with("/dev/") || disks.iter().any(|known| known.device == device) {
            continue;
        }
        let Ok(filesystem) = filesystem(Path::new(&unescaped(place))) else { continue };
        let name = device.trim_start_matches("/dev/");
        let traffic = diskstats.lines().find_map(|line| counters(line, name));
        disks.push(MachineDisk { device: device.to_owned(), filesystem, traffic });
    }
    disks
}

/// Blanks and the like are octal escapes in the mount table.
fn unescaped(place: &str) -> String {
    place.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

pub(super) fn filesystem(path: &Path) -> io::Result<FilesystemFigures> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(FilesystemFigures {
        available_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        capacity_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
        used_bytes: stat.f_blocks.saturating_sub(stat.f_bfree).saturating_mul(stat.f_frsize),
        inodes: stat.f_files,
        inodes_free: stat.f_ffree,
    })
}

/// `major minor name`, then numbers.
fn counters(line: &str, name: &str) -> Option<DiskCounters> {
    let words: Vec<&str> = line.split_whitespace().collect();
    if words.get(2) != Some(&name) {
        return None;
    }
    let at = |index: usize| words.get(index + 3)?.parse::<u64>().ok();
    Some(DiskCounters {
        reads: at(0)?,
        reads_merged: at(1)?,
        sectors_read: at(2)?,
        read_millis: at(3)?,
        writes: at(4)?,
        writes_merged: at(5)?,
        sectors_written: at(6)?,
        write_millis: at(7)?,
        in_flight: at(8)?,
        io_millis: at(9)?,
        weighted_io_millis: at(10)?,
    })
}

/// The names of block devices by their numbers.
pub(super) fn device_names(proc: &Path) -> BTreeMap<(u32, u32), String> {
    let text = fs::read_to_string(proc.join("diskstats")).unwrap_or_default();
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let numbers = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some((numbers, format!("/dev/{}", words.next()?)))
    };
    text.lines().filter_map(line).collect()
}

pub(super) fn facts(proc: &Path, sys: &Path) -> MachineFacts {
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let stat = read(&proc.join("stat"));
    let topology = topology(&sys.join("devices/system/cpu"));
    let distinct = |of: fn(&CpuTopology) -> Option<&String>| {
        topology.iter().filter_map(of).collect::<BTreeSet<_>>().len() as u64
    };
    let release = read(Path::new("/etc/os-release"));
    let os = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or_default();
    MachineFacts {
        cores: stat.lines().filter(|line| is_core(line)).count() as u64,
        physical_cores: topology.iter().map(|at| (&at.package, &at.core)).collect::<BTreeSet<_>>().len()
            as u64,
        sockets: distinct(|at| at.package.as_ref()),
        books: distinct(|at| at.book.as_ref()),
        drawers: distinct(|at| at.drawer.as_ref()),
        boot_id: read(&proc.join("sys/kernel/random/boot_id")),
        machine_id: read(Path::new("/etc/machine-id")),
        system_uuid: read(&sys.join("class/dmi/id/product_uuid")),
        kernel: read(&proc.join("sys/kernel/osrelease")),
        os: os.trim_matches('"').to_owned(),
    }
}

/// `cpu0`, not `cpu`.
fn is_core(line: &str) -> bool {
    line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// The position of a logical CPU. Books and drawers exist on mainframes only.
struct CpuTopology {
    package: Option<String>,
    core: Option<String>,
    book: Option<String>,
    drawer: Option<String>,
}

fn topology(cpus: &Path) -> Vec<CpuTopology> {
    let names = fs::read_dir(cpus).into_iter().flatten().flatten();
    let cpus = names.filter(|entry| is_core(&entry.file_name().to_string_lossy()));
    let place = |dir: std::path::PathBuf| {
        let read = |name: &str| Some(fs::read_to_string(dir.join(name)).ok()?.trim().to_owned());
        let package = read("physical_package_id");
        package.is_some().then(|| CpuTopology {
            package,
            core: read("core_id"),
            book: read("book_id"),
            drawer: read("drawer_id"),
        })
    };
    cpus.filter_map(|entry| place(entry.path().join("topology"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_told_once_with_their_counters() {
        let mounts = "proc /proc proc rw 0 0\n/dev/sda1 / ext4 rw 0 0\n/dev/sda1 /somewhere ext4 rw 0 0\n\
                      /dev/fuse /proc fuse rw 0 0\n/dev/sdb1 /proc fuseblk rw 0 0\n/dev/sdc1 /proc\n";
        let stats = "   8       0 sda 9 9 9 9 9 9 9 9 9 9 9\n   8       1 sda1 1 2 3 4 5 6 7 8 9 10 11 12\n";
        let found = disks(mounts, stats);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].device, "/dev/sda1");
        let traffic = found[0].traffic.unwrap();
        assert_eq!((traffic.reads, traffic.sectors_written, traffic.weighted_io_millis), (1, 7, 11));
        assert!(disks(mounts, "")[0].traffic.is_none());
        assert_eq!(unescaped("/a\\040b"), "/a b");
    }

    #[test]
    fn cpus_are_counted_by_where_they_are() {
        let temp = tempfile::tempdir().unwrap();
        for (cpu, package, core) in [(0, 0, 0), (1, 0, 0), (2, 0, 1), (3, 1, 0)] {
            let dir = temp.path().join(format!("devices/system/cpu/cpu{cpu}/topology"));
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("physical_package_id"), format!("{package}\n")).unwrap();
            fs::write(dir.join("core_id"), format!("{core}\n")).unwrap();
        }
        fs::create_dir_all(temp.path().join("devices/system/cpu/cpufreq")).unwrap();
        let facts = facts(Path::new("/proc"), temp.path());
        assert_eq!((facts.physical_cores, facts.sockets, facts.books), (3, 2, 0));
        assert!(facts.cores > 0 && !facts.kernel.is_empty());
    }
}
