//! Tests on real trees: complete, deep, wide, hostile and changing.

use super::*;
use crate::files::confined_open::open_subdir_on_same_mount;
use crate::files::testing::{Mounts, bind, tmpfs};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

fn of(path: &Path) -> (u32, u32) {
    let meta = path.symlink_metadata().unwrap();
    (meta.gid(), meta.permissions().mode() & 0o7777)
}

fn volume() -> (tempfile::TempDir, PathBuf) {
    let temp = tempfile::tempdir().unwrap();
    let volume = temp.path().join("volume");
    fs::create_dir(&volume).unwrap();
    fs::set_permissions(&volume, fs::Permissions::from_mode(0o700)).unwrap();
    (temp, volume)
}

fn file(path: &Path, mode: u32) {
    fs::write(path, "x").unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// The volume may belong to another pod by then.
#[test]
fn a_walk_that_nobody_waits_for_ends_and_does_not_look_finished() {
    let (_temp, volume) = volume();
    fs::create_dir(volume.join("dir")).unwrap();
    file(&volume.join("dir/file"), 0o600);
    let pulse = WorkProgress::default();
    drop(pulse.waiter_guard());
    let error = pulse.count_steps_of(|| apply_fs_group(&volume, 4711, GroupAccess::ReadWrite)).unwrap_err();
    assert!(error.to_string().starts_with("give to fsGroup what is in"), "{error}");
    assert_eq!(of(&volume), (0, 0o700));
    assert_eq!(of(&volume.join("dir/file")), (0, 0o600));
}

#[test]
fn everything_in_the_volume_and_nothing_else() {
    let (temp, volume) = volume();
    let _mounts = Mounts::below(temp.path());
    let outside = temp.path().join("outside");
    fs::create_dir_all(outside.join("dir")).unwrap();
    file(&outside.join("file"), 0o600);
    for name in ["a/b/c", "bound", "tmpfs"] {
        fs::create_dir_all(volume.join(name)).unwrap();
    }
    file(&volume.join("a/file"), 0o600);
    file(&volume.join("a/b/run"), 0o4755);
    file(&volume.join("bound-file"), 0o600);
    symlink(outside.join("file"), volume.join("a/link")).unwrap();
    symlink("../outside/dir", volume.join("a/dir-link")).unwrap();
    rustix::fs::mkfifoat(CWD, volume.join("fifo"), Mode::from_raw_mode(0o600)).unwrap();
    bind(&outside, &volume.join("bound"));
    bind(&outside.join("file"), &volume.join("bound-file"));
    tmpfs(&volume.join("tmpfs"));
    fs::set_permissions(volume.join("tmpfs"), fs::Permissions::from_mode(0o755)).unwrap();

    apply_fs_group(&volume, 4711, GroupAccess::ReadWrite).unwrap();
    assert_eq!(of(&volume), (4711, 0o2770));
    assert_eq!(of(&volume.join("a/b/c")), (4711, 0o2775));
    assert_eq!(of(&volume.join("a/file")), (4711, 0o660));
    assert_eq!(of(&volume.join("a/b/run")).1 & 0o777, 0o775);
    assert_eq!((of(&volume.join("a/link")).0, of(&volume.join("a/dir-link")).0), (4711, 4711));
    assert_eq!(of(&volume.join("fifo")), (4711, 0o660));
    assert_eq!(of(&outside), (0, 0o755));
    assert_eq!(of(&outside.join("dir")), (0, 0o755));
    assert_eq!(of(&outside.join("file")), (0, 0o600), "neither by a link nor by a mount");
    assert_eq!(of(&volume.join("tmpfs")), (0, 0o755));
}

#[test]
fn what_is_only_read_becomes_readable() {
    let (_temp, volume) = volume();
    fs::create_dir(volume.join("d")).unwrap();
    file(&volume.join("d/f"), 0o400);
    apply_fs_group(&volume, 7, GroupAccess::ReadOnly).unwrap();
    assert_eq!((of(&volume.join("d")), of(&volume.join("d/f"))), ((7, 0o2755), (7, 0o440)));
    assert!(matches!(apply_fs_group(&volume, -1, GroupAccess::ReadOnly), Err(FilesError::Refused { .. })));
    assert!(apply_fs_group(&volume.join("d/f"), 7, GroupAccess::ReadOnly).is_err(), "a file is no volume");
    symlink("volume", volume.join("../link")).unwrap();
    assert!(apply_fs_group(&volume.join("../link"), 7, GroupAccess::ReadOnly).is_err(), "nor is a link");
}

#[test]
fn deep_and_wide_trees_with_few_descriptors() {
    let (_temp, volume) = volume();
    let mut dir = open_root(&volume).unwrap();
    for _ in 0..1500 {
        rustix::fs::mkdirat(&dir, "deeper", Mode::RWXU).unwrap();
        dir = open_subdir_on_same_mount(dir.as_fd(), c"deeper").unwrap();
    }
    for number in 0..3000 {
        fs::create_dir(volume.join(format!("d{number}"))).unwrap();
    }
    for number in 0..200 {
        file(&volume.join(format!("d7/f{number}")), 0o600);
    }
    let pulse = WorkProgress::default();
    pulse.count_steps_of(|| apply_fs_group(&volume, 5, GroupAccess::ReadWrite)).unwrap();
    assert_eq!(rustix::fs::fstat(&dir).unwrap().st_gid, 5, "the deepest, beyond any path");
    assert!((0..3000).all(|n| of(&volume.join(format!("d{n}"))).0 == 5));
    assert!((0..200).all(|n| of(&volume.join(format!("d7/f{n}"))) == (5, 0o660)));
    assert!(pulse.steps_taken() > 1500 + 3000 + 200, "each was told of: {}", pulse.steps_taken());
    crate::files::tree::remove_tree(&volume).unwrap();
}

#[test]
fn the_work_on_a_comb_grows_as_it_does() {
    use crate::walk::tests::{make_comb, operations_of};
    let (_temp, volume) = volume();
    let mut last = 0;
    for depth in [150, 300, 600] {
        let tree = volume.join(format!("tree-{depth}"));
        make_comb(&tree, depth, 2);
        let pulse = WorkProgress::default();
        let operations = operations_of(|| {
            pulse.count_steps_of(|| apply_fs_group(&tree, 4711, GroupAccess::ReadWrite)).unwrap()
        });
        assert!(operations as usize >= 3 * depth, "every directory is opened: {operations}");
        assert!(last == 0 || operations <= last * 5 / 2, "{last} {operations}");
        assert!(
            pulse.steps_taken() as usize > 3 * depth,
            "every directory is changed: {}",
            pulse.steps_taken()
        );
        assert_eq!(of(&tree.join("tooth-1")).0, 4711);
        last = operations;
        crate::files::tree::remove_tree(&tree).unwrap();
    }
}

/// Other threads create, move and remove files and swap them for symlinks during the walk.
#[test]
fn a_tree_that_changes_meanwhile_leads_nowhere() {
    let (temp, volume) = volume();
    let outside = temp.path().join("outside");
    fs::create_dir_all(outside.join("d")).unwrap();
    file(&outside.join("f"), 0o600);
    fs::create_dir(volume.join("d")).unwrap();
    file(&volume.join("f"), 0o600);
    symlink("../outside", volume.join("evil")).unwrap();
    symlink("../outside/f", volume.join("evil-file")).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let root = open_root(&volume).unwrap();
            let swap = |a: &str, b: &str| {
                let _ = rustix::fs::renameat_with(&root, a, &root, b, rustix::fs::RenameFlags::EXCHANGE);
            };
            for round in 0_u64.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                swap("d", "evil");
                swap("f", "evil-file");
                let name = volume.join(format!("new-{}", round % 7));
                let _ = fs::write(&name, "x");
                let _ = fs::remove_file(&name);
            }
        });
        struct StopOnDrop<'a>(&'a AtomicBool);
        impl Drop for StopOnDrop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _stop = StopOnDrop(&stop);
        for _ in 0..300 {
            apply_fs_group(&volume, 5, GroupAccess::ReadWrite).unwrap();
            assert_eq!(of(&outside), (0, 0o755));
            assert_eq!(of(&outside.join("d")), (0, 0o755));
            assert_eq!(of(&outside.join("f")), (0, 0o600));
        }
    });
    apply_fs_group(&volume, 6, GroupAccess::ReadWrite).unwrap();
    for name in ["d", "evil", "f", "evil-file"] {
        assert_eq!(of(&volume.join(name)).0, 6, "{name}");
    }
}

