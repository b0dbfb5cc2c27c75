//! Disks of persistent volumes: mounted once for the node, and formatted only when there is nothing on them.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use model::volume::LocalVolume;
use ports::FilesError;
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::layout::{failed, make_dirs};
use super::program;
use super::steps::step;
use crate::mountinfo::MountTable;

/// Exit status of blkid if it finds no filesystem, no partitions and no other signature.
const BLKID_NOTHING_FOUND: i32 = 2;
/// Exit status of fsck: errors corrected (upstream: fsckErrorsCorrected).
const FSCK_ERRORS_CORRECTED: i32 = 1;
const FSCK_ERRORS_UNCORRECTED: i32 = 4;
/// Filesystems, partition tables and volume managers all write something into this range.
const BLANK_CHECK_START_BYTES: u64 = 4 << 20;
const BLANK_CHECK_END_BYTES: u64 = 1 << 20;

/// What blkid finds on a disk.
#[derive(Clone, PartialEq, Eq, Debug)]
enum DiskContent {
    Nothing,
    Filesystem(String),
    Partitions(String),
}

/// Mounts the disk at `at`, if it is not mounted there.
pub fn mount_device(device: &Path, at: &Path, volume: &LocalVolume) -> Result<(), FilesError> {
    make_dirs(at, 0o750)?;
    let real = at.canonicalize().map_err(failed("resolve", at))?;
    let table = MountTable::read().map_err(failed("read", Path::new("/proc/self/mountinfo")))?;
    if table.at(&real).is_some() {
        return Ok(());
    }
    let fs_type = ensure_filesystem(device, at, volume)?;
    let mut options = volume.mount_options.clone();
    if volume.read_only {
        options.push("ro".into());
    }
    options.push("defaults".into());
    let (device, at_text) = (device.to_string_lossy(), at.to_string_lossy());
    let words = ["-t", &fs_type, "-o", &options.join(","), "--", &device, &at_text];
    step("mount the disk");
    // The mount may take long, because a journal may have to be replayed.
    program::run_long("mount", &words, Stdio::null()).inspect_err(|_| {
        // Nothing is mounted there, so the empty directory is removed.
        let _ = std::fs::remove_dir(at);
    })
}

/// Returns the disk's filesystem, after creating one if there is none.
fn ensure_filesystem(device: &Path, at: &Path, volume: &LocalVolume) -> Result<String, FilesError> {
    let read_only = volume.read_only || volume.mount_options.iter().any(|option| option == "ro");
    let wanted = volume.fs_type.as_deref().unwrap_or("ext4");
    let mark = FormattingMarker::of(at, device)?;
    match detect_disk_content(device)? {
        DiskContent::Partitions(kind) => {
            Err(refused(format!("{} has partitions ({kind}): name one of them", device.display())))
        }
        DiskContent::Filesystem(kind) if read_only => Ok(kind),
        DiskContent::Filesystem(kind) => match check_and_repair(device) {
            // Part of a filesystem that an agent started to create and that was never mounted.
            Err(_) if mark.is_set() => format(device, wanted, mark),
            Err(error) => Err(error),
            Ok(()) => mark.remove().map(|()| kind),
        },
        DiskContent::Nothing if read_only => Err(refused(format!(
            "cannot mount unformatted disk {} as we are manipulating it in read-only mode",
            device.display()
        ))),
        DiskContent::Nothing => format(device, wanted, mark),
    }
}

fn refused(message: String) -> FilesError {
    FilesError::Refused { message }
}

