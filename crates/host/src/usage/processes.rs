//! Counts files, sockets and states of a cgroup's processes, from /proc.

use std::fs;
use std::path::Path;

use ports::ProcessFigures;

use super::files::KernelFileReader;

/// At most this many descriptors of a cgroup are counted. Each takes a system call, containers may have millions of
/// them, and all usage numbers wait for this. Beyond it the number is unknown.
const MAX_OPEN_FILES: u64 = 20_000;

/// Processes may end while they are read, and are not counted then.
pub(super) fn read(proc: &Path, files: &mut KernelFileReader, processes: &[u32]) -> ProcessFigures {
    let mut figures = ProcessFigures { open_files: Some(0), sockets: Some(0), ..Default::default() };
    for (index, process) in processes.iter().enumerate() {
        let dir = proc.join(process.to_string());
        let Some(state) = files.content(&dir, "stat").and_then(state) else { continue };
        figures.processes += 1;
        match state {
            'R' => figures.running += 1,
            'T' | 't' => figures.stopped += 1,
            'D' => figures.uninterruptible += 1,
            // Sleeping, or idle in the kernel.
            'S' | 'I' => figures.sleeping += 1,
            _ => {}
        }
        match count_open(&dir, &figures) {
            Some((open, sockets)) => (figures.open_files, figures.sockets) = (Some(open), Some(sockets)),
            None => (figures.open_files, figures.sockets) = (None, None),
        }
        if index == 0 {
            figures.open_files_limit = files.text(&dir, "limits").and_then(open_limit);
        }
    }
    figures
}

/// The program's name is in parentheses and may contain anything: a closing parenthesis, or bytes that are not UTF-8.
fn state(stat: &[u8]) -> Option<char> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    stat[end + 1..].trim_ascii_start().first().copied().map(char::from)
}

fn open_limit(limits: &str) -> Option<u64> {
    let rest = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// The counts of open files and sockets with this process included. `None` if there are too many.
fn count_open(dir: &Path, before: &ProcessFigures) -> Option<(u64, u64)> {
    let (mut files, mut sockets) = (before.open_files?, before.sockets?);
    let Ok(open) = fs::read_dir(dir.join("fd")) else { return Some((files, sockets)) };
    for entry in open.flatten() {
        files += 1;
        if files > MAX_OPEN_FILES {
            return None;
        }
        let socket = fs::read_link(entry.path())
            .is_ok_and(|to| to.as_os_str().as_encoded_bytes().starts_with(b"socket:"));
        sockets += u64::from(socket);
    }
    Some((files, sockets))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn open_files_sockets_and_states_are_counted() {
        let temp = tempfile::tempdir().unwrap();
        let add = |pid: &str, state: &str, open: &[&str]| {
            let dir = temp.path().join(pid);
            fs::create_dir_all(dir.join("fd")).unwrap();
            fs::write(dir.join("stat"), format!("{pid} (a) b) {state} 1 1")).unwrap();
            fs::write(dir.join("limits"), "Limit  Soft\nMax open files            64   128   files\n")
                .unwrap();
            for (number, to) in open.iter().enumerate() {
                symlink(to, dir.join("fd").join(number.to_string())).unwrap();
            }
        };
        add("10", "S", &["/dev/null", "socket:[5]", "pipe:[7]"]);
        add("11", "R", &["socket:[6]"]);
        add("12", "Z", &[]);
        let found = read(temp.path(), &mut KernelFileReader::default(), &[10, 11, 12, 13]);
        let expect = ProcessFigures {
            processes: 3,
            open_files: Some(4),
            sockets: Some(2),
            running: 1,
            sleeping: 1,
            open_files_limit: Some(64),
            ..Default::default()
        };
        assert_eq!(found, expect);
    }

    #[test]
    fn a_name_that_is_no_text_hides_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("10");
        fs::create_dir_all(dir.join("fd")).unwrap();
        fs::write(dir.join("stat"), b"10 (\xff\xfe) x) D 1 1").unwrap();
        let found = read(temp.path(), &mut KernelFileReader::default(), &[10]);
        assert_eq!((found.processes, found.uninterruptible), (1, 1));
    }

    /// If there are too many, the count stops and no wrong number is returned.
    #[test]
    fn very_many_open_files_are_not_known() {
        let temp = tempfile::tempdir().unwrap();
        for (pid, open) in [("10", MAX_OPEN_FILES - 1), ("11", 1), ("12", 1)] {
            let dir = temp.path().join(pid);
            fs::create_dir_all(dir.join("fd")).unwrap();
            fs::write(dir.join("stat"), format!("{pid} (a) S 1 1")).unwrap();
            for number in 0..open {
                symlink("socket:[1]", dir.join("fd").join(number.to_string())).unwrap();
            }
        }
        let known = |processes: &[u32]| {
            let found = read(temp.path(), &mut KernelFileReader::default(), processes);
            assert_eq!(found.processes as usize, processes.len());
            (found.open_files, found.sockets)
        };
        assert_eq!(known(&[10, 11]), (Some(MAX_OPEN_FILES), Some(MAX_OPEN_FILES)));
        assert_eq!(known(&[10, 11, 12]), (None, None));
    }
}
