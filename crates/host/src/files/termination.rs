//! A container's termination message: from the file that the agent made for it, or else the end of its log.
//!
//! A container can write only the file itself. Another privileged process may replace it with a symlink, fifo or mount,
//! so it is opened below the directory of all pods through no symlink and no other mount, it must be a regular file,
//! and only its end is read. All of this runs on worker threads of its own ([`super::workers`]): a disk that hangs
//! costs this message, but does not block the reading of the runtime.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::path::Path;

use model::files::TerminationMessageRequest;
use model::text_limits::TextLimit;
use rustix::fs::{Mode, OFlags};

use super::confined_open::open_file_on_same_mount;
use super::layout::FilesLayout;
use crate::logs::{open_log, read_tail, regular};

const MAX_FILE_BYTES: u64 = TextLimit::TerminationMessage.bytes() as u64;
const MAX_LOG_BYTES: usize = TextLimit::TerminationMessageFromLog.bytes();
const MAX_LOG_LINES: u64 = 80;

/// If the message can't be read, the error becomes the message, so that the user sees why there is none.
pub fn message(layout: &FilesLayout, request: &TerminationMessageRequest) -> String {
    let own = |path: &String| layout.own_termination_log(&request.pod, &request.container, path);
    if let Some(file) = request.mounted.iter().find_map(own) {
        match open(layout, &file).and_then(|file| end_of(file, MAX_FILE_BYTES)) {
            Ok(text) if text.is_empty() => {}
            Ok(text) => return String::from_utf8_lossy(&text).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let path = layout.pods().join(file);
                return format!("Error on reading termination log {}: {}", path.display(), plain(&error));
            }
        }
    }
    let Some(path) = &request.log_fallback else { return String::new() };
    let log = open_log(&layout.pod_logs, Path::new(path));
    match log.and_then(|file| read_tail(file, MAX_LOG_LINES, MAX_LOG_BYTES)) {
        Ok(text) => String::from_utf8_lossy(&text).into_owned(),
        Err(error) => format!(
            "Error on reading termination message from logs: failed to open log file {path:?}: {}",
            plain(&error)
        ),
    }
}

fn open(layout: &FilesLayout, file: &Path) -> io::Result<File> {
    let way = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let pods = rustix::fs::open(layout.pods(), way, Mode::empty())?;
    // Non-blocking, because opening a fifo would wait for its writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    regular(File::from(open_file_on_same_mount(pods.as_fd(), file, flags)?))
}

fn end_of(mut file: File, bytes: u64) -> io::Result<Vec<u8>> {
    let size = file.metadata()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(bytes)))?;
    let mut text = Vec::new();
    file.take(bytes).read_to_end(&mut text)?;
    Ok(text)
}

