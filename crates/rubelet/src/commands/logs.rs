//! `logs`: the log of a container, read from the node's disk. The agent only tells where it is.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt;
use host::logs::{LogOptions, stream};
use model::Wall;
use model::report::{ContainerView, PodReport};

use super::client::Client;
use super::find::find_pods;
use super::options::{CommandArguments, CommandOption, UsageError};
use super::show::listed;
use super::{CommandError, OutputWriter, now};
use crate::config::GoDuration;

pub const ABOUT: &str = "Prints the log of a container of a pod.";
pub const USAGE: &str = "  rubelet logs <pod> [options]\n\nA pod is name, namespace/name or a UID; a static pod can be named without the node name at its end.";
pub const OPTIONS: &[CommandOption] = &[
    CommandOption {
        name: "container",
        letter: Some('c'),
        value: Some("NAME"),
        about: "which container; needed when there are several",
    },
    CommandOption {
        name: "follow",
        letter: Some('f'),
        value: None,
        about: "follow the log until the container ends",
    },
    CommandOption {
        name: "previous",
        letter: Some('p'),
        value: None,
        about: "the instance of the container before this one",
    },
    CommandOption {
        name: "tail",
        letter: None,
        value: Some("LINES"),
        about: "begin with this many lines from the end",
    },
    CommandOption { name: "timestamps", letter: None, value: None, about: "print the time of every line" },
    CommandOption {
        name: "since",
        letter: None,
        value: Some("TIME"),
        about: "leave out lines that are older than this, such as 10m",
    },
];

/// How often a follower asks whether the container still runs.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

#[derive(thiserror::Error, Debug)]
pub enum LogsError {
    #[error("pod {pod} has several containers, choose one with -c: {}", listed(names))]
    Choose { pod: String, names: Vec<String> },
    #[error("pod {pod} has no container {wanted}, only {}", listed(names))]
    NoContainer { pod: String, wanted: String, names: Vec<String> },
    #[error("pod {pod} has no containers")]
    Empty { pod: String },
    #[error("container {container} of pod {pod} has no log: it has not started yet; see rubelet why {pod}")]
    NotStarted { pod: String, container: String },
    #[error("container {container} of pod {pod} has no previous instance")]
    NoPrevious { pod: String, container: String },
    #[error("cannot read the log {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

pub async fn run(
    client: &Client,
    given: &CommandArguments,
    out: OutputWriter<'_>,
) -> Result<(), CommandError> {
    let [wanted] = given.words.as_slice() else {
        return Err(UsageError::Arguments("name exactly one pod".into()).into());
    };
    let options = log_options(given, now())?;
    let pods = client.pods().await?;
    let found = find_pods(&pods, &client.node().await?.name, wanted, given.value("namespace"))?;
    let Some(pod) = newest(&found) else { return Ok(()) };
    let container = choose_container(pod, given.value("container"))?;
    let path = container_log_path(pod, container, given.has("previous"))?;

    let logs_dir = Path::new(&pod.log_dir).parent().unwrap_or(Path::new("/")).to_owned();
    let ended = wait_until_ended(client.clone(), pod.uid.clone(), container.name.clone(), path.clone());
    let mut pieces = stream(logs_dir, &path, options, ended);
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|source| LogsError::Read { path: path.clone(), source })?;
        out.write_all(&piece).and_then(|()| out.flush()).map_err(CommandError::Output)?;
    }
    Ok(())
}

fn log_options(given: &CommandArguments, now: Wall) -> Result<LogOptions, UsageError> {
    let bad = |name: &'static str, value: &str, expected: &str| UsageError::BadValue {
        name,
        value: value.to_owned(),
        expected: expected.to_owned(),
    };
    let tail_lines = match given.value("tail") {
        // As with kubectl, -1 is all of it.
        None | Some("-1") => None,
        Some(text) => Some(text.parse().map_err(|_| bad("tail", text, "expected a number of lines"))?),
    };
    let since = match given.value("since") {
        None => None,
        Some(text) => {
            let back: GoDuration =
                text.parse().map_err(|_| bad("since", text, "expected a time such as 30s, 10m or 1h30m"))?;
            let back = i64::try_from(back.to_std().as_nanos()).unwrap_or(i64::MAX);
            Some(Wall(now.0.saturating_sub(back)))
        }
    };
    // An instance that has ended says no more.
    let follow = given.has("follow") && !given.has("previous");
    let timestamps = given.has("timestamps");
    Ok(LogOptions { follow, tail_lines, since, timestamps, ..LogOptions::default() })
}

/// Of pods of one name, the one that stays.
fn newest<'a>(pods: &[&'a PodReport]) -> Option<&'a PodReport> {
    let staying = pods.iter().rev().find(|pod| pod.status != "Terminating");
    staying.or(pods.last()).copied()
}

fn choose_container<'a>(pod: &'a PodReport, wanted: Option<&str>) -> Result<&'a ContainerView, LogsError> {
    let name = || format!("{}/{}", pod.namespace, pod.name);
    let names = || pod.containers.iter().map(|container| container.name.clone()).collect();
    let regular: Vec<_> = pod.containers.iter().filter(|c| !c.init).collect();
    match (wanted, regular.as_slice()) {
        (_, []) => Err(LogsError::Empty { pod: name() }),
        (None, [only]) => Ok(only),
        (None, _) => Err(LogsError::Choose { pod: name(), names: names() }),
        (Some(wanted), _) => {
            let found = pod.containers.iter().find(|container| container.name == wanted);
            found.ok_or_else(|| LogsError::NoContainer { pod: name(), wanted: wanted.into(), names: names() })
        }
    }
}

