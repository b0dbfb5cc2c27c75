//! What XFS and ext4 count, with project quotas. The kernel of a machine that runs the tests may have no quotas, so this
//! test starts itself again in a guest of `hack/guest`, whose kernel has them.
//!
//! ```text
//!   this machine ──> a guest with two disks ──> this test, on each disk ──> itself, killed at every step
//! ```

use std::fs;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use model::PodUid;
use model::volume::{EmptyDirMedium, VolumeKind, VolumeSetup};
use ports::{FilesError, PodFiles, TreeFigures};

use super::project_files::FIRST_ID;
use super::{ProjectFiles, ProjectQuotas, kernel, open_dir};
use crate::files::HostPodFiles;
use crate::files::killed::{AT, now, text};
use crate::usage::count;

const TEST: &str = "quota::on_disk::what_xfs_and_ext4_count";
/// The directory on a disk with quotas, in the guest.
const DISK: &str = "RUBELET_TEST_QUOTA_DISK";
/// The directory of the life that is killed.
const LIFE: &str = "RUBELET_TEST_QUOTA_LIFE";
const LIFE_TEARS_DOWN: &str = "RUBELET_TEST_QUOTA_TEARS_DOWN";
const GUEST_SECONDS: &str = "1500";
const FILES_TO_COUNT: usize = 100_000;
const SIGKILL: i32 = 9;
const BY_HAND: [(&str, &str); 2] =
    [("projects", "# by hand\n1048577:/srv/data\n7:/srv\n"), ("projid", "data:1048577\n")];

#[test]
fn what_xfs_and_ext4_count() {
    if let Some(base) = std::env::var_os(LIFE) {
        return one_life(Path::new(&base), std::env::var_os(LIFE_TEARS_DOWN).is_some());
    }
    if let Some(disk) = std::env::var_os(DISK) {
        return on_a_disk(Path::new(&disk));
    }
    let guest = Guest::start(&["1G", "1G"]);
    let program = std::env::current_exe().unwrap();
    let shared = guest.dir.join("share/tests");
    fs::hard_link(&program, &shared).or_else(|_| fs::copy(&program, &shared).map(drop)).unwrap();
    let script = format!(
        "set -e
        cp /share/tests /root/tests
        mkfs.xfs -q /dev/ubdb
        mkfs.ext4 -q -N 150000 -O quota,project -E quotatype=prjquota /dev/ubdc
        for disk in b c; do
            mkdir /mnt/$disk
            mount -o prjquota /dev/ubd$disk /mnt/$disk
            {DISK}=/mnt/$disk /root/tests --exact {TEST} --nocapture
        done"
    );
    println!("{}", guest.run(&script));
}

struct Guest {
    dir: PathBuf,
}

impl Guest {
    fn script() -> Command {
        Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../hack/guest"))
    }

    fn start(disks: &[&str]) -> Guest {
        let guest = Guest { dir: std::env::temp_dir().join(format!("rubelet-quota-{}", std::process::id())) };
        let mut start = Self::script();
        start.args(["start", "--form", "uml"]).args(disks.iter().flat_map(|size| ["--disk", size]));
        let output = start.arg(&guest.dir).env("RUBELET_TEST_OWNER", std::process::id().to_string()).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        guest
    }

    fn run(&self, script: &str) -> String {
        let mut run = Self::script();
        run.args(["run", "--timeout", GUEST_SECONDS]).arg(&self.dir).args(["bash", "-c", script]);
        let output = run.output().unwrap();
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(output.status.success(), "{}\n{}", said[0], said[1]);
        said[0].clone()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = Self::script().arg("stop").arg(&self.dir).status();
    }
}

/// An agent's directories, with one pod.
struct Node {
    base: PathBuf,
    uid: PodUid,
    files: HostPodFiles,
    quotas: ProjectQuotas,
}

impl Node {
    fn new(base: &Path, gate: bool) -> Node {
        let quotas = ProjectQuotas::with_files(gate, ProjectFiles::below(base));
        let files = HostPodFiles::new(base.join("root"), base.join("logs"), base.join("links"));
        let files = files.with_quotas(quotas.clone());
        Node { base: base.to_owned(), uid: PodUid::new("0f1e"), files, quotas }
    }

    /// With lines of others.
    fn fresh(base: &Path) -> Node {
        fs::create_dir_all(base).unwrap();
        for (name, text) in BY_HAND {
            fs::write(base.join(name), text).unwrap();
        }
        let node = Node::new(base, true);
        fs::create_dir_all(base.join("root/pods")).unwrap();
        node
    }

