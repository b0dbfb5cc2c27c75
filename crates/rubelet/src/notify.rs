//! Notifies systemd that the agent serves, that it still answers, and that it stops.
//!
//! Without `NOTIFY_SOCKET` nothing is sent. `WATCHDOG=1` is sent only while every health check passes, so that systemd
//! restarts an agent that hangs. Pods keep running meanwhile.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use server::{CheckResult, HealthChecks};
use tokio_util::sync::CancellationToken;

const READY: &str = "READY=1\n";
const WATCHDOG_ALIVE: &str = "WATCHDOG=1\n";
const STOPPING: &str = "STOPPING=1\n";
/// How often the checks are made while the agent starts.
const READINESS_INTERVAL: Duration = Duration::from_millis(100);
/// A watchdog interval this short could end an agent that is only busy.
const MIN_WATCHDOG: Duration = Duration::from_secs(1);

#[derive(thiserror::Error, Debug)]
pub enum NotifyError {
    #[error("NOTIFY_SOCKET {name:?}: can't be used")]
    Socket {
        name: String,
        #[source]
        source: io::Error,
    },
    #[error("WATCHDOG_USEC {value:?}: not a number of microseconds")]
    WatchdogTime { value: String },
    #[error("WATCHDOG_PID {value:?}: not a process id")]
    WatchdogProcess { value: String },
    #[error("configured watchdog timeout is too small: {time:?}, more than {MIN_WATCHDOG:?} is needed")]
    WatchdogTooShort { time: Duration },
}

/// The service manager that started the agent, as the environment describes it.
#[derive(Debug, Default)]
pub struct Supervisor {
    socket: Option<UnixDatagram>,
    watchdog: Option<Duration>,
}

impl Supervisor {
    pub fn of_environment() -> Result<Supervisor, NotifyError> {
        let text = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let lossy = |name| text(name).map(|value| value.to_string_lossy().into_owned());
        let watchdog = watchdog(lossy("WATCHDOG_USEC"), lossy("WATCHDOG_PID"), std::process::id())?;
        let socket = text("NOTIFY_SOCKET").map(|name| connect(&name)).transpose()?;
        Ok(Supervisor { socket, watchdog })
    }

    /// Sends `READY=1` once the checks pass, and then `WATCHDOG=1` for as long as they do.
    pub async fn notify_until_stopped(&self, health: &HealthChecks, stop: CancellationToken) {
        if self.socket.is_none() {
            return;
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.notify_ready_and_watchdog(health) => {}
        }
        self.send_state(STOPPING);
    }

    async fn notify_ready_and_watchdog(&self, health: &HealthChecks) {
        while !passed(&health.run().await) {
            tokio::time::sleep(READINESS_INTERVAL).await;
        }
        self.send_state(READY);
        let Some(watchdog) = self.watchdog else { return std::future::pending().await };
        let mut ticks = tokio::time::interval(watchdog / 2);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let verdicts = health.run().await;
            if passed(&verdicts) {
                self.send_state(WATCHDOG_ALIVE);
                continue;
            }
            for CheckResult { name, outcome } in &verdicts {
                if let Err(reason) = outcome {
                    tracing::error!(check = name, %reason, "health check failed; the systemd watchdog is not notified");
                }
            }
        }
    }

    fn send_state(&self, what: &str) {
        let Some(socket) = &self.socket else { return };
        if let Err(error) = socket.send(what.as_bytes()) {
            tracing::warn!("notifying systemd {:?} failed: {error}", what.trim_end());
        }
    }
}

fn passed(verdicts: &[CheckResult]) -> bool {
    verdicts.iter().all(|verdict| verdict.outcome.is_ok())
}

