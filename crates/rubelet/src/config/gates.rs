//! Feature gates: which exist, which are on, and which may not be touched.

use std::collections::BTreeMap;

use super::gate_table::{DEPENDENCIES, GATES};
pub use super::gate_table::{Gate, Stage};

/// These two set all gates of a stage that are not named on their own.
const ALL_ALPHA: &str = "AllAlpha";
const ALL_BETA: &str = "AllBeta";

/// The gates whose setting changes what this build does. Any other one may be set, but is reported to
/// have no effect yet when it is moved away from its default.
const EFFECTIVE: &[&str] = &[
    "AllowDNSOnlyNodeCSR",
    "CRIListStreaming",
    "CSIVolumeHealth",
    "ChangeContainerStatusOnKubeletRestart",
    "ClusterTrustBundleProjection",
    "ComponentFlagz",
    "ComponentStatusz",
    "ContainerCheckpoint",
    "ContainerRestartRules",
    "ContainerStopSignals",
    "CustomCPUCFSQuotaPeriod",
    "EnvFiles",
    "ExtendWebSocketsToKubelet",
    "GracefulNodeShutdown",
    "GracefulNodeShutdownBasedOnPodPriority",
    "HostnameOverride",
    "ImageVolumeWithDigest",
    "KubeletCrashLoopBackOffMax",
    "KubeletEnsureSecretPulledImages",
    "KubeletInUserNamespace",
    "KubeletRegistrationGetOnExistsOnly",
    "KubeletServiceAccountTokenForCredentialProviders",
    "LocalStorageCapacityIsolationFSQuotaMonitoring",
    "LoggingAlphaOptions",
    "LoggingBetaOptions",
    "MemoryQoS",
    "NodeDeclaredFeatures",
    "PodAndContainerStatsFromCRI",
    "PodCertificateRequest",
    "PodLevelResources",
    "PodLogsQuerySplitStreams",
    "PodReadyToStartContainersCondition",
    "PodsAPI",
    "PreventStaticPodAPIReferences",
    "QOSReserved",
    "ReduceDefaultCrashLoopBackOffDecay",
    "ReloadKubeletClientCAFile",
    "ReloadKubeletServerCertificateFile",
    "RestartAllContainersOnContainerExits",
    "RotateKubeletServerCertificate",
    "RuntimeClassInImageCriApi",
    "SELinuxMount",
    "UserNamespacesHostNetworkSupport",
];

/// Why a set of gates can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    #[error("featureGates: unrecognized feature gate {0:?}")]
    Unknown(String),
    #[error("featureGates: {name} can't be set to {wanted}: it is locked to {default}", default = !wanted)]
    Locked { name: &'static str, wanted: bool },
    #[error("featureGates: {name} is on, but needs {needs}, which is off")]
    Dependency { name: &'static str, needs: &'static str },
}

/// The state of every feature gate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureGates {
    /// Only gates that differ from their default.
    overridden: BTreeMap<&'static str, bool>,
}

impl FeatureGates {
    /// Applies `given` (the merged `featureGates` of file and flags) to the defaults.
    pub fn resolve(given: &BTreeMap<String, bool>) -> Result<Self, Vec<GateError>> {
        let mut errors = Vec::new();
        let mut set: BTreeMap<&'static str, bool> = BTreeMap::new();
        for (name, wanted) in given {
            if name == ALL_ALPHA || name == ALL_BETA {
                continue;
            }
            match known(name) {
                None => errors.push(GateError::Unknown(name.clone())),
                Some(gate) if gate.locked && gate.default != *wanted => {
                    errors.push(GateError::Locked { name: gate.name, wanted: *wanted });
                }
                Some(gate) => {
                    set.insert(gate.name, *wanted);
                }
            }
        }
        for (all, stage) in [(ALL_ALPHA, Stage::Alpha), (ALL_BETA, Stage::Beta)] {
            let Some(wanted) = given.get(all) else { continue };
            for gate in GATES.iter().filter(|gate| gate.stage == stage && !gate.locked) {
                set.entry(gate.name).or_insert(*wanted);
            }
        }
        set.retain(|name, on| known(name).is_some_and(|gate| gate.default != *on));
        let gates = Self { overridden: set };
        if errors.is_empty() {
            errors.extend(gates.broken_dependencies());
        }
        if errors.is_empty() { Ok(gates) } else { Err(errors) }
    }

