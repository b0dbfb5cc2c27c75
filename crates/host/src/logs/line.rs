//! One line of a log file.
//!
//! ```text
//! 2024-05-06T07:08:09.123456789+02:00 stdout F text          CRI; tag P: the line goes on in the next record
//! {"log":"text\n","stream":"stdout","time":"2024-...Z"}      Docker's JSON
//! ```

use std::borrow::Cow;

use ports::LogOutput;

#[derive(Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// RFC 3339 with nanoseconds, as the runtime wrote it.
    pub time: Cow<'a, str>,
    /// With its newline, unless the line continues in the next record.
    pub text: Cow<'a, [u8]>,
    is_stderr: bool,
}

impl Record<'_> {
    pub fn is_of(&self, output: LogOutput) -> bool {
        match output {
            LogOutput::Both => true,
            LogOutput::Stdout => !self.is_stderr,
            LogOutput::Stderr => self.is_stderr,
        }
    }
}

#[derive(serde::Deserialize)]
struct DockerLine<'a> {
    #[serde(borrow)]
    log: Cow<'a, str>,
    #[serde(borrow)]
    time: Cow<'a, str>,
    #[serde(borrow, default)]
    stream: Cow<'a, str>,
}

/// `None` if the line has no known format.
pub fn parse(line: &[u8]) -> Option<Record<'_>> {
    if line.first() == Some(&b'{') { parse_docker(line) } else { parse_cri(line) }
}

fn parse_docker(line: &[u8]) -> Option<Record<'_>> {
    let DockerLine { log, time, stream } = serde_json::from_slice(line).ok()?;
    let text = match log {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    };
    Some(Record { time, text, is_stderr: stream == "stderr" })
}

fn parse_cri(line: &[u8]) -> Option<Record<'_>> {
    let (time, rest) = split_word(line)?;
    let (stream, rest) = split_word(rest)?;
    let (tags, text) = split_word(rest)?;
    if !matches!(stream, b"stdout" | b"stderr") {
        return None;
    }
    let time = std::str::from_utf8(time).ok()?;
    time.parse::<jiff::Timestamp>().ok()?;
    let partial = tags.split(|byte| *byte == b':').next() == Some(b"P");
    let text = if partial { text.strip_suffix(b"\n").unwrap_or(text) } else { text };
    Some(Record { time: time.into(), text: text.into(), is_stderr: stream == b"stderr" })
}

fn split_word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|byte| *byte == b' ')?;
    Some((&text[..at], &text[at + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn understands_both_formats() {
        let check = |line: &str, expect: Option<(&str, &str)>| {
            let found = parse(line.as_bytes());
            let found = found.map(|r| (r.time.into_owned(), String::from_utf8(r.text.into_owned()).unwrap()));
            assert_eq!(found, expect.map(|(time, text)| (time.to_owned(), text.to_owned())), "{line}");
        };
        const T: &str = "2024-05-06T07:08:09.123456789Z";
        check(&format!("{T} stdout F hello world\n"), Some((T, "hello world\n")));
        check(&format!("{T} stderr F \n"), Some((T, "\n")));
        check(&format!("{T} stdout P part\n"), Some((T, "part")));
        check(&format!("{T} stdout P:x part\n"), Some((T, "part")));
        check(&format!("{T} stdout F cut"), Some((T, "cut")));
        check("2024-05-06T07:08:09+02:00 stdout F x\n", Some(("2024-05-06T07:08:09+02:00", "x\n")));
        check(
            r#"{"log":"a\n\"b\"\n","stream":"stdout","time":"2024-05-06T07:08:09.1Z"}"#,
            Some(("2024-05-06T07:08:09.1Z", "a\n\"b\"\n")),
        );
        check(&format!("{T} stdin F x\n"), None);
        check(&format!("{T} stdout\n"), None);
        check(&format!("{T} stdout F"), None);
        check("yesterday stdout F x\n", None);
        check("plain text\n", None);
        check("{\"log\":\n", None);
        check("\n", None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            parse(&line);
        }

        #[test]
        fn any_text_comes_back(text in proptest::collection::vec(any::<u8>().prop_filter("one line", |b| *b != b'\n'), 0..200)) {
            let mut line = b"2024-05-06T07:08:09.1Z stdout F ".to_vec();
            line.extend(&text);
            line.push(b'\n');
            let record = parse(&line).unwrap();
            prop_assert_eq!(&record.text[..text.len()], &text[..]);
        }
    }
}
