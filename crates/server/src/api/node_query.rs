//! Node log query: `/logs/?query=kubelet` asks the journal or a log file by the name of a service.

use std::convert::Infallible;
use std::io::{self, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::StreamExt;
use http::{StatusCode, header};
use tokio::net::unix::pipe;
use tokio::process::Command;
use tokio_util::io::ReaderStream;

use super::query::Parameters;
use super::{SecureApi, plain_text};

/// How long the journal may take.
const JOURNAL_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_SERVICES: usize = 4;
const MAX_NAME_BYTES: usize = 256;
const MAX_LINES: i64 = 100_000;

/// What is asked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeQuery {
    services: Vec<String>,
    files: Vec<String>,
    since: Option<jiff::Timestamp>,
    until: Option<jiff::Timestamp>,
    tail: Option<i64>,
    pattern: String,
    boot: Option<i64>,
}

/// What is wrong with a field, as every part of Kubernetes says it.
fn invalid(field: &str, value: impl std::fmt::Display, why: &str) -> String {
    format!("{field}: Invalid value: {value}: {why}")
}

/// What is wrong with a pattern, without the drawing of where.
fn single_line_message(error: &regex_syntax::Error) -> String {
    match error {
        regex_syntax::Error::Parse(error) => error.kind().to_string(),
        regex_syntax::Error::Translate(error) => error.kind().to_string(),
        other => other.to_string().replace('\n', " "),
    }
}

/// A question that can't be answered: status and text.
pub(crate) type QueryError = (StatusCode, String);

impl NodeQuery {
    /// `None` when nothing of it is asked: then `/logs/` is a tree of files.
    pub fn parse(parameters: &Parameters) -> Result<Option<Self>, QueryError> {
        const NAMES: [&str; 6] = ["query", "sinceTime", "untilTime", "tailLines", "pattern", "boot"];
        if NAMES.iter().all(|name| parameters.first(name).is_none()) {
            return Ok(None);
        }
        let bad = |text: String| (StatusCode::BAD_REQUEST, text + "\n");
        let mut query = Self::default();
        for word in parameters.all("query") {
            match word.trim() {
                "" => return Err(bad(format!("query: Invalid value: {word:?}: may not be empty"))),
                file if file.contains(['/', '\\']) => query.files.push(file.to_owned()),
                service => query.services.push(service.to_owned()),
            }
        }
        let time = |name: &str| match parameters.first(name).filter(|text| !text.is_empty()) {
            None => Ok(None),
            Some(text) => text
                .parse()
                .map(Some)
                .map_err(|_| bad(format!("{name}: Invalid value: {text:?}: invalid time format"))),
        };
        let number = |name: &str| match parameters.first(name).filter(|text| !text.is_empty()) {
            None => Ok(None),
            Some(text) => text
                .parse()
                .map(Some)
                .map_err(|error| bad(format!("{name}: Invalid value: {text:?}: {error}"))),
        };
        (query.since, query.until) = (time("sinceTime")?, time("untilTime")?);
        (query.tail, query.boot) = (number("tailLines")?, number("boot")?);
        query.pattern = parameters.first("pattern").unwrap_or_default().to_owned();
        query.check().map_err(|text| (StatusCode::NOT_ACCEPTABLE, text + "\n"))?;
        Ok(Some(query))
    }

    fn has_options(&self) -> bool {
        self.since.is_some()
            || self.until.is_some()
            || self.tail.is_some()
            || self.boot.is_some()
            || !self.pattern.is_empty()
    }