    fn volume(&self, name: &str) -> PathBuf {
        self.base.join("root/pods/0f1e/volumes/kubernetes.io~empty-dir").join(name)
    }

    fn try_set_up(&self, name: &str) -> Result<(), FilesError> {
        let plugins = self.base.join("root/pods/0f1e/plugins/kubernetes.io~empty-dir");
        let kind = VolumeKind::EmptyDir {
            path: text(&self.volume(name)),
            ready_marker: text(&plugins.join(name).join("ready")),
            medium: EmptyDirMedium::Disk,
            fs_group: Some(4711),
            project_quota: true,
        };
        now(async {
            self.files.make_pod_dirs(&self.uid, &text(&self.base.join("logs/ns_p_0f1e"))).await?;
            let setup = VolumeSetup { name: name.into(), spec_name: name.into(), kind };
            self.files.set_up_volume(&self.uid, &setup).await
        })
    }

    fn set_up(&self, name: &str) -> PathBuf {
        self.try_set_up(name).unwrap_or_else(|error| panic!("{}", error.user_message()));
        self.volume(name)
    }

    fn tear_down(&self) {
        let result = now(async {
            self.files.tear_down_volumes(&self.uid).await?;
            self.files.remove_pod_dir(&self.uid).await
        });
        result.unwrap_or_else(|error| panic!("{}", error.user_message()));
    }

    /// What was written to the files of ids beside the lines of others.
    fn lines(&self) -> [String; 2] {
        BY_HAND.map(|(name, by_hand)| {
            let text = fs::read_to_string(self.base.join(name)).unwrap();
            let own = text.strip_prefix(by_hand).unwrap_or_else(|| panic!("lines of others: {text}"));
            own.replace(self.base.to_str().unwrap(), "@")
        })
    }

    fn check_clean(&self, when: &str) {
        assert_eq!(self.lines(), ["", ""], "{when}");
        assert!(!self.base.join("root/pods/0f1e").exists(), "{when}");
        let drafts = fs::read_dir(&self.base).unwrap().flatten().map(|entry| entry.file_name());
        let drafts: Vec<_> =
            drafts.filter(|name| name.to_str().is_some_and(|name| name.contains("new"))).collect();
        assert!(drafts.is_empty(), "{when}: {drafts:?}");
    }

    fn disk_use(&self, path: &Path) -> u64 {
        now(self.files.disk_use(&self.uid, &[text(path)])).unwrap()[0]
    }
}

/// File by file, once everything is on the disk.
fn walked(dir: &Path) -> TreeFigures {
    let opened = open_dir(dir).unwrap();
    rustix::fs::syncfs(&opened).unwrap();
    let counted = count(opened.as_fd(), &|| false);
    assert_eq!(counted.trouble, None);
    counted.figures
}

fn on_a_disk(disk: &Path) {
    figures_agree_with_a_walk(&disk.join("figures"));
    ids_of_others_are_not_taken(&disk.join("others"));
    an_id_is_trusted_only_when_both_sides_agree(&disk.join("trust"));
    only_users_of_the_host_change_ids(&disk.join("hostile"));
    without_the_gate_nothing_is_asked_and_everything_removed(&disk.join("gate"));
    without_quotas_files_are_counted(Path::new("/root/plain"));
    killed_at_every_step(&disk.join("killed"));
    the_cost_does_not_grow_with_the_files(&disk.join("many"));
}

fn figures_agree_with_a_walk(base: &Path) {
    let node = Node::fresh(base);
    let (one, two) = (node.set_up("one"), node.set_up("two"));
    let expect = "1048578:@/root/pods/0f1e/volumes/kubernetes.io~empty-dir/one\n\
                  1048579:@/root/pods/0f1e/volumes/kubernetes.io~empty-dir/two\n";
    assert_eq!(node.lines(), [expect, "volume1048578:1048578\nvolume1048579:1048579\n"]);
    for number in 0..200 {
        let dir = one.join(format!("d{}/e", number % 7));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(number.to_string()), vec![1; number * 97]).unwrap();
    }
    fs::hard_link(one.join("d0/e/0"), one.join("again")).unwrap();
    std::os::unix::fs::symlink("/", one.join("link")).unwrap();
    let sparse = fs::File::create(one.join("sparse")).unwrap();
    sparse.set_len(1 << 30).unwrap();
    let figures = walked(&one);
    assert_eq!(node.quotas.usage(&one), Some(figures));
    assert_eq!(node.disk_use(&one), figures.bytes);
    assert_eq!(node.quotas.usage(&two), Some(walked(&two)));

    // A file without a name takes room all the same.
    let mut held = fs::File::create(one.join("held")).unwrap();
    held.write_all(&vec![1; 5 << 20]).unwrap();
    fs::remove_file(one.join("held")).unwrap();
    assert_eq!(walked(&one), figures);
    let counted = node.quotas.usage(&one).unwrap();
    assert!(counted.bytes >= figures.bytes + (5 << 20), "{counted:?}");
    drop(held);

    node.set_up("one");
    assert!(one.join("again").exists(), "a volume in use is left alone");
    node.tear_down();
    node.check_clean("figures");
}

