//! hostPath volumes: nothing is mounted, the path is only checked or created.

use std::fs::{DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::{Component, Path};

use model::volume::HostPathCheck;
use ports::FilesError;

use super::layout::failed;
use super::steps::step;

pub fn check(text: &str, check: HostPathCheck) -> Result<(), FilesError> {
    let path = Path::new(text);
    if path.components().any(|part| part == Component::ParentDir) {
        return refuse(format!("invalid HostPath `{text}`: must not contain '..'"));
    }
    // Symlinks are followed: the path is the administrator's.
    let kind = path.metadata().map(|meta| meta.file_type());
    let missing = matches!(&kind, Err(error) if error.kind() == std::io::ErrorKind::NotFound);
    let is = |wanted: fn(&std::fs::FileType) -> bool| kind.as_ref().is_ok_and(wanted);
    let (fits, wanted) = match check {
        HostPathCheck::None => return Ok(()),
        HostPathCheck::DirectoryOrCreate if missing => {
            step("make the host's directory");
            let made = DirBuilder::new().recursive(true).mode(0o755).create(path);
            return made.map_err(failed("make directory", path));
        }
        HostPathCheck::FileOrCreate if missing => {
            step("make the host's file");
            // create_new: nothing is created through a dangling symlink.
            let made = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path);
            return made.map(drop).map_err(failed("create", path));
        }
        HostPathCheck::Directory | HostPathCheck::DirectoryOrCreate => {
            (is(|kind| kind.is_dir()), "a directory")
        }
        HostPathCheck::File | HostPathCheck::FileOrCreate => (is(|kind| kind.is_file()), "a file"),
        HostPathCheck::Socket => (is(|kind| kind.is_socket()), "a socket file"),
        HostPathCheck::CharDevice => (is(|kind| kind.is_char_device()), "a character device"),
        HostPathCheck::BlockDevice => (is(|kind| kind.is_block_device()), "a block device"),
    };
    if fits { Ok(()) } else { refuse(format!("hostPath type check failed: {text} is not {wanted}")) }
}

fn refuse(message: String) -> Result<(), FilesError> {
    Err(FilesError::Refused { message })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    #[test]
    fn checks_what_is_there_and_makes_what_may_be_made() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name).to_str().unwrap().to_owned();
        std::fs::create_dir(at("dir")).unwrap();
        std::fs::write(at("file"), "").unwrap();
        symlink("file", at("link")).unwrap();
        symlink("nothing", at("dangling")).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();

        let ok = |path: &str, kind| {
            assert_eq!(check(path, kind).map_err(|e| e.to_string()), Ok(()), "{path} {kind:?}")
        };
        ok(&at("nothing"), HostPathCheck::None);
        ok(&at("dir"), HostPathCheck::Directory);
        ok(&at("dir"), HostPathCheck::DirectoryOrCreate);
        ok(&at("new/deep/dir"), HostPathCheck::DirectoryOrCreate);
        ok(&at("new/deep/dir"), HostPathCheck::Directory);
        ok(&at("file"), HostPathCheck::File);
        ok(&at("link"), HostPathCheck::File);
        ok(&at("link"), HostPathCheck::FileOrCreate);
        ok(&at("new/file"), HostPathCheck::FileOrCreate);
        ok(&at("new/file"), HostPathCheck::File);
        ok(&at("socket"), HostPathCheck::Socket);
        ok("/dev/null", HostPathCheck::CharDevice);
        let mode = |name: &str| temp.path().join(name).metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("new"), mode("new/deep/dir"), mode("new/file")), (0o755, 0o755, 0o644));

        let refused = |path: &str, kind, expect: &str| {
            let error = check(path, kind).unwrap_err();
            assert!(matches!(error, FilesError::Refused { .. }), "{error:?}");
            assert_eq!(error.to_string(), expect.replace('@', path));
        };
        let failed = "hostPath type check failed: @ is not";
        refused(&at("file"), HostPathCheck::Directory, &format!("{failed} a directory"));
        refused(&at("file"), HostPathCheck::DirectoryOrCreate, &format!("{failed} a directory"));
        refused(&at("none"), HostPathCheck::Directory, &format!("{failed} a directory"));
        refused(&at("none"), HostPathCheck::File, &format!("{failed} a file"));
        refused(&at("dir"), HostPathCheck::FileOrCreate, &format!("{failed} a file"));
        refused("/dev/null", HostPathCheck::File, &format!("{failed} a file"));
        refused(&at("file"), HostPathCheck::Socket, &format!("{failed} a socket file"));
        refused(&at("file"), HostPathCheck::CharDevice, &format!("{failed} a character device"));
        refused("/dev/null", HostPathCheck::BlockDevice, &format!("{failed} a block device"));
        refused("/a/../b", HostPathCheck::None, "invalid HostPath `@`: must not contain '..'");

        for (path, kind) in [
            (at("no/parent"), HostPathCheck::FileOrCreate),
            (at("dangling"), HostPathCheck::FileOrCreate),
            (at("file/below"), HostPathCheck::DirectoryOrCreate),
        ] {
            assert!(check(&path, kind).is_err(), "{path}");
        }
        assert!(!Path::new(&at("nothing")).exists());
    }
}
