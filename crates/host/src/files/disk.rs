//! Disks of persistent volumes: mounted once for the node, and formatted only when there is nothing on them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

use model::volume::LocalVolume;
use ports::FilesError;
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::layout::{failed, make_dirs};
use crate::mountinfo::MountTable;

/// What `blkid` answers when it finds no filesystem, no partitions, nothing that it knows.
const NOTHING_FOUND: i32 = 2;
/// How `fsck` ends when it mended what it found.
const MENDED: i32 = 1;
const LEFT_UNMENDED: i32 = 4;
/// Filesystems, partition tables and volume managers all leave something in these.
const LOOKED_AT: u64 = 4 << 20;
const LOOKED_AT_END: u64 = 1 << 20;

/// Mounting a disk and giving it up again are one after the other: whoever gives it up must see who uses it.
pub fn lane(device_mount: &Path) -> OwnedMutexGuard<()> {
    type Lanes = Mutex<BTreeMap<PathBuf, Arc<Mutex<()>>>>;
    static LANES: OnceLock<Lanes> = OnceLock::new();
    let lanes = LANES.get_or_init(Lanes::default);
    let lane = lanes.blocking_lock().entry(device_mount.to_owned()).or_default().clone();
    lane.blocking_lock_owned()
}

/// What is on a disk.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Found {
    Nothing,
    Filesystem(String),
    Partitions(String),
}

/// Mounts the disk at `at`, unless that was done before.
pub fn mount_once(device: &Path, at: &Path, volume: &LocalVolume) -> Result<(), FilesError> {
    make_dirs(at, 0o750)?;
    let real = at.canonicalize().map_err(failed("resolve", at))?;
    let table = MountTable::read().map_err(failed("read", Path::new("/proc/self/mountinfo")))?;
    if table.at(&real).is_some() {
        return Ok(());
    }
    let read_only = volume.read_only || volume.mount_options.iter().any(|option| option == "ro");
    let wanted = volume.fs_type.as_deref().unwrap_or("ext4");
    let fs_type = match found_on(device)? {
        Found::Partitions(kind) => {
            return Err(refused(format!("{} has partitions ({kind}): name one of them", device.display())));
        }
        Found::Filesystem(kind) => {
            if !read_only {
                mend(device)?;
            }
            kind
        }
        Found::Nothing if read_only => {
            return Err(refused(format!(
                "cannot mount unformatted disk {} as we are manipulating it in read-only mode",
                device.display()
            )));
        }
        Found::Nothing => {
            format(device, wanted, at)?;
            wanted.to_owned()
        }
    };
    let mut options = volume.mount_options.clone();
    if volume.read_only {
        options.push("ro".into());
    }
    options.push("defaults".into());
    let words = ["-t", &fs_type, "-o", &options.join(","), &device.to_string_lossy(), &at.to_string_lossy()];
    run("mount", &words).inspect_err(|_| {
        // Nothing is mounted there: an empty directory would only be in the way.
        let _ = std::fs::remove_dir(at);
    })
}

fn refused(message: String) -> FilesError {
    FilesError::Refused { message }
}