fn ids_of_others_are_not_taken(base: &Path) {
    let node = Node::fresh(base);
    let other = base.join("other");
    fs::create_dir(&other).unwrap();
    kernel::set_project(open_dir(&other).unwrap().as_fd(), FIRST_ID + 1).unwrap();
    let volume = node.set_up("v");
    let first = kernel::project_of(open_dir(&volume).unwrap().as_fd()).unwrap();
    // XFS removes files in the background, so ids of the volumes before may not be free yet.
    assert!(
        first.id >= FIRST_ID + 2,
        "the first is in the files, the second is another directory's: {first:?}"
    );
    // A directory that inherits an id gets one of its own.
    let inherited = base.join("root/pods/0f1e/volumes/kubernetes.io~empty-dir");
    kernel::set_project(open_dir(&inherited).unwrap().as_fd(), 7).unwrap();
    let second = kernel::project_of(open_dir(&node.set_up("w")).unwrap().as_fd()).unwrap();
    assert!(second.id > first.id, "{second:?}");
    node.tear_down();
    node.check_clean("others");
    fs::remove_dir(&other).unwrap();
}

fn an_id_is_trusted_only_when_both_sides_agree(base: &Path) {
    let node = Node::fresh(base);
    let volume = node.set_up("v");
    fs::write(volume.join("file"), vec![1; 1 << 20]).unwrap();
    assert!(node.quotas.usage(&volume).is_some());
    let opened = open_dir(&volume).unwrap();
    let own = kernel::project_of(opened.as_fd()).unwrap().id;
    kernel::set_project(opened.as_fd(), 99).unwrap();
    assert_eq!(node.quotas.usage(&volume), None);
    assert!(node.disk_use(&volume) >= 1 << 20, "it is counted");
    kernel::set_project(opened.as_fd(), own).unwrap();
    assert!(node.quotas.usage(&volume).is_some());
    fs::write(base.join("projects"), BY_HAND[0].1).unwrap();
    assert_eq!(node.quotas.usage(&volume), None);
    assert!(node.disk_use(&volume) >= 1 << 20);
    drop(opened);
    fs::write(base.join("projid"), BY_HAND[1].1).unwrap();
    node.tear_down();
    node.check_clean("trust");
}

