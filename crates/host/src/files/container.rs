//! Creates what must be on disk before a pod's sandbox and containers.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use model::PodUid;
use model::files::ContainerFiles;
use ports::FilesError;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::layout::{FilesLayout, failed, make_dirs};
use super::steps::step;
use super::sub_path;

pub fn make_pod_dirs(layout: &FilesLayout, uid: &PodUid, log_dir: &str) -> Result<(), FilesError> {
    let pod = layout.pod(uid)?;
    let log_dir = layout.in_pod_logs(log_dir)?;
    for path in [pod.clone(), pod.join("volumes"), pod.join("plugins")] {
        make_dirs(&path, 0o750)?;
    }
    make_dirs(&log_dir, 0o755)
}

pub fn prepare(layout: &FilesLayout, uid: &PodUid, files: &ContainerFiles) -> Result<(), FilesError> {
    make_dirs(&layout.in_pod_logs(&files.log_dir)?, 0o755)?;
    if let Some(hosts) = &files.etc_hosts {
        write_hosts(&layout.in_pod(uid, &hosts.path)?, &hosts.text)?;
    }
    if let Some(path) = &files.termination_log {
        make_termination_log(&layout.in_pod(uid, path)?)?;
    }
    for mount in &files.sub_paths {
        sub_path::prepare(mount, &layout.in_pod(uid, &mount.target)?)?;
    }
    Ok(())
}

/// Written in place, because running containers of the pod have this very file mounted. Not written if it is unchanged.
fn write_hosts(path: &Path, text: &str) -> Result<(), FilesError> {
    if let Some(dir) = path.parent() {
        make_dirs(dir, 0o750)?;
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o644);
    let file = rustix::fs::open(path, flags, mode).map_err(failed("open", path))?;
    let stat = rustix::fs::fstat(&file).map_err(failed("examine", path))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(failed("write", path)(Errno::INVAL));
    }
    rustix::fs::fchmod(&file, mode).map_err(failed("set the mode of", path))?;
    let mut file = File::from(file);
    let mut present = Vec::new();
    (&file).take(text.len() as u64 + 1).read_to_end(&mut present).map_err(failed("read", path))?;
    if present == text.as_bytes() {
        return Ok(());
    }
    step("write the hosts file");
    // The new text is written before the file is truncated, so the file is never empty.
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0)).map_err(failed("write", path))?;
    file.write_all(text.as_bytes()).map_err(failed("write", path))?;
    step("cut the hosts file");
    file.set_len(text.len() as u64).map_err(failed("write", path))
}

