//! Tests on the real disk of what containers see during updates and failures.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use model::volume::{ContentBacking, ContentFile, ContentVolume};

use super::*;
use crate::files::testing::{Mounts, bind};
use crate::mountinfo::MountTable;

fn volume(path: &Path, files: &[(&str, &str)]) -> ContentVolume {
    let file = |text: &str| ContentFile { mode: 0o644, owner: None, bytes: text.into() };
    ContentVolume {
        path: path.to_str().unwrap().into(),
        backing: ContentBacking::Disk,
        fs_group: None,
        mount_points: Vec::new(),
        files: files.iter().map(|(path, text)| ((*path).to_owned(), file(text))).collect(),
        version: 0,
    }
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("volumes/kubernetes.io~configmap/v");
    (temp, path)
}

fn put(path: &Path, files: &[(&str, &str)]) {
    set_up(path, &volume(path, files)).unwrap();
}

/// Every file that a container sees, through the symlinks.
fn seen(path: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut open = vec![(path.to_path_buf(), String::new())];
    while let Some((dir, prefix)) = open.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
            if name.starts_with("..") {
                continue;
            }
            match fs::metadata(entry.path()) {
                Ok(meta) if meta.is_dir() => open.push((entry.path(), format!("{name}/"))),
                Ok(_) => drop(found.insert(name, fs::read_to_string(entry.path()).unwrap())),
                // the link of a file that is not there (any more)
                Err(_) => {}
            }
        }
    }
    found
}

fn expect(files: &[(&str, &str)]) -> BTreeMap<String, String> {
    files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
}

fn hidden(path: &Path) -> Vec<String> {
    let names = fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name.starts_with("..")).collect();
    names.sort();
    names
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn the_layout_is_the_references() {
    let (_temp, path) = place();
    put(&path, &[("a", "1"), ("dir/b", "2"), ("dir/sub/c", "3")]);
    assert_eq!(mode(&path), 0o777);
    let data = fs::read_link(path.join("..data")).unwrap();
    let name = data.to_str().unwrap();
    let shape: String = name.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    assert!(shape.starts_with("..0000_00_00_00_00_00.0"), "{name}");
    assert_eq!(fs::read_link(path.join("a")).unwrap(), Path::new("..data/a"));
    assert_eq!(fs::read_link(path.join("dir")).unwrap(), Path::new("..data/dir"));
    assert_eq!(
        (mode(&path.join(&data)), mode(&path.join("dir/sub")), mode(&path.join("a"))),
        (0o755, 0o755, 0o644)
    );
    assert_eq!(seen(&path), expect(&[("a", "1"), ("dir/b", "2"), ("dir/sub/c", "3")]));
    assert_eq!(hidden(&path), ["..data", name].map(str::to_owned).into_iter().rev().collect::<Vec<_>>());
}

#[test]
fn equal_files_are_not_written_again() {
    let (_temp, path) = place();
    put(&path, &[("a", "1"), ("d/b", "2")]);
    let first = fs::read_link(path.join("..data")).unwrap();
    put(&path, &[("a", "1"), ("d/b", "2")]);
    assert_eq!(fs::read_link(path.join("..data")).unwrap(), first);
    let mut other_mode = volume(&path, &[("a", "1"), ("d/b", "2")]);
    other_mode.files.get_mut("a").unwrap().mode = 0o600;
    set_up(&path, &other_mode).unwrap();
    assert_eq!((fs::read_link(path.join("..data")).unwrap(), mode(&path.join("a"))), (first.clone(), 0o644));

    // Symlinks that were removed are created again, without new files.
    fs::remove_file(path.join("a")).unwrap();
    put(&path, &[("a", "1"), ("d/b", "2")]);
    assert_eq!(fs::read_link(path.join("..data")).unwrap(), first);
    assert_eq!(seen(&path), expect(&[("a", "1"), ("d/b", "2")]));
}

#[test]
fn updates_replace_add_and_remove() {
    let (_temp, path) = place();
    let steps: [&[(&str, &str)]; 7] = [
        &[("a", "1"), ("d/b", "2"), ("gone", "x")],
        &[("a", "2"), ("d/b", "2")],
        &[("a", "2"), ("d/b", "2"), ("d/c", "3"), ("e", "")],
        &[("a", "2"), ("d/c", "3"), ("e", "")],
        &[("d", "now a file")],
        &[("d/e/f", "now deep")],
        &[],
    ];
    for files in steps {
        put(&path, files);
        assert_eq!(seen(&path), expect(files));
        let links = fs::read_dir(&path).unwrap().filter(|e| {
            let name = e.as_ref().unwrap().file_name();
            !name.to_str().unwrap().starts_with("..")
        });
        let top: std::collections::BTreeSet<_> = files.iter().map(|(p, _)| p.split('/').next()).collect();
        assert_eq!(links.count(), top.len(), "no stale links");
        assert_eq!(hidden(&path).len(), 2, "{:?}", hidden(&path));
    }
}

