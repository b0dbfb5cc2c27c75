//! The end of a log.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

use super::line;

const BLOCK: u64 = 16 * 1024;
/// Runtimes split lines at 16 KiB unless configured otherwise. Anything longer is not a log line.
pub(super) const MAX_LINE: usize = 1 << 20;

/// The position where the last `lines` lines start. A last line without a newline is counted in addition.
pub fn tail_offset(file: &File, lines: u64) -> io::Result<u64> {
    let size = file.metadata()?.len();
    let mut block = vec![0; BLOCK as usize];
    let mut seen = 0;
    let mut end = size;
    while end > 0 {
        let start = end.saturating_sub(BLOCK);
        let block = &mut block[..(end - start) as usize];
        file.read_exact_at(block, start)?;
        for (at, byte) in block.iter().enumerate().rev() {
            if *byte == b'\n' {
                if seen == lines {
                    return Ok(start + at as u64 + 1);
                }
                seen += 1;
            }
        }
        end = start;
    }
    Ok(0)
}

/// The texts of the last `lines` lines, joined and then cut to the last `bytes` bytes.
pub fn read_tail(mut file: File, lines: u64, bytes: usize) -> io::Result<Vec<u8>> {
    let start = tail_offset(&file, lines)?;
    file.seek(SeekFrom::Start(start))?;
    // What is appended meanwhile is not read.
    let size = file.metadata()?.len();
    let mut reader = BufReader::new(file.take(size.saturating_sub(start)));
    let mut out: Vec<u8> = Vec::new();
    let mut line = Vec::new();
    for _ in 0..lines {
        line.clear();
        if (&mut reader).take(MAX_LINE as u64).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        if let Some(record) = line::parse(&line) {
            out.extend_from_slice(&record.text);
            let excess = out.len().saturating_sub(bytes);
            out.drain(..excess);
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(content: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        file
    }

    #[test]
    fn counts_lines_from_the_end() {
        let check = |content: &str, lines: u64, expect: &str| {
            let at = tail_offset(&file(content.as_bytes()), lines).unwrap();
            assert_eq!(&content[at as usize..], expect, "{content:?} {lines}");
        };
        check("", 3, "");
        check("a\nb\nc\n", 0, "");
        check("a\nb\nc\n", 1, "c\n");
        check("a\nb\nc\n", 2, "b\nc\n");
        check("a\nb\nc\n", 3, "a\nb\nc\n");
        check("a\nb\nc\n", 9, "a\nb\nc\n");
        check("a\nb\nc", 1, "b\nc");
        check("a\nb\nc", 0, "c");
        let long = "0123456789\n".repeat(5000);
        check(&long, 4000, &"0123456789\n".repeat(4000));
        check(&long, 5001, &long);
    }

    #[test]
    fn the_tail_is_decoded_joined_and_cut() {
        let line = |tag: &str, text: &str| format!("2024-05-06T07:08:09.1Z stdout {tag} {text}\n");
        let log =
            line("F", "one") + &line("P", "two ") + &line("F", "three") + "broken\n" + &line("F", "four");
        let tail =
            |lines, bytes| String::from_utf8(read_tail(file(log.as_bytes()), lines, bytes).unwrap()).unwrap();
        assert_eq!(tail(80, 2048), "one\ntwo three\nfour\n");
        assert_eq!(tail(3, 2048), "three\nfour\n", "physical lines count");
        assert_eq!(tail(80, 8), "ee\nfour\n");
        assert_eq!(tail(0, 8), "");
        let endless = read_tail(file(&vec![b'x'; 1 << 20]), 80, 2048).unwrap();
        assert_eq!(endless, b"");
    }
}