/// Always creates a new file: whatever exists there (a symlink, say) is unlinked, never opened.
fn make_termination_log(path: &Path) -> Result<(), FilesError> {
    if let Some(dir) = path.parent() {
        make_dirs(dir, 0o750)?;
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o666);
    let open = || rustix::fs::open(path, flags, mode);
    step("make the termination log");
    let file = match open() {
        Err(Errno::EXIST) => {
            step("replace the termination log");
            rustix::fs::unlink(path).map_err(failed("replace", path))?;
            open()
        }
        other => other,
    };
    file.and_then(|file| rustix::fs::fchmod(file, mode)).map_err(failed("create", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::testing::Mounts;
    use model::files::FileContent;
    use model::volume::SubPathMount;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::path::PathBuf;

    fn layout(base: &Path) -> FilesLayout {
        FilesLayout {
            root: base.join("root"),
            pod_logs: base.join("logs"),
            log_links_dir: base.join("links"),
        }
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o7777
    }

    fn text(path: PathBuf) -> String {
        path.to_str().unwrap().to_owned()
    }

    #[test]
    fn makes_all_that_a_container_needs() {
        let temp = tempfile::tempdir().unwrap();
        let mounts = Mounts::below(temp.path());
        let layout = layout(temp.path());
        let uid = PodUid::new("u1");
        let logs = layout.pod_logs.join("ns_p_u1");
        make_pod_dirs(&layout, &uid, &text(logs.clone())).unwrap();
        make_pod_dirs(&layout, &uid, &text(logs.clone())).unwrap();
        let pod = layout.pod(&uid).unwrap();
        assert_eq!([pod.clone(), pod.join("volumes"), pod.join("plugins")].map(|p| mode(&p)), [0o750; 3]);
        assert_eq!(mode(&logs), 0o755);

        let volume = pod.join("volumes/kubernetes.io~empty-dir/v");
        fs::create_dir_all(&volume).unwrap();
        let termination = pod.join("containers/c/0a1b2c3d");
        let target = pod.join("volume-subpaths/v/c/0");
        let files = ContainerFiles {
            log_dir: text(logs.join("c")),
            etc_hosts: Some(FileContent {
                path: text(pod.join("etc-hosts")),
                text: "127.0.0.1\tlocalhost\n".into(),
            }),
            termination_log: Some(text(termination.clone())),
            sub_paths: vec![SubPathMount {
                volume_path: text(volume),
                sub_path: "s".into(),
                target: text(target.clone()),
                mount_name: "v".into(),
                container: "c".into(),
                create: true,
                read_only: false,
            }],
        };
        prepare(&layout, &uid, &files).unwrap();
        prepare(&layout, &uid, &files).unwrap();
        assert_eq!(mode(&logs.join("c")), 0o755);
        assert_eq!(fs::read_to_string(pod.join("etc-hosts")).unwrap(), "127.0.0.1\tlocalhost\n");
        assert_eq!((mode(&termination), mode(termination.parent().unwrap())), (0o666, 0o750));
        assert_eq!((mounts.count(), mode(&pod.join("etc-hosts"))), (1, 0o644));

        let elsewhere = |files: ContainerFiles| prepare(&layout, &uid, &files).unwrap_err().to_string();
        let foreign = text(temp.path().join("foreign"));
        let good = ContainerFiles { log_dir: text(logs.join("c")), ..Default::default() };
        assert!(
            elsewhere(ContainerFiles { log_dir: foreign.clone(), ..good.clone() }).contains("is not below")
        );
        let hosts = FileContent { path: foreign.clone(), text: String::new() };
        assert!(
            elsewhere(ContainerFiles { etc_hosts: Some(hosts), ..good.clone() }).contains("is not below")
        );
        let files = ContainerFiles { termination_log: Some(foreign), ..good };
        assert!(elsewhere(files).contains("is not below"));
    }

    #[test]
    fn hosts_file_keeps_its_inode_and_follows_no_link() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("etc-hosts");
        write_hosts(&path, "a longer text\n").unwrap();
        let inode = path.metadata().unwrap().ino();
        write_hosts(&path, "short\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "short\n");
        assert_eq!(path.metadata().unwrap().ino(), inode);
        let other = temp.path().join("other");
        fs::write(&other, "mine").unwrap();
        fs::remove_file(&path).unwrap();
        symlink(&other, &path).unwrap();
        assert!(write_hosts(&path, "x").is_err());
        assert_eq!(fs::read_to_string(&other).unwrap(), "mine");
    }

    #[test]
    fn termination_log_is_always_a_new_file() {
        let temp = tempfile::tempdir().unwrap();
        let other = temp.path().join("other");
        fs::write(&other, "mine").unwrap();
        let path = temp.path().join("dir/log");
        make_termination_log(&path).unwrap();
        fs::write(&path, "last words").unwrap();
        make_termination_log(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");
        fs::remove_file(&path).unwrap();
        symlink(&other, &path).unwrap();
        make_termination_log(&path).unwrap();
        assert!(!path.is_symlink());
        assert_eq!((mode(&path), fs::read_to_string(&other).unwrap().as_str()), (0o666, "mine"));
        fs::remove_file(&path).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::RWXU).unwrap();
        make_termination_log(&path).unwrap();
        assert!(path.metadata().unwrap().is_file());
    }
}
