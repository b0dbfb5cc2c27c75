use super::*;
use model::pod::ContainerKind;
use model::{ApiEvent, Reason};

const SECOND: i64 = 1_000_000_000;
const NOW: Wall = Wall(1000 * SECOND);

fn ago(seconds: i64) -> Wall {
    Wall(NOW.0 - seconds * SECOND)
}

#[test]
fn every_cause_has_its_sentence() {
    let check = |cause: Cause, expect: &str| assert_eq!(describe_cause(&cause, NOW), expect);
    let text = |text: &str| text.to_owned();

    check(
        Cause::Rejected { reason: text("OutOfcpu"), message: text("Node didn't have enough resource: cpu") },
        "was refused: Node didn't have enough resource: cpu [OutOfcpu]",
    );
    check(
        Cause::SetAside { message: text("The agent panicked 3 times over this pod") },
        "is set aside and not processed any more: The agent panicked 3 times over this pod",
    );
    check(
        Cause::RuntimeNotReady { message: text("connection refused") },
        "waits for the container runtime to be ready: connection refused",
    );
    check(Cause::RuntimeNotReady { message: text("") }, "waits for the container runtime to be ready");
    check(
        Cause::NetworkNotReady { message: text("cni plugin\nnot initialized") },
        "waits for the pod network to be ready: cni plugin not initialized",
    );
    check(Cause::Observing, "waits until its state has been read from the container runtime again");
    check(
        Cause::StillListed { ids: vec!["s1".into(), "c1".into()] },
        "the container runtime still lists what it confirmed as removed: s1, c1",
    );
    check(
        Cause::StatusMissing { of: "sandbox s1".into(), message: "device or resource busy".into() },
        "the container runtime does not return the status of sandbox s1: device or resource busy",
    );
    check(Cause::NameTaken { holder: text("u1") }, "waits until the earlier pod with this name is gone (u1)");
    check(Cause::PreparingDirectories, "its directories are being created");
    check(Cause::PreparingCgroup, "its cgroup is being created");
    check(Cause::PreparingVolumes { volumes: vec![] }, "its volumes are being set up");
    check(
        Cause::PreparingVolumes { volumes: vec![text("data"), text("tmp")] },
        "its volumes are being set up: data and tmp",
    );
    check(
        Cause::WaitingForObject { kind: text("configmap"), name: text("x"), message: text("no route") },
        "waits for configmap x to be read: no route",
    );
    check(
        Cause::WaitingForToken { service_account: text("default") },
        "waits for a token of service account default",
    );
    let signer_name = text("a.b/c");
    check(Cause::WaitingForCertificate { signer_name }, "a certificate of signer a.b/c is being asked for");
    check(
        Cause::WaitingForNode,
        "waits for the Node object to be read again, since node affinity does not match it",
    );
    check(
        Cause::WaitingForRoom {
            resources: vec!["cpu".into(), "pods".into()],
            pods: vec!["a_ns(1)".into(), "b_ns(2)".into()],
        },
        "waits for cpu, pods to be released by a_ns(1), b_ns(2)",
    );
    check(Cause::WaitingForTrustBundles, "waits for the cluster's trust bundles to be read");
    check(
        Cause::WaitingForVolume { volume: text("data"), claim: text("c"), message: text("PVC is not bound") },
        "waits for volume data (claim c): PVC is not bound",
    );
    check(Cause::WaitingForServices, "waits for the cluster's services to be read");
    check(Cause::CreatingSandbox { attempt: 0 }, "its sandbox is being created");
    check(Cause::CreatingSandbox { attempt: 1 }, "its sandbox is being created again (attempt 2)");
    check(
        Cause::StepFailed { step: text("set up volumes"), message: text("hostPath type check failed") },
        "failed to set up volumes: hostPath type check failed",
    );
    check(Cause::PullingImage { image: text("example/web:1") }, "image example/web:1 is being pulled");
    check(Cause::PullQueued { image: text("example/web:1") }, "is queued to pull image example/web:1");
    check(
        Cause::ImageBackOff {
            reason: Reason::ImagePullBackOff,
            image: text("example/web:1"),
            message: text("not found"),
            back_off_secs: 20,
        },
        "image example/web:1 could not be pulled, and is tried again after 20s: not found [ImagePullBackOff]",
    );
    check(
        Cause::ImageUnavailable { reason: Reason::ErrImageNeverPull, message: text("not present") },
        "its image cannot be used: not present [ErrImageNeverPull]",
    );
    check(Cause::Starting, "is being started");
    let crash =
        |restarts| Cause::CrashBackOff { back_off_secs: 40, exit_code: 1, finished_at: ago(12), restarts };
    check(crash(0), "ended 12s ago with exit code 1, and is started again 40s after that [CrashLoopBackOff]");
    check(
        crash(1),
        "ended 12s ago with exit code 1 after 1 restart, and is started again 40s after that [CrashLoopBackOff]",
    );
    check(
        crash(3),
        "ended 12s ago with exit code 1 after 3 restarts, and is started again 40s after that [CrashLoopBackOff]",
    );
    check(
        Cause::StartFailed { reason: Reason::RunContainerError, message: text("no such file") },
        "could not be started: no such file [RunContainerError]",
    );
    check(Cause::Completed { exit_code: 0 }, "completed, and its restart policy does not restart it");
    check(
        Cause::Completed { exit_code: 3 },
        "ended with exit code 3, and its restart policy does not restart it",
    );
    check(Cause::WaitingForInit { init: text("setup") }, "waits for init container setup");
    check(
        Cause::Stopping { message: text("the pod was removed"), grace_secs: 30 },
        "is being stopped with a grace period of 30s: the pod was removed",
    );
    check(
        Cause::Stopping { message: text(""), grace_secs: -1 },
        "is being stopped with a grace period of 0s",
    );
    check(Cause::RestartingAll, "all containers are being restarted, because a restart rule matched");
    check(Cause::Releasing, "has ended, and its files, volumes and cgroup are being removed");
    check(
        Cause::ReleasingVolumes { volumes: vec![text("data"), text("tmp")] },
        "has ended, and its volumes are being unmounted: data and tmp",
    );
    check(Cause::Running, "all its containers are running");
    check(Cause::Finished { phase: text("Succeeded") }, "has finished: Succeeded");
}