    /// Whether `name` is on. A name that no release knows is off.
    pub fn enabled(&self, name: &str) -> bool {
        self.overridden.get(name).copied().unwrap_or_else(|| known(name).is_some_and(|gate| gate.default))
    }

    /// Every gate with its current setting, for metrics and for help.
    pub fn all(&self) -> impl Iterator<Item = (&'static Gate, bool)> + '_ {
        GATES.iter().map(|gate| (gate, self.enabled(gate.name)))
    }

    /// Warnings about the gates in `given`, which was resolved to `self`.
    pub fn warnings(&self, given: &BTreeMap<String, bool>) -> Vec<String> {
        let mut remarks = Vec::new();
        for gate in given.keys().filter_map(|name| known(name)) {
            let what = match gate.stage {
                Stage::Ga => "generally available",
                Stage::Deprecated => "deprecated",
                Stage::Alpha | Stage::Beta => continue,
            };
            remarks.push(format!("feature gate {} is {what} and will go away in a later release", gate.name));
        }
        let idle: Vec<&str> = self
            .overridden
            .keys()
            .copied()
            .filter(|name| given.contains_key(*name) && !EFFECTIVE.contains(name))
            .collect();
        if !idle.is_empty() {
            remarks.push(format!("feature gates are set but have no effect yet: {}", idle.join(", ")));
        }
        remarks
    }

    fn broken_dependencies(&self) -> impl Iterator<Item = GateError> + '_ {
        DEPENDENCIES.iter().filter(|(name, _)| self.enabled(name)).flat_map(move |(name, needs)| {
            let missing = needs.iter().filter(|needed| !self.enabled(needed));
            missing.map(move |needed| GateError::Dependency { name, needs: needed })
        })
    }
}

/// Every gate that can be given, with its default and stage.
pub fn known_gates() -> &'static [Gate] {
    GATES
}

