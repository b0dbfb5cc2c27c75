//! Configuration: files, drop-ins, flags, kubeconfigs.

use rubelet::config::{GoDuration, Host, Sources, load, validate};
use rubelet::flags;

use crate::scratch;
use crate::target::{Target, text};

const CONFIG: &[&str] = &[
    "apiVersion: kubelet.config.k8s.io/v1beta1\n",
    "kind: KubeletConfiguration\n",
    "staticPodPath: ",
    "evictionHard: {memory.available: 1Mi}\n",
    "featureGates: {AllAlpha: true}\n",
    "systemReserved: {cpu: 1}\n",
    "1m30s",
    "null",
    "&a ",
    "*a",
    "\u{1e}",
];

pub const TARGETS: [Target; 6] = [
    Target { name: "config_file", run: config_file, dictionary: CONFIG },
    Target { name: "config_drop_ins", run: config_drop_ins, dictionary: CONFIG },
    Target {
        name: "flags",
        run: flags,
        dictionary: &[
            "--",
            "-v",
            "=",
            "--config",
            "--node-labels=",
            "--feature-gates=",
            "\n",
            ",",
            "--v=4",
            "a=b",
        ],
    },
    Target {
        name: "duration",
        run: duration,
        dictionary: &["h", "m", "s", "ms", "us", "µs", "ns", ".", "-"],
    },
    Target {
        name: "kubeconfig",
        run: kubeconfig,
        dictionary: &[
            "clusters:\n",
            "users:\n",
            "contexts:\n",
            "current-context: ",
            "exec:",
            "server: https://",
        ],
    },
    Target {
        name: "pem",
        run: pem,
        dictionary: &[
            "-----BEGIN CERTIFICATE-----\n",
            "-----END CERTIFICATE-----\n",
            "PRIVATE KEY",
            "RSA ",
            "EC ",
        ],
    },
];

fn check(sources: &Sources<'_>) {
    let Ok(loaded) = load(sources) else { return };
    let _ = validate(&loaded.config, &loaded.gates, Host { cgroup_v1: false });
    // The configuration that the agent shows can be parsed as a configuration.
    let shown = serde_json::to_vec(&loaded.config).expect("a configuration can be written");
    serde_json::from_slice::<rubelet::config::KubeletConfiguration>(&shown).expect("and read again");
}

fn config_file(data: &[u8]) {
    let file = scratch::file("config.yaml", data);
    check(&Sources { file: Some(&file), drop_ins: None, overrides: &[] });
}

/// Files are separated by a record separator.
fn config_drop_ins(data: &[u8]) {
    let dir = scratch::dir().join("drop-ins");
    let _ = std::fs::remove_dir_all(&dir);
    for (number, part) in data.split(|byte| *byte == 0x1e).take(4).enumerate() {
        scratch::file(format!("drop-ins/{number}.conf"), part);
    }
    check(&Sources { file: None, drop_ins: Some(&dir), overrides: &[] });
}

fn flags(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let arguments: Vec<String> = text.lines().map(str::to_owned).collect();
    let _ = flags::parse(&arguments);
}

fn duration(data: &[u8]) {
    let Some(text) = text(data) else { return };
    if let Ok(duration) = text.parse::<GoDuration>() {
        let written = duration.to_string();
        assert_eq!(written.parse(), Ok(duration), "{text:?} is written as {written:?}");
    }
    let _ = decide::credentials::go_duration::parse(text);
}

fn kubeconfig(data: &[u8]) {
    let _ = apiserver::kubeconfig::load(&scratch::file("kubeconfig", data));
}

fn pem(data: &[u8]) {
    let _ = apiserver::kubeconfig::certificates(data);
    let _ = apiserver::kubeconfig::private_key(data);
    let _ = apiserver::kubeconfig::KeyPair::from_pem(data, data);
}
