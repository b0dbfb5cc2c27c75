//! The iptables chains and rules that other components expect from a kubelet (`makeIPTablesUtilChains`).
//!
//! ```text
//!   mangle  KUBE-IPTABLES-HINT   empty: its presence shows which iptables variant the node uses (legacy or nft)
//!   filter  KUBE-FIREWALL        drops packets from other hosts to 127.0.0.0/8 that belong to no connection
//!           OUTPUT, INPUT        jump there first
//!   mangle, nat, filter          KUBE-KUBELET-CANARY: empty, and missing after the rules were flushed
//! ```
//! kube-proxy may make loopback addresses routable (`route_localnet`). Without the rule another machine on the node's
//! network could then reach services that listen on 127.0.0.1 only (CVE-2020-8558). IPv6 has no such addresses.
//!
//! There is no notification of a flush; in the older iptables variant even the kernel sends none. So the canary is
//! checked once a minute, as upstream does, and everything is created again if it is missing. The agent itself needs
//! none of this: if the node has no iptables, this is logged once, and everything else continues.

use std::io;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use model::text_limits::{TextLimit, truncate_output};
use tokio::process::Command;

const HINT: &str = "KUBE-IPTABLES-HINT";
const FIREWALL: &str = "KUBE-FIREWALL";
const CANARY: &str = "KUBE-KUBELET-CANARY";
/// The first table is the one that is checked.
const TABLES_WITH_CANARY: [&str; 3] = ["mangle", "nat", "filter"];
/// The same rule as in kubelet and kube-proxy, argument for argument, so that each finds the other's.
const DROP_FOREIGN_LOCALNET: [&str; 16] = [
    "-m",
    "comment",
    "--comment",
    "block incoming localnet connections",
    "--dst",
    "127.0.0.0/8",
    "!",
    "--src",
    "127.0.0.0/8",
    "-m",
    "conntrack",
    "!",
    "--ctstate",
    "RELATED,ESTABLISHED,DNAT",
    "-j",
    "DROP",
];
/// How often the canary is checked.
const PERIOD: Duration = Duration::from_secs(60);
/// How long iptables may wait for its lock, and how long all of it may take.
const LOCK_SECONDS: &str = "5";
const IPTABLES_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(thiserror::Error, Debug)]
enum IptablesError {
    #[error("run {program}")]
    Run {
        program: String,
        #[source]
        source: io::Error,
    },
    #[error("{command} has not ended in {IPTABLES_TIMEOUT:?}")]
    Hangs { command: String },
    #[error("{command}: {message}")]
    Failed { command: String, message: String },
}