fn detect_disk_content(device: &Path) -> Result<DiskContent, FilesError> {
    let words = ["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", &*device.to_string_lossy()];
    let unreadable = |why: String| {
        refused(format!("can't tell what is on {}, so it is left alone: {why}", device.display()))
    };
    let output = Command::new("blkid").args(words).output();
    let output = output.map_err(|error| unreadable(format!("blkid: {error}")))?;
    match output.status.code() {
        Some(0) => Ok(parse_blkid_output(&String::from_utf8_lossy(&output.stdout))),
        Some(BLKID_NOTHING_FOUND) => Ok(DiskContent::Nothing),
        _ => Err(unreadable(format!(
            "blkid: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        ))),
    }
}

fn parse_blkid_output(text: &str) -> DiskContent {
    let value = |key: &str| {
        let mut pairs = text.lines().filter_map(|line| line.split_once('='));
        pairs.find(|(name, _)| *name == key).map(|(_, value)| value.to_owned())
    };
    match (value("PTTYPE"), value("TYPE")) {
        (_, Some(kind)) => DiskContent::Filesystem(kind),
        (Some(kind), None) => DiskContent::Partitions(kind),
        (None, None) => DiskContent::Nothing,
    }
}

/// Formats a disk if it is blank or if an agent has already started to format it.
fn format(device: &Path, fs_type: &str, mark: FormattingMarker) -> Result<String, FilesError> {
    if fs_type.is_empty() || !fs_type.chars().all(|c| c.is_ascii_alphanumeric()) {
        return Err(refused(format!("{fs_type:?} is no type of filesystem")));
    }
    if !mark.is_set() && !is_blank(device).map_err(failed("read", device))? {
        return Err(refused(format!(
            "{} holds data that is no filesystem, so it is not formatted; make it blank (blkdiscard, or dd from \
             /dev/zero) if it may be",
            device.display()
        )));
    }
    let held = mark.set(device)?;
    let name = device.to_string_lossy();
    let words: &[&str] = match fs_type {
        "ext3" | "ext4" => &["-F", "-m0", &name],
        "xfs" => &["-f", &name],
        _ => &[&name],
    };
    step("format the disk");
    program::run_long(&format!("mkfs.{fs_type}"), words, Stdio::from(held))?;
    tracing::info!(device = %name, fs_type, "formatted an empty disk");
    mark.remove()?;
    Ok(fs_type.to_owned())
}

/// Marker file: the agent started mkfs on this disk and has not yet mounted the result.
///
/// The file is next to the directories where disks are mounted and holds the identity of the disk, so that it does not
/// count for another disk that gets the same path. mkfs has the file open and locked, because it may outlive the agent
/// that started it, and the disk must not be touched before mkfs has ended.
struct FormattingMarker {
    path: PathBuf,
    set: bool,
}

impl FormattingMarker {
    fn of(at: &Path, device: &Path) -> Result<FormattingMarker, FilesError> {
        let dir = at.parent().and_then(Path::parent).unwrap_or(Path::new("/")).join("formatting");
        let path = dir.join(at.file_name().unwrap_or_default());
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(FormattingMarker { path, set: false });
            }
            Err(error) => return Err(failed("open", &path)(error)),
        };
        lock(&file, device, &path)?;
        let mut named = Vec::new();
        file.read_to_end(&mut named).map_err(failed("read", &path))?;
        // A partly written marker, or one of another disk under this path, does not count for this disk.
        let set = named == disk_identity(device).map_err(failed("examine", device))?.as_bytes();
        Ok(FormattingMarker { path, set })
    }

    fn is_set(&self) -> bool {
        self.set
    }

    /// The marker is synced to disk when this returns. The returned file holds the lock.
    fn set(&self, device: &Path) -> Result<File, FilesError> {
        if let Some(dir) = self.path.parent() {
            make_dirs(dir, 0o750)?;
        }
        step("note that the disk is formatted");
        let identity = disk_identity(device).map_err(failed("examine", device))?;
        // A process that holds the lock still needs the content.
        let opened = File::options().create(true).truncate(false).write(true).open(&self.path);
        let mut file = opened.map_err(failed("write", &self.path))?;
        lock(&file, device, &self.path)?;
        file.set_len(0)
            .and_then(|()| file.write_all(identity.as_bytes()))
            .and_then(|()| file.sync_all())
            .and_then(|()| self.sync_dir())
            .map_err(failed("write", &self.path))?;
        Ok(file)
    }

    fn sync_dir(&self) -> std::io::Result<()> {
        self.path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
    }

    fn remove(&self) -> Result<(), FilesError> {
        step("forget that the disk is formatted");
        match std::fs::remove_file(&self.path) {
            Ok(()) => self.sync_dir().map_err(failed("remove", &self.path)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(failed("remove", &self.path)(error)),
        }
    }
}

/// Identifies the disk itself, not its path: the kernel numbers disks in the order in which they appear since boot.
fn disk_identity(device: &Path) -> std::io::Result<String> {
    let found = std::fs::metadata(device)?;
    let path = device.display();
    if !found.file_type().is_block_device() {
        return Ok(format!("{path} {}:{}\n", found.dev(), found.ino()));
    }
    let (major, minor) = (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
    // Kernels before 5.15 have no such number, and partitions have none of their own.
    let of = |file: String| std::fs::read_to_string(file).unwrap_or_default().trim().to_owned();
    let block = format!("/sys/dev/block/{major}:{minor}");
    let count = [of(format!("{block}/diskseq")), of(format!("{block}/../diskseq"))].join("/");
    let boot = of("/proc/sys/kernel/random/boot_id".into());
    Ok(format!("{path} {major}:{minor} {count} {} {boot}\n", of(format!("{block}/size"))))
}

fn lock(file: &File, device: &Path, mark: &Path) -> Result<(), FilesError> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(refused(format!(
            "{} is still being formatted by a program that an earlier agent started",
            device.display()
        ))),
        Err(errno) => Err(failed("lock", mark)(errno)),
    }
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
    Ok(zero(&mut file, 0, BLANK_CHECK_START_BYTES)?
        && zero(&mut file, end.saturating_sub(BLANK_CHECK_END_BYTES), BLANK_CHECK_END_BYTES)?)
}

/// Repairs what fsck can repair without asking.
fn check_and_repair(device: &Path) -> Result<(), FilesError> {
    step("check the disk");
    let mut fsck = Command::new("fsck");
    let output = match program::long_output(fsck.arg("-a").arg(device).stdin(Stdio::null())) {
        Ok(output) => output,
        Err(error) => {
            tracing::warn!(device = %device.display(), "fsck: {error}; mounting without a check");
            return Ok(());
        }
    };
    match output.status.code() {
        Some(FSCK_ERRORS_CORRECTED) => tracing::info!(device = %device.display(), "fsck mended the disk"),
        Some(FSCK_ERRORS_UNCORRECTED) => {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::testing::plain_volume;

    /// A program that another test starts holds copies of all our files until its exec, and so a lock that was released
    /// meanwhile. On a busy machine that takes long.
    fn soon<T>(mut attempt: impl FnMut() -> Result<T, FilesError>) -> T {
        for _ in 0..100_000 {
            match attempt() {
                Err(error) if error.to_string().contains("is still being formatted") => {
                    std::thread::yield_now();
                }
                result => return result.unwrap(),
            }
        }
        panic!("somebody keeps the lock");
    }

    fn mark(at: &Path, disk: &Path) -> FormattingMarker {
        soon(|| FormattingMarker::of(at, disk))
    }

    #[test]
    fn answers_of_blkid() {
        let check = |text: &str, expect: DiskContent| assert_eq!(parse_blkid_output(text), expect, "{text}");
        check("DEVNAME=/dev/loop0\nTYPE=ext4\n", DiskContent::Filesystem("ext4".into()));
        check("PTTYPE=dos\n", DiskContent::Partitions("dos".into()));
        check("TYPE=xfs\nPTTYPE=dos\n", DiskContent::Filesystem("xfs".into()));
        check("", DiskContent::Nothing);
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
            let error = format(&disk, "ext4", mark(&at, &disk)).unwrap_err();
            assert!(error.to_string().contains("holds data that is no filesystem"), "{error}");
        }
        let mark = mark(&at, &disk);
        assert!(!mark.path.exists(), "nothing was begun");
        assert!(format(&disk, "../sh", mark).is_err());
    }

    #[test]
    fn a_formatting_that_was_cut_short_is_done_again() {
        let temp = tempfile::tempdir().unwrap();
        let disk = temp.path().join("disk");
        std::fs::write(&disk, vec![7; 8 << 20]).unwrap();
        let at = temp.path().join("plugins/mounts/pv");
        FormattingMarker::of(&at, &disk).unwrap().set(&disk).unwrap();
        assert!(mark(&at, &disk).is_set());
        soon(|| format(&disk, "ext4", FormattingMarker::of(&at, &disk)?));
        assert!(!mark(&at, &disk).path.exists());
        assert_eq!(detect_disk_content(&disk).unwrap(), DiskContent::Filesystem("ext4".into()));
    }

    /// The marker permits formatting: it is valid for one disk, and is removed when the disk has a filesystem.
    #[test]
    fn a_mark_is_of_one_disk_and_does_not_stay() {
        let temp = tempfile::tempdir().unwrap();
        let (disk, other) = (temp.path().join("disk"), temp.path().join("other"));
        let at = temp.path().join("plugins/mounts/pv");
        std::fs::write(&disk, vec![0; 8 << 20]).unwrap();
        std::fs::write(&other, vec![7; 8 << 20]).unwrap();
        FormattingMarker::of(&at, &disk).unwrap().set(&disk).unwrap();
        assert!(!mark(&at, &other).is_set());
        let error = format(&other, "ext4", mark(&at, &other)).unwrap_err();
        assert!(error.to_string().contains("holds data that is no filesystem"), "{error}");
        program::run("mkfs.ext4", &["-q", "-F", &disk.to_string_lossy()]).unwrap();
        let volume = plain_volume(&disk);
        assert_eq!(soon(|| ensure_filesystem(&disk, &at, &volume)), "ext4");
        assert!(!mark(&at, &disk).path.exists(), "killed just after it was formatted");
    }

    /// Another disk has the path of a disk that could not be formatted.
    #[test]
    fn a_mark_is_not_of_the_disk_that_comes_next() {
        let temp = tempfile::tempdir().unwrap();
        let (disk, next) = (temp.path().join("disk"), temp.path().join("next"));
        let at = temp.path().join("plugins/mounts/pv");
        std::fs::write(&disk, vec![0; 8 << 20]).unwrap();
        std::fs::write(&next, vec![7; 8 << 20]).unwrap();
        FormattingMarker::of(&at, &disk).unwrap().set(&disk).unwrap();
        std::fs::rename(&next, &disk).unwrap();
        assert!(!mark(&at, &disk).is_set());
        let error = format(&disk, "ext4", mark(&at, &disk)).unwrap_err();
        assert!(error.to_string().contains("holds data that is no filesystem"), "{error}");
    }

    #[test]
    fn a_program_that_still_formats_is_waited_for() {
        let temp = tempfile::tempdir().unwrap();
        let disk = temp.path().join("disk");
        std::fs::write(&disk, vec![0; 8 << 20]).unwrap();
        let at = temp.path().join("plugins/mounts/pv");
        let held = FormattingMarker::of(&at, &disk).unwrap().set(&disk).unwrap();
        // It inherits only this file, as an mkfs that outlives its agent.
        let mut program = Command::new("sleep").arg("60").stdin(held).spawn().unwrap();
        let error = FormattingMarker::of(&at, &disk).err().expect("not while it runs").to_string();
        assert!(error.contains("is still being formatted"), "{error}");
        program.kill().unwrap();
        program.wait().unwrap();
        assert!(mark(&at, &disk).is_set());
    }
}