fn found_on(device: &Path) -> Result<Found, FilesError> {
    let words = ["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", &*device.to_string_lossy()];
    let unreadable = |why: String| {
        refused(format!("can't tell what is on {}, so it is left alone: {why}", device.display()))
    };
    let output = Command::new("blkid").args(words).output();
    let output = output.map_err(|error| unreadable(format!("blkid: {error}")))?;
    match output.status.code() {
        Some(0) => Ok(read_answer(&String::from_utf8_lossy(&output.stdout))),
        Some(NOTHING_FOUND) => Ok(Found::Nothing),
        _ => Err(unreadable(format!(
            "blkid: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        ))),
    }
}

fn read_answer(text: &str) -> Found {
    let value = |key: &str| {
        let mut pairs = text.lines().filter_map(|line| line.split_once('='));
        pairs.find(|(name, _)| *name == key).map(|(_, value)| value.to_owned())
    };
    match (value("PTTYPE"), value("TYPE")) {
        (_, Some(kind)) => Found::Filesystem(kind),
        (Some(kind), None) => Found::Partitions(kind),
        (None, None) => Found::Nothing,
    }
}

/// That nothing is known on it does not mean that nothing is on it: what is not blank is left alone, unless it is our
/// own formatting that was cut short.
fn format(device: &Path, fs_type: &str, at: &Path) -> Result<(), FilesError> {
    if fs_type.is_empty() || !fs_type.chars().all(|c| c.is_ascii_alphanumeric()) {
        return Err(refused(format!("{fs_type:?} is no type of filesystem")));
    }
    let mark = mark_of(at);
    if !mark.exists() && !is_blank(device).map_err(failed("read", device))? {
        return Err(refused(format!(
            "{} holds data that is no filesystem, so it is not formatted; make it blank (blkdiscard, or dd from \
             /dev/zero) if it may be",
            device.display()
        )));
    }
    set_mark(&mark, device)?;
    let device = device.to_string_lossy();
    let words: &[&str] = match fs_type {
        "ext3" | "ext4" => &["-F", "-m0", &device],
        "xfs" => &["-f", &device],
        _ => &[&device],
    };
    run(&format!("mkfs.{fs_type}"), words)?;
    tracing::info!(device = %device, fs_type, "formatted an empty disk");
    std::fs::remove_file(&mark).map_err(failed("remove", &mark))
}

/// Beside the places where disks are mounted: that this one is being formatted by us.
fn mark_of(at: &Path) -> PathBuf {
    let dir = at.parent().and_then(Path::parent).unwrap_or(Path::new("/")).join("formatting");
    dir.join(at.file_name().unwrap_or_default())
}

fn set_mark(mark: &Path, device: &Path) -> Result<(), FilesError> {
    if let Some(dir) = mark.parent() {
        make_dirs(dir, 0o750)?;
    }
    let write = || -> std::io::Result<()> {
        let mut file = File::create(mark)?;
        file.write_all(device.as_os_str().as_encoded_bytes())?;
        file.sync_all()
    };
    write().map_err(failed("write", mark))
}

fn is_blank(device: &Path) -> std::io::Result<bool> {
    let mut file = File::open(device)?;
    let end = file.seek(SeekFrom::End(0))?;
    let zero = |file: &mut File, from: u64, length: u64| -> std::io::Result<bool> {
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        Read::by_ref(file).take(length).read_to_end(&mut bytes)?;
        Ok(bytes.iter().all(|byte| *byte == 0))
    };
    Ok(zero(&mut file, 0, LOOKED_AT)? && zero(&mut file, end.saturating_sub(LOOKED_AT_END), LOOKED_AT_END)?)
}

/// What can be mended without a question is.
fn mend(device: &Path) -> Result<(), FilesError> {
    let output = match Command::new("fsck").arg("-a").arg(device).output() {
        Ok(output) => output,
        Err(error) => {
            tracing::warn!(device = %device.display(), "fsck: {error}; mounting unchecked");
            return Ok(());
        }
    };
    match output.status.code() {
        Some(MENDED) => tracing::info!(device = %device.display(), "fsck mended the disk"),
        Some(LEFT_UNMENDED) => {
            return Err(refused(format!(
                "'fsck' found errors on device {} but could not correct them: {}",
                device.display(),
                String::from_utf8_lossy(&output.stdout).trim()
            )));
        }
        _ => {}
    }
    Ok(())
}

/// Fails with what the program said.
pub fn run(program: &str, words: &[&str]) -> Result<(), FilesError> {
    let output = Command::new(program).args(words).output();
    let output = output.map_err(|error| refused(format!("{program}: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    Err(refused(format!(
        "{program} failed: {}\nMounting command: {program}\nMounting arguments: {}\nOutput: {}",
        output.status,
        words.join(" "),
        String::from_utf8_lossy(&said).trim()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_blkid() {
        let check = |text: &str, expect: Found| assert_eq!(read_answer(text), expect, "{text}");
        check("DEVNAME=/dev/loop0\nTYPE=ext4\n", Found::Filesystem("ext4".into()));
        check("PTTYPE=dos\n", Found::Partitions("dos".into()));
        check("TYPE=xfs\nPTTYPE=dos\n", Found::Filesystem("xfs".into()));
        check("", Found::Nothing);
    }

    #[test]
    fn only_what_is_blank_is_formatted() {
        let temp = tempfile::tempdir().unwrap();
        let disk = temp.path().join("disk");
        let file = File::create(&disk).unwrap();
        file.set_len(8 << 20).unwrap();
        assert!(is_blank(&disk).unwrap());
        let at = temp.path().join("plugins/mounts/pv");
        for offset in [0, 8192, (8 << 20) - 1] {
            let mut file = File::options().write(true).open(&disk).unwrap();
            file.set_len(0).unwrap();
            file.set_len(8 << 20).unwrap();
            file.seek(SeekFrom::Start(offset)).unwrap();
            file.write_all(b"x").unwrap();
            let error = format(&disk, "ext4", &at).unwrap_err();
            assert!(error.to_string().contains("holds data that is no filesystem"), "{error}");
        }
        assert!(!mark_of(&at).exists(), "nothing was begun");
        assert!(format(&disk, "../sh", &at).is_err());
    }

    #[test]
    fn a_formatting_that_was_cut_short_is_done_again() {
        let temp = tempfile::tempdir().unwrap();
        let disk = temp.path().join("disk");
        std::fs::write(&disk, vec![7; 8 << 20]).unwrap();
        let at = temp.path().join("plugins/mounts/pv");
        set_mark(&mark_of(&at), &disk).unwrap();
        format(&disk, "ext4", &at).unwrap();
        assert!(!mark_of(&at).exists());
        assert_eq!(found_on(&disk).unwrap(), Found::Filesystem("ext4".into()));
    }

    #[test]
    fn a_program_that_fails_tells_why() {
        let error = run("false", &["-x"]).unwrap_err().to_string();
        assert!(error.starts_with("false failed: exit status: 1\nMounting command: false"), "{error}");
        let error = run("no-such-program", &[]).unwrap_err().to_string();
        assert!(error.starts_with("no-such-program: "), "{error}");
    }
}
