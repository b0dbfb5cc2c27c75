//! Every flag: one row each. Adding a flag, or making one matter, is an edit here (or, for a flag that
//! stands for a configuration field, in that field's row of [`crate::config::FIELDS`]).

use super::field_flags::FIELD_FLAGS;
use crate::config::Support;

pub use super::flag::{Flag, Group, Target};
pub use super::kind::ValueKind;

const fn own(
    name: &'static str,
    kind: ValueKind,
    group: Group,
    effect: Support,
    default: &'static str,
    help: &'static str,
) -> Flag {
    Flag { name, kind, group, target: Target::NotInConfig(effect), default, deprecated: false, help }
}

const fn deprecated(
    name: &'static str,
    kind: ValueKind,
    group: Group,
    effect: Support,
    default: &'static str,
    help: &'static str,
) -> Flag {
    Flag { name, kind, group, target: Target::NotInConfig(effect), default, deprecated: true, help }
}

use Group::{Cadvisor, Cluster, General, Resources, Runtime};
use Support::{Honoured, NoEffectYet};
use ValueKind::{Bool, Duration, Int32, Int64, Labels, Text, Version};

/// The flags that are no configuration field.
#[rustfmt::skip]
const OWN_FLAGS: &[Flag] = &[
    own("config", Text, General, Honoured, "", "configuration file"),
    own("config-dir", Text, General, Honoured, "", "directory of *.conf files that change the configuration, in the order of their names"),
    own("root-dir", Text, General, Honoured, "/var/lib/kubelet", "directory of the agent's files"),
    own("cert-dir", Text, General, Honoured, "/var/lib/kubelet/pki", "directory of certificates"),
    own("lock-file", Text, General, Honoured, "", "file to hold a lock on while running"),
    own("exit-on-lock-contention", Bool, General, Honoured, "false", "end when another process opens the lock file"),
    own("version", Version, General, Honoured, "false", "print the version and end; raw prints its parts"),
    own("help", Bool, General, Honoured, "false", "print this text and end"),

    own("kubeconfig", Text, Cluster, Honoured, "", "how to reach the API server; without it the agent runs static pods only"),
    own("bootstrap-kubeconfig", Text, Cluster, Honoured, "", "how to reach the API server for the first certificate"),
    own("hostname-override", Text, Cluster, Honoured, "", "node name instead of the host's name"),
    own("node-ip", Text, Cluster, Honoured, "", "address of this node, or one per IP family, comma-separated"),
    own("node-labels", Labels, Cluster, Honoured, "", "labels to register the node with"),
    own("cloud-provider", Text, Cluster, Honoured, "", "external, or empty for none"),

    own("runtime-cgroups", Text, Runtime, Honoured, "", "cgroup of the container runtime, for its figures in /stats/summary"),
    own("image-credential-provider-config", Text, Runtime, Honoured, "", "configuration file or directory of credential plugins"),
    own("image-credential-provider-bin-dir", Text, Runtime, Honoured, "", "directory of credential plugins"),
    own("seccomp-default", Bool, Runtime, Honoured, "false", "run containers that ask for no seccomp profile with the runtime's own"),
    deprecated("minimum-container-ttl-duration", Duration, Runtime, Honoured, "0s", "youngest age at which a dead container may be removed"),
    deprecated("maximum-dead-containers-per-container", Int32, Runtime, Honoured, "1", "dead instances to keep per container"),
    deprecated("maximum-dead-containers", Int32, Runtime, Honoured, "-1", "dead containers to keep on the node, negative for no limit"),
    deprecated("experimental-mounter-path", Text, Runtime, NoEffectYet, "", "program to mount with"),
    deprecated("experimental-allocatable-ignore-eviction", Bool, Resources, Honoured, "false", "leave hard eviction thresholds out of allocatable"),

    own("housekeeping-interval", Duration, Cadvisor, NoEffectYet, "10s", "time between two measurements of containers"),
    deprecated("global-housekeeping-interval", Duration, Cadvisor, NoEffectYet, "1m0s", "time between two measurements of the machine"),
    deprecated("application-metrics-count-limit", Int64, Cadvisor, NoEffectYet, "100", "most application metrics per container"),
    deprecated("boot-id-file", Text, Cadvisor, Honoured, "/proc/sys/kernel/random/boot_id", "files to find the boot id in"),
    deprecated("machine-id-file", Text, Cadvisor, Honoured, "/etc/machine-id,/var/lib/dbus/machine-id", "files to find the machine id in"),
    deprecated("container-hints", Text, Cadvisor, NoEffectYet, "/etc/cadvisor/container_hints.json", "file of container hints"),
    deprecated("containerd", Text, Cadvisor, NoEffectYet, "/run/containerd/containerd.sock", "socket of containerd"),
    deprecated("containerd-namespace", Text, Cadvisor, NoEffectYet, "k8s.io", "namespace in containerd"),
    deprecated("enable-load-reader", Bool, Cadvisor, NoEffectYet, "false", "measure CPU load"),
    deprecated("event-storage-age-limit", Text, Cadvisor, NoEffectYet, "default=24h", "longest time to keep events"),
    deprecated("event-storage-event-limit", Text, Cadvisor, NoEffectYet, "default=100000", "most events to keep"),
    deprecated("log-cadvisor-usage", Bool, Cadvisor, NoEffectYet, "false", "log its own usage"),
    deprecated("storage-driver-user", Text, Cadvisor, NoEffectYet, "root", "database user"),
    deprecated("storage-driver-password", Text, Cadvisor, NoEffectYet, "root", "database password"),
    deprecated("storage-driver-host", Text, Cadvisor, NoEffectYet, "localhost:8086", "database host and port"),
    deprecated("storage-driver-db", Text, Cadvisor, NoEffectYet, "cadvisor", "database name"),
    deprecated("storage-driver-table", Text, Cadvisor, NoEffectYet, "stats", "database table"),
    deprecated("storage-driver-secure", Bool, Cadvisor, NoEffectYet, "false", "encrypt the database connection"),
    deprecated("storage-driver-buffer-duration", Duration, Cadvisor, NoEffectYet, "1m0s", "longest time to buffer writes"),
];