/// A path, or with `@` at its front a name that is in no directory.
fn connect(name: &OsStr) -> Result<UnixDatagram, NotifyError> {
    let open = || {
        let address = match name.as_bytes() {
            [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
            _ => SocketAddr::from_pathname(name)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        // A supervisor that does not read must not block the agent.
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    open().map_err(|source| NotifyError::Socket { name: name.to_string_lossy().into_owned(), source })
}

/// `None`: there is no watchdog, or it watches another process.
fn watchdog(
    time: Option<String>,
    process: Option<String>,
    own: u32,
) -> Result<Option<Duration>, NotifyError> {
    let Some(value) = time else { return Ok(None) };
    let Ok(time) = value.parse().map(Duration::from_micros) else {
        return Err(NotifyError::WatchdogTime { value });
    };
    if let Some(value) = process {
        match value.parse::<u32>() {
            Ok(process) if process == own => {}
            Ok(_) => return Ok(None),
            Err(_) => return Err(NotifyError::WatchdogProcess { value }),
        }
    }
    if time <= MIN_WATCHDOG {
        return Err(NotifyError::WatchdogTooShort { time });
    }
    Ok(Some(time))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use async_trait::async_trait;
    use model::k8s::PodList;
    use model::report::{NodeReport, PodReport, WhyReport};
    use ports::AgentView;

    use super::*;

    /// Its core answers, or hangs.
    struct Core {
        answers: Arc<AtomicBool>,
    }

    impl Core {
        async fn answer<T>(&self, value: T) -> Option<T> {
            match self.answers.load(Ordering::Relaxed) {
                true => Some(value),
                false => std::future::pending().await,
            }
        }
    }

    #[async_trait]
    impl AgentView for Core {
        async fn pods(&self) -> Option<PodList> {
            self.answer(PodList::default()).await
        }

        async fn running_pods(&self) -> Option<PodList> {
            self.answer(PodList::default()).await
        }

        async fn pod_reports(&self) -> Option<Vec<PodReport>> {
            self.answer(Vec::new()).await
        }

        async fn why(&self, _: Option<String>, _: String) -> Option<Vec<WhyReport>> {
            self.answer(Vec::new()).await
        }

        async fn find_pod(&self, _: String, _: String) -> Option<Option<ports::PodDetails>> {
            self.answer(None).await
        }

        async fn container_ended(&self, _: model::PodUid, _: model::ContainerId) -> Option<()> {
            self.answer(()).await
        }

        async fn all_pod_details(&self) -> Option<Vec<ports::PodDetails>> {
            self.answer(Vec::new()).await
        }

        async fn node_report(&self) -> Option<NodeReport> {
            let report = NodeReport {
                name: "node".into(),
                runtime: "containerd".into(),
                runtime_ready: true,
                network_ready: true,
                message: String::new(),
                sources_ready: true,
                pods: 0,
                running_pods: 0,
                containers: Default::default(),
                mirror_pods: 0,
                orphans: 0,
                ephemeral_containers: 0,
                counts: Default::default(),
                volumes: Vec::new(),
                selinux_volumes: Vec::new(),
                pod_certificates: Vec::new(),
                protected_memory: None,
                signals: Vec::new(),
                watches: Vec::new(),
            };
            self.answer(report).await
        }
    }

    async fn heard(listener: &tokio::net::UnixDatagram, within: Duration) -> Option<String> {
        let mut room = [0; 32];
        let size = tokio::time::timeout(within, listener.recv(&mut room)).await.ok()?.expect("received");
        Some(String::from_utf8_lossy(&room[..size]).trim_end().to_owned())
    }

    #[tokio::test]
    async fn the_watchdog_is_fed_only_while_the_core_answers() {
        let (own, theirs) = UnixDatagram::pair().expect("sockets");
        theirs.set_nonblocking(true).expect("a socket");
        let listener = tokio::net::UnixDatagram::from_std(theirs).expect("a socket");
        let answers = Arc::new(AtomicBool::new(true));
        let core = Core { answers: answers.clone() };
        let health = HealthChecks::of_agent(Arc::new(core), Duration::from_millis(10));
        let supervisor = Supervisor { socket: Some(own), watchdog: Some(Duration::from_millis(40)) };
        let (stop, long) = (CancellationToken::new(), Duration::from_secs(30));
        let ends = stop.clone();
        let told = tokio::spawn(async move { supervisor.notify_until_stopped(&health, ends).await });
        assert_eq!(heard(&listener, long).await.as_deref(), Some("READY=1"));
        assert_eq!(heard(&listener, long).await.as_deref(), Some("WATCHDOG=1"));
        answers.store(false, Ordering::Relaxed);
        // One may have been under way.
        heard(&listener, Duration::from_millis(100)).await;
        while heard(&listener, Duration::from_millis(1)).await.is_some() {}
        assert_eq!(heard(&listener, Duration::from_millis(300)).await, None);
        answers.store(true, Ordering::Relaxed);
        assert_eq!(heard(&listener, long).await.as_deref(), Some("WATCHDOG=1"));
        stop.cancel();
        told.await.expect("the end");
        let mut last = None;
        while let Some(word) = heard(&listener, Duration::from_millis(1)).await {
            last = Some(word);
        }
        assert_eq!(last.as_deref(), Some("STOPPING=1"));
    }

    #[test]
    fn the_watchdog_of_the_environment() {
        let check = |time: Option<&str>, process: Option<&str>, expect: Result<Option<u64>, &str>| {
            let found = watchdog(time.map(str::to_owned), process.map(str::to_owned), 7);
            let found = found.map(|time| time.map(|time| time.as_secs())).map_err(|error| error.to_string());
            assert_eq!(found, expect.map_err(str::to_owned), "{time:?} {process:?}");
        };
        check(None, Some("7"), Ok(None));
        check(Some("30000000"), None, Ok(Some(30)));
        check(Some("30000000"), Some("7"), Ok(Some(30)));
        check(Some("30000000"), Some("8"), Ok(None));
        check(Some("soon"), None, Err("WATCHDOG_USEC \"soon\": not a number of microseconds"));
        check(Some("-5"), None, Err("WATCHDOG_USEC \"-5\": not a number of microseconds"));
        check(Some("3000000"), Some("me"), Err("WATCHDOG_PID \"me\": not a process id"));
        check(
            Some("1000000"),
            None,
            Err("configured watchdog timeout is too small: 1s, more than 1s is needed"),
        );
    }

    #[test]
    fn a_name_without_a_directory_is_reached() {
        let name = format!("rubelet-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let listener = UnixDatagram::bind_addr(&address).expect("a socket");
        let told = connect(OsStr::new(&format!("@{name}"))).expect("connected");
        told.send(READY.as_bytes()).expect("sent");
        let mut room = [0; 32];
        let size = listener.recv(&mut room).expect("received");
        assert_eq!(&room[..size], b"READY=1\n");
        assert!(connect(OsStr::new("@rubelet-nobody-listens-here")).is_err());
    }
}
