//! The configuration from real files: precedence, drop-ins, defaults, and what the user is told.

use std::fs;
use std::path::{Path, PathBuf};

use rubelet::config::{ConfigError, LoadedConfig, Override, OverrideMode, Sources, load};
use serde_json::{Value, json};
use tempfile::TempDir;

const HEADER: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

/// A directory with a `--config` file and, if asked for, drop-in files.
struct Files {
    directory: TempDir,
}

impl Files {
    fn new(config: &str) -> Self {
        let files = Self { directory: TempDir::new().unwrap() };
        files.write("config.yaml", &format!("{HEADER}{config}"));
        files
    }

    fn drop_in(self, name: &str, content: &str) -> Self {
        self.write(&format!("conf.d/{name}"), &format!("{HEADER}{content}"));
        self
    }

    fn write(&self, name: &str, content: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn load(&self, overrides: &[Override]) -> Result<LoadedConfig, ConfigError> {
        let (file, drop_ins) = (self.path("config.yaml"), self.path("conf.d"));
        let drop_ins = drop_ins.is_dir().then_some(drop_ins.as_path());
        load(&Sources { file: Some(&file), drop_ins, overrides })
    }

    fn loaded(&self) -> LoadedConfig {
        self.load(&[]).unwrap()
    }

    fn refused(&self) -> String {
        chain(&self.load(&[]).unwrap_err())
    }
}

/// An error with all its causes, as `main` prints it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(&format!(": {inner}"));
        cause = inner.source();
    }
    text
}

fn replace(field: &'static str, value: Value) -> Override {
    Override { field, value, mode: OverrideMode::Replace }
}