#[test]
fn a_bound_file_keeps_what_it_showed() {
    let (temp, path) = place();
    let _mounts = Mounts::below(temp.path());
    put(&path, &[("a", "old")]);
    let shown = temp.path().join("sub-path");
    fs::write(&shown, "").unwrap();
    bind(&path.join("a").canonicalize().unwrap(), &shown);
    put(&path, &[("a", "new")]);
    assert_eq!(fs::read_to_string(path.join("a")).unwrap(), "new");
    assert_eq!(fs::read_to_string(&shown).unwrap(), "old");
}

#[test]
fn in_memory_content_is_on_a_tmpfs_with_its_owners() {
    let (temp, path) = place();
    let mounts = Mounts::below(temp.path());
    let mut wanted = volume(&path, &[("token", "t"), ("plain", "p")]);
    wanted.backing = ContentBacking::Memory { size_bytes: Some(1 << 20) };
    wanted.fs_group = Some(4711);
    *wanted.files.get_mut("token").unwrap() =
        ContentFile { mode: 0o600, owner: Some(1000), bytes: "t".into() };
    set_up(&path, &wanted).unwrap();
    set_up(&path, &wanted).unwrap();
    assert_eq!(mounts.count(), 1);
    let real = path.canonicalize().unwrap();
    assert_eq!(MountTable::read().unwrap().at(&real).unwrap().fs_type, "tmpfs");
    let of = |name: &str| {
        let meta = fs::metadata(path.join(name)).unwrap();
        (meta.uid(), meta.gid(), meta.permissions().mode() & 0o7777)
    };
    assert_eq!(of("token"), (1000, 4711, 0o640));
    assert_eq!(of("plain"), (0, 4711, 0o644));
    assert_eq!(of("..data/"), (0, 4711, 0o2755));
    assert_eq!(of("").1, 4711);
    assert_eq!(mode(&path) & 0o2777, 0o2777);

    // As after a reboot: the directory is there, the mount is not.
    rustix::mount::unmount(&path, rustix::mount::UnmountFlags::NOFOLLOW).unwrap();
    set_up(&path, &wanted).unwrap();
    assert_eq!((mounts.count(), seen(&path).len()), (1, 2));
}

#[test]
fn mount_points_of_others_are_made_first() {
    let (_temp, path) = place();
    let mut wanted = volume(&path, &[("a", "1"), ("shown/b", "2")]);
    wanted.mount_points = vec!["nested/deep".into(), "other".into()];
    set_up(&path, &wanted).unwrap();
    assert!(path.join("nested/deep").is_dir() && path.join("other").is_dir());
    assert_eq!(mode(&path.join("nested")), 0o755);
    put(&path, &[("a", "2")]);
    assert!(path.join("nested/deep").is_dir(), "they stay while the pod is there");
    wanted.mount_points = vec!["../out".into()];
    assert!(set_up(&path, &wanted).is_err());
    wanted.mount_points = vec!["a/below-a-link".into()];
    wanted.files.retain(|name, _| name == "a");
    set_up(&path, &wanted).unwrap();
}

#[test]
fn nothing_leads_out_of_the_volume() {
    let (temp, path) = place();
    for bad in ["", "/etc/x", "..", "../x", "a/../b", "..data/x", "..x", "a//b", "a/", "./a", "a/./b"] {
        let error = set_up(&path, &volume(&path, &[(bad, "x")])).unwrap_err();
        assert!(error.to_string().contains("is not the path of a file"), "{bad:?}: {error}");
        assert!(!path.exists(), "a failed first set-up is taken away: {bad:?}");
    }
    let outside = temp.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("a"), "precious").unwrap();
    put(&path, &[("a", "1")]);
    // The live directory was replaced by a symlink to the outside.
    let data = fs::read_link(path.join("..data")).unwrap();
    fs::remove_dir_all(path.join(&data)).unwrap();
    symlink(&outside, path.join(&data)).unwrap();
    put(&path, &[("a", "2")]);
    assert_eq!(fs::read_to_string(outside.join("a")).unwrap(), "precious");
    assert_eq!(seen(&path), expect(&[("a", "2")]));
    // The same for `..data` itself.
    fs::remove_file(path.join("..data")).unwrap();
    symlink(&outside, path.join("..data")).unwrap();
    put(&path, &[("a", "3")]);
    assert_eq!(
        (fs::read_to_string(outside.join("a")).unwrap(), seen(&path)),
        ("precious".into(), expect(&[("a", "3")]))
    );
    // A symlink is not accepted as a volume.
    let link = temp.path().join("link");
    symlink(&outside, &link).unwrap();
    assert!(set_up(&link, &volume(&link, &[("a", "4")])).is_err());
    assert_eq!(fs::read_to_string(outside.join("a")).unwrap(), "precious");
}

#[test]
fn a_failed_update_keeps_the_old_files() {
    let (_temp, path) = place();
    put(&path, &[("a", "1")]);
    // A file and a directory can't have the same name.
    let wanted = volume(&path, &[("a", "2"), ("b", "x"), ("b/c", "y")]);
    assert!(set_up(&path, &wanted).is_err());
    assert_eq!(seen(&path), expect(&[("a", "1")]));
    assert_eq!(hidden(&path).len(), 2, "nothing half-made stays: {:?}", hidden(&path));
}

