//! Views of the machine: mounts, cgroups, processes and port maps that belong to an instance.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Mount points below a directory, the directory itself included.
pub fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("read the mount table");
    table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(|point| PathBuf::from(unescape(point)))
        .filter(|point| point.starts_with(dir))
        .collect()
}

/// Loop devices over what is in a directory, each with the path of its backing file.
pub fn loop_devices_below(dir: &Path) -> Vec<(PathBuf, PathBuf)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block").expect("block devices").flatten() {
        let Ok(backing) = fs::read_to_string(entry.path().join("loop/backing_file")) else { continue };
        let backing = PathBuf::from(backing.trim_end().trim_end_matches(" (deleted)"));
        if backing.starts_with(dir) {
            found.push((Path::new("/dev").join(entry.file_name()), backing));
        }
    }
    found.sort();
    found
}

/// The kernel writes blanks and backslashes in octal.
fn unescape(point: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(point.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// The mount points of every cgroup hierarchy: each controller of v1, and v2.
fn cgroup_hierarchies() -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/mounts").expect("read the mount table");
    let is_cgroup =
        |line: &&str| line.split(' ').nth(2).is_some_and(|kind| kind == "cgroup" || kind == "cgroup2");
    table.lines().filter(is_cgroup).filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from).collect()
}

/// Directories of the cgroup `name` and all below it, in every hierarchy.
pub fn cgroups_below(name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for hierarchy in cgroup_hierarchies() {
        directories(&hierarchy.join(name.trim_start_matches('/')), &mut found);
    }
    found
}

fn directories(top: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(top) else { return };
    found.push(top.to_owned());
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            directories(&entry.path(), found);
        }
    }
}

/// Processes, zombies left out, whose command line or cgroup contains the text.
pub fn live_processes(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("list processes").flatten() {
        let pid = entry.file_name().to_string_lossy().into_owned();
        let own = pid.parse() == Ok(std::process::id());
        if own || !pid.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let read = |file: &str| fs::read(entry.path().join(file)).unwrap_or_default();
        let command = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
        let cgroup = String::from_utf8_lossy(&read("cgroup")).into_owned();
        if (command.contains(text) || cgroup.contains(text)) && start_time(&pid).is_some() {
            found.push(format!("{pid}: {command}"));
        }
    }
    found
}

/// When a live process started, in the kernel's ticks: it tells a process from a later one with its pid.
pub fn start_time(pid: &str) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    (fields[0] != "Z").then(|| fields[19].to_owned())
}

/// Port map rules that carry the network's name.
pub fn port_maps_of(network: &str) -> Vec<String> {
    let output =
        Command::new("iptables").args(["-w", "10", "-t", "nat", "-S"]).output().expect("run iptables");
    let rules = String::from_utf8_lossy(&output.stdout);
    rules.lines().filter(|rule| rule.contains(&format!("\\\"{network}\\\""))).map(str::to_owned).collect()
}
