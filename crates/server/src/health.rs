//! Health checks by name, with the kubelet's texts for their results.

use std::fmt::Write;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use http::{StatusCode, header};
use model::report::WatchReport;
use ports::AgentView;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::log_rate_limit::LogRateLimiter;
use crate::metrics::AgentMetrics;

/// Why a check failed.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
#[error("{0}")]
pub struct CheckFailure(pub String);

#[async_trait]
pub trait HealthCheck: Send + Sync {
    async fn check(&self) -> Result<(), CheckFailure>;
}

/// The outcome of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckResult {
    pub name: &'static str,
    pub outcome: Result<(), CheckFailure>,
}

/// The checks of `/healthz`, which are also those that a watchdog wants to pass.
pub struct HealthChecks {
    agent: Arc<dyn AgentView>,
    timeout: Duration,
    checks: Vec<(&'static str, Box<dyn HealthCheck>)>,
    /// Limits log lines about failures, because every client may cause them.
    failures: LogRateLimiter,
}

impl HealthChecks {
    /// `ping`: the process serves at all. `log`: its log can be written. `syncloop`: the agent answers.
    pub fn of_agent(agent: Arc<dyn AgentView>, patience: Duration) -> Self {
        let checks = Self {
            agent: agent.clone(),
            timeout: patience,
            checks: Vec::new(),
            failures: LogRateLimiter::default(),
        };
        checks
            .with("ping", PingCheck)
            .with("log", LogCheck::default())
            .with("syncloop", SyncLoopCheck { agent, timeout: patience })
    }

    /// Adds a check of another part.
    pub fn with(mut self, name: &'static str, check: impl HealthCheck + 'static) -> Self {
        self.checks.push((name, Box::new(check)));
        self
    }

    /// Makes all checks, in their order.
    pub async fn run(&self) -> Vec<CheckResult> {
        self.run_without(&[]).await
    }

    async fn run_without(&self, excluded: &[String]) -> Vec<CheckResult> {
        let mut verdicts = Vec::new();
        for (name, check) in &self.checks {
            if !excluded.iter().any(|other| other == name) {
                verdicts.push(CheckResult { name, outcome: check.check().await });
            }
        }
        verdicts
    }

    /// A line for each watch of the API server's objects. They do not fail the check: pods go on without the watch,
    /// and a restart of the agent would not help it.
    async fn watches(&self) -> Vec<String> {
        let node = tokio::time::timeout(self.timeout, self.agent.node_report()).await.ok().flatten();
        node.map(|node| node.watches.iter().map(watch_line).collect()).unwrap_or_default()
    }

    fn names(&self) -> impl Iterator<Item = &'static str> {
        self.checks.iter().map(|(name, _)| *name)
    }
}

struct PingCheck;

#[async_trait]
impl HealthCheck for PingCheck {
    async fn check(&self) -> Result<(), CheckFailure> {
        Ok(())
    }
}

/// Fails when standard error is a pipe that has been full for [`LOG_TIMEOUT`]: every write of the log blocks then.
#[derive(Default)]
struct LogCheck {
    full_since: Mutex<Option<Instant>>,
}

/// Longest part of a watch's problem that is shown.
const MAX_PROBLEM_CHARS: usize = 512;

/// How long the log may be blocked.
const LOG_TIMEOUT: Duration = Duration::from_secs(120);

#[async_trait]
impl HealthCheck for LogCheck {
    async fn check(&self) -> Result<(), CheckFailure> {
        let is_taken = is_writable(&std::io::stderr());
        let mut full_since = self.full_since.lock().await;
        if is_taken {
            *full_since = None;
            return Ok(());
        }
        match full_since.get_or_insert_with(Instant::now).elapsed() {
            waited if waited > LOG_TIMEOUT => Err(CheckFailure("logging blocked".into())),
            _ => Ok(()),
        }
    }
}

