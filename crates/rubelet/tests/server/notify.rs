//! What a supervisor such as systemd is told, on its socket.

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::support::harness::{Agent, Runtime, SLOW};

const WATCHDOG: Duration = Duration::from_secs(2);

struct Listener {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Listener {
    fn new(runtime: &Runtime) -> Listener {
        let path = runtime.dir.join("notify.sock");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        Listener { socket, path }
    }

    /// The next word, when there is one in time.
    fn next(&self, within: Duration) -> Option<String> {
        self.socket.set_read_timeout(Some(within)).expect("a deadline");
        let mut room = [0; 256];
        let size = self.socket.recv(&mut room).ok()?;
        Some(String::from_utf8_lossy(&room[..size]).trim_end().to_owned())
    }

    /// Whatever was said before no longer counts.
    fn forget(&self) {
        while self.next(Duration::from_millis(1)).is_some() {}
    }
}

#[test]
fn a_supervisor_hears_of_start_life_and_end() {
    let runtime = Runtime::start();
    let listener = Listener::new(&runtime);
    let time = WATCHDOG.as_micros().to_string();
    let environment = [("NOTIFY_SOCKET", listener.path.to_str().expect("a path")), ("WATCHDOG_USEC", &time)];
    let mut agent = Agent::start_in(&runtime, &environment, &[], |_| {});
    assert_eq!(listener.next(SLOW).as_deref(), Some("READY=1"), "{}", agent.log_tail());
    for _ in 0..3 {
        assert_eq!(listener.next(SLOW).as_deref(), Some("WATCHDOG=1"), "{}", agent.log_tail());
    }
    // A process that hangs as a whole says nothing, and one that goes on says it again.
    agent.hang();
    listener.forget();
    assert_eq!(listener.next(2 * WATCHDOG), None);
    agent.resume();
    assert_eq!(listener.next(SLOW).as_deref(), Some("WATCHDOG=1"));
    assert!(agent.terminate().success());
    let start = Instant::now();
    let words: Vec<String> = std::iter::from_fn(|| listener.next(Duration::from_millis(1))).collect();
    assert_eq!(words.last().map(String::as_str), Some("STOPPING=1"), "{words:?} {:?}", start.elapsed());
}

#[test]
fn a_configuration_that_does_not_fit_the_machine_is_refused() {
    let runtime = Runtime::start();
    let refused = |flag: &str, expect: &str| {
        let (agent, status) = Agent::refused(&runtime, &[flag]);
        assert!(!status.success(), "{flag}");
        let log = agent.log();
        assert!(log.contains(expect), "{flag}: {log}");
    };
    // A name of this run: an agent that takes it all the same would make the cgroup, and the next run would find it.
    let name = format!("no-such-cgroup-{}", std::process::id());
    let missing = format!("invalid configuration: cgroup [\"{name}\"] (cgroupRoot) has some missing paths: ");
    refused(&format!("--cgroup-root=/{name}"), &missing);
    refused("--reserved-cpus=60000", "reservedSystemCPUs: 60000 is not a subset of the online CPUs: ");
}
