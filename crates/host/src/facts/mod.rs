//! Facts about this host: sizes, versions, addresses and IDs, read from `/proc`, `/sys` and `/etc`.
//!
//! Only the size of the memory is required. Any other fact is absent if the host does not have its file.

mod address;
pub(crate) mod parse;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use async_trait::async_trait;
use model::node::{CgroupVersion, HostAddresses, HostFacts};
use model::user_namespace::IdRange;
use ports::{FactsError, HostFactsSource};

use crate::cgroup::{CgroupLayout, detect_in};

/// How long the resolver may take for our own name.
const NAME_DEADLINE: Duration = Duration::from_secs(5);

/// Larger than any file that is read here.
const MAX_FILE_BYTES: u64 = 8 << 20;

const CGROUP_ROOT: &str = "/sys/fs/cgroup";
/// The program that prints subordinate IDs, wherever they are stored.
const GETSUBIDS: &str = "getsubids";
const CPU_ROOT: &str = "/sys/devices/system/cpu";

#[derive(Clone, Debug)]
pub struct FactsConfig {
    /// Empty: the host's resolver configuration is not used.
    pub resolv_conf: String,
    /// The node's addresses as configured, primary first.
    pub node_ips: Option<Vec<String>>,
    /// The agent's root directory, or the nearest existing one above it: pods' local storage is there.
    pub root_dir: PathBuf,
    /// The name that is resolved to find the node's address. Empty: the kernel's host name.
    pub hostname: String,
    /// Files with the machine ID: the first one with content is used.
    pub machine_id_files: Vec<String>,
    /// The same for the boot ID.
    pub boot_id_files: Vec<String>,
    /// The directory that contains `proc`, `sys` and `etc`: `/`, except in tests.
    pub root: PathBuf,
}

impl Default for FactsConfig {
    fn default() -> Self {
        Self {
            resolv_conf: "/etc/resolv.conf".into(),
            node_ips: None,
            root_dir: PathBuf::from("/var/lib/kubelet"),
            hostname: String::new(),
            machine_id_files: vec!["/etc/machine-id".into(), "/var/lib/dbus/machine-id".into()],
            boot_id_files: vec!["/proc/sys/kernel/random/boot_id".into()],
            root: PathBuf::from("/"),
        }
    }
}

#[derive(Clone, Debug)]
pub struct HostFactsReader {
    config: FactsConfig,
}

impl HostFactsReader {
    pub fn new(config: FactsConfig) -> Self {
        Self { config }
    }

    async fn candidates(&self) -> address::AddressCandidates {
        let config = self.config.clone();
        let (name, local, routed) = background(move || {
            let host = HostRoot { root: config.root };
            let name = Some(config.hostname).filter(|name| !name.is_empty());
            let name = name.unwrap_or_else(|| host.trimmed_text("/proc/sys/kernel/hostname"));
            (name, host.addresses(), address::routed())
        })
        .await
        .unwrap_or_default();
        // A resolver that hangs blocks only its thread.
        let named = tokio::time::timeout(NAME_DEADLINE, background(move || address::resolve(&name))).await;
        let named = named.ok().and_then(Result::ok).unwrap_or_default();
        address::AddressCandidates { named, local, routed }
    }
}

async fn background<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)
}

#[async_trait]
impl HostFactsSource for HostFactsReader {
    async fn read(&self) -> Result<HostFacts, FactsError> {
        let config = self.config.clone();
        let facts = background(move || read(&config)).await.map_err(|error| failed("/proc", error))??;
        let candidates = self.candidates().await;
        let node_ips = match &self.config.node_ips {
            Some(given) if !given.is_empty() => given.clone(),
            _ => vec![candidates.choose().to_string()],
        };
        Ok(HostFacts { node_ips, addresses: candidates.usable(), ..facts })
    }
}

/// Whether the host has swap in use.
pub fn is_swap_enabled() -> bool {
    parse::swaps_in_use(&HostRoot { root: PathBuf::from("/") }.text("/proc/swaps"))
}