fn known(name: &str) -> Option<&'static Gate> {
    GATES.binary_search_by(|gate| gate.name.cmp(name)).ok().map(|index| &GATES[index])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(pairs: &[(&str, bool)]) -> BTreeMap<String, bool> {
        pairs.iter().map(|(name, on)| ((*name).to_owned(), *on)).collect()
    }

    fn resolve(pairs: &[(&str, bool)]) -> Result<FeatureGates, Vec<GateError>> {
        FeatureGates::resolve(&given(pairs))
    }

    #[test]
    fn the_table_is_sorted_and_closed() {
        assert!(GATES.windows(2).all(|pair| pair[0].name < pair[1].name));
        for (name, needs) in DEPENDENCIES {
            assert!(known(name).is_some(), "{name}");
            assert!(needs.iter().all(|needed| known(needed).is_some()), "{name}");
        }
        assert!(EFFECTIVE.iter().all(|name| known(name).is_some()));
    }

    /// A gate is in the table of effective gates if and only if some code reads it. Otherwise the start would warn
    /// about gates that have an effect, or not warn about gates that have none.
    #[test]
    fn the_table_knows_which_gates_are_asked_for() {
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let asked = asked_for(&crates);
        let effective: std::collections::BTreeSet<&str> = EFFECTIVE.iter().copied().collect();
        assert_eq!(asked, effective);
    }

    /// Names of gates in double quotes in the product's sources, but for tests, the two tables, and where names of features are
    /// meant that a node declares or a pod needs.
    fn asked_for(crates: &std::path::Path) -> std::collections::BTreeSet<&'static str> {
        let mut found = std::collections::BTreeSet::new();
        let mut left: Vec<_> =
            ["decide", "engine", "apiserver", "host", "server", "plugins", "cri", "rubelet"]
                .map(|name| crates.join(name).join("src"))
                .to_vec();
        while let Some(path) = left.pop() {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                let below = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
                let features = ["decide/src/node/mod.rs", "decide/src/allocation.rs"];
                let is_read = |path: &std::path::PathBuf| {
                    !path.ends_with("tests") && !features.iter().any(|file| path.ends_with(file))
                };
                left.extend(below.filter(is_read));
            } else if name.ends_with(".rs") && !["gates.rs", "gate_table.rs", "tests.rs"].contains(&&*name) {
                let text = std::fs::read_to_string(&path).unwrap();
                let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
                found.extend(
                    GATES
                        .iter()
                        .map(|gate| gate.name)
                        .filter(|gate| product.contains(&format!("\"{gate}\""))),
                );
            }
        }
        found
    }

    #[test]
    fn a_gate_that_exists_is_never_refused() {
        for gate in GATES.iter().filter(|gate| !gate.locked) {
            let refused = resolve(&[(gate.name, !gate.default)]).err().unwrap_or_default();
            let depends = refused.iter().all(|error| matches!(error, GateError::Dependency { .. }));
            assert!(depends, "{}: {refused:?}", gate.name);
        }
        assert!(resolve(&[("NativeHistograms", true)]).is_ok());
    }

    #[test]
    fn defaults_are_those_of_the_release() {
        let gates = resolve(&[]).unwrap();
        for (name, on) in [
            ("NodeSwap", true),
            ("MemoryQoS", false),
            ("CustomCPUCFSQuotaPeriod", true),
            ("KubeletCrashLoopBackOffMax", true),
            ("ContainerStopSignals", false),
            ("LoggingAlphaOptions", false),
            ("NoSuchGate", false),
        ] {
            assert_eq!(gates.enabled(name), on, "{name}");
        }
    }

    #[test]
    fn a_gate_can_be_moved_unless_it_is_locked_or_unknown() {
        assert!(resolve(&[("MemoryQoS", true)]).unwrap().enabled("MemoryQoS"));
        assert!(!resolve(&[("ContainerCheckpoint", false)]).unwrap().enabled("ContainerCheckpoint"));
        assert_eq!(
            resolve(&[("NodeSwap", false)]),
            Err(vec![GateError::Locked { name: "NodeSwap", wanted: false }])
        );
        assert!(resolve(&[("NodeSwap", true)]).is_ok());
        let errors = resolve(&[("Nope", true), ("NodeSwap", false)]).unwrap_err();
        assert_eq!(errors.len(), 2);
        let text = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        assert!(
            text.contains("\"Nope\"")
                && text.contains("NodeSwap can't be set to false: it is locked to true"),
            "{text}"
        );
    }

    #[test]
    fn all_alpha_and_all_beta_leave_named_gates_alone() {
        let gates = resolve(&[("AllAlpha", true), ("MemoryQoS", false)]).unwrap();
        assert!(gates.enabled("ContainerStopSignals"));
        assert!(!gates.enabled("MemoryQoS"));
        assert!(!gates.enabled("ClusterTrustBundle"), "a beta gate followed AllAlpha");
        let gates = resolve(&[("AllBeta", false), ("ContainerCheckpoint", true)]).unwrap();
        assert!(!gates.enabled("GracefulNodeShutdown"));
        assert!(gates.enabled("ContainerCheckpoint"));
        assert!(gates.enabled("NodeSwap"), "a stable gate followed AllBeta");
    }

    #[test]
    fn a_gate_needs_its_dependencies() {
        let errors = resolve(&[("ContainerRestartRules", false)]).unwrap_err();
        let expected = GateError::Dependency {
            name: "RestartAllContainersOnContainerExits",
            needs: "ContainerRestartRules",
        };
        assert!(errors.contains(&expected), "{errors:?}");
        let off = [
            ("GracefulNodeShutdown", false),
            ("GracefulNodeShutdownBasedOnPodPriority", false),
            ("WindowsGracefulNodeShutdown", false),
        ];
        assert!(resolve(&off).is_ok_and(|gates| !gates.enabled("GracefulNodeShutdown")));
        assert_eq!(resolve(&off[..2]).unwrap_err().len(), 1);
    }

    #[test]
    fn the_user_hears_of_gates_that_do_nothing() {
        let set = given(&[
            ("CPUManagerPolicyAlphaOptions", true),
            ("NodeSwap", true),
            ("LoggingAlphaOptions", true),
            ("AllAlpha", false),
        ]);
        let remarks = FeatureGates::resolve(&set).unwrap().warnings(&set);
        assert_eq!(
            remarks,
            [
                "feature gate NodeSwap is generally available and will go away in a later release",
                "feature gates are set but have no effect yet: CPUManagerPolicyAlphaOptions",
            ]
        );
    }
}
