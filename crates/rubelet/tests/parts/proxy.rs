//! The tests' CRI proxy itself: what each fault does to a call, seen by its caller and by the real runtime.

use model::GrpcCode;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::cri_proxy::{Fault, Proxy, Rule, Script, When};
use crate::support::harness::{Runtime, SLOW, wait};
use crate::support::runtime_view::RuntimeView;
use cri::{CriClient, RuntimeHints};
use futures::StreamExt;
use model::cri::{LinuxSandboxConfig, SandboxConfig, SandboxMetadata};
use ports::{Hint, Runtime as _, RuntimeError, RuntimeEvents, SandboxFilter};

/// Calls that are not answered fail after this, and twice this when a sandbox is made.
const IMPATIENCE: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(120);
const RUN: &[&str] = &["RunPodSandbox"];
const LIST: &[&str] = &["ListPodSandbox"];

struct Bench {
    io: tokio::runtime::Runtime,
    proxy: Proxy,
    seen: RuntimeView,
    runtime: Runtime,
}

impl Bench {
    fn start() -> Bench {
        let runtime = Runtime::start();
        let io = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        Bench {
            io: io.expect("an async runtime"),
            proxy: Proxy::start(&runtime),
            seen: RuntimeView::new(&runtime),
            runtime,
        }
    }

    fn client(&self, patience: Duration) -> CriClient {
        let _inside = self.io.enter();
        CriClient::connect(&self.proxy.endpoint(), None, patience).expect("the proxy's endpoint")
    }

    /// The first call of these methods has this fate.
    fn play(&self, methods: &'static [&'static str], fault: Fault) {
        let rules = vec![Rule::new(methods, When::Nth(1), fault)];
        self.proxy.play(Script { seed: 1, rules });
    }

    /// Makes a sandbox through the proxy.
    fn run(&self, name: &str, patience: Duration) -> Result<(), RuntimeError> {
        let client = self.client(patience);
        self.io.block_on(client.run_pod_sandbox(&self.sandbox(name), "")).map(drop)
    }

    fn sandbox(&self, name: &str) -> SandboxConfig {
        SandboxConfig {
            metadata: SandboxMetadata {
                name: name.into(),
                uid: format!("uid-{name}"),
                namespace: "default".into(),
                attempt: 0,
            },
            hostname: name.into(),
            log_directory: self.runtime.dir.join("tmp").display().to_string(),
            labels: BTreeMap::from([("io.kubernetes.pod.uid".into(), format!("uid-{name}"))]),
            linux: Some(LinuxSandboxConfig::default()),
            ..SandboxConfig::default()
        }
    }

    /// Waits until the runtime has so many sandboxes of that name.
    #[track_caller]
    fn wait_sandboxes(&self, name: &str, expect: usize) {
        wait(&format!("{expect} sandboxes {name}"), SLOW, || {
            let found = self.seen.pods()?.get(name).map_or(0, |pod| pod.sandboxes.len());
            if found == expect { Ok(()) } else { Err(format!("{found}")) }
        });
    }
}

#[test]
fn a_call_is_carried_out_or_not_whatever_its_caller_hears() {
    let bench = Bench::start();
    let lost = |error: &RuntimeError| matches!(error, RuntimeError::Unavailable { .. });
    let silent = |error: &RuntimeError| matches!(error, RuntimeError::TimedOut { .. });
    let refused =
        |error: &RuntimeError| matches!(error, RuntimeError::Failed { code: GrpcCode::Internal, .. });
    let nonsense = |error: &RuntimeError| matches!(error, RuntimeError::Failed { .. });
    type Says = fn(&RuntimeError) -> bool;
    let cases: [(&str, Fault, Duration, Says, usize); 9] = [
        ("refused", Fault::Refused(13), PATIENCE, refused, 0),
        ("forgotten", Fault::Forgotten(13), PATIENCE, refused, 1),
        ("swallowed", Fault::Swallowed, IMPATIENCE, silent, 0),
        ("mute", Fault::Mute, IMPATIENCE, silent, 1),
        ("slow", Fault::Slow(IMPATIENCE * 3), IMPATIENCE, silent, 1),
        ("twice", Fault::Twice, PATIENCE, nonsense, 1),
        ("cutbefore", Fault::CutBefore, PATIENCE, lost, 0),
        ("cutafter", Fault::CutAfter, PATIENCE, lost, 1),
        ("garbled", Fault::Garbled, PATIENCE, nonsense, 1),
    ];
    for (name, fault, patience, says, sandboxes) in cases {
        bench.play(RUN, fault);
        let error = bench.run(name, patience).expect_err(name);
        assert!(says(&error), "{name}: {error:?}");
        bench.wait_sandboxes(name, sandboxes);
        assert_eq!(bench.proxy.faults().values().sum::<u64>(), bench.proxy.calls("RunPodSandbox"), "{name}");
    }
    // Only the nth is struck, and quiet is quiet.
    bench.proxy.play(Script { seed: 1, rules: vec![Rule::new(RUN, When::Nth(2), Fault::Refused(13))] });
    bench.run("first", PATIENCE).expect("the first of two");
    bench.run("second", PATIENCE).expect_err("the second of two");
    bench.proxy.quiet();
    bench.run("third", PATIENCE).expect("in quiet");
    bench.wait_sandboxes("third", 1);
}

#[test]
fn readings_break_in_their_middle_and_work_again() {
    let bench = Bench::start();
    let client = bench.client(PATIENCE);
    let list = || bench.io.block_on(client.list_pod_sandboxes(&SandboxFilter::default()));
    bench.run("there", PATIENCE).expect("a sandbox");
    assert_eq!(list().expect("a list").len(), 1);

    bench.play(LIST, Fault::CutMidway);
    let error = list().expect_err("half a list");
    assert!(matches!(error, RuntimeError::Unavailable { .. }), "{error:?}");
    assert_eq!(list().expect("the next list").len(), 1);

    bench.play(LIST, Fault::Late(Duration::from_millis(300)));
    assert_eq!(list().expect("a late list").len(), 1);
    bench.proxy.cut();
    // Whoever calls at that moment may be cut off; the next one is not.
    wait("a list after all connections were cut", SLOW, || match list() {
        Ok(sandboxes) if sandboxes.len() == 1 => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

#[test]
fn events_pass_and_can_be_lost() {
    let bench = Bench::start();
    let messages: &[&str] = &["Subscribe message", "GetContainerEvents message"];
    let hints = RuntimeHints::new(&bench.proxy.endpoint()).expect("the proxy's endpoint");
    let (sender, receiver) = std::sync::mpsc::channel();
    bench.io.spawn(async move {
        let mut hints = hints.hints();
        while let Some(hint) = hints.next().await {
            if sender.send(hint).is_err() {
                break;
            }
        }
    });
    let first = receiver.recv_timeout(SLOW).expect("a first hint");
    assert_eq!(first, Hint::Everything, "a new subscription");
    bench.run("passes", PATIENCE).expect("a sandbox");
    wait("a hint about something", SLOW, || match receiver.try_recv() {
        Ok(Hint::ContainerOrSandbox(_) | Hint::Pod(_)) => Ok(()),
        other => Err(format!("{other:?}")),
    });

    bench.proxy.play(Script { seed: 1, rules: vec![Rule::new(messages, When::Always, Fault::Swallowed)] });
    bench.run("lost", PATIENCE).expect("a sandbox");
    let swallowed = || bench.proxy.faults().keys().any(|what| what.ends_with("message swallowed"));
    wait("a message to be swallowed", SLOW, || if swallowed() { Ok(()) } else { Err("none yet") });
}
