//! The command line as a user writes it, up to the configuration it results in.

use std::path::{Path, PathBuf};
use std::process::Command;

use rubelet::config::{Support, load};
use rubelet::flags::table::{Flag, Target, ValueKind, flags};
use rubelet::flags::{FlagError, Flags, Invocation, VersionRequest, parse};
use serde_json::{Value, json};

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn invocation(line: &str) -> Result<Invocation, FlagError> {
    parse(&words(line))
}

fn agent(line: &str) -> Flags {
    match invocation(line) {
        Ok(Invocation::Agent(flags)) => *flags,
        other => panic!("{line}: {other:?}"),
    }
}

fn refused(line: &str) -> String {
    match invocation(line) {
        Err(error) => error.to_string(),
        Ok(other) => panic!("{line}: {other:?}"),
    }
}

/// The configuration after this command line, as JSON.
fn configured(line: &str) -> Value {
    serde_json::to_value(load(&agent(line).sources()).unwrap().config).unwrap()
}

/// A value that a flag of this kind takes and that is not a default, and the JSON it becomes.
fn sample(kind: ValueKind) -> (&'static str, Value) {
    match kind {
        ValueKind::Text => ("sample", json!("sample")),
        ValueKind::Bool => ("true", json!(true)),
        ValueKind::Int32 | ValueKind::Int64 => ("7", json!(7)),
        ValueKind::Level => ("7", json!(7)),
        ValueKind::Duration => ("77s", json!("1m17s")),
        ValueKind::Quantity => ("7Ki", json!("7Ki")),
        ValueKind::Address => ("10.7.7.7", json!("10.7.7.7")),
        ValueKind::List => ("a,b", json!(["a", "b"])),
        ValueKind::Pairs | ValueKind::SinglePair | ValueKind::Labels => ("a=b", json!({"a": "b"})),
        ValueKind::BoolMap => ("MemoryQoS=true", json!({"MemoryQoS": true})),
        ValueKind::Thresholds => ("memory.available<7%", json!({"memory.available": "7%"})),
        ValueKind::Headers => ("a:b", json!({"a": ["b"]})),
        ValueKind::Vmodule => ("a=7", json!([{"filePattern": "a", "verbosity": 7}])),
        ValueKind::Taints => ("a=b:NoExecute", json!([{"key": "a", "value": "b", "effect": "NoExecute"}])),
        ValueKind::ReservedMemory => ("0:memory=7Gi", json!([{"numaNode": 0, "limits": {"memory": "7Gi"}}])),
        ValueKind::Version => ("v1.36.4", json!("v1.36.4")),
    }
}

fn is_answer(flag: &Flag) -> bool {
    ["help", "version"].contains(&flag.name)
}

#[test]
fn every_flag_is_taken_in_every_form() {
    for flag in flags().filter(|flag| !is_answer(flag)) {
        let (value, _) = sample(flag.kind);
        let underscored = flag.name.replace('-', "_");
        let expected = agent(&format!("--{}={value}", flag.name));
        assert_eq!(agent(&format!("--{underscored}={value}")), expected, "--{underscored}");
        if flag.kind == ValueKind::Bool {
            assert_eq!(agent(&format!("--{}", flag.name)), expected, "--{}", flag.name);
            assert!(refused(&format!("--{} true", flag.name)).contains("unknown command true"));
        } else {
            assert_eq!(agent(&format!("--{} {value}", flag.name)), expected, "--{}", flag.name);
            assert_eq!(
                refused(&format!("--{}", flag.name)),
                format!("flag needs an argument: --{}", flag.name)
            );
        }
    }
}

#[test]
fn every_field_flag_reaches_its_field() {
    for flag in flags() {
        let Target::Field(field) = flag.target else { continue };
        let (text, value) = sample(flag.kind);
        let config = configured(&format!("--{}={text}", flag.name));
        let pointer = format!("/{}", field.replace('.', "/"));
        assert_eq!(config.pointer(&pointer), Some(&value), "--{}", flag.name);
        if flag.kind == ValueKind::Bool {
            let config = configured(&format!("--{}=false", flag.name));
            assert!(config.pointer(&pointer).is_none_or(|value| *value == json!(false)), "--{}", flag.name);
        }
    }
}

