//! What is written of what is logged.

use std::sync::mpsc::{Sender, channel};

use super::*;
use crate::config::VmoduleItem;

/// Sends what is written to it.
#[derive(Clone)]
struct Pipe(Sender<Vec<u8>>);

impl io::Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(bytes.to_vec()).map_err(io::Error::other)?;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn environment(directives: Option<&str>) -> LogEnvironment<'_> {
    LogEnvironment { directives, is_journal: false, pid: 42, zone: TimeZone::UTC }
}

/// What `work` logs.
fn logged_in(config: &Logging, environment: LogEnvironment<'_>, work: impl FnOnce(&LogHandle)) -> String {
    let (sender, lines) = channel();
    let pipe = Pipe(sender);
    let (subscriber, handle) = build(config, environment, move || pipe.clone()).unwrap();
    tracing::subscriber::with_default(subscriber, || work(&handle));
    String::from_utf8(lines.try_iter().flatten().collect()).unwrap()
}

fn config(format: &str, verbosity: u32) -> Logging {
    Logging { format: format.into(), verbosity, ..Logging::default() }
}

fn logged(format: &str, verbosity: u32, directives: Option<&str>, work: impl FnOnce(&LogHandle)) -> String {
    logged_in(&config(format, verbosity), environment(directives), work)
}

