//! Settings of the kernel that a node relies on: out of memory is left to us, and a machine that is broken starts again.

use std::io;
use std::path::Path;

/// Below `/proc/sys`, with the value that each is to have.
const TUNABLES: [(&str, i64); 6] = [
    ("vm/overcommit_memory", 1),
    ("vm/panic_on_oom", 0),
    ("kernel/panic", 10),
    ("kernel/panic_on_oops", 1),
    ("kernel/keys/root_maxkeys", 1_000_000),
    ("kernel/keys/root_maxbytes", 25_000_000),
];

#[derive(thiserror::Error, Debug)]
pub enum TunableError {
    #[error("invalid kernel flag: {name}, expected value: {expected}, actual value: {actual}")]
    Differs { name: &'static str, expected: i64, actual: i64 },
    #[error("kernel flag {name}: {operation} failed")]
    Io {
        name: &'static str,
        operation: &'static str,
        #[source]
        source: io::Error,
    },
}

/// What becomes of a setting that has another value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DifferentTunables {
    /// It is changed.
    Change,
    /// `protectKernelDefaults`: it is an error.
    Refuse,
}

impl TunableError {
    /// In a user namespace most settings can't be written: they are the host's business.
    pub fn is_refused_write(&self) -> bool {
        match self {
            TunableError::Io { operation, .. } => *operation == "writing",
            TunableError::Differs { .. } => false,
        }
    }
}

/// Sets the kernel up, or says what is not as it should be. `root` is `/proc/sys`.
///
/// A setting that this kernel does not have is left out: it can't have a wrong value.
pub fn apply(root: &Path, different: DifferentTunables) -> Vec<TunableError> {
    TUNABLES.iter().filter_map(|(name, expected)| apply_one(root, name, *expected, different).err()).collect()
}

fn apply_one(
    root: &Path,
    name: &'static str,
    expected: i64,
    different: DifferentTunables,
) -> Result<(), TunableError> {
    let failed = |operation| move |source| TunableError::Io { name, operation, source };
    let path = root.join(name);
    let text = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            tracing::info!("this kernel has no setting {name}");
            return Ok(());
        }
        text => text.map_err(failed("reading"))?,
    };
    let number = text.trim().parse::<i64>();
    let actual =
        number.map_err(|error| failed("reading")(io::Error::new(io::ErrorKind::InvalidData, error)))?;
    if actual == expected {
        return Ok(());
    }
    match different {
        DifferentTunables::Refuse => Err(TunableError::Differs { name, expected, actual }),
        DifferentTunables::Change => {
            tracing::info!(name, from = actual, to = expected, "changing a setting of the kernel");
            std::fs::write(&path, expected.to_string()).map_err(failed("writing"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A `/proc/sys` in which these differ from what is wanted.
    fn sys(changed: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let wanted = TUNABLES.iter().map(|(name, value)| (*name, value.to_string()));
        let changed = changed.iter().map(|(name, text)| (*name, (*text).to_owned()));
        for (name, text) in wanted.chain(changed) {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
        dir
    }

    fn text(dir: &tempfile::TempDir, name: &str) -> String {
        fs::read_to_string(dir.path().join(name)).unwrap()
    }

    fn shown(errors: &[TunableError]) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_what_differs_is_written() {
        let dir = sys(&[("vm/overcommit_memory", "0"), ("kernel/panic", "-1")]);
        assert!(apply(dir.path(), DifferentTunables::Change).is_empty());
        assert_eq!(
            (text(&dir, "vm/overcommit_memory"), text(&dir, "kernel/panic")),
            ("1".into(), "10".into())
        );
        assert_eq!(text(&dir, "vm/panic_on_oom"), "0\n", "left alone");
        assert!(apply(dir.path(), DifferentTunables::Refuse).is_empty(), "all is well now");
    }

    #[test]
    fn protected_defaults_are_an_error_each() {
        let dir = sys(&[("vm/overcommit_memory", "0"), ("kernel/panic_on_oops", "0")]);
        assert_eq!(
            shown(&apply(dir.path(), DifferentTunables::Refuse)),
            [
                "invalid kernel flag: vm/overcommit_memory, expected value: 1, actual value: 0",
                "invalid kernel flag: kernel/panic_on_oops, expected value: 1, actual value: 0",
            ]
        );
        assert_eq!(text(&dir, "vm/overcommit_memory"), "0\n");
    }

    #[test]
    fn a_kernel_with_less_and_one_with_nonsense() {
        let dir = sys(&[("kernel/panic", "soon")]);
        fs::remove_dir_all(dir.path().join("kernel/keys")).unwrap();
        assert_eq!(
            shown(&apply(dir.path(), DifferentTunables::Change)),
            ["kernel flag kernel/panic: reading failed"]
        );
        fs::remove_file(dir.path().join("kernel/panic")).unwrap();
        fs::create_dir(dir.path().join("kernel/panic")).unwrap();
        assert_eq!(apply(dir.path(), DifferentTunables::Change).len(), 1);
    }
}
