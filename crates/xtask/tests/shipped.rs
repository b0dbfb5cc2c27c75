//! What ships beside the program: the systemd units, and the one command that builds it.

// These tests run real programs.
#![allow(clippy::disallowed_methods)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// What kubeadm's package installs.
const PACKAGE_UNIT: &str = "\
[Unit]
Description=kubelet: The Kubernetes Node Agent
[Service]
ExecStart=/usr/bin/kubelet
Restart=always
RestartSec=10
[Install]
WantedBy=multi-user.target
";
const PACKAGE_DROP_IN: &str = "\
[Service]
Environment=\"KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml\"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
";

/// systemd's own check of a unit: it reports the program that it would start if that is missing. So each directory gets
/// its own paths at which nothing exists.
fn started(files: &[(&str, &str)]) -> String {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let text =
            text.replace("=/usr/bin/", "=/nowhere/package/").replace("=/usr/local/bin/", "=/nowhere/ours/");
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    // A directory of the administrator goes before one of packages; the colon at the end adds systemd's own.
    let search = format!("{0}/etc:{0}/lib:", dir.path().display());
    let said = Command::new("systemd-analyze")
        .args(["verify", "--man=no", "kubelet.service"])
        .env("SYSTEMD_UNIT_PATH", search)
        .output()
        .expect("systemd-analyze: `hack/parts install` brings it");
    String::from_utf8_lossy(&said.stderr).into_owned()
}

fn starts(program: &str) -> String {
    format!("kubelet.service: Command {program} is not executable: No such file or directory\n")
}

#[test]
fn the_agent_starts_on_a_node_that_kubeadms_package_set_up() {
    let ours = read("hack/systemd/kubelet.service.d/20-rubelet.conf");
    let package =
        [("lib/kubelet.service", PACKAGE_UNIT), ("lib/kubelet.service.d/10-kubeadm.conf", PACKAGE_DROP_IN)];
    assert_eq!(started(&package), starts("/nowhere/package/kubelet"), "the package alone");
    let both = [&package[..], &[("etc/kubelet.service.d/20-rubelet.conf", &ours)]].concat();
    assert_eq!(started(&both), starts("/nowhere/ours/kubelet"));
}

#[test]
fn the_agent_starts_on_a_node_without_any_package() {
    let unit = read("hack/systemd/kubelet.service");
    let drop_in = read("hack/systemd/kubelet.service.d/20-rubelet.conf");
    let files = [("etc/kubelet.service", &*unit), ("etc/kubelet.service.d/20-rubelet.conf", &*drop_in)];
    assert_eq!(started(&files), starts("/nowhere/ours/kubelet"));
    for line in ["EnvironmentFile=-/etc/sysconfig/kubelet", "After=containerd.service crio.service"] {
        assert!(drop_in.lines().any(|other| other == line), "{line}");
    }
}

/// Every build of the shipped program is the same: with the allocator with which the figures were measured.
#[test]
fn there_is_one_command_that_builds_what_ships() {
    let aliases = read(".cargo/config.toml");
    let alias = aliases.lines().find_map(|line| line.strip_prefix("dist = ")).expect("the alias");
    for word in ["--bin rubelet", "--profile dist", "--features rubelet/jemalloc"] {
        assert!(alias.contains(word), "{alias} lacks {word}");
    }
    for page in ["README.md", "docs/operations.md", "hack/bench.sh"] {
        let text = read(page);
        assert!(text.contains("cargo dist"), "{page} does not say `cargo dist`");
        let other = ["target/release/rubelet", "build --release -p rubelet", "--features rubelet/jemalloc"];
        for other in other {
            assert!(!text.contains(other), "{page} has another way: {other}");
        }
    }
}