#[test]
fn every_flag_warns_at_most_once_and_as_the_table_says() {
    for flag in flags().filter(|flag| !is_answer(flag)) {
        let (value, _) = sample(flag.kind);
        let warnings = agent(&format!("--{name}={value} --{name}={value}", name = flag.name)).warnings;
        let about: Vec<&String> = warnings
            .iter()
            .filter(|warning| warning.starts_with(&format!("flag --{} ", flag.name)))
            .collect();
        match (flag.support(), flag.deprecated) {
            (Support::NoEffectYet, _) => {
                assert_eq!(about, [&format!("flag --{} is accepted but has no effect yet", flag.name)]);
            }
            (Support::Partly(what), _) => {
                assert!(about.len() == 1 && about[0].ends_with(what), "{about:?}");
            }
            (Support::Honoured, true) => {
                assert!(about.len() == 1 && about[0].contains("deprecated"), "{about:?}")
            }
            (Support::Honoured, false) => assert!(about.is_empty(), "{about:?}"),
        }
    }
}

#[test]
fn defaults_of_the_other_flags() {
    let flags = agent("");
    assert_eq!(flags.root_dir, Path::new("/var/lib/kubelet"));
    assert_eq!(flags.cert_dir, Path::new("/var/lib/kubelet/pki"));
    assert_eq!((flags.config, flags.config_dir, flags.kubeconfig, flags.lock_file), (None, None, None, None));
    assert_eq!((flags.maximum_dead_containers, flags.maximum_dead_containers_per_container), (-1, 1));
    assert_eq!(flags.minimum_container_ttl_duration.to_string(), "0s");
    assert_eq!(flags.housekeeping_interval.to_string(), "10s");
    assert_eq!(flags.machine_id_files, ["/etc/machine-id", "/var/lib/dbus/machine-id"]);
    assert_eq!(flags.boot_id_files, ["/proc/sys/kernel/random/boot_id"]);
    assert!(!flags.seccomp_default && !flags.exit_on_lock_contention);
    assert!(flags.node_labels.is_empty() && flags.node_ips.is_empty());
    assert!(flags.overrides.is_empty() && flags.warnings.is_empty());
}

#[test]
fn the_other_flags_land_in_their_places() {
    let flags = agent(
        "--config=/c --config-dir /d --root-dir=/r --cert-dir=/p --kubeconfig=/k --bootstrap-kubeconfig=/b \
         --hostname-override=node7 --node-ip=10.0.0.7,fd00::7 --node-labels=a=b,c= --node-labels=d=e \
         --runtime-cgroups=/rt --seccomp-default --lock-file=/l --exit-on-lock-contention \
         --minimum-container-ttl-duration=1m --maximum-dead-containers-per-container=2 --maximum-dead-containers 3 \
         --image-credential-provider-config=/ic --image-credential-provider-bin-dir=/ib --cloud-provider=external",
    );
    let path = |text: &str| Some(PathBuf::from(text));
    assert_eq!((flags.config, flags.config_dir), (path("/c"), path("/d")));
    assert_eq!((flags.root_dir, flags.cert_dir), (PathBuf::from("/r"), PathBuf::from("/p")));
    assert_eq!((flags.kubeconfig, flags.bootstrap_kubeconfig), (path("/k"), path("/b")));
    assert_eq!(flags.hostname_override.as_deref(), Some("node7"));
    assert_eq!(flags.node_ips.len(), 2);
    assert_eq!(flags.node_labels.len(), 3);
    assert_eq!(flags.runtime_cgroups.as_deref(), Some("/rt"));
    assert!(flags.seccomp_default && flags.exit_on_lock_contention);
    assert_eq!(flags.lock_file, path("/l"));
    assert_eq!(flags.minimum_container_ttl_duration.to_string(), "1m0s");
    assert_eq!((flags.maximum_dead_containers_per_container, flags.maximum_dead_containers), (2, 3));
    assert_eq!(flags.image_credential_provider_config, path("/ic"));
    assert_eq!(flags.image_credential_provider_bin_dir, path("/ib"));
    assert_eq!(flags.cloud_provider, "external");
}

#[test]
fn verbosity_has_all_its_spellings() {
    for line in ["-v 4", "-v=4", "-v4", "--v=4", "--v 4"] {
        assert_eq!(configured(line).pointer("/logging/verbosity"), Some(&json!(4)), "{line}");
    }
    assert_eq!(refused("-v"), "flag needs an argument: --v");
    assert!(refused("-v=x").starts_with("invalid argument \"x\" for --v: "), "{}", refused("-v=x"));
}

#[test]
fn repeated_values_add_up_as_upstream() {
    let config =
        configured("--cluster-dns=10.0.0.1,10.0.0.2 --cluster-dns 10.0.0.3 --max-pods=5 --max-pods=6");
    assert_eq!(config["clusterDNS"], json!(["10.0.0.1", "10.0.0.2", "10.0.0.3"]));
    assert_eq!(config["maxPods"], json!(6));
    let config = configured("--eviction-hard=memory.available<1% --eviction-hard=nodefs.available<2%");
    assert_eq!(config["evictionHard"], json!({"memory.available": "1%", "nodefs.available": "2%"}));
    let config = configured("--enforce-node-allocatable=none --address= --healthz-bind-address=::");
    assert_eq!(config["enforceNodeAllocatable"], json!(["none"]));
    assert_eq!((&config["address"], &config["healthzBindAddress"]), (&json!("0.0.0.0"), &json!("::")));
}

