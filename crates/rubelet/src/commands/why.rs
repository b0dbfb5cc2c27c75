//! `why`: what a pod waits for, in sentences.

use std::fmt::Write;
use std::time::Duration;

use model::report::{RecentEvent, WatchReport, WhyLine, WhyReport};
use model::text_limits::{TextLimit, truncate_text};
use model::why::Cause;
use model::{EventType, Wall};

use super::client::Client;
use super::find::find_pods;
use super::options::{CommandArguments, CommandOption, UsageError};
use super::show::{age, age_at, listed, one_line, table};
use super::{CommandError, OutputWriter, now, print, print_json};

pub const ABOUT: &str =
    "Shows what a pod waits for, since when, when the next attempt is, and its last Events.";
pub const USAGE: &str = "  rubelet why <pod> [options]\n\nA pod is name, namespace/name or a UID; a static pod can be named without the node name at its end.";
pub const OPTIONS: &[CommandOption] =
    &[CommandOption { name: "output", letter: Some('o'), value: Some("FORMAT"), about: "json for programs" }];

pub async fn run(
    client: &Client,
    given: &CommandArguments,
    out: OutputWriter<'_>,
) -> Result<(), CommandError> {
    let json = match given.value("output") {
        None => false,
        Some("json") => true,
        Some(other) => {
            let expected = "expected json".to_owned();
            return Err(UsageError::BadValue { name: "output", value: other.to_owned(), expected }.into());
        }
    };
    let [wanted] = given.words.as_slice() else {
        return Err(UsageError::Arguments("name exactly one pod".into()).into());
    };
    let pods = client.pods().await?;
    let node = client.node().await?;
    let found = find_pods(&pods, &node.name, wanted, given.value("namespace"))?;
    let mut reports = Vec::new();
    for pod in found {
        reports.extend(client.why(&pod.namespace, &pod.uid).await?);
    }
    if json {
        return print_json(out, &reports);
    }
    let now = now();
    let texts: Vec<String> = reports.iter().map(|report| describe(report, now)).collect();
    match texts.as_slice() {
        // It went away between the two questions.
        [] => print(out, "The pod is gone.\n"),
        texts => print(out, &(texts.join("\n") + &describe_stalled_watches(&node.watches))),
    }
}

/// Watches that bring nothing: what a pod waits for may have happened without the node's knowing.
fn describe_stalled_watches(watches: &[WatchReport]) -> String {
    let mut text = String::new();
    for watch in watches.iter().filter(|watch| watch.is_held()) {
        let age = age(Duration::try_from_secs_f64(watch.last_word_secs).unwrap_or_default());
        let statement = format!("{} (last event {age} ago)", watch.name());
        let _ = writeln!(text, "  {}", with_message(&statement, &watch.problem));
    }
    if text.is_empty() {
        text
    } else {
        format!("\nThese watches of the API server make no progress:\n{text}")
    }
}

fn describe(report: &WhyReport, now: Wall) -> String {
    let phase = if report.phase.is_empty() { "not started" } else { &report.phase };
    // Writing to a String cannot fail.
    let mut text = format!("Pod {}/{} ({}) is {phase}.\n", report.namespace, report.name, report.uid);
    if report.reasons.is_empty() {
        text.push_str("\n  The agent has not looked at it yet.\n");
    } else {
        text.push('\n');
    }
    for line in &report.reasons {
        let _ = writeln!(text, "  {}", reason(line, now));
    }
    if !report.events.is_empty() {
        text.push_str("\nLast events:\n");
        for line in event_table(&report.events, now).lines() {
            let _ = writeln!(text, "  {line}");
        }
    }
    text
}

fn reason(line: &WhyLine, now: Wall) -> String {
    let subject = line.container.as_deref().map_or("pod".to_owned(), |name| format!("container {name}"));
    let mut times = vec![format!("since {} ago", age_at(now, line.since))];
    times.extend(line.next_attempt_secs.map(next_attempt));
    let cause = truncate_text(describe_cause(&line.cause, now), TextLimit::Why);
    format!("{subject}: {cause} ({})", times.join(", "))
}

fn next_attempt(seconds: f64) -> String {
    // Part of a second is still a wait: "in 0s" would only puzzle.
    match Duration::try_from_secs_f64(seconds.ceil()).unwrap_or_default() {
        Duration::ZERO => "next attempt now".into(),
        wait => format!("next attempt in {}", age(wait)),
    }
}

