//! Converts the bytes of a log file to the output of a log request.

use bytes::{Bytes, BytesMut};
use model::Wall;
use ports::{LogOptions, LogOutput};

use super::line;
use super::tail::MAX_LINE;

/// Splits the file into lines, drops what the options exclude, and counts.
pub struct Renderer {
    timestamps: bool,
    since: Option<Wall>,
    output: LogOutput,
    lines_left: Option<u64>,
    bytes_left: Option<u64>,
    /// The start of a line whose end was not read yet.
    pending: BytesMut,
    /// The pending line is too long for a log line and is skipped up to its end.
    skipping: bool,
    /// The next record starts a line (and is preceded by the time, if requested).
    at_line_start: bool,
}

impl Renderer {
    pub fn new(options: &LogOptions) -> Self {
        Self {
            timestamps: options.timestamps,
            since: options.since,
            output: options.output,
            // Without follow, lines that are appended during the read are not included.
            lines_left: options.tail_lines.filter(|_| !options.follow),
            bytes_left: options.limit_bytes,
            pending: BytesMut::new(),
            skipping: false,
            at_line_start: true,
        }
    }

    /// Whether a limit was reached, so that there is no more output.
    pub fn is_done(&self) -> bool {
        self.lines_left == Some(0) || self.bytes_left == Some(0)
    }

    pub fn feed(&mut self, input: &[u8]) -> Bytes {
        let mut out = BytesMut::new();
        for piece in input.split_inclusive(|byte| *byte == b'\n') {
            if !self.skipping {
                self.pending.extend_from_slice(piece);
            }
            if piece.ends_with(b"\n") {
                self.end_line(&mut out);
            } else if self.pending.len() > MAX_LINE {
                self.pending.clear();
                self.skipping = true;
            }
        }
        out.freeze()
    }

    /// At the end of the file, a last line without a newline counts as a line.
    pub fn finish(&mut self) -> Bytes {
        let mut out = BytesMut::new();
        if !self.pending.is_empty() {
            self.end_line(&mut out);
        }
        out.freeze()
    }

    /// Starts another file.
    pub fn restart(&mut self) -> Bytes {
        let rest = self.finish();
        self.skipping = false;
        self.at_line_start = true;
        rest
    }

    fn end_line(&mut self, out: &mut BytesMut) {
        let line = self.pending.split();
        if std::mem::take(&mut self.skipping) || self.is_done() {
            return;
        }
        let Some(record) = line::parse(&line) else {
            return tracing::debug!(bytes = line.len(), "log line in no known format");
        };
        let wanted = record.is_of(self.output);
        if wanted && !self.too_old(&record.time) {
            if self.timestamps && self.at_line_start {
                self.write(out, with_nanoseconds(&record.time).as_bytes());
                self.write(out, b" ");
            }
            self.write(out, &record.text);
        }
        if let Some(left) = &mut self.lines_left {
            *left -= 1;
        }
        if wanted {
            self.at_line_start = record.text.is_empty() || record.text.ends_with(b"\n");
        }
    }

    fn too_old(&self, time: &str) -> bool {
        let Some(since) = self.since else { return false };
        time.parse().is_ok_and(|time| Wall::from_timestamp(time) < since)
    }

    fn write(&mut self, out: &mut BytesMut, bytes: &[u8]) {
        let allowed = self.bytes_left.map_or(bytes.len(), |left| bytes.len().min(left as usize));
        out.extend_from_slice(&bytes[..allowed]);
        if let Some(left) = &mut self.bytes_left {
            *left -= allowed as u64;
        }
    }
}

