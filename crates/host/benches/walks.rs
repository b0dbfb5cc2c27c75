//! What walks over trees that a container made cost, on a real disk: a chain of directories with long names, and a comb,
//! whose levels have more directories beside the next one. `hack/bench walks` runs it; docs/performance.md holds what came
//! out.
//!
//! Each tree is an emptyDir volume, and is walked as the agent walks it: measured for limits of local storage, and given to
//! an fsGroup. It asserts nothing but that these succeed, and leaves the trees: whoever runs it drops the filesystem.

// Real disks live in real time.
#![allow(clippy::disallowed_methods)]

use std::ffi::CString;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use host::files::HostPodFiles;
use model::PodUid;
use model::volume::{EmptyDirMedium, VolumeKind, VolumeSetup};
use ports::PodFiles;
use rustix::fs::{Mode, OFlags};

/// As long as names of directories may be, but for a number.
const NAME_BYTES: usize = 240;
/// Directories beside the next one, at each level of a comb.
const TEETH: usize = 9;
const SIZES: [(&str, usize); 2] = [("RUBELET_BENCH_FEW", 100_000), ("RUBELET_BENCH_MANY", 1_000_000)];

fn main() {
    let dir = PathBuf::from(
        std::env::var_os("RUBELET_BENCH_DIR").expect("RUBELET_BENCH_DIR, see hack/bench walks"),
    );
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("an async runtime");
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load average {}", load.split(' ').take(3).collect::<Vec<_>>().join(" "));
    println!("| tree | directories | walk | seconds | CPU seconds | CPU per directory | peak memory added |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for (shape, teeth) in [("chain", 0), ("comb", TEETH)] {
        let sizes = SIZES.map(|(variable, default)| number(variable, default));
        let [few, many] = sizes.map(|directories| {
            let tree = Tree::make(&dir, &format!("{shape}-{directories}"), directories, teeth);
            runtime.block_on(tree.walk(shape, directories))
        });
        let ratios = few.iter().zip(many).map(|(few, many)| format!("{:.2}", many / few));
        println!(
            "| {shape} | **many / few** | measure, fsGroup | | | {} times | |",
            ratios.collect::<Vec<_>>().join(", ")
        );
    }
}

fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// The volume of a pod, and who works on it.
struct Tree {
    files: HostPodFiles,
    uid: PodUid,
    volume: PathBuf,
    marker: PathBuf,
}

impl Tree {
    fn make(base: &Path, uid: &str, directories: usize, teeth: usize) -> Tree {
        let root = base.join("root");
        let files = HostPodFiles::new(&root, base.join("logs"), base.join("links"));
        let pod = root.join("pods").join(uid);
        let volume = pod.join("volumes/kubernetes.io~empty-dir/tree");
        fs::create_dir_all(&volume).expect("make the volume");
        let mut level = open(&volume);
        for _ in 0..directories / (teeth + 1) {
            for tooth in 0..teeth {
                rustix::fs::mkdirat(&level, name(tooth + 1), Mode::RWXU).expect("make a directory");
            }
            rustix::fs::mkdirat(&level, name(0), Mode::RWXU).expect("make a directory");
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            level = rustix::fs::openat(&level, name(0), flags, Mode::empty()).expect("open a directory");
        }
        let marker = pod.join("plugins/kubernetes.io~empty-dir/tree/ready");
        Tree { files, uid: uid.into(), volume, marker }
    }

    /// CPU time per directory of each walk, which other work on the machine does not change much.
    async fn walk(self, shape: &str, directories: usize) -> Vec<f64> {
        let paths = [text(&self.volume)];
        let setup = VolumeSetup {
            name: "tree".into(),
            spec_name: "tree".into(),
            kind: VolumeKind::EmptyDir {
                path: text(&self.volume),
                ready_marker: text(&self.marker),
                medium: EmptyDirMedium::Disk,
                fs_group: Some(4711),
                project_quota: false,
            },
        };
        let mut times = Vec::new();
        let mut show = |walk: &str, begun: Begun| {
            let (seconds, cpu) = (begun.at.elapsed().as_secs_f64(), cpu_seconds() - begun.cpu);
            let (each, added) = (cpu / directories as f64 * 1e6, peak_mib() - begun.memory);
            println!(
                "| {shape} | {directories} | {walk} | {seconds:.1} | {cpu:.2} | {each:.1} µs | {added:.1} MiB |"
            );
            times.push(each);
        };
        let begun = Begun::now();
        self.files.disk_use(&self.uid, &paths).await.expect("measured");
        show("measure", begun);
        let begun = Begun::now();
        self.files.set_up_volume(&self.uid, &setup).await.expect("given to the group");
        show("fsGroup", begun);
        times
    }
}

/// When a walk began, with what the process had used by then.
struct Begun {
    at: Instant,
    cpu: f64,
    memory: f64,
}

impl Begun {
    fn now() -> Begun {
        // The peak is counted from here on.
        fs::write("/proc/self/clear_refs", "5").expect("reset the peak of memory");
        Begun { at: Instant::now(), cpu: cpu_seconds(), memory: peak_mib() }
    }
}

/// User and system time of all threads, those that have ended too, in hundredths of a second.
fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").expect("own figures");
    let (_, fields) = stat.rsplit_once(") ").expect("the name's end");
    let ticks = fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<f64>().expect("ticks"));
    ticks.sum::<f64>() / 100.0
}

fn peak_mib() -> f64 {
    let status = fs::read_to_string("/proc/self/status").expect("own figures");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the peak");
    line.trim().trim_end_matches(" kB").parse::<f64>().expect("a number") / 1024.0
}

fn open(dir: &Path) -> OwnedFd {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(dir, flags, Mode::empty()).expect("open the volume")
}

fn name(number: usize) -> CString {
    CString::new(format!("{number}{}", "x".repeat(NAME_BYTES))).expect("no zero byte")
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