/// Reads everything but the addresses.
fn read(config: &FactsConfig) -> Result<HostFacts, FactsError> {
    let host = HostRoot { root: config.root.clone() };
    let meminfo = host.read("/proc/meminfo").map_err(|source| failed("/proc/meminfo", source))?;
    let memory_bytes = parse::meminfo_bytes(&meminfo, "MemTotal")
        .ok_or_else(|| failed("/proc/meminfo", io::Error::from(io::ErrorKind::InvalidData)))?;
    let cgroups = host.cgroups();
    Ok(HostFacts {
        memory_bytes,
        swap_bytes: parse::meminfo_bytes(&meminfo, "SwapTotal").unwrap_or(0),
        cpus: host.cpus(),
        online_cpus: parse::cpu_set(&host.text(&format!("{CPU_ROOT}/online"))).unwrap_or_default(),
        // As upstream: everything but the unified hierarchy counts as version 1.
        cgroup_version: cgroups.as_ref().map_or(CgroupVersion::V1, CgroupLayout::version),
        swap_controller: cgroups.is_some_and(|layout| host.swap_controller(&layout)),
        pid_limit: host.pid_limit(),
        page_size: rustix::param::page_size() as u64,
        hugepage_sizes: parse::hugepage_sizes(&host.names("/sys/kernel/mm/hugepages")),
        thermal_throttle_paths: host.thermal_throttle_paths(),
        node_ips: Vec::new(),
        kernel_release: host.trimmed_text("/proc/sys/kernel/osrelease"),
        resolv_conf: if config.resolv_conf.is_empty() {
            String::new()
        } else {
            host.text(&config.resolv_conf)
        },
        etc_hosts: host.text("/etc/hosts"),
        apparmor_enabled: host.text("/sys/module/apparmor/parameters/enabled").starts_with('Y'),
        selinux_enabled: host.at("/sys/fs/selinux/enforce").exists(),
        selinux_file_label: host.selinux_file_label(),
        boot_id: host.first_word(&config.boot_id_files),
        machine_id: host.first_word(&config.machine_id_files),
        subordinate_ids: subordinate_ids(&host)?,
        system_uuid: host.system_uuid(),
        os_image: host.os_image(),
        architecture: go_architecture(std::env::consts::ARCH).into(),
        root_fs_bytes: filesystem_size(&config.root_dir),
        huge_pages: host.huge_pages(),
        addresses: HostAddresses::default(),
    })
}

/// The subordinate IDs of the user `kubelet`, if the user and `getsubids` exist.
fn subordinate_ids(host: &HostRoot) -> Result<Option<IdRange>, FactsError> {
    if !host.text("/etc/passwd").lines().any(|line| line.starts_with("kubelet:")) {
        return Ok(None);
    }
    let ask = |args: &[&str]| {
        let output = match Command::new(GETSUBIDS).args(args).stdin(Stdio::null()).output() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        match output.status.success() {
            true => Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned())),
            false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
        }
    };
    let both = || -> io::Result<_> { Ok(ask(&["kubelet"])?.zip(ask(&["-g", "kubelet"])?)) };
    let Some((users, groups)) = both().map_err(|error| failed(GETSUBIDS, error))? else { return Ok(None) };
    let range = parse::subordinate_ids(&users, &groups);
    range.map(Some).map_err(|problem| failed(GETSUBIDS, io::Error::other(problem)))
}

/// Go's names of the architectures.
fn go_architecture(word: &str) -> &str {
    match word {
        "x86_64" => "amd64",
        "x86" => "386",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        "loongarch64" => "loong64",
        other => other,
    }
}

/// Zero if unknown. Before the first start the root directory is missing, so the directory above it is used.
fn filesystem_size(directory: &Path) -> u64 {
    let sizes = directory.ancestors().filter_map(|path| rustix::fs::statvfs(path).ok());
    sizes.map(|size| size.f_blocks.saturating_mul(size.f_frsize)).next().unwrap_or(0)
}

fn failed(path: &str, source: io::Error) -> FactsError {
    FactsError { path: path.to_owned(), source }
}

struct HostRoot {
    root: PathBuf,
}

impl HostRoot {
    fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn read(&self, path: &str) -> io::Result<String> {
        let mut bytes = Vec::new();
        File::open(self.at(path))?.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    fn text(&self, path: &str) -> String {
        self.read(path).unwrap_or_default()
    }

    fn trimmed_text(&self, path: &str) -> String {
        self.text(path).trim().to_owned()
    }

    /// From the SELinux policy for containers, or else the default of the host's policy.
    fn selinux_file_label(&self) -> String {
        let of_containers = self.read("/usr/share/containers/selinux/contexts");
        let contexts = of_containers.unwrap_or_else(|_| {
            let config = self.text("/etc/selinux/config");
            let policy = parse::setting(&config, "SELINUXTYPE").unwrap_or("targeted");
            self.text(&format!("/etc/selinux/{policy}/contexts/lxc_contexts"))
        });
        parse::setting(&contexts, "file").unwrap_or_default().to_owned()
    }

    fn names(&self, directory: &str) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.at(directory)) else { return Vec::new() };
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    fn cpus(&self) -> u32 {
        parse::cpu_count(&self.text(&format!("{CPU_ROOT}/online")))
            .unwrap_or_else(|| parse::cpuinfo_count(&self.text("/proc/cpuinfo")))
            .max(1)
    }