/// All rows.
pub fn flags() -> impl Iterator<Item = &'static Flag> {
    OWN_FLAGS.iter().chain(FIELD_FLAGS)
}

/// The row of a flag as the user wrote its name: `_` and `-` are the same.
pub fn find(name: &str) -> Option<&'static Flag> {
    let name = name.replace('_', "-");
    flags().find(|flag| flag.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use std::collections::BTreeSet;

    #[test]
    fn the_flags_are_those_of_the_upstream_kubelet() {
        let listed = include_str!("../../tests/fixtures/kubelet-flags.txt");
        let upstream: BTreeSet<&str> = listed.lines().collect();
        let ours: BTreeSet<&str> = flags().map(|flag| flag.name).collect();
        assert_eq!(ours, upstream);
        assert_eq!(flags().count(), ours.len(), "a flag has two rows");
    }

    #[test]
    fn every_field_flag_names_a_field_that_takes_its_values() {
        for flag in flags() {
            if let Target::Field(field) = flag.target {
                assert!(config::support(field).is_some(), "--{}: no field {field}", flag.name);
            }
            assert!(!flag.help.is_empty(), "--{}", flag.name);
        }
    }

    #[test]
    fn defaults_can_be_parsed() {
        for flag in flags().filter(|flag| !flag.default.is_empty()) {
            assert!(
                flag.kind.parse_occurrence(None, flag.default).is_ok(),
                "--{} {}",
                flag.name,
                flag.default
            );
        }
    }

    #[test]
    fn names_are_found_with_dashes_and_underscores() {
        for name in ["pod-manifest-path", "pod_manifest_path", "pod_manifest-path"] {
            assert_eq!(find(name).map(|flag| flag.name), Some("pod-manifest-path"), "{name}");
        }
        assert!(find("pod-manifest").is_none());
    }
}
