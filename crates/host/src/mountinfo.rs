//! The kernel's mount table, from `/proc/self/mountinfo`.
//!
//! Paths in it are real paths (no symlinks): canonicalize a path before looking it up.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub id: u64,
    pub parent: u64,
    /// `major:minor` of the filesystem.
    pub device: String,
    /// The path inside the mounted filesystem that is visible at the mount point.
    pub root: PathBuf,
    pub mount_point: PathBuf,
    /// Mounts and unmounts below it propagate to its peers.
    pub shared: bool,
    pub fs_type: String,
}

/// All mounts of this process's namespace, in mount order: if two have the same mount point, the later one is visible.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountTable {
    mounts: Vec<Mount>,
}

/// The first kernel whose table is complete even if it changes during the read.
const WHOLE_SINCE: (u32, u32) = (5, 8);
/// On older kernels: if mounts change faster than that, the last reading is used.
const READINGS: usize = 8;

impl MountTable {
    pub fn read() -> io::Result<Self> {
        let release = rustix::system::uname();
        let whole = release.release().to_str().is_ok_and(|release| version(release) >= Some(WHOLE_SINCE));
        Self::read_by(whole, || std::fs::read("/proc/self/mountinfo"))
    }

    /// Reads once if each reading is `whole`; otherwise until two in a row agree.
    fn read_by(whole: bool, mut read: impl FnMut() -> io::Result<Vec<u8>>) -> io::Result<Self> {
        let mut last = read()?;
        for _ in 1..if whole { 1 } else { READINGS } {
            let before = std::mem::replace(&mut last, read()?);
            if before == last {
                break;
            }
        }
        Ok(Self::parse(&last))
    }

    /// Lines that can't be parsed are left out.
    pub fn parse(text: &[u8]) -> Self {
        Self { mounts: text.split(|byte| *byte == b'\n').filter_map(parse_line).collect() }
    }

    pub fn mounts(&self) -> &[Mount] {
        &self.mounts
    }

    /// The topmost mount at exactly this path.
    pub fn at(&self, path: &Path) -> Option<&Mount> {
        self.mounts.iter().rev().find(|mount| mount.mount_point == path)
    }

    /// Mounts at `path` or anywhere below it, in the order in which they can be unmounted.
    pub fn at_or_below<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = &'a Mount> + 'a {
        self.mounts.iter().rev().filter(move |mount| mount.mount_point.starts_with(path))
    }

    /// The mount that `path` lies on.
    pub fn containing(&self, path: &Path) -> Option<&Mount> {
        let depth = |mount: &&Mount| mount.mount_point.components().count();
        // max_by_key takes the last of equals, which is the one on top.
        self.mounts.iter().filter(|mount| path.starts_with(&mount.mount_point)).max_by_key(depth)
    }
}

/// The first two numbers of a release such as `5.10.0-28-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = number(fields.next()?)?;
    let parent = number(fields.next()?)?;
    let device = String::from_utf8_lossy(fields.next()?).into_owned();
    let root = path(fields.next()?)?;
    let mount_point = path(fields.next()?)?;
    let _options = fields.next()?;
    let mut shared = false;
    loop {
        match fields.next()? {
            b"-" => break,
            optional => shared |= optional.starts_with(b"shared:"),
        }
    }
    let fs_type = String::from_utf8_lossy(&unescape(fields.next()?)).into_owned();
    Some(Mount { id, parent, device, root, mount_point, shared, fs_type })
}

fn number(field: &[u8]) -> Option<u64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn path(field: &[u8]) -> Option<PathBuf> {
    (!field.is_empty()).then(|| PathBuf::from(OsString::from_vec(unescape(field))))
}

/// The kernel writes space, tab, newline and backslash (and more, by filesystem) as `\ooo`.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        match escaped(rest) {
            Some(byte) => {
                out.push(byte);
                rest = &rest[4..];
            }
            None => {
                out.push(first);
                rest = tail;
            }
        }
    }
    out
}

