//! Reads a file of environment variables from an emptyDir. A container wrote it, so it may be anything.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;

use model::PodUid;
use model::files::EnvFile;
use ports::FilesError;
use rustix::fs::{FileType, Mode, OFlags};

use super::confined_open::open_without_symlinks;
use super::layout::FilesLayout;

/// Larger files are refused.
const BYTES_MAX: u64 = 64 * 1024;

/// The text of the file. No part of its path may be a symlink, and it must be a regular file: a fifo would block the
/// read.
pub fn read(layout: &FilesLayout, uid: &PodUid, file: &EnvFile) -> Result<String, FilesError> {
    let shown = format!("{}/{}", file.volume, file.path);
    let io = |operation: &'static str, source: std::io::Error| FilesError::Io {
        operation,
        path: shown.clone(),
        source,
    };
    let refused = |why: &str| FilesError::Refused { message: format!("{shown}: {why}") };
    if file.volume.contains('/') || file.volume.starts_with('.') {
        return Err(refused("not the name of a volume"));
    }
    let pod_dir =
        File::open(layout.pod(uid)?).map_err(|error| io("open the directory of the pod of", error))?;
    let path = Path::new("volumes/kubernetes.io~empty-dir").join(&file.volume).join(&file.path);
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = open_without_symlinks(pod_dir.as_fd(), &path, flags, Mode::empty());
    let opened = opened.map_err(|errno| io("open", errno.into()))?;
    let stat = rustix::fs::fstat(&opened).map_err(|errno| io("look at", errno.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(refused("not a regular file"));
    }
    let mut bytes = Vec::new();
    File::from(opened).take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| io("read", error))?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(refused("larger than 64 KiB"));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_a_small_regular_file_inside_the_volume_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        let layout =
            FilesLayout { root: root.clone(), pod_logs: "/none".into(), log_links_dir: "/none".into() };
        let volume = root.join("pods/u/volumes/kubernetes.io~empty-dir/v");
        std::fs::create_dir_all(volume.join("sub")).unwrap();
        std::fs::write(dir.path().join("secret"), "S='1'").unwrap();
        std::fs::write(volume.join("sub/file"), "A='1'").unwrap();
        std::fs::write(volume.join("full"), vec![b'#'; BYTES_MAX as usize]).unwrap();
        std::fs::write(volume.join("large"), vec![b'#'; BYTES_MAX as usize + 1]).unwrap();
        symlink(dir.path().join("secret"), volume.join("link")).unwrap();
        symlink("sub", volume.join("inside")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, volume.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        let check = |volume: &str, path: &str, expect: Result<usize, &str>| {
            let found = read(&layout, &"u".into(), &EnvFile { volume: volume.into(), path: path.into() });
            let found = found.map(|text| text.len()).map_err(|error| error.user_message());
            match expect {
                Ok(length) => assert_eq!(found, Ok(length), "{path}"),
                Err(part) => assert!(found.as_ref().is_err_and(|e| e.contains(part)), "{path}: {found:?}"),
            }
        };
        check("v", "sub/file", Ok(5));
        check("v", "full", Ok(BYTES_MAX as usize));
        check("v", "large", Err("larger than 64 KiB"));
        check("v", "absent", Err("No such file"));
        check("v", "sub", Err("not a regular file"));
        check("v", "pipe", Err("not a regular file"));
        check("v", "link", Err("symbolic links"));
        check("v", "inside/file", Err("symbolic links"));
        check("v", "../../../../../../secret", Err("v/../"));
        check("v", "/etc/hostname", Err("v//etc"));
        check("../..", "x", Err("not the name of a volume"));
    }
}