    /// The kernel allows no more processes than it has numbers for, and no more threads than it has memory for.
    fn pid_limit(&self) -> Option<u64> {
        let number = |path| self.trimmed_text(path).parse::<u64>().ok();
        Some(number("/proc/sys/kernel/pid_max")?.min(number("/proc/sys/kernel/threads-max")?))
    }

    fn thermal_throttle_paths(&self) -> Vec<String> {
        let numbers = parse::cpu_numbers(&self.names(CPU_ROOT));
        let path = |number: u32| format!("{CPU_ROOT}/cpu{number}/thermal_throttle");
        numbers.into_iter().map(path).filter(|path| self.at(path).is_dir()).collect()
    }

    fn cgroups(&self) -> Option<CgroupLayout> {
        detect_in(Path::new(CGROUP_ROOT), &self.text("/proc/self/mountinfo"), &self.text("/proc/cgroups"))
    }

    /// Whether the kernel accounts swap per cgroup. In version 2 the root cgroup does not show it, all others do.
    fn swap_controller(&self, layout: &CgroupLayout) -> bool {
        match layout {
            CgroupLayout::V1(hierarchies) => hierarchies
                .iter()
                .filter(|hierarchy| hierarchy.controllers.iter().any(|controller| controller == "memory"))
                .any(|hierarchy| self.at(hierarchy.mount.join("memory.memsw.limit_in_bytes")).exists()),
            CgroupLayout::V2 { root } => {
                let root = self.at(root);
                let shows = |cgroup: &Path| cgroup.join("memory.swap.max").exists();
                let own = self.text("/proc/self/cgroup");
                let own = parse::unified_cgroup(&own).map(|path| root.join(path.trim_start_matches('/')));
                own.is_some_and(|own| shows(&own))
                    || std::fs::read_dir(&root)
                        .is_ok_and(|entries| entries.flatten().any(|entry| shows(&entry.path())))
            }
        }
    }

    /// The first word of the first file that has one.
    fn first_word(&self, paths: &[String]) -> String {
        let words = paths.iter().map(|path| self.trimmed_text(path));
        words.into_iter().find(|word| !word.is_empty()).unwrap_or_default()
    }

    /// The firmware's first; then the device trees of PowerPC and s390.
    fn system_uuid(&self) -> String {
        let paths = [
            "/sys/class/dmi/id/product_uuid",
            "/proc/device-tree/system-id",
            "/proc/device-tree/vm,uuid",
            "/etc/machine-id",
        ];
        let found = paths.iter().map(|path| self.trimmed_text(path)).find(|id| !id.is_empty());
        found.unwrap_or_default().trim_end_matches('\0').to_owned()
    }

    fn os_image(&self) -> String {
        let read = |path| self.read(path);
        match read("/etc/os-release").or_else(|_| read("/usr/lib/os-release")) {
            Ok(text) => parse::pretty_name(&text).unwrap_or_else(|| "Linux".into()),
            Err(_) => "Unknown".into(),
        }
    }

    fn huge_pages(&self) -> BTreeMap<u64, u64> {
        const ROOT: &str = "/sys/kernel/mm/hugepages";
        let reserved = |name: String| {
            let kilobytes: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let size = kilobytes.checked_mul(1024).filter(|size| *size > 0)?;
            let pages: u64 = self.trimmed_text(&format!("{ROOT}/{name}/nr_hugepages")).parse().ok()?;
            Some((size, size.checked_mul(pages)?))
        };
        self.names(ROOT).into_iter().filter_map(reserved).collect()
    }

    fn addresses(&self) -> Vec<IpAddr> {
        let mut addresses = parse::local_ipv4(&self.text("/proc/net/fib_trie"));
        addresses.extend(parse::local_ipv6(&self.text("/proc/net/if_inet6")));
        addresses
    }
}

#[cfg(test)]
mod tests;