fn escaped(at: &[u8]) -> Option<u8> {
    let [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] = at else { return None };
    Some((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::ffi::OsStrExt;

    fn table(text: &str) -> MountTable {
        MountTable::parse(text.as_bytes())
    }

    #[test]
    fn understands_the_documented_line_and_odd_ones() {
        let check = |line: &str, expect: Option<(&str, &str, bool, &str)>| {
            let found = table(line).mounts().first().cloned();
            let found = found.map(|m| {
                let text = |p: &Path| p.to_string_lossy().into_owned();
                (text(&m.root), text(&m.mount_point), m.shared, m.fs_type)
            });
            let expect = expect.map(|(a, b, c, d)| (a.to_owned(), b.to_owned(), c, d.to_owned()));
            assert_eq!(found, expect, "{line}");
        };
        check(
            "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw",
            Some(("/mnt1", "/mnt2", false, "ext3")),
        );
        check("36 35 98:0 / / rw shared:7 - ext4 /dev/vda rw", Some(("/", "/", true, "ext4")));
        check("36 35 98:0 / / rw shared:7 master:2 - ext4 x rw", Some(("/", "/", true, "ext4")));
        check("36 35 0:3 / /a rw - tmpfs  rw", Some(("/", "/a", false, "tmpfs")));
        check("36 35 0:3 / /a rw - fuse.x", Some(("/", "/a", false, "fuse.x")));
        check(
            r"36 35 0:3 / /a\040b\011c\012d\134e rw - tmpfs t rw",
            Some(("/", "/a b\tc\nd\\e", false, "tmpfs")),
        );
        check(r"36 35 0:3 / /a\04 rw - tmpfs t rw", Some(("/", r"/a\04", false, "tmpfs")));
        check(r"36 35 0:3 / /a\999 rw - tmpfs t rw", Some(("/", r"/a\999", false, "tmpfs")));
        check("", None);
        check("36 35 98:0 / /a rw shared:7", None);
        check("x 35 98:0 / /a rw - ext4 x rw", None);
    }

    #[test]
    fn answers_what_is_where() {
        let table = table(
            "1 0 0:1 / / rw - ext4 a rw\n\
             2 1 0:2 / /p rw shared:1 - tmpfs b rw\n\
             3 2 0:3 / /p/q rw - tmpfs c rw\n\
             4 3 0:4 / /p/q rw - tmpfs d rw\n\
             5 1 0:5 / /pq rw - tmpfs e rw\n",
        );
        assert_eq!(table.at(Path::new("/p/q")).map(|m| m.id), Some(4));
        assert_eq!(table.at(Path::new("/p/q/r")).map(|m| m.id), None);
        assert_eq!(table.containing(Path::new("/p/q/r")).map(|m| m.id), Some(4));
        assert_eq!(table.containing(Path::new("/p/x")).map(|m| m.id), Some(2));
        assert_eq!(table.containing(Path::new("/z")).map(|m| m.id), Some(1));
        let below: Vec<u64> = table.at_or_below(Path::new("/p")).map(|m| m.id).collect();
        assert_eq!(below, [4, 3, 2], "a neighbour whose name begins alike is not below");
    }

    #[test]
    fn an_old_kernel_is_asked_until_it_says_the_same_twice() {
        let check = |whole: bool, told: &[usize], readings: usize, expect: usize| {
            let mut asked = 0;
            let read = || {
                let mounts = told[asked.min(told.len() - 1)];
                asked += 1;
                let line = |n: usize| format!("{n} 1 0:{n} / /m{n} rw - tmpfs t rw\n");
                Ok((0..mounts).map(line).collect::<String>().into_bytes())
            };
            let table = MountTable::read_by(whole, read).unwrap();
            assert_eq!((asked, table.mounts().len()), (readings, expect), "{told:?}");
        };
        check(true, &[1, 3], 1, 1);
        check(false, &[3], 2, 3);
        check(false, &[1, 3], 3, 3);
        check(false, &[3, 1, 2, 3], 5, 3);
        check(false, &[1, 2, 3, 4, 5, 6, 7, 8, 9], READINGS, 8);
        let mut asked = 0;
        let broken = MountTable::read_by(false, || {
            asked += 1;
            if asked == 2 { Err(io::ErrorKind::Other.into()) } else { Ok(Vec::new()) }
        });
        assert!(broken.is_err());
    }

    #[test]
    fn versions_of_kernels_are_understood() {
        let check =
            |release: &str, expect: Option<(u32, u32)>| assert_eq!(version(release), expect, "{release}");
        check("5.10.0-28-amd64", Some((5, 10)));
        check("4.18.0-553.el8_10.x86_64", Some((4, 18)));
        check("6.8", Some((6, 8)));
        check("6.8-rc1", Some((6, 8)));
        check("", None);
        check("six", None);
        assert!(version("5.7.19") < Some(WHOLE_SINCE) && version("5.8.0") >= Some(WHOLE_SINCE));
        assert!(version("10.0") >= Some(WHOLE_SINCE) && version("unknown") < Some(WHOLE_SINCE));
    }

    #[test]
    fn reads_the_real_table() {
        let table = MountTable::read().unwrap();
        assert_eq!(table.at(Path::new("/proc")).map(|m| m.fs_type.as_str()), Some("proc"));
        assert!(table.containing(Path::new("/proc/self")).is_some());
    }

    /// Escapes a path as the kernel does.
    fn escape(path: &[u8]) -> Vec<u8> {
        let write = |byte: &u8| match byte {
            b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
            other => vec![*other],
        };
        path.iter().flat_map(write).collect()
    }

    proptest! {
        #[test]
        fn any_path_survives_escaping(name in proptest::collection::vec(1u8..=255, 1..40)) {
            let mut path = b"/".to_vec();
            path.extend(&name);
            let mut line = b"36 35 98:0 / ".to_vec();
            line.extend(escape(&path));
            line.extend(b" rw - ext4 x rw\n");
            let table = MountTable::parse(&line);
            prop_assert_eq!(table.mounts()[0].mount_point.as_os_str().as_bytes(), &path[..]);
        }

        #[test]
        fn any_bytes_are_survived(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            MountTable::parse(&text);
        }
    }
}