    fn check(&self) -> Result<(), String> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:@".contains(&byte);
        let is_strange = |name: &&String| name.len() > MAX_NAME_BYTES || !name.bytes().all(allowed);
        if let Some(name) = self.services.iter().find(is_strange) {
            return Err(invalid("query", format!("{name:?}"), "input contains unsupported characters"));
        }
        let files = || serde_json::to_string(&self.files).unwrap_or_default();
        match (self.services.len(), self.files.len()) {
            (0, 0) => return Err("query: Required value: cannot be empty with options".into()),
            (1.., 1..) => {
                let both = format!("\"[{}], [{}]\"", self.files.join(" "), self.services.join(" "));
                return Err(invalid("query", both, "cannot specify a file and service"));
            }
            (_, 2..) => return Err(invalid("query", files(), "cannot specify more than one file")),
            (0, 1) if self.has_options() => {
                return Err(invalid("query", files(), "cannot specify file with options"));
            }
            (services, _) if services > MAX_SERVICES => {
                return Err(format!("query: Too many: {services}: must have at most {MAX_SERVICES} items"));
            }
            _ => {}
        }
        if let (Some(since), Some(until)) = (self.since, self.until)
            && until < since
        {
            return Err(invalid("untilTime", format!("\"{until}\""), "must be after `sinceTime`"));
        }
        if let Some(boot) = self.boot.filter(|boot| *boot > 0) {
            return Err(invalid("boot", boot, "must be less than 1"));
        }
        if let Some(lines) = self.tail.filter(|lines| !(0..=MAX_LINES).contains(lines)) {
            return Err(invalid("tailLines", lines, "must be between 0 and 100000, inclusive"));
        }
        if let Err(why) = regex_syntax::Parser::new().parse(&self.pattern) {
            let why = format!("error parsing regexp: {}", single_line_message(&why));
            return Err(invalid("pattern", format!("{:?}", self.pattern), &why));
        }
        Ok(())
    }

    /// What the journal is called with. Words are never read by a shell, and a unit's name can't be an option.
    fn journalctl_arguments(&self, services: &[String]) -> Vec<String> {
        let clock = |at: jiff::Timestamp| at.strftime("%Y-%-m-%-d %-H:%-M:%-S").to_string();
        let mut words: Vec<String> =
            ["--utc", "--no-pager", "--output=short-precise"].map(str::to_owned).into();
        words.extend(self.since.map(|at| format!("--since={}", clock(at))));
        words.extend(self.until.map(|at| format!("--until={}", clock(at))));
        words.extend(
            self.tail.iter().flat_map(|lines| ["--pager-end".to_owned(), format!("--lines={lines}")]),
        );
        words.extend(services.iter().map(|name| format!("--unit={name}")));
        if !self.pattern.is_empty() {
            words.push(format!("--grep={}", self.pattern));
        }
        words.extend(self.boot.iter().flat_map(|boot| ["--boot".to_owned(), boot.to_string()]));
        words
    }

    /// Files that a service may write instead of the journal, below the directory of logs.
    fn candidates(name: &str) -> [String; 3] {
        [name.to_owned(), format!("{name}.log"), format!("{name}/{name}.log")]
    }
}

/// `gzip`: the caller takes exactly that, and nothing else.
pub(super) async fn answer(api: &SecureApi, query: NodeQuery, gzip: bool) -> Response {
    if let Some(file) = query.files.first() {
        return log_file_response(api, file).await;
    }
    let answer = service_logs_response(api, query).await;
    if gzip && answer.status().is_success() { compressed(answer) } else { answer }
}

/// The journal of those that write to it, then the files of the others.
async fn service_logs_response(api: &SecureApi, query: NodeQuery) -> Response {
    let program = &api.settings.journal_program;
    let units = journal_units(program).await;
    let in_journal = |name: &String| units.lines().any(|unit| unit == format!("{name}.service"));
    let (native, files): (Vec<String>, Vec<String>) = query.services.iter().cloned().partition(in_journal);
    let mut bodies = Vec::new();
    if !native.is_empty() {
        let told = run_journalctl(program, &query.journalctl_arguments(&native), JOURNAL_TIMEOUT);
        bodies.push(told.unwrap_or_else(|error| Body::from(format!("\njournalctl: {error}\n"))));
    }
    if !files.is_empty() && query.has_options() {
        let names = files.join(" ");
        bodies.push(Body::from(format!(
            "\noptions present and query resolved to log files for [{names}]\ntry without specifying options\n"
        )));
    } else {
        for name in &files {
            let missing = || Body::from(format!("\nlog not found for {name}\n"));
            bodies.push(first_file(api, name).await.unwrap_or_else(missing));
        }
    }
    let pieces = futures::stream::iter(bodies).flat_map(Body::into_data_stream);
    text_answer(Body::from_stream(pieces))
}