impl IptablesError {
    fn is_missing_program(&self) -> bool {
        matches!(self, Self::Run { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// The iptables programs of the machine.
#[derive(Clone, Debug)]
pub struct IptablesChains {
    ipv4: PathBuf,
    ipv6: PathBuf,
    period: Duration,
}

impl Default for IptablesChains {
    fn default() -> Self {
        Self { ipv4: "iptables".into(), ipv6: "ip6tables".into(), period: PERIOD }
    }
}

impl IptablesChains {
    /// Creates the chains and rules, and creates them again when they were removed. Ends only if neither program is
    /// installed.
    pub async fn maintain(self) {
        let of =
            |program: &PathBuf, loopback_rule| IptablesFamily { program: program.clone(), loopback_rule };
        let (ipv4, ipv6) = (of(&self.ipv4, true), of(&self.ipv6, false));
        tokio::join!(ipv4.maintain(self.period), ipv6.maintain(self.period));
    }
}

/// IPv4 or IPv6.
struct IptablesFamily {
    program: PathBuf,
    loopback_rule: bool,
}

impl IptablesFamily {
    async fn maintain(self, period: Duration) {
        let program = self.program.display();
        let mut told = None;
        loop {
            match self.ensure_all().await {
                Ok(()) => {
                    tracing::info!("chains and rules of {program} are set up");
                    told = None;
                    self.wait_for_flush(period).await;
                    tracing::info!("the iptables rules of {program} were flushed, creating them again");
                }
                Err(error) if error.is_missing_program() => {
                    let error = with_cause(&error);
                    tracing::warn!("not making iptables chains for other components: {error}");
                    return;
                }
                // Another program may hold the lock, or the kernel's modules may not be loaded yet.
                Err(error) => {
                    let error = with_cause(&error);
                    if told.as_ref() != Some(&error) {
                        tracing::warn!(
                            "chains and rules of {program} are not complete, trying every {period:?}: {error}"
                        );
                    }
                    told = Some(error);
                    tokio::time::sleep(period).await;
                }
            }
        }
    }

    async fn wait_for_flush(&self, period: Duration) {
        loop {
            tokio::time::sleep(period).await;
            // An error other than "no" does not mean that the chain is missing.
            if let Ok(false) = self.run_query(&["-t", TABLES_WITH_CANARY[0], "-S", CANARY]).await {
                return;
            }
        }
    }

    /// The canaries are created last: while one is missing, everything is tried again.
    async fn ensure_all(&self) -> Result<(), IptablesError> {
        self.ensure_chain("mangle", HINT).await?;
        if self.loopback_rule {
            self.ensure_chain("filter", FIREWALL).await?;
            self.ensure_rule("-I", "filter", "OUTPUT", &["-j", FIREWALL]).await?;
            self.ensure_rule("-I", "filter", "INPUT", &["-j", FIREWALL]).await?;
            self.ensure_rule("-A", "filter", FIREWALL, &DROP_FOREIGN_LOCALNET).await?;
        }
        for table in TABLES_WITH_CANARY {
            self.ensure_chain(table, CANARY).await?;
        }
        Ok(())
    }

    async fn ensure_chain(&self, table: &str, chain: &str) -> Result<(), IptablesError> {
        if !self.run_query(&["-t", table, "-S", chain]).await? {
            self.run_checked(&["-t", table, "-N", chain]).await?;
        }
        Ok(())
    }

    /// `operation` says at which end of the chain a missing rule is inserted.
    async fn ensure_rule(
        &self,
        operation: &str,
        table: &str,
        chain: &str,
        rule: &[&str],
    ) -> Result<(), IptablesError> {
        let words = |operation| [&["-t", table, operation, chain], rule].concat();
        if !self.run_query(&words("-C")).await? {
            self.run_checked(&words(operation)).await?;
        }
        Ok(())
    }

    /// Runs an iptables query; exit status 1 means no.
    async fn run_query(&self, words: &[&str]) -> Result<bool, IptablesError> {
        let output = self.run(words).await?;
        match output.status.code() {
            Some(0) => Ok(true),
            Some(1) => Ok(false),
            _ => Err(self.failed(words, &output)),
        }
    }

    async fn run_checked(&self, words: &[&str]) -> Result<(), IptablesError> {
        let output = self.run(words).await?;
        if output.status.success() { Ok(()) } else { Err(self.failed(words, &output)) }
    }

    fn failed(&self, words: &[&str], output: &Output) -> IptablesError {
        let said = truncate_output(output.stderr.trim_ascii(), TextLimit::ProgramOutput);
        IptablesError::Failed { command: self.command(words), message: format!("{}: {said}", output.status) }
    }

    fn command(&self, words: &[&str]) -> String {
        format!("{} {}", self.program.display(), words.join(" "))
    }

    async fn run(&self, words: &[&str]) -> Result<Output, IptablesError> {
        let output = Command::new(&self.program)
            .args(["-w", LOCK_SECONDS])
            .args(words)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        match tokio::time::timeout(IPTABLES_TIMEOUT, output).await {
            Ok(Ok(output)) => Ok(output),
            Ok(Err(source)) => {
                Err(IptablesError::Run { program: self.program.display().to_string(), source })
            }
            Err(_) => Err(IptablesError::Hangs { command: self.command(words) }),
        }
    }
}

fn with_cause(error: &IptablesError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::process::{Child, Command as Process};

    /// A network namespace, and programs that work in it and not on the machine.
    struct Network {
        process: Child,
        dir: tempfile::TempDir,
    }

    impl Drop for Network {
        fn drop(&mut self) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }

    impl Network {
        // It waits for a real process in real time.
        #[allow(clippy::disallowed_methods)]
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let ready = dir.path().join("ready");
            let script =
                format!("mount -t tmpfs none /run && touch {} && exec sleep infinity", ready.display());
            let words = ["-n", "-m", "--propagation", "private", "sh", "-c", &script];
            let process = Process::new("unshare").args(words).spawn().unwrap();
            let network = Self { process, dir };
            while !ready.exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
            for name in ["iptables", "ip6tables"] {
                let path = network.program(name);
                let text =
                    format!("#!/bin/sh\nexec nsenter -t {} -n -m {name} \"$@\"\n", network.process.id());
                fs::write(&path, text).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            }
            network
        }

        fn program(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        fn chains(&self) -> IptablesChains {
            let (ipv4, ipv6) = (self.program("iptables"), self.program("ip6tables"));
            IptablesChains { ipv4, ipv6, period: Duration::from_millis(50) }
        }

        fn rules(&self, program: &str, table: &str) -> Vec<String> {
            let output =
                Process::new(self.program(program)).args(["-w", "5", "-t", table, "-S"]).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            let text = String::from_utf8(output.stdout).unwrap();
            text.lines().filter(|line| line.contains("KUBE-")).map(str::to_owned).collect()
        }

        async fn wait_for(&self, program: &str, table: &str, expect: &[&str]) {
            let wait = async {
                while self.rules(program, table) != expect {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            let found = tokio::time::timeout(Duration::from_secs(120), wait).await;
            assert!(
                found.is_ok(),
                "{program} {table}: {:?} instead of {expect:?}",
                self.rules(program, table)
            );
        }
    }

    const HINTS: [&str; 2] = ["-N KUBE-IPTABLES-HINT", "-N KUBE-KUBELET-CANARY"];
    const FILTER: [&str; 5] = [
        "-N KUBE-FIREWALL",
        "-N KUBE-KUBELET-CANARY",
        "-A INPUT -j KUBE-FIREWALL",
        "-A OUTPUT -j KUBE-FIREWALL",
        "-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \"block incoming localnet connections\" \
         -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
    ];

    #[tokio::test]
    async fn chains_are_made_once_and_again_after_a_flush() {
        let network = Network::new();
        let keeper = tokio::spawn(network.chains().maintain());
        network.wait_for("iptables", "mangle", &HINTS).await;
        network.wait_for("iptables", "filter", &FILTER).await;
        network.wait_for("iptables", "nat", &["-N KUBE-KUBELET-CANARY"]).await;
        network.wait_for("ip6tables", "mangle", &HINTS).await;
        network.wait_for("ip6tables", "filter", &["-N KUBE-KUBELET-CANARY"]).await;
        // A firewall of the node is reloaded.
        for table in ["mangle", "filter", "nat"] {
            for words in [["-F"], ["-X"]] {
                let mut flush = Process::new(network.program("iptables"));
                let flushed = flush.args(["-w", "5", "-t", table]).args(words).status().unwrap();
                assert!(flushed.success(), "{table} {words:?}");
            }
        }
        network.wait_for("iptables", "mangle", &HINTS).await;
        network.wait_for("iptables", "filter", &FILTER).await;
        network.wait_for("iptables", "nat", &["-N KUBE-KUBELET-CANARY"]).await;
        keeper.abort();
        assert!(keeper.await.unwrap_err().is_cancelled(), "it goes on until it is told to end");

        // A restarted agent finds all rules and adds none.
        let family = IptablesFamily { program: network.program("iptables"), loopback_rule: true };
        family.ensure_all().await.unwrap();
        assert_eq!(network.rules("iptables", "filter"), FILTER);
    }

    /// Runs `work` on a thread in that namespace.
    fn inside<T: Send + 'static>(network: &Network, work: impl FnOnce() -> T + Send + 'static) -> T {
        let namespace = fs::File::open(format!("/proc/{}/ns/net", network.process.id())).unwrap();
        let thread = std::thread::spawn(move || {
            let kind = rustix::thread::LinkNameSpaceType::Network;
            rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(kind)).unwrap();
            work()
        });
        thread.join().unwrap()
    }

    fn ip(network: &Network, words: &str) {
        let pid = network.process.id().to_string();
        let status =
            Process::new("nsenter").args(["-t", &pid, "-n", "ip"]).args(words.split(' ')).status().unwrap();
        assert!(status.success(), "ip {words}");
    }

    fn route_loopback_addresses(device: &'static str) {
        for (name, value) in [("route_localnet", "1"), ("rp_filter", "0")] {
            for device in ["all", device] {
                fs::write(format!("/proc/sys/net/ipv4/conf/{device}/{name}"), value).unwrap();
            }
        }
    }

    /// CVE-2020-8558: another machine sends packets for 127.0.0.1 to a node that routes such addresses.
    #[tokio::test]
    async fn a_neighbour_does_not_reach_the_loopback() {
        let (node, neighbour) = (Network::new(), Network::new());
        ip(
            &node,
            &format!("link add to-neighbour type veth peer name to-node netns {}", neighbour.process.id()),
        );
        for words in ["addr add 10.9.0.1/24 dev to-neighbour", "link set to-neighbour up", "link set lo up"] {
            ip(&node, words);
        }
        for words in ["addr add 10.9.0.2/24 dev to-node", "link set to-node up"] {
            ip(&neighbour, words);
        }
        inside(&node, || route_loopback_addresses("to-neighbour"));
        inside(&neighbour, || route_loopback_addresses("to-node"));
        ip(&neighbour, "route add 127.0.0.0/8 via 10.9.0.1");
        let listener = inside(&node, || TcpListener::bind("127.0.0.1:0").unwrap());
        let address = listener.local_addr().unwrap();
        let connects = move || TcpStream::connect_timeout(&address, Duration::from_secs(3)).is_ok();
        assert!(inside(&neighbour, connects), "the attack works");
        let family = IptablesFamily { program: node.program("iptables"), loopback_rule: true };
        family.ensure_all().await.unwrap();
        assert!(!inside(&neighbour, connects), "it does not any more");
        assert!(inside(&node, connects), "the node itself reaches it");
    }

    #[tokio::test]
    async fn without_the_programs_there_is_nothing_to_keep() {
        let missing = IptablesChains {
            ipv4: "/nonexistent/a".into(),
            ipv6: "/nonexistent/b".into(),
            ..Default::default()
        };
        tokio::time::timeout(Duration::from_secs(60), missing.maintain()).await.expect("it ends");
    }

    /// A program that fails while `trouble` exists, and then does what `then` says.
    fn failing_while(trouble: &Path, then: &str) -> PathBuf {
        let program = trouble.with_extension("program");
        let calls = trouble.with_extension("calls");
        let script = format!(
            "#!/bin/sh\nif [ -e {} ]; then echo >> {}; echo the lock is held >&2; exit 4; fi\n{then}\n",
            trouble.display(),
            calls.display()
        );
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        program
    }

    #[tokio::test]
    async fn a_first_failure_is_not_the_end() {
        let network = Network::new();
        let trouble = network.dir.path().join("trouble");
        fs::write(&trouble, "").unwrap();
        let real = format!("exec {} \"$@\"", network.program("iptables").display());
        let ipv4 = failing_while(&trouble, &real);
        let error = IptablesFamily { program: ipv4.clone(), loopback_rule: true }.ensure_all().await;
        let error = error.unwrap_err().to_string();
        assert!(error.ends_with("-S KUBE-IPTABLES-HINT: exit status: 4: the lock is held"), "{error}");

        let keeper = tokio::spawn(IptablesChains { ipv4, ..network.chains() }.maintain());
        // It has failed twice more.
        let calls = trouble.with_extension("calls");
        let wait = async {
            while fs::read(&calls).unwrap().len() < 3 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), wait).await.expect("it is tried again");
        fs::remove_file(&trouble).unwrap();
        network.wait_for("iptables", "filter", &FILTER).await;
        keeper.abort();
    }
}
