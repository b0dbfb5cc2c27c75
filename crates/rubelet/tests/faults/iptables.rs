//! `makeIPTablesUtilChains` through the agent, in a network of its own: chains and rules are made although iptables fails
//! at first.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::support::harness::{Agent, Runtime, SLOW, wait, wait_until};

/// A network namespace, kept by a process.
struct Network {
    keeper: Child,
    dir: PathBuf,
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = (self.keeper.kill(), self.keeper.wait());
    }
}

impl Network {
    fn start(dir: &Path) -> Network {
        fs::create_dir_all(dir).expect("a directory");
        let ready = dir.join("ready");
        // iptables keeps its lock in /run.
        let script = format!("mount -t tmpfs none /run && touch {} && exec sleep infinity", ready.display());
        let words = ["-n", "-m", "--propagation", "private", "sh", "-c", &script];
        let keeper = Command::new("unshare").args(words).spawn().expect("run unshare");
        let network = Network { keeper, dir: dir.to_owned() };
        wait_until("a network", SLOW, || ready.exists());
        network
    }

    /// Programs that work in this network, and fail while `trouble` is there.
    fn programs(&self) -> PathBuf {
        let dir = self.dir.join("programs");
        fs::create_dir_all(&dir).expect("a directory");
        // The real programs, not these: the agent's PATH has this directory.
        let real = std::env::var("PATH").expect("a PATH");
        for name in ["iptables", "ip6tables"] {
            let script = format!(
                "#!/bin/sh\nif [ -e {} ]; then echo the lock is held >&2; exit 4; fi\n\
                 export PATH='{real}'\nexec nsenter -t {} -n -m {name} \"$@\"\n",
                self.trouble().display(),
                self.keeper.id()
            );
            let path = dir.join(name);
            fs::write(&path, script).expect("write a program");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("make it a program");
        }
        dir
    }

    fn trouble(&self) -> PathBuf {
        self.dir.join("trouble")
    }

    fn rules(&self, program: &str, table: &str) -> String {
        let pid = self.keeper.id().to_string();
        let words = ["-t", &pid, "-n", "-m", program, "-w", "10", "-t", table, "-S"];
        let output = Command::new("nsenter").args(words).output().expect("run nsenter");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

#[test]
fn chains_are_made_although_iptables_fails_at_first() {
    let runtime = Runtime::start();
    let network = Network::start(&runtime.dir.join("network"));
    let paths = [network.programs().into_os_string(), std::env::var_os("PATH").unwrap_or_default()];
    let path = paths.join(std::ffi::OsStr::new(":")).into_string().expect("a path");
    fs::write(network.trouble(), "").expect("make trouble");
    let agent = Agent::start_in(&runtime, &[("PATH", &path)], &[], |config| {
        config["makeIPTablesUtilChains"] = true.into();
    });
    wait_until("the failure to be told", SLOW, || {
        let log = agent.log();
        log.lines()
            .any(|line| line.contains("chains and rules of iptables") && line.contains("the lock is held"))
    });
    assert!(!network.rules("iptables", "filter").contains("KUBE-"));

    fs::remove_file(network.trouble()).expect("end the trouble");
    wait("the rules", SLOW, || {
        let filter = network.rules("iptables", "filter");
        let wanted =
            ["-A INPUT -j KUBE-FIREWALL", "-A OUTPUT -j KUBE-FIREWALL", "RELATED,ESTABLISHED,DNAT -j DROP"];
        let hints = ["iptables", "ip6tables"].map(|program| network.rules(program, "mangle"));
        let made = wanted.iter().all(|rule| filter.contains(rule))
            && hints.iter().all(|rules| rules.contains("-N KUBE-IPTABLES-HINT"));
        if made { Ok(()) } else { Err(format!("{filter}{hints:?}")) }
    });
}
