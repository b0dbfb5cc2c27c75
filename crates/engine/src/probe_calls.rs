//! Runs probes: one task per attempt, no task in between. Also stores the probe records.

use std::collections::BTreeMap;
use std::time::Duration;

use decide::Event;
use decide::back_off::go_duration;
use futures::FutureExt;
use model::cri::ExecResult;
use model::probe::{ProbeCall, ProbeCheck, ProbeKind, ProbeOutcome, ProbeRecord};
use model::text_limits::{TextLimit, truncate_output, truncate_text};
use model::{ContainerId, PodUid};
use ports::RuntimeError;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::context::EngineContext;

/// The runtime enforces the timeout of a command. If it does not, we wait this much longer.
const RUNTIME_SLACK: Duration = Duration::from_secs(1);
/// How long we wait for the disk.
const LOAD_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct ProbeAttempt {
    pub uid: PodUid,
    pub container: String,
    pub kind: ProbeKind,
    pub id: ContainerId,
    pub call: ProbeCall,
    pub attempts: u32,
}

pub(crate) async fn run(ctx: EngineContext, attempt: ProbeAttempt) {
    let ProbeAttempt { uid, container, kind, id, call, attempts } = attempt;
    let began = Instant::now();
    let asking = std::panic::AssertUnwindSafe(run_probe(&ctx, &id, &call, attempts)).catch_unwind();
    // Always send an outcome, even after a panic, because the state waits for it.
    let outcome =
        asking.await.unwrap_or_else(|_| ProbeOutcome::unknown("internal error: the probe panicked"));
    let took = began.elapsed();
    ctx.outbox.send(Event::ProbeDone { uid, container, kind, id, outcome, took });
}

async fn run_probe(ctx: &EngineContext, id: &ContainerId, call: &ProbeCall, attempts: u32) -> ProbeOutcome {
    retry_probe_errors(attempts, || async {
        match &call.check {
            ProbeCheck::Exec { command } => exec(ctx, id, command, call.timeout).await,
            ProbeCheck::Network(check) => ctx.ports.prober.probe(check, call.timeout).await,
        }
    })
    .await
}

/// A failed probe is a result. Only a probe that could not be run is retried.
async fn retry_probe_errors<F>(attempts: u32, mut attempt: impl FnMut() -> F) -> ProbeOutcome
where
    F: Future<Output = ProbeOutcome>,
{
    let mut left = attempts.max(1);
    loop {
        let outcome = attempt().await;
        left -= 1;
        if left == 0 || !matches!(outcome, ProbeOutcome::Errored { .. }) {
            return outcome;
        }
    }
}

async fn exec(ctx: &EngineContext, id: &ContainerId, command: &[String], timeout: Duration) -> ProbeOutcome {
    let runtime = &ctx.ports.runtime;
    let running = runtime.exec_sync(id, command, timeout);
    match tokio::time::timeout(timeout.saturating_add(RUNTIME_SLACK), running).await {
        Ok(ended) => probe_outcome(command, timeout, ended),
        // If the runtime answers Version, the command left a process behind that keeps the call open: the probe failed.
        // If it does not, the runtime hangs, and no container may be killed for that.
        Err(_) => match tokio::time::timeout(RUNTIME_SLACK, runtime.version()).await {
            Ok(Ok(_)) => probe_outcome(
                command,
                timeout,
                Err(RuntimeError::TimedOut { call: "ExecSync", after: timeout }),
            ),
            _ => ProbeOutcome::unknown("ExecSync: the container runtime does not answer"),
        },
    }
}

fn probe_outcome(
    command: &[String],
    timeout: Duration,
    ended: Result<ExecResult, RuntimeError>,
) -> ProbeOutcome {
    match ended {
        Ok(result) if result.exit_code == 0 => ProbeOutcome::Success,
        Ok(result) => {
            let output = [result.stdout, result.stderr].concat();
            ProbeOutcome::failure(truncate_output(&output, TextLimit::ProbeOutput))
        }
        Err(RuntimeError::TimedOut { .. }) => {
            let (command, after) = (command.join(" "), go_duration(timeout));
            let message = format!("command timed out: {command:?} timed out after {after}");
            ProbeOutcome::failure(truncate_text(message, TextLimit::ProbeOutput))
        }
        Err(error) => ProbeOutcome::unknown(error.user_message()),
    }
}