/// RFC 3339 with exactly nine digits of fractional seconds, in the time zone of the file, `Z` for UTC.
fn with_nanoseconds(time: &str) -> String {
    let zone = time.rfind(['Z', 'z', '+', '-']).filter(|at| *at > 10).unwrap_or(time.len());
    let (clock, zone) = time.split_at(zone);
    let (seconds, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let zone = if matches!(zone, "z" | "+00:00" | "-00:00") { "Z" } else { zone };
    let fraction: String = fraction.chars().chain(std::iter::repeat('0')).take(9).collect();
    format!("{seconds}.{fraction}{zone}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LOG: &str = "2024-05-06T07:08:01.5Z stdout F one\n\
        2024-05-06T07:08:02Z stdout P two \n\
        2024-05-06T07:08:03Z stderr F three\n\
        garbage\n\
        2024-05-06T09:08:04.123456789+02:00 stdout F four\n\
        2024-05-06T07:08:05Z stdout F fi";

    fn render(options: &LogOptions, pieces: &[&[u8]]) -> String {
        let mut renderer = Renderer::new(options);
        let mut out = Vec::new();
        for piece in pieces {
            out.extend_from_slice(&renderer.feed(piece));
        }
        out.extend_from_slice(&renderer.finish());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn options_select_and_shape() {
        let check =
            |options: LogOptions, expect: &str| assert_eq!(render(&options, &[LOG.as_bytes()]), expect);
        let plain = LogOptions::default;
        check(plain(), "one\ntwo three\nfour\nfi");
        check(LogOptions { tail_lines: Some(2), ..plain() }, "one\ntwo ");
        check(LogOptions { tail_lines: Some(2), follow: true, ..plain() }, "one\ntwo three\nfour\nfi");
        check(LogOptions { tail_lines: Some(0), ..plain() }, "");
        check(LogOptions { limit_bytes: Some(6), ..plain() }, "one\ntw");
        let since = Some(Wall::from_timestamp("2024-05-06T07:08:04Z".parse().unwrap()));
        check(LogOptions { since, ..plain() }, "four\nfi");
        check(LogOptions { output: LogOutput::Stdout, ..plain() }, "one\ntwo four\nfi");
        check(LogOptions { output: LogOutput::Stderr, ..plain() }, "three\n");
        check(
            LogOptions { timestamps: true, ..plain() },
            "2024-05-06T07:08:01.500000000Z one\n\
             2024-05-06T07:08:02.000000000Z two three\n\
             2024-05-06T09:08:04.123456789+02:00 four\n\
             2024-05-06T07:08:05.000000000Z fi",
        );
        check(
            LogOptions { timestamps: true, limit_bytes: Some(33), ..plain() },
            "2024-05-06T07:08:01.500000000Z on",
        );
    }

    #[test]
    fn times_have_nine_digits() {
        for (time, expect) in [
            ("2024-05-06T07:08:09Z", "2024-05-06T07:08:09.000000000Z"),
            ("2024-05-06T07:08:09.12+00:00", "2024-05-06T07:08:09.120000000Z"),
            ("2024-05-06T07:08:09.123456789-03:30", "2024-05-06T07:08:09.123456789-03:30"),
        ] {
            assert_eq!(with_nanoseconds(time), expect);
        }
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped_alone() {
        let long = vec![b'x'; 3 * MAX_LINE];
        let pieces: Vec<&[u8]> =
            long.chunks(10_000).chain([&b"\n"[..], b"2024-05-06T07:08:09Z stdout F ok\n"]).collect();
        assert_eq!(render(&LogOptions::default(), &pieces), "ok\n");
    }

    proptest! {
        #[test]
        fn how_the_bytes_arrive_does_not_matter(cuts in proptest::collection::vec(0..LOG.len(), 0..20)) {
            let mut cuts = cuts;
            cuts.extend([0, LOG.len()]);
            cuts.sort();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &LOG.as_bytes()[cut[0]..cut[1]]).collect();
            for options in [
                LogOptions { timestamps: true, ..LogOptions::default() },
                LogOptions { limit_bytes: Some(9), ..LogOptions::default() },
                LogOptions { tail_lines: Some(3), ..LogOptions::default() },
            ] {
                prop_assert_eq!(render(&options, &pieces), render(&options, &[LOG.as_bytes()]));
            }
        }
    }
}
