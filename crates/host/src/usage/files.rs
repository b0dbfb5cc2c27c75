//! Reads small files of the kernel, one after the other into the same buffer.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A longer file is not one that we parse.
const MAX_FILE_BYTES: usize = 4 << 20;
/// v1 shows a number at least this large for "no limit".
const NO_LIMIT: u64 = 1 << 62;

#[derive(Default)]
pub(super) struct KernelFileReader {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl KernelFileReader {
    /// `None` if the file does not exist or is not text.
    pub fn text(&mut self, dir: &Path, name: &str) -> Option<&str> {
        std::str::from_utf8(self.content(dir, name)?).ok()
    }

    /// For files that may contain bytes from users.
    pub fn content(&mut self, dir: &Path, name: &str) -> Option<&[u8]> {
        self.path.clear();
        self.path.push(dir);
        self.path.push(name);
        let mut file = File::open(&self.path).ok()?;
        if self.bytes.is_empty() {
            self.bytes.resize(8192, 0);
        }
        let mut filled = 0;
        loop {
            if filled == self.bytes.len() {
                if filled >= MAX_FILE_BYTES {
                    return None;
                }
                self.bytes.resize(filled * 2, 0);
            }
            match file.read(&mut self.bytes[filled..]).ok()? {
                0 => break,
                more => filled += more,
            }
        }
        Some(&self.bytes[..filled])
    }

    pub fn number(&mut self, dir: &Path, name: &str) -> Option<u64> {
        self.text(dir, name)?.trim().parse().ok()
    }

    /// `None` for no limit, as the word or as a huge number.
    pub fn limit(&mut self, dir: &Path, name: &str) -> Option<u64> {
        self.number(dir, name).filter(|limit| *limit < NO_LIMIT)
    }

    /// Parses lines of a word and a number.
    pub fn table(&mut self, dir: &Path, name: &str, mut line: impl FnMut(&str, u64)) -> Option<()> {
        for one in self.text(dir, name)?.lines() {
            if let Some((word, number)) = one.split_once(' ')
                && let Ok(number) = number.trim().parse()
            {
                line(word, number);
            }
        }
        Some(())
    }
}