#[test]
fn the_effective_configuration_is_that_of_a_real_kubelet() {
    let recorded =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/configz.json"))
            .unwrap();
    let recorded = recorded.replace("<dir>", "/bench").replace("<sock>", "/bench/containerd.sock");
    let recorded: Value = serde_json::from_str(&recorded).unwrap();
    let files = Files::new(
        "
address: 127.0.0.1
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
clusterDNS: [10.0.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix:///bench/containerd.sock
failCgroupV1: false
failSwapOn: false
podLogsDir: /bench/logs
readOnlyPort: 10255
staticPodPath: /bench/manifests
tlsCertFile: /var/lib/kubelet/pki/kubelet.crt
tlsPrivateKeyFile: /var/lib/kubelet/pki/kubelet.key
",
    );
    let ours = serde_json::to_value(files.loaded().config).unwrap();
    let (ours, theirs) = (ours.as_object().unwrap(), recorded["kubeletconfig"].as_object().unwrap());
    for (field, value) in theirs {
        assert_eq!(ours.get(field), Some(value), "{field}");
    }
    let extra: Vec<&String> = ours.keys().filter(|field| !theirs.contains_key(*field)).collect();
    assert!(extra.is_empty(), "{extra:?}");
}

#[test]
fn without_any_file_the_command_line_defaults_hold() {
    let loaded = load(&Sources::default()).unwrap();
    assert_eq!(loaded.config.read_only_port, 10255);
    assert!(loaded.config.authentication.anonymous.enabled);
    assert!(loaded.config.eviction_hard.is_empty());
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
}

#[test]
fn a_file_turns_the_open_defaults_off_and_brings_thresholds() {
    let config = Files::new("").loaded().config;
    assert_eq!(config.read_only_port, 0);
    assert!(!config.authentication.anonymous.enabled && config.authentication.webhook.enabled);
    assert_eq!(config.authorization.mode, "Webhook");
    assert_eq!(config.eviction_hard["memory.available"], "100Mi");
}

#[test]
fn eviction_thresholds_are_defaulted_only_when_the_key_is_absent() {
    assert_eq!(Files::new("evictionHard: null").loaded().config.eviction_hard.len(), 5);
    assert!(Files::new("evictionHard: {}").loaded().config.eviction_hard.is_empty());
    let own = "evictionHard: {memory.available: 200Mi}\n";
    assert_eq!(Files::new(own).loaded().config.eviction_hard.len(), 1);
    let merged =
        Files::new(&format!("{own}mergeDefaultEvictionSettings: true")).loaded().config.eviction_hard;
    assert_eq!(merged["memory.available"], "200Mi");
    assert_eq!(merged["nodefs.available"], "10%");
    assert_eq!(merged.len(), 5);
}

#[test]
fn json_and_yaml_are_both_read() {
    let files = Files::new("");
    files.write(
        "config.yaml",
        r#"{"apiVersion":"kubelet.config.k8s.io/v1beta1","kind":"KubeletConfiguration","maxPods":7,"syncFrequency":"30s"}"#,
    );
    let config = files.loaded().config;
    assert_eq!((config.max_pods, config.sync_frequency.to_string().as_str()), (7, "30s"));
    // YAML 1.1, as Kubernetes reads it; and of two documents the first.
    let config = Files::new("maxPods: 0144\nfailSwapOn: no\n---\nmaxPods: 5\n").loaded().config;
    assert_eq!((config.max_pods, config.fail_swap_on), (100, false));
}

#[test]
fn relative_paths_start_at_the_files_directory() {
    let files = Files::new(
        "
staticPodPath: manifests
podLogsDir: ../logs
tlsCertFile: pki/kubelet.crt
tlsPrivateKeyFile: /abs/kubelet.key
resolvConf: ''
volumePluginDir: ./plugins
authentication: {x509: {clientCAFile: ca.crt}}
",
    );
    let config = files.loaded().config;
    let here = |name: &str| files.path(name).to_str().unwrap().to_owned();
    assert_eq!(config.static_pod_path, here("manifests"));
    let parent = files.directory.path().parent().unwrap();
    assert_eq!(config.pod_logs_dir, parent.join("logs").to_str().unwrap());
    assert_eq!(config.tls_cert_file, here("pki/kubelet.crt"));
    assert_eq!(config.tls_private_key_file, "/abs/kubelet.key");
    assert_eq!(config.resolv_conf, "");
    assert_eq!(config.volume_plugin_dir, here("plugins"));
    assert_eq!(config.authentication.x509.client_ca_file, here("ca.crt"));
}

#[test]
fn unknown_and_repeated_fields_warn_and_do_not_stop() {
    let loaded =
        Files::new("staticPodPat: /x\nmaxPods: 5\nauthentication: {webhook: {enable: true}}\n").loaded();
    assert_eq!(loaded.config.max_pods, 5);
    assert!(!loaded.config.static_pod_path.contains("/x"));
    let has =
        |loaded: &LoadedConfig, part: &str| loaded.warnings.iter().any(|warning| warning.contains(part));
    assert!(has(&loaded, "unknown field \"staticPodPat\""), "{:?}", loaded.warnings);
    assert!(has(&loaded, "unknown field \"authentication.webhook.enable\""), "{:?}", loaded.warnings);

    let loaded = Files::new("syncFrequency: 5s\nsyncFrequency: 6s\n").loaded();
    assert_eq!(loaded.config.sync_frequency.to_string(), "6s");
    assert!(has(&loaded, "syncFrequency occurs twice (line 4)"), "{:?}", loaded.warnings);
}

#[test]
fn fields_without_effect_are_listed_once_and_only_when_they_differ() {
    let files = Files::new(
        "port: 10250\nhairpinMode: none\nvolumePluginDir: /p\nstaticPodPath: /m\nshutdownGracePeriod: 0s\n",
    )
    .drop_in("10.conf", "hairpinMode: hairpin-veth\ntopologyManagerScope: pod\npodsPerCore: 3\n");
    assert_eq!(
        files.loaded().warnings,
        ["configuration fields are accepted but have no effect yet: volumePluginDir, topologyManagerScope"]
    );
}

#[test]
fn a_wrong_type_names_file_and_field() {
    for (content, field, detail) in [
        ("staticPodPath: 5", "staticPodPath", "expected a string"),
        ("maxPods: many", "maxPods", "expected i32"),
        ("maxPods: 3000000000", "maxPods", "expected i32"),
        ("syncFrequency: 5", "syncFrequency", "expected a duration"),
        ("syncFrequency: 5d", "syncFrequency", "unknown unit \"d\""),
        (
            "authentication: {webhook: {cacheTTL: true}}",
            "authentication.webhook.cacheTTL",
            "expected a duration",
        ),
        ("authentication: open", "authentication", "expected struct"),
        ("clusterDNS: [10.0.0.10, 5]", "clusterDNS[1]", "expected a string"),
        ("evictionHard: {memory.available: 5}", "evictionHard.memory.available", "expected a string"),
        ("featureGates: {NodeSwap: 5}", "featureGates.NodeSwap", "expected a boolean"),
        ("registerWithTaints: [{key: 5}]", "registerWithTaints[0].key", "expected a string"),
        (
            "reservedMemory: [{limits: {memory: lots}}]",
            "reservedMemory[0].limits.memory",
            "expected a quantity",
        ),
    ] {
        let files = Files::new(content);
        let message = files.refused();
        let file = files.path("config.yaml");
        assert!(message.contains(file.to_str().unwrap()), "{content}: {message}");
        assert!(message.contains(&format!(": {field}: ")), "{content}: {message}");
        assert!(message.contains(detail), "{content}: {message}");
    }
}

#[test]
fn files_that_are_no_configuration_are_refused() {
    for (content, part) in [
        ("", "was empty"),
        ("# nothing\n", "kind is missing"),
        ("kind: KubeletConfiguration\n", "apiVersion is missing"),
        ("apiVersion: kubelet.config.k8s.io/v1beta1\n", "kind is missing"),
        ("apiVersion: kubelet.config.k8s.io/v1\nkind: KubeletConfiguration\n", "unknown apiVersion/kind"),
        ("apiVersion: v1\nkind: Pod\n", "unknown apiVersion/kind v1, Pod"),
        ("- a\n- b\n", "does not hold an object"),
        ("a: [b\n", "neither YAML nor JSON"),
    ] {
        let files = Files::new("");
        files.write("config.yaml", content);
        let message = files.refused();
        assert!(message.contains(part) && message.contains("config.yaml"), "{content:?}: {message}");
    }
    let message =
        chain(&load(&Sources { file: Some(Path::new("/nonexistent/x")), ..Sources::default() }).unwrap_err());
    assert!(message.contains("/nonexistent/x"), "{message}");
}

#[test]
fn drop_ins_merge_in_the_order_of_their_names() {
    let files = Files::new("maxPods: 1\nclusterDNS: [10.0.0.1, 10.0.0.2]\nfeatureGates: {MemoryQoS: true}\n")
        .drop_in("20-b.conf", "maxPods: 3\nevictionHard: {memory.available: 300Mi}\n")
        .drop_in("10-a.conf", "maxPods: 2\nclusterDNS: [10.0.0.3]\npodsPerCore: 4\n")
        .drop_in("15-dir/99.conf", "podsPerCore: 5\nfeatureGates: {ContainerStopSignals: true}\n")
        .drop_in("30-ignored.yaml", "maxPods: 99\n");
    let config = files.loaded().config;
    assert_eq!(config.max_pods, 3);
    assert_eq!(config.cluster_dns, ["10.0.0.3"]);
    assert_eq!(config.pods_per_core, 5);
    assert_eq!(config.feature_gates.len(), 2);
    assert_eq!(config.eviction_hard.len(), 5, "maps merge with what the file and its defaults brought");
    assert_eq!(config.eviction_hard["memory.available"], "300Mi");
}

#[test]
fn a_null_in_a_drop_in_brings_the_default_back() {
    let files = Files::new("maxPods: 1\nauthentication: {webhook: {enabled: false, cacheTTL: 1s}}\n")
        .drop_in("1.conf", "maxPods: null\nauthentication: {webhook: {cacheTTL: null}}\n");
    let config = files.loaded().config;
    assert_eq!(config.max_pods, 110);
    assert!(!config.authentication.webhook.enabled);
    assert_eq!(config.authentication.webhook.cache_ttl.to_string(), "2m0s");
}

#[test]
fn drop_ins_work_without_a_file_and_their_paths_stay() {
    let files = Files::new("").drop_in("1.conf", "staticPodPath: manifests\n");
    let config =
        load(&Sources { drop_ins: Some(&files.path("conf.d")), ..Sources::default() }).unwrap().config;
    assert_eq!(config.static_pod_path, "manifests");
    assert_eq!(config.read_only_port, 10255);
}

#[test]
fn bad_drop_ins_are_refused_by_name() {
    let files = Files::new("").drop_in("1.conf", "maxPods: 5\n").drop_in("2.conf", "maxPods: many\n");
    let message = files.refused();
    assert!(message.contains("2.conf: maxPods: ") && message.contains("expected i32"), "{message}");

    let files = Files::new("").drop_in("1.conf", "maxPods: 5\nmaxPods: 6\n");
    assert!(files.refused().contains("1.conf: maxPods occurs twice (line 4)"), "{}", files.refused());

    let files = Files::new("");
    files.write("conf.d/1.conf", "maxPods: 5\n");
    assert!(files.refused().contains("1.conf: kind is missing"), "{}", files.refused());
    files.write("conf.d/1.conf", "");
    assert!(files.refused().contains("was empty"), "{}", files.refused());

    let missing = load(&Sources { drop_ins: Some(Path::new("/nonexistent/conf.d")), ..Sources::default() });
    assert!(chain(&missing.unwrap_err()).contains("/nonexistent/conf.d"));
}

#[test]
fn unknown_fields_of_drop_ins_warn_as_well() {
    let loaded = Files::new("").drop_in("1.conf", "maxPod: 5\n").loaded();
    assert!(loaded.warnings.iter().any(|warning| warning.contains("1.conf: unknown field \"maxPod\"")));
}

#[test]
fn flags_win_over_everything() {
    let files =
        Files::new("maxPods: 1\nregistryBurst: 4\nclusterDomain: file\n").drop_in("1.conf", "maxPods: 2\n");
    let overrides = [
        replace("maxPods", json!(3)),
        replace("registryBurst", json!(0)),
        replace("resolvConf", json!("")),
        replace("authentication.anonymous.enabled", json!(true)),
        replace("evictionHard", json!({"pid.available": "5%"})),
    ];
    let config = files.load(&overrides).unwrap().config;
    assert_eq!(config.max_pods, 3);
    assert_eq!(config.registry_burst, 0, "a flag's zero is not replaced by a default");
    assert_eq!(config.resolv_conf, "");
    assert!(config.authentication.anonymous.enabled);
    assert_eq!(config.cluster_domain, "file");
    assert_eq!(config.eviction_hard.len(), 1, "a flag's map replaces the file's");
}

#[test]
fn feature_gates_of_flag_and_file_merge() {
    let files = Files::new("featureGates: {MemoryQoS: true, ContainerStopSignals: true}\n");
    let value = json!({"MemoryQoS": false, "EventedPLEG": true});
    let gates = Override { field: "featureGates", value, mode: OverrideMode::MergeEntries };
    let loaded = files.load(&[gates]).unwrap();
    assert!(!loaded.gates.enabled("MemoryQoS"));
    assert!(loaded.gates.enabled("ContainerStopSignals") && loaded.gates.enabled("EventedPLEG"));
    assert_eq!(loaded.config.feature_gates.len(), 3);
}

#[test]
fn bad_gates_stop_the_start() {
    let message = Files::new("featureGates: {NoSuchGate: true}\n").refused();
    assert!(
        message.contains("invalid configuration: featureGates: unrecognized feature gate \"NoSuchGate\""),
        "{message}"
    );
    let message = Files::new("featureGates: {NodeSwap: false}\n").refused();
    assert!(message.contains("NodeSwap can't be set to false: it is locked to true"), "{message}");
}