/// What each cause means to somebody who knows pods, but not this program.
fn describe_cause(cause: &Cause, now: Wall) -> String {
    match cause {
        Cause::Unreadable { problem } => with_message(
            "its object in the API can't be read; the last readable version stays in effect",
            problem,
        ),
        Cause::Rejected { reason, message } => with_message("was refused", message) + &format!(" [{reason}]"),
        Cause::SetAside { message } => with_message("is set aside and not processed any more", message),
        Cause::RuntimeNotReady { message } => {
            with_message("waits for the container runtime to be ready", message)
        }
        Cause::NetworkNotReady { message } => with_message("waits for the pod network to be ready", message),
        Cause::Observing => "waits until its state has been read from the container runtime again".into(),
        Cause::StatusMissing { of, message } => {
            with_message(&format!("the container runtime does not return the status of {of}"), message)
        }
        Cause::StillListed { ids } => {
            format!("the container runtime still lists what it confirmed as removed: {}", ids.join(", "))
        }
        Cause::NameTaken { holder } => {
            format!("waits until the earlier pod with this name is gone ({holder})")
        }
        Cause::PreparingDirectories => "its directories are being created".into(),
        Cause::PreparingCgroup => "its cgroup is being created".into(),
        Cause::PreparingVolumes { volumes } if volumes.is_empty() => "its volumes are being set up".into(),
        Cause::PreparingVolumes { volumes } => format!("its volumes are being set up: {}", listed(volumes)),
        Cause::WaitingForObject { kind, name, message } => {
            with_message(&format!("waits for {kind} {name} to be read"), message)
        }
        Cause::WaitingForToken { service_account } => {
            format!("waits for a token of service account {service_account}")
        }
        Cause::WaitingForCertificate { signer_name } => {
            format!("a certificate of signer {signer_name} is being asked for")
        }
        Cause::WaitingForNode => {
            "waits for the Node object to be read again, since node affinity does not match it".into()
        }
        Cause::WaitingForRoom { resources, pods } => {
            format!("waits for {} to be released by {}", resources.join(", "), pods.join(", "))
        }
        Cause::WaitingForTrustBundles => "waits for the cluster's trust bundles to be read".into(),
        Cause::WaitingForVolume { volume, claim, message } if claim.is_empty() => {
            with_message(&format!("waits for volume {volume}"), message)
        }
        Cause::WaitingForVolume { volume, claim, message } => {
            with_message(&format!("waits for volume {volume} (claim {claim})"), message)
        }
        Cause::WaitingForServices => "waits for the cluster's services to be read".into(),
        Cause::CreatingSandbox { attempt: 0 } => "its sandbox is being created".into(),
        Cause::CreatingSandbox { attempt } => {
            format!("its sandbox is being created again (attempt {})", attempt.saturating_add(1))
        }
        Cause::StepFailed { step, message } => with_message(&format!("failed to {step}"), message),
        Cause::PullingImage { image } => format!("image {image} is being pulled"),
        Cause::PullQueued { image } => format!("is queued to pull image {image}"),
        Cause::ImageBackOff { reason, image, message, back_off_secs } => {
            let pause = age(Duration::from_secs(*back_off_secs));
            with_message(
                &format!("image {image} could not be pulled, and is tried again after {pause}"),
                message,
            ) + &format!(" [{reason}]")
        }
        Cause::ImageUnavailable { reason, message } => {
            with_message("its image cannot be used", message) + &format!(" [{reason}]")
        }
        Cause::Starting => "is being started".into(),
        Cause::CrashBackOff { back_off_secs, exit_code, finished_at, restarts } => format!(
            "ended {} ago with exit code {exit_code}{}, and is started again {} after that [CrashLoopBackOff]",
            age_at(now, *finished_at),
            after_restarts(*restarts),
            age(Duration::from_secs(*back_off_secs)),
        ),
        Cause::StartFailed { reason, message } => {
            with_message("could not be started", message) + &format!(" [{reason}]")
        }
        Cause::Completed { exit_code: 0 } => "completed, and its restart policy does not restart it".into(),
        Cause::Completed { exit_code } => {
            format!("ended with exit code {exit_code}, and its restart policy does not restart it")
        }
        Cause::WaitingForInit { init } => format!("waits for init container {init}"),
        Cause::Stopping { message, grace_secs } => {
            let grace = age(Duration::from_secs(u64::try_from(*grace_secs).unwrap_or_default()));
            with_message(&format!("is being stopped with a grace period of {grace}"), message)
        }
        Cause::RestartingAll => "all containers are being restarted, because a restart rule matched".into(),
        Cause::Releasing => "has ended, and its files, volumes and cgroup are being removed".into(),
        Cause::ReleasingVolumes { volumes } => {
            format!("has ended, and its volumes are being unmounted: {}", listed(volumes))
        }
        Cause::Running => "all its containers are running".into(),
        Cause::Finished { phase } => format!("has finished: {phase}"),
    }
}

fn with_message(statement: &str, message: &str) -> String {
    match one_line(message) {
        message if message.is_empty() => statement.to_owned(),
        message => format!("{statement}: {message}"),
    }
}

fn after_restarts(restarts: u32) -> String {
    match restarts {
        0 => String::new(),
        1 => " after 1 restart".into(),
        count => format!(" after {count} restarts"),
    }
}

fn event_table(events: &[RecentEvent], now: Wall) -> String {
    let mut rows = vec![["AGE", "TYPE", "REASON", "CONTAINER", "MESSAGE"].map(str::to_owned).to_vec()];
    for RecentEvent { at, event } in events {
        let kind = match event.kind {
            EventType::Normal => "Normal",
            EventType::Warning => "Warning",
        };
        let container = event.container.as_ref().map_or("-", |(_, name)| name);
        rows.push(vec![
            age_at(now, *at),
            kind.to_owned(),
            one_line(&event.reason),
            container.to_owned(),
            one_line(&event.message),
        ]);
    }
    table(&rows)
}

#[cfg(test)]
mod tests;
