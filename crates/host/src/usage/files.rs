//! Small files of the kernel, read one after the other into the same memory.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Whatever is longer than this is no file that we understand.
const MAX_FILE_BYTES: usize = 4 << 20;
/// What v1 says instead of "no limit" is a number this large.
const NO_LIMIT: u64 = 1 << 62;

#[derive(Default)]
pub(super) struct KernelFileReader {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl KernelFileReader {
    /// `None` when there is no such file, or no text in it.
    pub fn text(&mut self, dir: &Path, name: &str) -> Option<&str> {
        std::str::from_utf8(self.content(dir, name)?).ok()
    }

    /// Where others choose some of the bytes.
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

    /// `None` for no limit, in words or by size.
    pub fn limit(&mut self, dir: &Path, name: &str) -> Option<u64> {
        self.number(dir, name).filter(|limit| *limit < NO_LIMIT)
    }

    /// Lines of a word and a number.
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
