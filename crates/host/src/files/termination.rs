//! A container's last words: from the file it could write, or else the end of its log.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use model::files::TerminationMessageRequest;

use crate::logs::{open_log, open_regular, read_tail};

const MAX_FILE_BYTES: u64 = 4096;
const MAX_LOG_BYTES: usize = 2048;
const MAX_LOG_LINES: u64 = 80;

/// Failures to read become the message: the user asked for one, and this is why there is none.
pub fn message(logs_dir: &Path, request: &TerminationMessageRequest) -> String {
    if let Some(path) = &request.file {
        match open_regular(Path::new(path)).and_then(|file| end_of(file, MAX_FILE_BYTES)) {
            Ok(text) if text.is_empty() => {}
            Ok(text) => return String::from_utf8_lossy(&text).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return format!("Error on reading termination log {path}: {}", plain(&error)),
        }
    }
    let Some(path) = &request.log_fallback else { return String::new() };
    match open_log(logs_dir, Path::new(path)).and_then(|file| read_tail(file, MAX_LOG_LINES, MAX_LOG_BYTES)) {
        Ok(text) => String::from_utf8_lossy(&text).into_owned(),
        Err(error) => format!(
            "Error on reading termination message from logs: failed to open log file {path:?}: {}",
            plain(&error)
        ),
    }
}

fn end_of(mut file: File, bytes: u64) -> io::Result<Vec<u8>> {
    let size = file.metadata()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(bytes)))?;
    let mut text = Vec::new();
    file.take(bytes).read_to_end(&mut text)?;
    Ok(text)
}

/// Without the number that Rust puts behind the words of the system.
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
        fs::create_dir_all(temp.path().join("logs/pod/c")).unwrap();
        fs::write(temp.path().join("secret"), "secret").unwrap();
        Bench { file: temp.path().join("file"), log: temp.path().join("logs/pod/c/0.log"), temp }
    }

    impl Bench {
        fn message(&self, file: bool, log: bool) -> String {
            let text = |path: &Path| path.to_str().unwrap().to_owned();
            let request = TerminationMessageRequest {
                file: file.then(|| text(&self.file)),
                log_fallback: log.then(|| text(&self.log)),
            };
            message(&self.temp.path().join("logs"), &request)
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
}
