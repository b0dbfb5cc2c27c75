//! Validates the registration of CSI drivers. The messages go to the plugin, which may show them to users, so they are
//! those of upstream.

use std::fmt;

use model::csi::PluginInfo;

/// The plugin type of CSI drivers.
pub const CSI_PLUGIN: &str = "CSIPlugin";
/// Limit for the length of driver names.
const LONGEST_NAME: usize = 63;
/// The agent's own directory next to those of the drivers.
const RESERVED: &str = "volumeDevices";

/// A version of the CSI interface.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Version {
    major: u64,
    minor: u64,
    patch: u64,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl Version {
    /// Parses `1`, `1.2`, `v1.2.3`; anything after a `-` or `+` is ignored.
    fn parse(text: &str) -> Option<Self> {
        let plain = text.trim().strip_prefix('v').unwrap_or(text.trim());
        let plain = plain.split(['-', '+']).next().unwrap_or_default();
        let mut parts = plain.split('.').map(|part| part.parse::<u64>().ok());
        let major = parts.next()??;
        let minor = parts.next().unwrap_or(Some(0))?;
        let patch = parts.next().unwrap_or(Some(0))?;
        Some(Self { major, minor, patch })
    }
}

/// Whether a driver may register. `registered`: the version of a registered driver with the same name.
pub fn check_registration(
    info: &PluginInfo,
    endpoint: &str,
    registered: Option<Version>,
) -> Result<Version, String> {
    let name = &info.name;
    let refused = |why: String| {
        format!(
            "RegisterPlugin error -- plugin validation failed with err: validation failed for CSI Driver {name} at \
             endpoint {endpoint}: kubernetes.io/csi: ValidatePlugin for CSI driver {name:?} failed. {why}"
        )
    };
    if !is_driver_name(name) {
        return Err(refused("The name is not one that a driver may have".into()));
    }
    if info.versions.is_empty() {
        return Err(refused("Plugin returned an empty list for supported versions".into()));
    }
    let spoken = info.versions.iter().filter_map(|text| Version::parse(text));
    let Some(highest) = spoken.filter(|version| version.major == 1).max() else {
        let list = info.versions.iter().map(|text| format!("{text:?}")).collect::<Vec<_>>().join(" ");
        return Err(refused(format!(
            "None of the versions specified [{list}] are supported. err=could not find a supported version"
        )));
    };
    match registered {
        Some(other) if other >= highest => Err(refused(format!(
            "Another driver with the same name is already registered with a higher supported version: \"{other}\""
        ))),
        _ => Ok(highest),
    }
}

/// The driver name is used in paths, so it may not contain `/` or be `..`.
fn is_driver_name(name: &str) -> bool {
    let inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    name.len() <= LONGEST_NAME
        && name.chars().all(inside)
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.ends_with(|c: char| c.is_ascii_alphanumeric())
        && name != RESERVED
}

pub fn unknown_kind(kind: &str, socket: &str) -> String {
    format!("RegisterPlugin error -- no handler registered for plugin type: {kind} at socket {socket}")
}

pub fn registration_failed(cause: &str) -> String {
    format!("RegisterPlugin error -- plugin registration failed with err: {cause}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_register() {
        let version = |text: &str| Version::parse(text).unwrap();
        let check = |name: &str, versions: &[&str], there: Option<&str>, expect: Result<&str, &str>| {
            let info = PluginInfo {
                kind: CSI_PLUGIN.into(),
                name: name.into(),
                endpoint: String::new(),
                versions: versions.iter().map(|v| (*v).to_owned()).collect(),
            };
            let judged = check_registration(&info, "/e", there.map(version));
            match (judged, expect) {
                (Ok(found), Ok(expect)) => assert_eq!(found, version(expect), "{name} {versions:?}"),
                (Err(found), Err(expect)) => assert!(found.contains(expect), "{found}"),
                (found, expect) => panic!("{name} {versions:?} {there:?}: {found:?}, not {expect:?}"),
            }
        };
        check("d.example", &["1.0.0"], None, Ok("1.0.0"));
        check("d.example", &["0.3.0", "1.2.0", "1.10.1", "2.0.0"], None, Ok("1.10.1"));
        check("d", &["v1"], None, Ok("1.0.0"));
        check("d", &["1.2.0-rc1"], None, Ok("1.2.0"));
        check("d", &[], None, Err("Plugin returned an empty list for supported versions"));
        check(
            "d",
            &["0.3.0", "2.0.0"],
            None,
            Err("None of the versions specified [\"0.3.0\" \"2.0.0\"] are"),
        );
        check("d", &["", "x", "1.x", "-1.0"], None, Err("None of the versions"));
        check("d", &["1.0.0"], Some("1.0.0"), Err("registered with a higher supported version: \"1.0.0\""));
        check("d", &["1.0.0"], Some("1.1.0"), Err("already registered"));
        check("d", &["1.2.0"], Some("1.1.0"), Ok("1.2.0"));
        for bad in ["", ".", "..", "a/b", "../x", "a\0", ".a", "a.", "volumeDevices", "é", &"x".repeat(64)] {
            check(bad, &["1.0.0"], None, Err("The name is not one that a driver may have"));
        }
    }
}
