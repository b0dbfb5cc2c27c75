//! Writes files so that they are complete or missing, even after a power failure.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// Replaces the file by `bytes`, readable for its owner only. The directory is created if it is missing.
pub fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let dir = directory(path)?;
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
    name.push(".tmp");
    let draft = dir.join(name);
    let put = || {
        write(&draft, bytes)?;
        fs::rename(&draft, path)?;
        sync_directory(dir)
    };
    put().inspect_err(|_| {
        let _ = fs::remove_file(&draft);
    })
}

/// Creates or replaces the file; not atomic.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // An existing file would keep its mode and owner, so it is removed first.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = File::options().create_new(true).write(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

pub fn make_directory(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(dir)
}

pub fn sync_directory(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

fn directory(path: &Path) -> io::Result<&Path> {
    let dir = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    make_directory(dir)?;
    Ok(dir)
}
