//! Where reading a log begins: what is asked for by lines or by time may lie in files that were rotated away.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use model::Wall;

use super::log_file::{LogFile, count_lines, packed_reader};
use super::open::open_log;
use super::rotated_logs::{MAX_OPEN_FILES, RotatedLog, siblings};
use super::tail::tail_offset;

/// Of the content of a compressed file.
const MAX_PACKED_BYTES: u64 = 1 << 30;
/// How often it is tried to open files between two rotations.
const ATTEMPTS: u32 = 5;

/// The files to read, in order: the log itself is the last. The work blocks.
pub(super) fn files_to_read(
    logs_dir: &Path,
    log: &Path,
    tail_lines: Option<u64>,
    since: Option<Wall>,
) -> io::Result<VecDeque<LogFile>> {
    for attempt in 1.. {
        let mut rotated = rotated_before(logs_dir, log);
        let current = match open_log(logs_dir, log) {
            // It is just being rotated, or the container ended after a rotation that was cut short.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if attempt < ATTEMPTS {
                    continue;
                }
                newest_plain(logs_dir, &mut rotated).ok_or(error)?
            }
            other => other?,
        };
        let is_same = newest(&rotated) == newest(&rotated_before(logs_dir, log));
        // Else the log was rotated while it was opened, and a file would be left out.
        if is_same || attempt == ATTEMPTS {
            return Ok(match tail_lines {
                Some(lines) => by_lines(logs_dir, current, &rotated, lines, since)?,
                None => by_time(logs_dir, current, &rotated, since),
            });
        }
    }
    unreachable!("the last attempt returns")
}

fn newest_plain(logs_dir: &Path, rotated: &mut Vec<RotatedLog>) -> Option<File> {
    let newest = rotated.first().filter(|file| !file.is_packed)?;
    let file = open_log(logs_dir, &newest.path).ok()?;
    rotated.remove(0);
    Some(file)
}

/// Newest first.
fn rotated_before(logs_dir: &Path, log: &Path) -> Vec<RotatedLog> {
    let mut rotated = siblings(logs_dir, log);
    rotated.sort_by(|a, b| b.plain_name.cmp(&a.plain_name).then(a.is_packed.cmp(&b.is_packed)));
    // While a file is being compressed there are two of it.
    rotated.dedup_by(|one, before| one.plain_name == before.plain_name);
    rotated
}

fn newest(rotated: &[RotatedLog]) -> Option<&str> {
    rotated.first().map(|file| file.plain_name.as_str())
}

fn by_time(logs_dir: &Path, current: File, rotated: &[RotatedLog], since: Option<Wall>) -> VecDeque<LogFile> {
    let mut files = VecDeque::from([LogFile::plain(current)]);
    let Some(since) = since else { return files };
    for file in rotated.iter().take_while(|file| file.last_write() >= since).take(MAX_OPEN_FILES) {
        // It was removed meanwhile: nothing older is there either.
        let Ok((opened, is_packed)) = file.open(logs_dir) else { break };
        files.push_front(match is_packed {
            true => LogFile::packed(opened, 0),
            false => LogFile::plain(opened),
        });
    }
    files
}

fn by_lines(
    logs_dir: &Path,
    mut current: File,
    rotated: &[RotatedLog],
    lines: u64,
    since: Option<Wall>,
) -> io::Result<VecDeque<LogFile>> {
    let mut missing = begin_at(&mut current, lines)?;
    let mut files = VecDeque::from([LogFile::plain(current)]);
    for file in rotated.iter().take(MAX_OPEN_FILES) {
        if missing == 0 || since.is_some_and(|since| file.last_write() < since) {
            break;
        }
        let Ok((mut opened, is_packed)) = file.open(logs_dir) else { break };
        if is_packed {
            // A container that can write to the directory may make one that holds any amount.
            let there = count_lines(packed_reader(opened.try_clone()?).take(MAX_PACKED_BYTES));
            opened.seek(SeekFrom::Start(0))?;
            files.push_front(LogFile::packed(opened, there.saturating_sub(missing)));
            missing = missing.saturating_sub(there);
        } else {
            missing = begin_at(&mut opened, missing)?;
            files.push_front(LogFile::plain(opened));
        }
    }
    Ok(files)
}

/// Moves to where the last so many lines begin. Returns how many there are not.
fn begin_at(file: &mut File, lines: u64) -> io::Result<u64> {
    let offset = tail_offset(file, lines)?;
    file.seek(SeekFrom::Start(offset))?;
    if offset > 0 || lines == 0 {
        return Ok(0);
    }
    let there = count_lines(BufReader::new(file.try_clone()?));
    file.seek(SeekFrom::Start(0))?;
    Ok(lines.saturating_sub(there))
}