/// The system's error text without the number that Rust appends.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((words, _)) => words.to_lowercase(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::testing::{Mounts, bind};
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    struct Bench {
        temp: tempfile::TempDir,
        file: PathBuf,
        log: PathBuf,
    }

    fn bench() -> Bench {
        let temp = tempfile::tempdir().unwrap();
        for dir in ["logs/pod/c", "root/pods/u/containers/c"] {
            fs::create_dir_all(temp.path().join(dir)).unwrap();
        }
        fs::write(temp.path().join("secret"), "secret").unwrap();
        let file = temp.path().join("root/pods/u/containers/c/0a1b2c3d");
        Bench { file, log: temp.path().join("logs/pod/c/0.log"), temp }
    }

    impl Bench {
        fn message(&self, file: bool, log: bool) -> String {
            let mounted: &[&Path] = if file { &[&self.file] } else { &[] };
            self.message_of(mounted, log)
        }

        fn message_of(&self, mounted: &[&Path], log: bool) -> String {
            let text = |path: &Path| path.to_str().unwrap().to_owned();
            let request = TerminationMessageRequest {
                pod: "u".into(),
                container: "c".into(),
                mounted: mounted.iter().map(|path| text(path)).collect(),
                log_fallback: log.then(|| text(&self.log)),
            };
            let at = |name: &str| self.temp.path().join(name);
            message(
                &FilesLayout { root: at("root"), pod_logs: at("logs"), log_links_dir: at("links") },
                &request,
            )
        }
    }

    #[test]
    fn the_file_wins_and_the_log_helps_out() {
        let b = bench();
        assert_eq!(b.message(true, false), "", "no file");
        assert_eq!(b.message(false, false), "");
        fs::write(&b.log, "2024-05-06T07:08:09Z stderr P bo\n2024-05-06T07:08:09Z stderr F om\n").unwrap();
        assert_eq!(b.message(true, true), "boom\n", "no file");
        assert_eq!(b.message(false, true), "boom\n");
        fs::write(&b.file, "").unwrap();
        assert_eq!(b.message(true, true), "boom\n", "empty file");
        assert_eq!(b.message(true, false), "");
        fs::write(&b.file, "last words").unwrap();
        assert_eq!(b.message(true, true), "last words");
        fs::write(&b.file, format!("{}{}", "a".repeat(5000), "b".repeat(4096))).unwrap();
        assert_eq!(b.message(true, true), "b".repeat(4096));
        fs::write(&b.file, b"bad \xff byte").unwrap();
        assert_eq!(b.message(true, true), "bad \u{fffd} byte");
    }

    #[test]
    fn the_log_is_cut_to_lines_and_bytes() {
        let b = bench();
        let lines: String = (0..100).map(|n| format!("2024-05-06T07:08:09Z stdout F {n}\n")).collect();
        fs::write(&b.log, lines).unwrap();
        let expect: String = (20..100).map(|n| format!("{n}\n")).collect();
        assert_eq!(b.message(false, true), expect);
        let long = format!("2024-05-06T07:08:09Z stdout F {}\n", "x".repeat(3000));
        fs::write(&b.log, long).unwrap();
        assert_eq!(b.message(false, true), "x".repeat(2047) + "\n");
    }

    #[test]
    fn what_a_container_puts_in_the_way_is_not_followed_and_not_waited_for() {
        let b = bench();
        let expect = |why: &str| format!("Error on reading termination log {}: {why}", b.file.display());
        symlink(b.temp.path().join("secret"), &b.file).unwrap();
        assert_eq!(b.message(true, true), expect("too many levels of symbolic links"));
        fs::remove_file(&b.file).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &b.file, rustix::fs::Mode::RWXU).unwrap();
        assert_eq!(b.message(true, true), expect("not a regular file"));
        fs::remove_file(&b.file).unwrap();
        fs::create_dir(&b.file).unwrap();
        assert_eq!(b.message(true, true), expect("not a regular file"));

        let expect = |why: &str| {
            let log = b.log.display();
            format!(
                "Error on reading termination message from logs: failed to open log file \"{log}\": {why}"
            )
        };
        assert_eq!(b.message(false, true), expect("no such file or directory"));
        symlink(b.temp.path().join("secret"), &b.log).unwrap();
        assert_eq!(b.message(false, true), expect("too many levels of symbolic links"));
        fs::remove_file(&b.log).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &b.log, rustix::fs::Mode::RWXU).unwrap();
        assert_eq!(b.message(false, true), expect("not a regular file"));
    }

    #[test]
    fn only_the_file_that_the_agent_made_is_read() {
        let b = bench();
        let secret = b.temp.path().join("secret");
        let of_other = b.temp.path().join("root/pods/u/containers/other/0a1b2c3d");
        fs::create_dir(of_other.parent().unwrap()).unwrap();
        fs::write(&of_other, "of another").unwrap();
        fs::write(&b.file, "own").unwrap();
        assert_eq!(b.message_of(&[&secret, &of_other, &b.file], false), "own");
        assert_eq!(b.message_of(&[&secret, &of_other], false), "");
        // The runtime has resolved a symlink in the path to the agent's directory.
        let moved = b.temp.path().join("moved");
        fs::rename(b.temp.path().join("root"), &moved).unwrap();
        symlink("moved", b.temp.path().join("root")).unwrap();
        assert_eq!(b.message_of(&[&moved.join("pods/u/containers/c/0a1b2c3d")], false), "own");
        assert_eq!(b.message(true, false), "own");
    }

    #[test]
    fn neither_a_link_nor_a_mount_on_the_way_is_followed() {
        let b = bench();
        let _mounts = Mounts::below(b.temp.path());
        let expect = |why: &str| format!("Error on reading termination log {}: {why}", b.file.display());
        let (dir, evil) = (b.file.parent().unwrap(), b.temp.path().join("evil"));
        fs::create_dir(&evil).unwrap();
        fs::write(evil.join("0a1b2c3d"), "secret").unwrap();
        fs::write(&b.file, "own").unwrap();
        for (from, to) in [(evil.join("0a1b2c3d"), b.file.as_path()), (evil.clone(), dir)] {
            bind(&from, to);
            assert_eq!(fs::read_to_string(&b.file).unwrap(), "secret", "the attack works on who just reads");
            assert_eq!(b.message(true, false), expect("invalid cross-device link"));
            rustix::mount::unmount(to, rustix::mount::UnmountFlags::NOFOLLOW).unwrap();
        }
        assert_eq!(b.message(true, false), "own");
        fs::remove_dir_all(dir).unwrap();
        symlink(&evil, dir).unwrap();
        assert_eq!(fs::read_to_string(&b.file).unwrap(), "secret", "the attack works on who just reads");
        assert_eq!(b.message(true, false), expect("too many levels of symbolic links"));
    }
}