#[test]
fn the_next_attempt_is_never_in_no_time() {
    for (seconds, expect) in [
        (0.0, "next attempt now"),
        (-3.0, "next attempt now"),
        (f64::NAN, "next attempt now"),
        (0.2, "next attempt in 1s"),
        (7.4, "next attempt in 8s"),
        (200.0, "next attempt in 3m20s"),
    ] {
        assert_eq!(next_attempt(seconds), expect, "{seconds}");
    }
}

#[test]
fn a_report_is_told_from_its_reasons_to_its_events() {
    let line = |container: Option<&str>, cause, seconds, next_attempt_secs| WhyLine {
        container: container.map(str::to_owned),
        cause,
        since: ago(seconds),
        next_attempt_secs,
    };
    let event = |seconds, event| RecentEvent { at: ago(seconds), event };
    let report = WhyReport {
        namespace: "default".into(),
        name: "web-vm".into(),
        uid: "u1".into(),
        phase: "Pending".into(),
        reasons: vec![
            line(None, Cause::Observing, 1, None),
            line(Some("app"), Cause::WaitingForInit { init: "setup".into() }, 12, Some(7.4)),
        ],
        events: vec![
            event(
                130,
                ApiEvent::normal("Pulled", "Container image is here")
                    .for_container(ContainerKind::Init, "setup"),
            ),
            event(5, ApiEvent::warning("FailedMount", "no\nluck")),
        ],
    };
    let expect = "\
Pod default/web-vm (u1) is Pending.

  pod: waits until its state has been read from the container runtime again (since 1s ago)
  container app: waits for init container setup (since 12s ago, next attempt in 8s)

Last events:
  AGE     TYPE      REASON        CONTAINER   MESSAGE
  2m10s   Normal    Pulled        setup       Container image is here
  5s      Warning   FailedMount   -           no luck
";
    assert_eq!(describe(&report, NOW), expect);

    let untouched = WhyReport { phase: String::new(), reasons: vec![], events: vec![], ..report };
    let expect = "Pod default/web-vm (u1) is not started.\n\n  The agent has not looked at it yet.\n";
    assert_eq!(describe(&untouched, NOW), expect);
}
