//! Probes: one task per attempt, none while there is nothing to ask. And the keeper of their record.

use std::collections::BTreeMap;
use std::time::Duration;

use decide::Event;
use decide::back_off::go_duration;
use futures::FutureExt;
use model::probe::{ProbeCall, ProbeCheck, ProbeKind, ProbeOutcome, ProbeRecord};
use model::{ContainerId, PodUid};
use ports::RuntimeError;
use tokio::sync::mpsc;

use crate::dispatcher::Shop;

/// The runtime ends a command that takes too long by itself. Where it does not, it is left behind after this.
const RUNTIME_SLACK: Duration = Duration::from_secs(1);
/// A disk that does not answer by then is not waited for any longer.
const LOADING: Duration = Duration::from_secs(10);
/// What is shown of a command's output.
const SHOWN_OUTPUT: usize = 10 << 10;

pub(crate) struct Attempt {
    pub uid: PodUid,
    pub container: String,
    pub kind: ProbeKind,
    pub id: ContainerId,
    pub call: ProbeCall,
    pub attempts: u32,
}

pub(crate) async fn run(shop: Shop, attempt: Attempt) {
    let Attempt { uid, container, kind, id, call, attempts } = attempt;
    let asking = std::panic::AssertUnwindSafe(ask(&shop, &id, &call, attempts)).catch_unwind();
    // Whoever waits for the answer gets one in any case, or it would wait for ever.
    let outcome =
        asking.await.unwrap_or_else(|_| ProbeOutcome::unknown("internal error: the probe panicked"));
    shop.outbox.send(Event::ProbeDone { uid, container, kind, id, outcome });
}

async fn ask(shop: &Shop, id: &ContainerId, call: &ProbeCall, attempts: u32) -> ProbeOutcome {
    let mut left = attempts.max(1);
    loop {
        let outcome = match &call.check {
            ProbeCheck::Exec { command } => exec(shop, id, command, call.timeout).await,
            ProbeCheck::Network(check) => shop.ports.prober.check(check, call.timeout).await,
        };
        left -= 1;
        if left == 0 || !matches!(outcome, ProbeOutcome::Errored { .. }) {
            return outcome;
        }
    }
}

async fn exec(shop: &Shop, id: &ContainerId, command: &[String], timeout: Duration) -> ProbeOutcome {
    let running = shop.ports.runtime.exec_sync(id, command, timeout);
    let took_too_long = || {
        let command = command.join(" ");
        let after = go_duration(timeout);
        ProbeOutcome::failure(format!("command timed out: {command:?} timed out after {after}"))
    };
    match tokio::time::timeout(timeout.saturating_add(RUNTIME_SLACK), running).await {
        Err(_) | Ok(Err(RuntimeError::TimedOut { .. })) => took_too_long(),
        Ok(Err(error)) => ProbeOutcome::unknown(error.user_message()),
        Ok(Ok(result)) if result.exit_code == 0 => ProbeOutcome::Success,
        Ok(Ok(result)) => {
            let mut output = result.stdout;
            output.extend(result.stderr);
            output.truncate(SHOWN_OUTPUT);
            ProbeOutcome::failure(String::from_utf8_lossy(&output))
        }
    }
}

/// What an earlier agent left on record.
pub(crate) async fn load_records(shop: &Shop) -> BTreeMap<PodUid, ProbeRecord> {
    let Ok(found) = tokio::time::timeout(LOADING, shop.ports.probe_records.load()).await else {
        tracing::warn!(
            "results of probes from before the restart are not to be had: no answer from the disk"
        );
        return BTreeMap::new();
    };
    for problem in found.problems {
        tracing::warn!("results of probes from before the restart are ignored: {}", problem.user_message());
    }
    found.records.into_iter().collect()
}

/// Takes the record of each pod to disk, the latest only, one after the other: a slow disk delays nothing else.
pub(crate) async fn keep_records(shop: Shop, mut inbox: mpsc::UnboundedReceiver<(PodUid, ProbeRecord)>) {
    let mut latest: BTreeMap<PodUid, ProbeRecord> = BTreeMap::new();
    while let Some((uid, record)) = inbox.recv().await {
        latest.insert(uid, record);
        while let Ok((uid, record)) = inbox.try_recv() {
            latest.insert(uid, record);
        }
        while let Some((uid, record)) = latest.pop_first() {
            if let Err(error) = shop.ports.probe_records.save(&uid, &record).await {
                let problem = error.user_message();
                tracing::warn!(pod_uid = %uid, "results of probes may be forgotten at a restart: {problem}");
            }
        }
    }
}