#[test]
fn mistakes_are_named() {
    for (line, expect) in [
        ("--pod-manifst-path=/x", "unknown flag: --pod-manifst-path (did you mean --pod-manifest-path?)"),
        ("--rootdir=/x", "unknown flag: --rootdir (did you mean --root-dir?)"),
        ("--something-quite-different", "unknown flag: --something-quite-different"),
        ("-x", "unknown shorthand flag: 'x' in -x"),
        ("-config=/x", "unknown shorthand flag: 'c' in -config=/x (did you mean --config?)"),
        ("---config", "bad flag syntax: ---config"),
        ("--=x", "bad flag syntax: --=x"),
        ("run", "unknown command run"),
        ("--v=2 why", "unknown command why"),
        ("-- run", "unknown command run"),
        ("-", "unknown command -"),
        ("--enable-server=maybe", "invalid argument \"maybe\" for --enable-server: expected true or false"),
        ("--max-pods=many", "invalid argument \"many\" for --max-pods: expected a whole number"),
        (
            "--max-pods=3000000000",
            "invalid argument \"3000000000\" for --max-pods: must be from -2147483648 to 2147483647",
        ),
        ("--address=localhost", "invalid argument \"localhost\" for --address: not an IP address"),
        (
            "--node-ip=10.0.0.1,10.0.0.2",
            "invalid argument \"10.0.0.1,10.0.0.2\" for --node-ip: must be one address, or one per IP family",
        ),
        (
            "--version=v1.2.3",
            "invalid argument \"v1.2.3\" for --version: expected true, false, raw or the version of this release",
        ),
    ] {
        assert_eq!(refused(line), expect, "{line}");
    }
    assert!(refused("--sync-frequency=5").contains("--sync-frequency: invalid duration \"5\""));
    assert!(
        refused("--node-labels=kubernetes.io/role=x")
            .contains("for --node-labels: a node may not give itself kubernetes.io/role")
    );
    assert!(refused("--register-with-taints=a=b").contains("for --register-with-taints: "));
    assert!(refused("--feature-gates=A").contains("for --feature-gates: "));
}

#[test]
fn short_answers_come_before_the_agent() {
    for line in ["--help", "-h", "--help --max-pods=5"] {
        assert_eq!(invocation(line), Ok(Invocation::Help), "{line}");
    }
    assert!(matches!(invocation("--help=false"), Ok(Invocation::Agent(_))));
    assert_eq!(invocation("--version"), Ok(Invocation::Version(VersionRequest::Plain)));
    assert_eq!(invocation("--version=true"), Ok(Invocation::Version(VersionRequest::Plain)));
    assert_eq!(invocation("--version=raw"), Ok(Invocation::Version(VersionRequest::Raw)));
    assert!(matches!(invocation("--version=false"), Ok(Invocation::Agent(_))));
    assert_eq!(agent("--version=v1.36.4-x").reported_version.as_deref(), Some("v1.36.4-x"));
    let command =
        Invocation::Command { command: rubelet::commands::Command::Why, arguments: words("pod-a --verbose") };
    assert_eq!(invocation("why pod-a --verbose"), Ok(command));
}

#[test]
fn seccomp_default_comes_from_flag_or_file() {
    let config = load(&agent("").sources()).unwrap().config;
    assert!(!agent("").effective_seccomp_default(&config));
    assert!(agent("--seccomp-default").effective_seccomp_default(&config));
}

fn rubelet(arguments: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_rubelet")).args(arguments).output().unwrap()
}

#[test]
fn the_binary_prints_what_kubeadm_parses() {
    let output = rubelet(&["--version"]);
    assert!(output.status.success());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "Kubernetes v1.36.4\n");
    assert_eq!(String::from_utf8(output.stderr).unwrap(), format!("Rubelet {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn the_binary_helps_and_refuses() {
    let output = rubelet(&["--help"]);
    assert!(output.status.success() && output.stderr.is_empty());
    assert!(String::from_utf8(output.stdout).unwrap().contains("--pod-manifest-path"));
    let output = rubelet(&["--no-such-flag"]);
    assert!(!output.status.success() && output.stdout.is_empty());
    assert!(String::from_utf8(output.stderr).unwrap().contains("unknown flag: --no-such-flag"));
    let output = rubelet(&["--max-pods=-1", "--port=0"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(
        stderr.contains("invalid configuration: maxPods: ")
            && stderr.contains("invalid configuration: port: "),
        "{stderr}"
    );
}