struct Killed;

/// Stops the write before its `at`-th step, as a kill would, without clean-up. Returns false if there are fewer steps.
fn killed_at(path: &Path, wanted: &ContentVolume, at: usize) -> bool {
    let passed = Cell::new(0);
    let step = |_: &str| {
        if passed.get() == at {
            std::panic::resume_unwind(Box::new(Killed));
        }
        passed.set(passed.get() + 1);
    };
    let run = catch_unwind(AssertUnwindSafe(|| fill(path, wanted, &step)));
    match run {
        Ok(result) => {
            result.unwrap();
            false
        }
        Err(cause) => {
            assert!(cause.is::<Killed>());
            true
        }
    }
}

/// Tests every point where the agent may be killed, and from each of them every point where the next agent may be
/// killed.
#[test]
fn killed_anywhere_leaves_old_or_new() {
    let old = [("a", "old"), ("d/b", "old"), ("gone", "old")];
    let new = [("a", "new"), ("d/b", "new"), ("d/c", "new"), ("come", "new")];
    let third = [("a", "third"), ("come", "third")];
    let (old_or_new, mut places) = ([expect(&old), expect(&new)], 0);
    for first in 0.. {
        for second in 0.. {
            let (_temp, path) = place();
            put(&path, &old);
            let died = killed_at(&path, &volume(&path, &new), first);
            whole(&path, &old_or_new);
            if !died {
                assert!(places > 30, "{first} steps and {places} places are fewer than there are");
                return;
            }
            let died_again = killed_at(&path, &volume(&path, &third), second);
            whole(&path, &[expect(&old), expect(&new), expect(&third)]);
            put(&path, &third);
            assert_eq!(seen(&path), expect(&third));
            assert_eq!(hidden(&path).len(), 2, "left over: {:?}", hidden(&path));
            places += 1;
            if !died_again {
                break;
            }
        }
    }
}

/// `..data` holds one of these sets, complete, and the symlinks show one of these sets too.
fn whole(path: &Path, sets: &[BTreeMap<String, String>]) {
    let live = path.join(fs::read_link(path.join("..data")).unwrap());
    let held = seen(&live);
    assert!(sets.contains(&held), "{held:?}");
    for (name, text) in seen(path) {
        assert_eq!(held.get(&name), Some(&text), "{name}");
    }
}

/// Readers keep one directory open, as `..data` is meant to be read.
#[test]
fn readers_never_see_a_mixture() {
    let (_temp, path) = place();
    let files = |n: usize| -> Vec<(String, String)> {
        let text = format!("{n} ").repeat(300);
        (0..8).map(|i| (format!("f{i}"), text.clone())).collect()
    };
    let write = |n: usize| {
        let files = files(n);
        let files: Vec<(&str, &str)> = files.iter().map(|(p, t)| (p.as_str(), t.as_str())).collect();
        put(&path, &files);
    };
    write(0);
    let (stop, complete) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let Ok(live) = fs::read_link(path.join("..data")) else { panic!("no ..data") };
                    let read = |i: usize| fs::read_to_string(path.join(&live).join(format!("f{i}")));
                    // A directory that was replaced meanwhile is removed file by file.
                    let texts: Vec<String> = (0..8).filter_map(|i| read(i).ok()).collect();
                    assert!(texts.windows(2).all(|pair| pair[0] == pair[1]), "a mixture");
                    let through_link = fs::read_to_string(path.join("f3")).unwrap_or_default();
                    let first = through_link.split(' ').next().unwrap_or_default();
                    assert_eq!(through_link, format!("{first} ").repeat(through_link.split(' ').count() - 1));
                    if texts.len() == 8 {
                        complete.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        for n in 1..300 {
            write(n);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(complete.load(Ordering::Relaxed) > 10, "readers did read");
}

#[test]
fn it_goes_with_its_pod() {
    let temp = tempfile::tempdir().unwrap();
    let mounts = Mounts::below(temp.path());
    let pod = temp.path().join("pods/u");
    for (plugin, backing) in [
        ("configmap", ContentBacking::Disk),
        ("secret", ContentBacking::Memory { size_bytes: None }),
        ("projected", ContentBacking::Memory { size_bytes: None }),
        ("downward-api", ContentBacking::Memory { size_bytes: None }),
    ] {
        let path = pod.join(format!("volumes/kubernetes.io~{plugin}/v"));
        let wanted = ContentVolume { backing, ..volume(&path, &[("a", "1"), ("d/b", "2")]) };
        set_up(&path, &wanted).unwrap();
    }
    assert_eq!(mounts.count(), 3);
    crate::files::tear_down::tear_down_volumes(&pod).unwrap();
    assert_eq!(mounts.count(), 0);
    crate::files::tear_down::remove_pod_dir(&pod).unwrap();
    assert!(!pod.exists());
}
