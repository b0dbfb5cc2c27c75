//! A machine of its own for a test, with a booted systemd and cgroup v2: made and removed by `hack/guest`.
//!
//! ```text
//! let guest = Guest::start(Form::Uml);
//! guest.run("systemctl is-active containerd");   // its output; the test fails when the command does
//! let node = GuestNode::start(guest);            // Rubelet in it, as a systemd unit
//! ```

mod node;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::atomic::{AtomicU32, Ordering};

pub use node::GuestNode;

use crate::support::harness::{hack, run};

/// How long one command in a guest may take. The guest ends it then.
const COMMAND_SECONDS: u32 = 300;

/// What runs the guest's kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// One CPU at near native speed.
    Uml,
    /// Emulated and slow: four CPUs on two NUMA nodes, and everything that a kernel of a distribution has.
    Qemu,
}

impl Form {
    fn name(self) -> &'static str {
        match self {
            Form::Uml => "uml",
            Form::Qemu => "qemu",
        }
    }
}

#[derive(Debug)]
pub struct Guest {
    dir: PathBuf,
}

impl Guest {
    #[track_caller]
    pub fn start(form: Form) -> Guest {
        Guest::start_for(std::process::id(), form, &[])
    }

    /// With more disks, of these sizes.
    #[track_caller]
    pub fn start_with_disks(form: Form, sizes: &[&str]) -> Guest {
        Guest::start_for(std::process::id(), form, sizes)
    }

    /// The guest ends with the process `owner`.
    #[track_caller]
    pub fn start_for(owner: u32, form: Form, disks: &[&str]) -> Guest {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("rubelet-guest-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let guest = Guest { dir: std::env::temp_dir().join(name) };
        let mut command = hack("guest");
        command.args(["start", "--form", form.name()]);
        command.args(disks.iter().flat_map(|size| ["--disk", size]));
        run(command.arg(&guest.dir).env("RUBELET_TEST_OWNER", owner.to_string()));
        guest
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Runs a script to its end and gives what it printed.
    ///
    /// # Panics
    /// When it fails, with what it said.
    #[track_caller]
    pub fn run(&self, script: &str) -> String {
        let output = self.output(COMMAND_SECONDS, script);
        let said = String::from_utf8_lossy(&output.stderr);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "in the guest, {script:?} ended with {}: {said}{text}",
            output.status
        );
        text
    }

    /// Runs a script to whatever end.
    pub fn output(&self, seconds: u32, script: &str) -> Output {
        let mut command = hack("guest");
        command.args(["run", "--timeout", &seconds.to_string()]).arg(&self.dir).args(["bash", "-c", script]);
        command.output().expect("run hack/guest")
    }

    /// Writes a file into the guest.
    #[track_caller]
    pub fn write(&self, path: &str, text: &str) {
        // On the way it has a name that tells nothing.
        let here = self.dir.join("written");
        fs::write(&here, text).expect("write a file");
        self.copy_in(&here, path);
    }

    #[track_caller]
    pub fn copy_in(&self, from: &Path, to: &str) {
        run(hack("guest").arg("copy-in").args([&self.dir, from]).arg(to));
    }

    #[track_caller]
    pub fn copy_out(&self, from: &str, to: &Path) {
        run(hack("guest").arg("copy-out").arg(&self.dir).arg(from).arg(to));
    }

    /// Makes a file of this machine readable below `/share`, without copying it where that is possible.
    #[track_caller]
    pub fn share(&self, from: &Path, name: &str) {
        let shared = self.dir.join("share").join(name);
        if fs::hard_link(from, &shared).is_err() {
            fs::copy(from, &shared).unwrap_or_else(|error| panic!("share {}: {error}", from.display()));
        }
    }

    /// What kernel and systemd printed.
    #[track_caller]
    pub fn console(&self) -> String {
        run(hack("guest").arg("console").arg(&self.dir))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut command = hack("guest");
        command.arg("stop");
        if std::env::var_os("RUBELET_E2E_KEEP").is_some() && self.dir.exists() {
            eprintln!("kept: {}", self.dir.display());
            command.arg("--keep");
        }
        match command.arg(&self.dir).output() {
            Ok(output) if output.status.success() => {}
            failed => eprintln!("could not stop the guest in {}: {failed:?}", self.dir.display()),
        }
    }
}
