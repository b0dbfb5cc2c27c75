//! What the processes of a cgroup hold: a look into /proc at each of them.

use std::fs;
use std::path::Path;

use ports::ProcessFigures;

use super::files::Files;

/// Processes come and go while they are looked at; what is gone is not counted.
pub(super) fn read(proc: &Path, files: &mut Files, processes: &[u32]) -> ProcessFigures {
    let mut figures = ProcessFigures::default();
    for (index, process) in processes.iter().enumerate() {
        let dir = proc.join(process.to_string());
        let Some(state) = files.text(&dir, "stat").and_then(state) else { continue };
        figures.processes += 1;
        match state {
            'R' => figures.running += 1,
            'T' | 't' => figures.stopped += 1,
            'D' => figures.uninterruptible += 1,
            // Asleep, or idle in the kernel.
            'S' | 'I' => figures.sleeping += 1,
            _ => {}
        }
        count_open(&dir, &mut figures);
        if index == 0 {
            figures.most_open_files = files.text(&dir, "limits").and_then(open_limit);
        }
    }
    figures
}

/// The program's name stands in parentheses and may hold anything, also a closing one.
fn state(stat: &str) -> Option<char> {
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

fn open_limit(limits: &str) -> Option<u64> {
    let rest = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    rest.split_whitespace().next()?.parse().ok()
}

fn count_open(dir: &Path, figures: &mut ProcessFigures) {
    let Ok(open) = fs::read_dir(dir.join("fd")) else { return };
    for entry in open.flatten() {
        figures.open_files += 1;
        let socket = fs::read_link(entry.path())
            .is_ok_and(|to| to.as_os_str().as_encoded_bytes().starts_with(b"socket:"));
        figures.sockets += u64::from(socket);
    }
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
        let found = read(temp.path(), &mut Files::default(), &[10, 11, 12, 13]);
        let expect = ProcessFigures {
            processes: 3,
            open_files: 4,
            sockets: 2,
            running: 1,
            sleeping: 1,
            most_open_files: Some(64),
            ..Default::default()
        };
        assert_eq!(found, expect);
    }
}
