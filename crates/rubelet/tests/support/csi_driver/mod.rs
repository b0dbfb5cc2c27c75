//! A storage driver for tests, as a process of its own: it speaks CSI and registers over sockets, and its volumes are
//! directories of the host, or loop devices. It notes every call, and faults are files that a test puts into its
//! directory:
//!
//! ```text
//!   <dir>/settings.json    name, where its sockets are, whether it stages
//!        /calls            a JSON document per line: the call, its volume, what came with it; `done` when it is through
//!        /faults/<call>    fail <code>: refuses    before: hangs, not having done it    after: hangs, having done it
//!                          dead: publishes a filesystem whose server never answers, while this process lives
//!        /volumes/<id>     the data
//!        /most-volumes     how many volumes the node takes, if not 7
//!        /trouble          what is wrong with its volumes, if anything
//! ```
//! The process is the test program itself, told by a variable of its environment to be the driver.

pub mod scene;
mod service;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::support::harness::{SLOW, wait, wait_until};

const ROLE: &str = "RUBELET_TEST_CSI_DRIVER";

/// What it says of each volume: bytes and inodes, in all, used and free.
pub const FIGURES: [[i64; 3]; 2] = [[1_000_001, 400_002, 600_003], [104, 45, 56]];

/// Becomes the driver, and never returns, if this process was started to be one.
pub fn be_the_driver_if_asked() {
    if let Some(dir) = std::env::var_os(ROLE) {
        service::serve(Path::new(&dir));
    }
}

pub struct Driver {
    pub dir: PathBuf,
    pub name: String,
    role: &'static str,
    child: Option<Child>,
}

impl Driver {
    /// `role`: the test that calls [`be_the_driver_if_asked`]. `registry`: where the agent looks for plugins.
    pub fn start(role: &'static str, dir: PathBuf, registry: &Path, name: &str, settings: Value) -> Driver {
        fs::create_dir_all(dir.join("faults")).unwrap();
        fs::create_dir_all(dir.join("volumes")).unwrap();
        let mut all = json!({
            "name": name, "stage": true,
            "socket": dir.join("csi.sock"), "registration": registry.join(format!("{name}-reg.sock")),
        });
        crate::support::cluster_node::merge(&mut all, settings);
        fs::write(dir.join("settings.json"), all.to_string()).unwrap();
        let mut driver = Driver { dir, name: name.to_owned(), role, child: None };
        driver.restart();
        driver
    }

    pub fn restart(&mut self) {
        self.stop();
        let log = fs::OpenOptions::new().create(true).append(true).open(self.dir.join("log")).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", self.role, "--nocapture"])
            .env(ROLE, &self.dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    /// As a driver that is taken off the node: its sockets go too.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        for socket in ["socket", "registration"] {
            let settings: Value =
                serde_json::from_slice(&fs::read(self.dir.join("settings.json")).unwrap()).unwrap();
            let _ = fs::remove_file(settings[socket].as_str().unwrap());
        }
    }

    /// For calls that begin from now on. The driver never sees a half of it.
    pub fn fault(&self, call: &str, what: &str) {
        let draft = self.dir.join("fault");
        fs::write(&draft, what).unwrap();
        fs::rename(draft, self.dir.join("faults").join(call)).unwrap();
    }

    pub fn heal(&self, call: &str) {
        fs::remove_file(self.dir.join("faults").join(call)).unwrap();
    }

    /// What it was asked, in order.
    pub fn calls(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.dir.join("calls")).unwrap_or_default();
        // The last line may be half written.
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// How often a call went through.
    pub fn done(&self, call: &str) -> usize {
        self.calls().iter().filter(|seen| seen["call"] == call && seen["done"] == true).count()
    }

    pub fn begun(&self, call: &str) -> usize {
        self.calls().iter().filter(|seen| seen["call"] == call && seen["done"] == false).count()
    }

    /// How many calls of this name hang for the volume at this moment. One that is at work may have begun before its fault.
    pub fn hanging(&self, call: &str, volume: &str) -> usize {
        let of = |seen: &&Value| seen["call"] == call && seen["volume"] == volume;
        let calls = self.calls();
        let begun = calls.iter().filter(of).filter(|seen| seen["hangs"] == true).count();
        begun - calls.iter().filter(of).filter(|seen| seen["hung"] == true).count()
    }

    #[track_caller]
    pub fn wait_hanging(&self, call: &str, volume: &str) {
        wait_until(&format!("{call} of {volume} to hang"), 3 * SLOW, || self.hanging(call, volume) > 0);
    }

    #[track_caller]
    pub fn wait_done(&self, call: &str, times: usize) {
        wait(&format!("{times} times {call}"), 3 * SLOW, || match self.done(call) {
            seen if seen >= times => Ok(()),
            seen => Err(format!("{seen} times; all calls: {:#?}", self.calls())),
        });
    }

    #[track_caller]
    pub fn wait_begun(&self, call: &str, times: usize) {
        wait_until(&format!("{call} to begin"), 3 * SLOW, || self.begun(call) >= times);
    }

    /// What came with the last call of this name that went through.
    pub fn last(&self, call: &str) -> Value {
        let calls = self.calls();
        let found = calls.iter().rev().find(|seen| seen["call"] == call && seen["done"] == true);
        found.unwrap_or_else(|| panic!("no {call} in {calls:#?}")).clone()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("calls of the driver {}:", self.name);
            for call in self.calls() {
                eprintln!("  {call}");
            }
        }
        self.stop();
    }
}