/// `Lmmdd hh:mm:ss.uuuuuu pid file:line] message`
#[test]
fn text_has_klogs_header() {
    let text = logged("text", 0, None, |_| {
        tracing::info!(
            pod = "default/web-vm",
            container = "a\"b",
            attempt = 2,
            ok = true,
            "container started"
        );
        tracing::warn!("two\nlines");
        tracing::error!(error = %io::Error::other("broken"), "failed");
    });
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    let (header, rest) = lines[0].split_once("] ").unwrap();
    assert_eq!(rest, r#"container started pod="default/web-vm" container="a\"b" attempt=2 ok=true"#);
    let words: Vec<&str> = header.split_whitespace().collect();
    assert_eq!((words.len(), words[0].len(), words[1].len(), words[2]), (4, 5, 15, "42"), "{header}");
    assert!(words[0].starts_with('I') && words[0][1..].parse::<u32>().is_ok(), "{header}");
    assert!(words[1].as_bytes()[8] == b'.' && words[3].starts_with("tests.rs:"), "{header}");
    assert_eq!(header.find(" tests.rs"), Some(29), "the pid has its column: {header}");
    assert!(lines[1].starts_with('W') && lines[1].ends_with(r"] two\nlines"), "{text}");
    assert!(lines[2].starts_with('E') && lines[2].ends_with(r#"] failed error="broken""#), "{text}");
}

#[test]
fn json_has_the_keys_of_kubernetes() {
    let text = logged("json", 6, None, |_| {
        tracing::info!(pod = "default/web-vm", attempt = 2, "container \"app\"\nended");
        tracing::error!(error = %io::Error::other("broken"), "failed");
        tracing::warn!("careful");
        tracing::debug!("more");
    });
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 4);
    assert_eq!((&lines[0]["msg"], &lines[0]["v"]), (&"container \"app\"\nended".into(), &0.into()));
    assert_eq!((&lines[0]["pod"], &lines[0]["attempt"]), (&"default/web-vm".into(), &2.into()));
    assert!(lines[0]["caller"].as_str().unwrap().starts_with("logging/tests.rs:"), "{text}");
    // Milliseconds since 1970, in this century.
    assert!((1e12..4e12).contains(&lines[0]["ts"].as_f64().unwrap()), "{text}");
    assert_eq!((&lines[1]["err"], lines[1].get("v")), (&"broken".into(), None), "{text}");
    assert_eq!((&lines[2]["level"], &lines[2]["v"]), (&"warn".into(), &0.into()));
    assert_eq!(lines[3]["v"], 4);
}

#[test]
fn lines_of_the_journal_begin_with_their_priority() {
    for format in ["text", "json"] {
        let around = LogEnvironment { is_journal: true, ..environment(None) };
        let text = logged_in(&config(format, 6), around, |_| {
            tracing::error!("a");
            tracing::warn!("b");
            tracing::info!("c");
            tracing::debug!("d");
            tracing::trace!("e");
        });
        let begins: Vec<&str> = text.lines().map(|line| &line[..3]).collect();
        assert_eq!(begins, ["<3>", "<4>", "<6>", "<7>", "<7>"], "{text}");
    }
}

#[test]
fn the_journal_is_known_by_device_and_inode() {
    let file = tempfile::tempfile().unwrap();
    let stat = rustix::fs::fstat(&file).unwrap();
    let told = format!("{}:{}", stat.st_dev, stat.st_ino);
    assert!(is_journal(Some(&told), &file));
    assert!(!is_journal(Some(&format!("{told}1")), &file));
    assert!(!is_journal(Some(&told), tempfile::tempfile().unwrap()));
    assert!(!is_journal(None, &file));
}

#[test]
fn errors_alone_go_to_standard_error_when_streams_are_split() {
    let standard = |split: bool, level: Level| {
        let about = match level {
            Level::ERROR => tracing::error_span!("x").metadata().unwrap(),
            _ => tracing::info_span!("x").metadata().unwrap(),
        };
        matches!(LogWriters { split }.make_writer_for(about), LogWriter::Standard(_))
    };
    let (subscriber, _) = build(&config("text", 0), environment(None), io::sink).unwrap();
    tracing::subscriber::with_default(subscriber, || {
        assert!(standard(true, Level::INFO) && !standard(true, Level::ERROR));
        assert!(!standard(false, Level::INFO) && !standard(false, Level::ERROR));
    });
}

#[test]
fn verbosity_decides_how_much_is_said() {
    let said = |verbosity, variable: Option<&str>| {
        let text = logged("text", verbosity, variable, |_| {
            tracing::trace!("our-trace");
            tracing::debug!("our-debug");
            tracing::info!("our-info");
            tracing::info!(target: "h2::codec", "their-info");
            tracing::warn!(target: "h2::codec", "their-warning");
        });
        text.lines().map(|line| line.split_whitespace().last().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let quiet = vec!["our-info", "their-warning"];
    assert_eq!(said(0, None), quiet);
    assert_eq!(said(3, None), quiet);
    assert_eq!(said(4, None), ["our-debug", "our-info", "their-warning"]);
    assert_eq!(said(6, None), ["our-trace", "our-debug", "our-info", "their-warning"]);
    assert_eq!(said(9, Some("error,h2=info")), ["their-info", "their-warning"]);
}

#[test]
fn a_file_may_have_a_verbosity_of_its_own() {
    let said = |pattern: &str, verbosity: u32| {
        let item = VmoduleItem { file_pattern: pattern.into(), verbosity };
        let config = Logging { vmodule: vec![item], ..config("text", 0) };
        logged_in(&config, environment(None), |_| tracing::debug!("more"))
    };
    assert!(said("tests", 4).ends_with("more\n"));
    assert!(said("*/logging/*", 4).ends_with("more\n"));
    assert_eq!(said("tests", 3), "");
    assert_eq!(said("engine", 9), "");
}

#[test]
fn verbosity_can_change_while_running_unless_the_environment_rules() {
    let work = |handle: &LogHandle| {
        tracing::debug!("before");
        handle.set_verbosity(4);
        tracing::debug!("after");
    };
    assert!(logged("text", 0, None, work).ends_with("after\n"));
    assert_eq!(logged("text", 0, Some("warn"), work), "");
}

#[test]
fn wrong_settings_are_refused() {
    let refusal = |format, variable| {
        build(&config(format, 0), environment(variable), io::sink).map(|_| ()).unwrap_err().to_string()
    };
    assert_eq!(refusal("xml", None), "there is no log format \"xml\", only text and json");
    assert_eq!(refusal("text", Some("a=b=c")), "RUBELET_LOG cannot be \"a=b=c\"");
}

#[test]
fn a_line_is_bounded() {
    for format in ["text", "json"] {
        let text = logged(format, 0, None, |_| {
            let long = "x".repeat(10 << 20);
            tracing::error!(name = long, error = %io::Error::other(long.clone()), other = ?long, "bad: {long}");
        });
        assert!(text.lines().count() == 1 && text.contains("bad: xxx"), "{format}");
        assert!(text.len() < 80 << 10, "{format}: {} bytes", text.len());
    }
}