async fn first_file(api: &SecureApi, name: &str) -> Option<Body> {
    for candidate in NodeQuery::candidates(name) {
        if let Some(body) = super::node_log_files::open_log_file(api, &candidate).await {
            return Some(body);
        }
    }
    None
}

async fn log_file_response(api: &SecureApi, file: &str) -> Response {
    match super::node_log_files::open_log_file(api, file.trim_start_matches('/')).await {
        Some(body) => text_answer(body),
        None => {
            let text = invalid("query", format!("[{file:?}]"), "no such file among the logs of the node");
            plain_text(StatusCode::NOT_ACCEPTABLE, text + "\n")
        }
    }
}

fn text_answer(body: Body) -> Response {
    ([(header::CONTENT_TYPE, "text/plain;charset=UTF-8")], body).into_response()
}

/// Packs the body as it comes, so that a long journal needs no more memory than a short one.
fn compressed(answer: Response) -> Response {
    let (mut head, body) = answer.into_parts();
    head.headers.insert(header::CONTENT_ENCODING, http::HeaderValue::from_static("gzip"));
    head.headers.remove(header::CONTENT_LENGTH);
    let packer = GzEncoder::new(Vec::new(), Compression::fast());
    let pieces = futures::stream::unfold(Some((body.into_data_stream(), packer)), pack);
    Response::from_parts(head, Body::from_stream(pieces))
}

type Packing = (axum::body::BodyDataStream, GzEncoder<Vec<u8>>);

async fn pack(state: Option<Packing>) -> Option<(Result<Vec<u8>, std::io::Error>, Option<Packing>)> {
    let (mut pieces, mut packer) = state?;
    let packed = match pieces.next().await {
        Some(Ok(piece)) => packer.write_all(&piece).and_then(|()| packer.flush()),
        Some(Err(error)) => Err(std::io::Error::other(error)),
        None => return Some((packer.finish(), None)),
    };
    match packed {
        Ok(()) => Some((Ok(std::mem::take(packer.get_mut())), Some((pieces, packer)))),
        Err(error) => Some((Err(error), None)),
    }
}

