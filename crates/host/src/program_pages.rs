//! Releases memory pages of the program itself. Much of its code runs only once, at the start or when a pod is added,
//! and would stay resident. Released pages stay in the kernel's page cache while memory is free, and are mapped again
//! when they are used.

use std::io;
use std::ops::Range;
use std::path::Path;

/// File-backed, unmodified mappings of the executable. Their pages can be dropped with MADV_DONTNEED because the kernel
/// reads them from the file again.
#[derive(Debug)]
pub struct ProgramPages {
    ranges: Vec<Range<usize>>,
}

impl ProgramPages {
    pub fn find() -> io::Result<Self> {
        let program = std::fs::read_link("/proc/self/exe")?;
        Ok(Self { ranges: clean_file_mappings(&std::fs::read("/proc/self/smaps")?, &program) })
    }

    /// Releases all of them, resident or not.
    pub fn release(&self) -> io::Result<()> {
        self.ranges.iter().try_for_each(release)
    }
}

#[allow(unsafe_code)]
fn release(range: &Range<usize>) -> io::Result<()> {
    let start = std::ptr::with_exposed_provenance_mut::<libc::c_void>(range.start);
    // SAFETY: the kernel reported this range as a private mapping of the program's file that is not writable and has no
    // modified page (see `clean_file_mappings`): the next read returns the same bytes, from the file. The program
    // itself is mapped for as long as it runs.
    match unsafe { libc::madvise(start, range.len(), libc::MADV_DONTNEED) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Private, read-only mappings of this file without pages of their own. A mapping that the loader has written to
/// (relocations) has such pages, whose content is nowhere else.
fn clean_file_mappings(smaps: &[u8], file: &Path) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let mut candidate = None;
    for line in smaps.split(|byte| *byte == b'\n') {
        let line = String::from_utf8_lossy(line);
        if let Some(head) = head(&line, file) {
            candidate = head;
        } else if let Some(size) = line.strip_prefix("Anonymous:")
            && let Some(range) = candidate.take()
            && size.trim() == "0 kB"
        {
            ranges.push(range);
        }
    }
    ranges
}

/// Parses `55d0c0a00000-55d0c0b00000 r-xp 00100000 fe:00 1234  /usr/bin/rubelet`, the first line of a mapping: its
/// range, if it is a read-only mapping of the file. `None` for the other lines about a mapping.
fn head(line: &str, file: &Path) -> Option<Option<Range<usize>>> {
    let mut words = line.split_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let start = usize::from_str_radix(start, 16).ok()?;
    let end = usize::from_str_radix(end, 16).ok()?;
    let access = words.next()?;
    let of_file = file.to_str().is_some_and(|file| line.trim_end().ends_with(&format!(" {file}")));
    Some((of_file && matches!(access, "r-xp" | "r--p")).then_some(start..end))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &[u8] = b"\
55d0c0a00000-55d0c0b00000 r--p 00000000 fe:00 1234                       /usr/bin/rubelet
Size:               1024 kB
Anonymous:             0 kB
VmFlags: rd mr mw me sd
55d0c0b00000-55d0c1b00000 r-xp 00100000 fe:00 1234                       /usr/bin/rubelet
Rss:               13000 kB
Anonymous:             0 kB
55d0c1b00000-55d0c1c00000 r--p 01100000 fe:00 1234                       /usr/bin/rubelet
Rss:                 900 kB
Anonymous:           900 kB
55d0c1c00000-55d0c1d00000 rw-p 01200000 fe:00 1234                       /usr/bin/rubelet
Anonymous:             0 kB
7f0000000000-7f0000100000 r--s 00000000 fe:00 1234                       /usr/bin/rubelet
Anonymous:             0 kB
7f0000200000-7f0000300000 r--p 00000000 00:00 0
Anonymous:             0 kB
7f0000300000-7f0000400000 r-xp 00000000 fe:00 77                         /usr/lib/libc.so.6
Anonymous:             0 kB
7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0                          [vdso]
Anonymous:             0 kB
";

    #[test]
    fn only_what_is_in_the_file_and_nowhere_else_is_given_back() {
        let found = |text| clean_file_mappings(text, Path::new("/usr/bin/rubelet"));
        assert_eq!(found(SMAPS), [0x55d0c0a00000..0x55d0c0b00000, 0x55d0c0b00000..0x55d0c1b00000]);
        assert!(found(b"").is_empty());
        assert!(found(b"7f00-zz r-xp 0 fe:00 1 /usr/bin/rubelet\nAnonymous: 0 kB\n").is_empty());
    }

    fn resident_of_files() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").expect("our status");
        let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).expect("a line of it");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    /// Other tests of this program use their pages again meanwhile, so there are several attempts.
    #[test]
    fn the_program_gives_its_pages_back_and_goes_on() {
        static WORDS: &[u8] = include_bytes!("program_pages.rs");
        let before = WORDS.to_vec();
        let own = ProgramPages::find().expect("our own mappings");
        let size: usize = own.ranges.iter().map(ExactSizeIterator::len).sum();
        assert!(size > 1 << 20, "{size} bytes are no program");
        let fell = (0..20).any(|_| {
            let resident = resident_of_files();
            own.release().expect("the kernel takes them");
            resident_of_files() < resident
        });
        assert!(fell);
        assert_eq!(WORDS, before);
    }
}
