//! What `--version` prints.
//!
//! kubeadm takes the whole standard output of `kubelet --version` and wants it to be one line,
//! `Kubernetes v<version>`. Our own version is therefore printed beside it, on standard error.

/// The kubelet that this agent stands in for.
pub const KUBERNETES_VERSION: &str = "v1.36.4";

/// The version of this program.
pub const RUBELET_VERSION: &str = env!("CARGO_PKG_VERSION");

/// What `--version` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionRequest {
    /// One line for people and for kubeadm.
    Plain,
    /// All parts.
    Raw,
}

impl VersionRequest {
    /// The text for standard output.
    pub fn stdout(self) -> String {
        match self {
            Self::Plain => format!("Kubernetes {KUBERNETES_VERSION}\n"),
            Self::Raw => {
                let mut parts = KUBERNETES_VERSION.trim_start_matches('v').split('.');
                let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
                format!(
                    "version.Info{{Major:{major:?}, Minor:{minor:?}, GitVersion:{KUBERNETES_VERSION:?}, \
                     Implementation:\"rubelet\", ImplementationVersion:{RUBELET_VERSION:?}, Platform:\"{}/{}\"}}\n",
                    std::env::consts::OS,
                    std::env::consts::ARCH,
                )
            }
        }
    }

    /// The text for standard error.
    pub fn stderr(self) -> String {
        format!("Rubelet {RUBELET_VERSION}\n")
    }
}

/// Whether `--version=<text>` may be what this agent reports itself to be: the release it stands in
/// for, with any suffix.
pub(super) fn may_report(text: &str) -> bool {
    let Some(suffix) = text.strip_prefix(KUBERNETES_VERSION) else { return false };
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-.+".contains(&byte);
    suffix.is_empty() || suffix.starts_with(['-', '+']) && suffix.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubeadm_understands_the_plain_version() {
        assert_eq!(VersionRequest::Plain.stdout(), "Kubernetes v1.36.4\n");
        assert_eq!(VersionRequest::Plain.stderr(), format!("Rubelet {}\n", env!("CARGO_PKG_VERSION")));
    }

    #[test]
    fn the_raw_version_has_both() {
        let raw = VersionRequest::Raw.stdout();
        for part in ["Major:\"1\"", "Minor:\"36\"", "GitVersion:\"v1.36.4\"", RUBELET_VERSION] {
            assert!(raw.contains(part), "{raw}");
        }
    }

    #[test]
    fn only_our_own_release_can_be_reported() {
        for (text, expect) in [
            ("v1.36.4", true),
            ("v1.36.4-custom.1", true),
            ("v1.36.4+abc", true),
            ("v1.36.40", false),
            ("v1.35.0", false),
            ("1.36.4", false),
        ] {
            assert_eq!(may_report(text), expect, "{text}");
        }
    }
}