/// Whether a write would not block now. A regular file is always writable.
fn is_writable(output: &impl AsFd) -> bool {
    let mut asked = [PollFd::new(output, PollFlags::OUT)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    !matches!(poll(&mut asked, Some(&at_once)), Ok(0))
}

struct SyncLoopCheck {
    agent: Arc<dyn AgentView>,
    timeout: Duration,
}

#[async_trait]
impl HealthCheck for SyncLoopCheck {
    async fn check(&self) -> Result<(), CheckFailure> {
        match tokio::time::timeout(self.timeout, self.agent.node_report()).await {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(CheckFailure("the agent has ended".into())),
            Err(_) => Err(CheckFailure("sync Loop took longer than expected".into())),
        }
    }
}

/// `/healthz` and `/healthz/<check>`. Any method will do, as with the kubelet.
pub(crate) fn routes(checks: Arc<HealthChecks>, metrics: Arc<AgentMetrics>) -> Router {
    let asked = HealthzState { checks, metrics };
    Router::new()
        .route("/healthz", any(run_all_checks))
        .route("/healthz/{check}", any(run_one_check))
        .with_state(asked)
}

#[derive(Clone)]
struct HealthzState {
    checks: Arc<HealthChecks>,
    metrics: Arc<AgentMetrics>,
}

async fn run_all_checks(
    State(HealthzState { checks, metrics }): State<HealthzState>,
    Query(query): Query<Vec<(String, String)>>,
) -> Response {
    let verbose = query.iter().any(|(key, _)| key == "verbose");
    let excluded: Vec<String> =
        query.into_iter().filter(|(key, _)| key == "exclude").map(|(_, value)| value).collect();
    let verdicts = checks.run_without(&excluded).await;
    metrics.health.observe(&verdicts);
    for verdict in &verdicts {
        if let Err(reason) = &verdict.outcome
            && let Some(suppressed) = checks.failures.permit()
        {
            tracing::warn!(check = verdict.name, %reason, suppressed, "health check failed");
        }
    }
    let names: Vec<_> = checks.names().collect();
    let watches = if verbose { checks.watches().await } else { Vec::new() };
    let (healthy, text) = summary(&names, &excluded, &verdicts, &watches);
    match (healthy, verbose) {
        (true, false) => plain(StatusCode::OK, "ok".into()),
        (true, true) => plain(StatusCode::OK, text),
        (false, _) => plain(StatusCode::INTERNAL_SERVER_ERROR, text),
    }
}

async fn run_one_check(
    State(HealthzState { checks, .. }): State<HealthzState>,
    Path(name): Path<String>,
) -> Response {
    let Some((_, check)) = checks.checks.iter().find(|(known, _)| *known == name) else {
        return plain(StatusCode::NOT_FOUND, "404 page not found\n".into());
    };
    match check.check().await {
        Ok(()) => plain(StatusCode::OK, "ok".into()),
        Err(reason) => plain(StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {reason}\n")),
    }
}

fn watch_line(watch: &WatchReport) -> String {
    let mut line = format!("[i]watch {} last event {:.0}s ago", watch.name(), watch.last_word_secs);
    if !watch.problem.is_empty() {
        let _ = write!(line, ", problem: {}", on_one_line(&watch.problem));
    }
    if !watch.unreadable.is_empty() {
        let _ = write!(line, ", {} objects can't be read", watch.unreadable.len());
    }
    line
}

/// A text of the API server, or of whatever answers in its place, on one line and with a limited length.
fn on_one_line(words: &str) -> String {
    words.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_PROBLEM_CHARS).collect()
}

/// Whether all checks passed, and the long text. Reasons are only logged: callers of this endpoint may not see them.
fn summary(
    names: &[&str],
    excluded: &[String],
    verdicts: &[CheckResult],
    watches: &[String],
) -> (bool, String) {
    let mut text = String::new();
    for name in names {
        // Writing to a String cannot fail.
        let _ = match verdicts.iter().find(|verdict| verdict.name == *name).map(|verdict| &verdict.outcome) {
            Some(Ok(())) => writeln!(text, "[+]{name} ok"),
            Some(Err(_)) => writeln!(text, "[-]{name} failed: reason withheld"),
            None => writeln!(text, "[+]{name} excluded: ok"),
        };
    }
    for watch in watches {
        let _ = writeln!(text, "{watch}");
    }
    let strange: Vec<_> = excluded
        .iter()
        .filter(|name| !names.contains(&name.as_str()))
        .map(|name| format!("{name:?}"))
        .collect();
    if !strange.is_empty() {
        let strange = strange.join(", ");
        let _ = writeln!(text, "warn: some health checks cannot be excluded: no matches for {strange}");
    }
    let healthy = verdicts.iter().all(|verdict| verdict.outcome.is_ok());
    let _ = writeln!(text, "healthz check {}", if healthy { "passed" } else { "failed" });
    (healthy, text)
}

pub(crate) fn plain(status: StatusCode, body: String) -> Response {
    let headers =
        [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (status, headers, body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_pipe_takes_no_more() {
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        assert!(is_writable(&writer));
        rustix::fs::fcntl_setfl(&writer, rustix::fs::OFlags::NONBLOCK).unwrap();
        while std::io::Write::write(&mut writer, &[0; 4096]).is_ok() {}
        assert!(!is_writable(&writer));
        let mut room = vec![0; 1 << 16];
        std::io::Read::read_exact(&mut reader, &mut room).unwrap();
        assert!(is_writable(&writer));
    }

    #[test]
    fn watches_are_told_with_their_age_and_what_holds_them() {
        let watch = |object: &str, problem: &str, unreadable: &[&str]| WatchReport {
            resource: "services".into(),
            object: object.into(),
            last_word_secs: 7.4,
            problem: problem.into(),
            has_bookmarks: false,
            unreadable: unreadable.iter().map(ToString::to_string).collect(),
        };
        let check = |watch: WatchReport, expect: &str| assert_eq!(watch_line(&watch), expect);
        check(watch("", "", &[]), "[i]watch services last event 7s ago");
        check(
            watch("a/b", "list services:\nno", &[]),
            "[i]watch services a/b last event 7s ago, problem: list services: no",
        );
        check(watch("", "", &["x"]), "[i]watch services last event 7s ago, 1 objects can't be read");
        let lines = [watch_line(&watch("", "", &[]))];
        let (healthy, text) =
            summary(&["ping"], &[], &[CheckResult { name: "ping", outcome: Ok(()) }], &lines);
        assert!(healthy);
        assert_eq!(text, "[+]ping ok\n[i]watch services last event 7s ago\nhealthz check passed\n");
    }

    #[test]
    fn summaries_say_which_check_failed_but_not_why() {
        let verdict = |name, failed: bool| CheckResult {
            name,
            outcome: if failed { Err(CheckFailure("a secret".into())) } else { Ok(()) },
        };
        let check = |excluded: &[&str], verdicts: &[CheckResult], expect: (bool, &str)| {
            let excluded: Vec<String> = excluded.iter().map(ToString::to_string).collect();
            let (healthy, text) = summary(&["ping", "syncloop"], &excluded, verdicts, &[]);
            assert_eq!((healthy, text.as_str()), expect);
        };
        check(
            &[],
            &[verdict("ping", false), verdict("syncloop", false)],
            (true, "[+]ping ok\n[+]syncloop ok\nhealthz check passed\n"),
        );
        check(
            &[],
            &[verdict("ping", false), verdict("syncloop", true)],
            (false, "[+]ping ok\n[-]syncloop failed: reason withheld\nhealthz check failed\n"),
        );
        check(
            &["syncloop", "moon"],
            &[verdict("ping", false)],
            (
                true,
                "[+]ping ok\n[+]syncloop excluded: ok\nwarn: some health checks cannot be excluded: no matches for \"moon\"\nhealthz check passed\n",
            ),
        );
    }
}
