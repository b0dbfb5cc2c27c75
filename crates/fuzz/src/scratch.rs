//! Files for readers that only read files.

use std::fs;
use std::path::{Path, PathBuf};

thread_local! {
    static DIR: tempfile::TempDir = tempfile::tempdir().expect("make a scratch directory");
    static IO: tokio::runtime::Runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("an async runtime");
}

/// This thread's own directory.
pub fn dir() -> PathBuf {
    DIR.with(|dir| dir.path().to_owned())
}

/// Writes a file below the thread's directory.
pub fn file(name: impl AsRef<Path>, data: &[u8]) -> PathBuf {
    let path = dir().join(name);
    fs::create_dir_all(path.parent().expect("a directory above")).expect("make a scratch directory");
    fs::write(&path, data).expect("write a scratch file");
    path
}

/// Runs to its end on this thread.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    IO.with(|io| io.block_on(future))
}