/// The units that the journal knows, one in a line. Where there is no journal it knows none.
async fn journal_units(program: &Path) -> String {
    let asked = Command::new(program).args(["--field", "_SYSTEMD_UNIT"]).kill_on_drop(true).output();
    let Ok(Ok(output)) = tokio::time::timeout(JOURNAL_TIMEOUT, asked).await else { return String::new() };
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What it says, and what it complains about, in its order. The program ends when the client goes, and after `patience`
/// whether or not anybody has read what it says.
fn run_journalctl(program: &Path, words: &[String], patience: Duration) -> io::Result<Body> {
    let (said, says) = io::pipe()?;
    let mut child = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .stdout(says.try_clone()?)
        .stderr(says)
        .kill_on_drop(true)
        .spawn()?;
    let said = pipe::Receiver::from_owned_fd(said.into())?;
    let (read, gone) = tokio::sync::oneshot::channel::<Infallible>();
    // A task of its own: a body that nobody reads is not polled, and would not notice that the time is over.
    tokio::spawn(async move {
        tokio::select! {
            _ = child.wait() => return,
            () = tokio::time::sleep(patience) => {}
            _ = gone => {}
        }
        // Fails only when it has ended by itself.
        let _ = child.kill().await;
    });
    let lines = ReaderStream::new(said).map(move |piece| {
        let _held = &read;
        piece
    });
    Ok(Body::from_stream(lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &str) -> Result<Option<NodeQuery>, (u16, String)> {
        let uri = format!("/logs/?{query}").parse().unwrap();
        NodeQuery::parse(&Parameters::of(&uri)).map_err(|(status, text)| (status.as_u16(), text))
    }

    #[test]
    fn questions_become_words_of_the_journal() {
        let check = |query: &str, expect: &str| {
            let query = parse(query).unwrap().unwrap();
            let words = query.journalctl_arguments(&query.services);
            assert_eq!(words[3..].join("|"), expect, "{query:?}");
        };
        check("query=kubelet", "--unit=kubelet");
        check("query=a&query=b@1", "--unit=a|--unit=b@1");
        check("query=a&tailLines=5&boot=-1", "--pager-end|--lines=5|--unit=a|--boot|-1");
        check(
            "query=a&sinceTime=2024-01-02T03:04:05Z&pattern=x+y",
            "--since=2024-1-2 3:4:5|--unit=a|--grep=x y",
        );
        assert_eq!(parse("other=1"), Ok(None));
        assert_eq!(parse(""), Ok(None));
    }

    #[tokio::test]
    async fn a_packed_answer_is_the_same_answer() {
        let text: String = (0..10_000).map(|number| format!("line {number}\n")).collect();
        let pieces: Vec<Result<Vec<u8>, std::io::Error>> =
            text.as_bytes().chunks(1000).map(|piece| Ok(piece.to_vec())).collect();
        let answer = compressed(text_answer(Body::from_stream(futures::stream::iter(pieces))));
        assert_eq!(answer.headers()[header::CONTENT_ENCODING], "gzip");
        assert_eq!(answer.headers()[header::CONTENT_TYPE], "text/plain;charset=UTF-8");
        let packed = http_body_util::BodyExt::collect(answer.into_body()).await.unwrap().to_bytes();
        assert!(packed.len() < text.len() / 2);
        let mut unpacked = String::new();
        std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&packed[..]), &mut unpacked).unwrap();
        assert!(unpacked == text);
    }

    /// Its output fills the pipe, and the client does not read: it must not stay for as long as the connection does.
    #[tokio::test]
    async fn a_journal_that_nobody_reads_ends_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let pid = dir.path().join("pid");
        let script = format!("echo $$ > {0}.new; mv {0}.new {0}; exec yes", pid.display());
        let words = ["-c".to_owned(), script];
        let body = run_journalctl(Path::new("/bin/sh"), &words, Duration::from_millis(200)).unwrap();
        let process = loop {
            match std::fs::read_to_string(&pid) {
                Ok(number) => break format!("/proc/{}", number.trim()),
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        let ended = async {
            while Path::new(&process).exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), ended).await.expect("the program has ended");
        let rest = http_body_util::BodyExt::collect(body).await.unwrap().to_bytes();
        assert!(rest.starts_with(b"y\ny\n"), "what was said before can still be read");
    }

    #[test]
    fn questions_that_are_refused() {
        for (query, status, text) in [
            ("query=", 400, "may not be empty"),
            ("query=a&sinceTime=x", 400, "invalid time format"),
            ("query=a&tailLines=x", 400, "tailLines"),
            ("tailLines=3", 406, "query: Required value: cannot be empty with options\n"),
            ("query=a&query=b/c", 406, "cannot specify a file and service"),
            (
                "query=a/b&query=b/c",
                406,
                "query: Invalid value: [\"a/b\",\"b/c\"]: cannot specify more than one file\n",
            ),
            ("query=a/b&tailLines=1", 406, "cannot specify file with options"),
            ("query=a&query=b&query=c&query=d&query=e", 406, "query: Too many: 5: must have at most 4 items"),
            ("query=a;b", 406, "unsupported characters"),
            ("query=a%60id%60", 406, "unsupported characters"),
            ("query=a&boot=1", 406, "boot: Invalid value: 1: must be less than 1\n"),
            ("query=a&tailLines=100001", 406, "between 0 and 100000"),
            (
                "query=a&pattern=(b",
                406,
                "pattern: Invalid value: \"(b\": error parsing regexp: unclosed group\n",
            ),
            ("query=a&pattern=%5B", 406, "error parsing regexp: unclosed character class\n"),
            (
                "query=a&sinceTime=2024-01-02T00:00:00Z&untilTime=2024-01-01T00:00:00Z",
                406,
                "must be after `sinceTime`",
            ),
        ] {
            let found = parse(query).unwrap_err();
            assert!(found.0 == status && found.1.contains(text), "{query}: {found:?}");
        }
    }
}