fn container_log_path(
    pod: &PodReport,
    container: &ContainerView,
    previous: bool,
) -> Result<PathBuf, LogsError> {
    let (pod, name) = (format!("{}/{}", pod.namespace, pod.name), container.name.clone());
    let path = if previous { &container.previous_log_path } else { &container.log_path };
    match (path, previous) {
        (Some(path), _) => Ok(path.into()),
        (None, true) => Err(LogsError::NoPrevious { pod, container: name }),
        (None, false) => Err(LogsError::NotStarted { pod, container: name }),
    }
}

/// Waits until the instance that writes this log has ended. An agent that is away tells nothing: it may be
/// restarting, and the container goes on meanwhile.
async fn wait_until_ended(client: Client, uid: String, container: String, log: PathBuf) {
    loop {
        if let Ok(pods) = client.pods().await
            && !is_writing_log(&pods, &uid, &container, &log)
        {
            return;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn is_writing_log(pods: &[PodReport], uid: &str, container: &str, log: &Path) -> bool {
    let pod = pods.iter().find(|pod| pod.uid == uid);
    let view = pod.and_then(|pod| pod.containers.iter().find(|view| view.name == container));
    view.is_some_and(|view| {
        view.running && view.log_path.as_deref().is_some_and(|path| Path::new(path) == log)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::find::tests::pod;
    use crate::commands::options::parse;

    fn view(name: &str, log: Option<&str>, previous: Option<&str>) -> ContainerView {
        ContainerView {
            name: name.into(),
            ready: true,
            restarts: 0,
            log_path: log.map(Into::into),
            previous_log_path: previous.map(Into::into),
            running: true,
            init: false,
        }
    }

    fn with(containers: Vec<ContainerView>) -> PodReport {
        PodReport { containers, ..pod("default", "web-vm", "u1") }
    }

    #[test]
    fn the_container_is_the_only_one_or_the_named_one() {
        let one = with(vec![view("app", None, None)]);
        let two = with(vec![view("app", None, None), view("side", None, None)]);
        let check = |pod: &PodReport, wanted: Option<&str>, expect: Result<&str, &str>| {
            let found = choose_container(pod, wanted)
                .map(|view| view.name.clone())
                .map_err(|error| error.to_string());
            assert_eq!(found.as_deref().map_err(String::as_str), expect);
        };
        check(&one, None, Ok("app"));
        check(&two, Some("side"), Ok("side"));
        check(&two, None, Err("pod default/web-vm has several containers, choose one with -c: app and side"));
        check(&two, Some("x"), Err("pod default/web-vm has no container x, only app and side"));
        check(&with(vec![]), None, Err("pod default/web-vm has no containers"));
    }

    #[test]
    fn the_log_is_this_instances_or_the_one_before() {
        let both = view("app", Some("/l/1.log"), Some("/l/0.log"));
        let pod = with(vec![]);
        assert_eq!(container_log_path(&pod, &both, false).unwrap(), Path::new("/l/1.log"));
        assert_eq!(container_log_path(&pod, &both, true).unwrap(), Path::new("/l/0.log"));
        let none = view("app", None, None);
        let error = container_log_path(&pod, &none, true).unwrap_err().to_string();
        assert_eq!(error, "container app of pod default/web-vm has no previous instance");
        let error = container_log_path(&pod, &none, false).unwrap_err().to_string();
        assert!(error.contains("it has not started yet; see rubelet why default/web-vm"), "{error}");
    }

    #[test]
    fn of_two_pods_of_a_name_the_staying_one_is_read() {
        let mut going = pod("default", "web-vm", "u1");
        going.status = "Terminating".into();
        let staying = pod("default", "web-vm", "u2");
        assert_eq!(newest(&[&going, &staying]).unwrap().uid, "u2");
        assert_eq!(newest(&[&staying, &going]).unwrap().uid, "u2");
        assert_eq!(newest(&[&going]).unwrap().uid, "u1");
    }

    #[test]
    fn options_are_those_of_the_words() {
        const SECOND: i64 = 1_000_000_000;
        let read = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            log_options(&parse(&words, OPTIONS).unwrap(), Wall(1000 * SECOND)).map_err(|e| e.to_string())
        };
        assert_eq!(read("web"), Ok(LogOptions::default()));
        let expect = LogOptions {
            follow: true,
            tail_lines: Some(5),
            since: Some(Wall(400 * SECOND)),
            timestamps: true,
            ..LogOptions::default()
        };
        assert_eq!(read("web -f --tail 5 --timestamps --since 10m"), Ok(expect));
        assert_eq!(read("web --tail -1").unwrap().tail_lines, None);
        assert!(!read("web -fp").unwrap().follow);
        let wrong = read("web --tail many").unwrap_err();
        assert_eq!(wrong, r#"option --tail cannot be "many": expected a number of lines"#);
        assert!(read("web --since yesterday").unwrap_err().contains("such as 30s, 10m or 1h30m"));
    }

    #[test]
    fn an_instance_writes_while_it_runs_and_is_the_newest() {
        let log = Path::new("/l/1.log");
        let pods = |view: ContainerView| vec![with(vec![view])];
        let running = view("app", Some("/l/1.log"), None);
        assert!(is_writing_log(&pods(running.clone()), "u1", "app", log));
        assert!(!is_writing_log(&pods(running.clone()), "u2", "app", log), "another pod of the name");
        assert!(
            !is_writing_log(&pods(running.clone()), "u1", "app", Path::new("/l/0.log")),
            "a newer instance"
        );
        assert!(!is_writing_log(&pods(ContainerView { running: false, ..running }), "u1", "app", log));
        assert!(!is_writing_log(&[], "u1", "app", log));
    }
}