/// The probe records that an earlier agent stored.
pub(crate) async fn load_records(ctx: &EngineContext) -> BTreeMap<PodUid, ProbeRecord> {
    let Ok(found) = tokio::time::timeout(LOAD_TIMEOUT, ctx.ports.probe_records.load()).await else {
        tracing::warn!("saved probe results can't be read: no answer from the disk");
        return BTreeMap::new();
    };
    for problem in found.problems {
        tracing::warn!("saved probe results are ignored: {}", problem.user_message());
    }
    found.records.into_iter().collect()
}

/// Writes the newest record of each pod, one after the other. This task alone waits for a slow disk.
pub(crate) async fn save_probe_records(
    ctx: EngineContext,
    mut inbox: mpsc::UnboundedReceiver<(PodUid, ProbeRecord)>,
) {
    let mut latest: BTreeMap<PodUid, ProbeRecord> = BTreeMap::new();
    while let Some((uid, record)) = inbox.recv().await {
        latest.insert(uid, record);
        while let Ok((uid, record)) = inbox.try_recv() {
            latest.insert(uid, record);
        }
        while let Some((uid, record)) = latest.pop_first() {
            if let Err(error) = ctx.ports.probe_records.save(&uid, &record).await {
                let problem = error.user_message();
                tracing::warn!(pod_uid = %uid, "probe results could not be saved and are lost at the next restart: {problem}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use model::probe::ProbeErrorState;

    use super::*;

    fn ended(exit_code: i32, stdout: &str, stderr: &str) -> Result<ExecResult, RuntimeError> {
        Ok(ExecResult { exit_code, stdout: stdout.into(), stderr: stderr.into() })
    }

    #[test]
    fn commands_are_judged_by_how_they_end() {
        let command = ["sh".to_owned(), "-c".to_owned(), "say \"x\"".to_owned()];
        let check = |timeout: u64, result, expect: ProbeOutcome| {
            assert_eq!(probe_outcome(&command, Duration::from_secs(timeout), result), expect);
        };
        let bad = |output: &str| ProbeOutcome::failure(output);
        check(1, ended(0, "", ""), ProbeOutcome::Success);
        check(1, ended(0, "out", "err"), ProbeOutcome::Success);
        check(1, ended(1, "", ""), bad(""));
        check(1, ended(-1, "out\n", "err\n"), bad("out\nerr\n"));
        let (long, half) = ("x".repeat(20_000), "y".repeat(10_000));
        let cut = |output: String| truncate_output(output.as_bytes(), TextLimit::ProbeOutput);
        check(1, ended(1, &long, "no more"), bad(&cut(format!("{long}no more"))));
        check(1, ended(1, &half, &long), bad(&cut(format!("{half}{long}"))));
        let timed_out = |after| Err(RuntimeError::TimedOut { call: "ExecSync", after });
        let words =
            |after: &str| format!("command timed out: \"sh -c say \\\"x\\\"\" timed out after {after}");
        check(2, timed_out(Duration::from_secs(2)), bad(&words("2s")));
        let long = ["x".repeat(1 << 20)];
        let message = format!("command timed out: {:?} timed out after 2s", long[0]);
        let outcome = probe_outcome(&long, Duration::from_secs(2), timed_out(Duration::from_secs(2)));
        assert_eq!(outcome, bad(&truncate_text(message, TextLimit::ProbeOutput)));
        check(90, timed_out(Duration::ZERO), bad(&words("1m30s")));
        let gone = RuntimeError::NotFound { call: "ExecSync", message: "no container c0".into() };
        check(1, Err(gone), ProbeOutcome::unknown("no container c0"));
        let away = RuntimeError::Unavailable { call: "ExecSync", message: "away".into() };
        check(1, Err(away), ProbeOutcome::unknown("away"));
    }

    #[tokio::test]
    async fn only_what_could_not_be_carried_out_is_tried_again() {
        let error = || ProbeOutcome::Errored { state: ProbeErrorState::Failure, message: "e".into() };
        let (good, bad) = (|| ProbeOutcome::Success, || ProbeOutcome::failure("f"));
        for (script, attempts, made, expect) in [
            (vec![good()], 3, 1, good()),
            (vec![bad(), good()], 3, 1, bad()),
            (vec![error(), good()], 3, 2, good()),
            (vec![error(), error(), bad()], 3, 3, bad()),
            (vec![error(), error(), error(), good()], 3, 3, error()),
            (vec![error(), good()], 1, 1, error()),
            (vec![good()], 0, 1, good()),
        ] {
            let number = Cell::new(0);
            let attempt = || {
                let outcome = script[number.get()].clone();
                number.set(number.get() + 1);
                std::future::ready(outcome)
            };
            assert_eq!(
                (retry_probe_errors(attempts, attempt).await, number.get()),
                (expect, made),
                "{script:?}"
            );
        }
    }
}