/// Why pods on the host's users get no ids: they could move their files to another one.
fn only_users_of_the_host_change_ids(base: &Path) {
    let node = Node::fresh(base);
    let volume = node.set_up("v");
    let file = volume.join("file");
    fs::write(&file, vec![1; 1 << 20]).unwrap();
    let before = node.quotas.usage(&volume).unwrap();
    let change = |program: &[&str]| {
        let mut change = Command::new(program[0]);
        let output = change.args(&program[1..]).args(["chattr", "-p", "99"]).arg(&file).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (changed, said) = change(&["unshare", "--user", "--map-root-user"]);
    assert!(!changed && said.contains("Invalid argument"), "{said}");
    assert_eq!(node.quotas.usage(&volume), Some(before));
    let (changed, said) = change(&["env"]);
    assert!(changed, "{said}");
    assert!(node.quotas.usage(&volume).unwrap().bytes < before.bytes);
    node.tear_down();
    node.check_clean("hostile");
}

fn without_the_gate_nothing_is_asked_and_everything_removed(base: &Path) {
    let node = Node::fresh(base);
    let volume = node.set_up("v");
    let off = Node::new(base, false);
    assert!(node.quotas.usage(&volume).is_some() && off.quotas.usage(&volume).is_none());
    off.set_up("w");
    assert_eq!(off.lines()[0].lines().count(), 1);
    off.tear_down();
    off.check_clean("without the gate");
}

fn without_quotas_files_are_counted(base: &Path) {
    let node = Node::fresh(base);
    let volume = node.set_up("v");
    fs::write(volume.join("file"), vec![1; 1 << 20]).unwrap();
    assert_eq!(node.quotas.usage(&volume), None);
    assert_eq!(node.disk_use(&volume), walked(&volume).bytes);
    assert_eq!(node.lines(), ["", ""]);
    node.tear_down();
    fs::remove_dir_all(base).unwrap();
}

/// The process that is killed, or survives at the end.
fn one_life(base: &Path, tears_down: bool) {
    let node = Node::new(base, true);
    if tears_down { node.tear_down() } else { drop(node.set_up("v")) }
}

fn killed_at_every_step(base: &Path) {
    for tears_down in [false, true] {
        for wanted in [true, false] {
            let die = |at: u64| {
                let base = base.join(format!("{tears_down}-{wanted}-{at}"));
                die_and_go_on(&base, tears_down, wanted, at)
            };
            let steps = (0..).take_while(|at| die(*at)).count();
            assert!(steps >= 8, "{steps} steps");
        }
    }
}

/// Returns false if it has fewer steps.
fn die_and_go_on(base: &Path, tears_down: bool, wanted: bool, at: u64) -> bool {
    let when = format!("killed at step {at}, tears down: {tears_down}, wanted: {wanted}");
    let node = Node::fresh(base);
    if tears_down {
        fs::write(node.set_up("v").join("file"), "x").unwrap();
    }
    let mut life = Command::new(std::env::current_exe().unwrap());
    life.args(["--exact", TEST, "--nocapture"]).env(AT, at.to_string()).env(LIFE, base);
    if tears_down {
        life.env(LIFE_TEARS_DOWN, "1");
    }
    let output = life.output().unwrap();
    let died = output.status.signal() == Some(SIGKILL);
    assert!(died || output.status.success(), "{when}: {output:?}");
    // The next agent.
    let node = Node::new(base, true);
    now(node.files.prepare_node()).unwrap();
    if wanted {
        let volume = node.set_up("v");
        fs::write(volume.join("new"), vec![1; 9000]).unwrap();
        let figures = walked(&volume);
        // A volume that was half removed holds files, so it may get no id again.
        let counted = node.quotas.usage(&volume);
        assert!(
            counted == Some(figures) || (tears_down && counted.is_none()),
            "{when}: {counted:?} {figures:?}"
        );
        assert_eq!(node.disk_use(&volume), figures.bytes, "{when}");
        let lines = node.lines().map(|text| text.lines().count());
        assert!(lines == [1, 1] || (tears_down && lines == [0, 0]), "{when}: {lines:?}");
    }
    node.tear_down();
    node.check_clean(&when);
    for mount in ["root", "."] {
        // `prepare_node` may have made the root directory a mount of its own.
        let _ = rustix::mount::unmount(base.join(mount), rustix::mount::UnmountFlags::DETACH);
    }
    fs::remove_dir_all(base).unwrap();
    died
}

/// Prints how many times faster the quota is.
#[allow(clippy::disallowed_methods)]
fn the_cost_does_not_grow_with_the_files(base: &Path) {
    let node = Node::fresh(base);
    let volume = node.set_up("v");
    for number in 0..FILES_TO_COUNT {
        if number % 1000 == 0 {
            fs::create_dir(volume.join(format!("d{}", number / 1000))).unwrap();
        }
        fs::write(volume.join(format!("d{}/{number}", number / 1000)), "").unwrap();
    }
    let best = |work: &dyn Fn() -> TreeFigures| {
        let timed = || {
            let begun = std::time::Instant::now();
            (work(), begun.elapsed())
        };
        let (found, first) = timed();
        (found, (0..2).fold(first, |best, _| best.min(timed().1)))
    };
    walked(&volume);
    let (figures, walk) = best(&|| count(open_dir(&volume).unwrap().as_fd(), &|| false).figures);
    let (counted, quota) = best(&|| node.quotas.usage(&volume).unwrap());
    assert_eq!(counted, figures);
    let ratio = walk.as_nanos() / quota.as_nanos().max(1);
    println!("{}: {FILES_TO_COUNT} files: a walk takes {ratio} times as long as the quota", base.display());
    assert!(quota < walk);
    node.tear_down();
    node.check_clean("many");
}