#[test]
fn a_long_walk_is_told_of_now_and_then() {
    let progress = Progress::new(FIRST_TOLD);
    let told: Vec<_> =
        (0..200).filter_map(|second| Some((second, progress.at(second, second * 10)?))).collect();
    assert_eq!(told, [(30, None), (90, Some(900)), (150, Some(1500))]);
}

#[tokio::test]
async fn users_are_told_of_it() {
    let (_temp, volume) = volume();
    for number in 0..200 {
        file(&volume.join(format!("f{number}")), 0o600);
    }
    let news = crate::files::HostVolumeNotices::default();
    let uid = model::PodUid::new("0f1e");
    let pulse = WorkProgress::default().reporting_to(&uid, Some(news.sender()));
    pulse.count_steps_of(|| apply_telling(&volume, 5, GroupAccess::ReadWrite, Duration::ZERO)).unwrap();
    let path = volume.to_str().unwrap().to_owned();
    let told = ports::VolumeNoticeFeed::next(&news).await;
    assert_eq!(told, (uid, VolumeNotice::ChangingOwnership { path, files: None }));
}

/// If the disk can't be read or the machine is out of memory, the volume's root must not mark the walk as finished.
#[test]
fn errors_of_the_machine_leave_the_walk_unfinished() {
    let (_temp, volume) = volume();
    let root = open_root(&volume).unwrap();
    let to = FsGroupChange { group: Gid::from_raw(4000), bits: 0o660 };
    let tree = FsGroupRun::new(&volume, to, Progress::new(FIRST_TOLD));
    let root = root.as_fd();
    for of_a_file in [Errno::NOENT, Errno::XDEV, Errno::ACCESS, Errno::ISDIR] {
        tree.warn(root, c"x", of_a_file);
    }
    assert_eq!(tree.finished(), Ok(()));
    tree.warn(root, c"x", Errno::IO);
    tree.warn(root, c"y", Errno::MFILE);
    assert_eq!(tree.finished(), Err(Errno::IO), "the first one");
}
