//! The kernel's small text formats. Pure, and for any input: what can't be parsed is absent and never causes a panic.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use model::user_namespace::IdRange;

/// `MemTotal:       24682416 kB` as bytes.
pub fn meminfo_bytes(meminfo: &str, key: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let mut words = value.split_whitespace();
    let number: u64 = words.next()?.parse().ok()?;
    match words.next() {
        Some("kB") => number.checked_mul(1024),
        None => Some(number),
        Some(_) => None,
    }
}

/// `0: kubelet 65536 7208960`, once for users and once for groups: one line each, and the same.
pub fn subordinate_ids(users: &str, groups: &str) -> Result<IdRange, String> {
    if users != groups {
        return Err("mismatched subuids and subgids for user \"kubelet\"".into());
    }
    let lines: Vec<&str> = users.lines().filter(|line| !line.trim().is_empty()).collect();
    let [line] = lines[..] else {
        return Err(format!("one line of ids for user \"kubelet\" is wanted, not {}", lines.len()));
    };
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |word: &str| word.parse::<u32>().map(u64::from).map_err(|e| format!("{word:?}: {e}"));
    match words[..] {
        [_, "kubelet", first, count] => Ok(IdRange { first: number(first)?, count: number(count)? }),
        _ => Err(format!("{line:?} are no ids for user \"kubelet\"")),
    }
}

/// The CPUs in a list such as `0-3,8`. `None`: it is not such a list, or names more CPUs than any machine has.
pub fn cpu_set(list: &str) -> Option<BTreeSet<u32>> {
    const MAX_CPUS: u32 = 1 << 16;
    let mut found = BTreeSet::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if last >= MAX_CPUS {
            return None;
        }
        found.extend(first..=last);
    }
    Some(found)
}

/// The number of CPUs in a list such as `0-3,8`.
pub fn cpu_count(list: &str) -> Option<u32> {
    let mut count = 0u32;
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        count = count.saturating_add(last.checked_sub(first)?.saturating_add(1));
    }
    Some(count)
}

/// The number of `processor : 3` blocks in `/proc/cpuinfo`.
pub fn cpuinfo_count(cpuinfo: &str) -> u32 {
    let is_cpu = |line: &&str| line.split(':').next().is_some_and(|key| key.trim() == "processor");
    u32::try_from(cpuinfo.lines().filter(is_cpu).count()).unwrap_or(u32::MAX)
}

/// The value after `name =` in a file of such lines, without quotes. Lines that start with `#` or `;` are comments.
pub fn setting<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';']));
    let pairs = lines.filter_map(|line| line.split_once('='));
    let mut found =
        pairs.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().trim_matches('"'));
    found.next().filter(|value| !value.is_empty())
}

/// The page size names, smallest first, of directories such as `hugepages-2048kB`.
pub fn hugepage_sizes(directories: &[impl AsRef<str>]) -> Vec<String> {
    let kilobytes = |name: &str| name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<u64>().ok();
    let mut sizes: Vec<u64> =
        directories.iter().map(AsRef::as_ref).filter_map(kilobytes).filter(|size| *size > 0).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes.into_iter().map(page_size_name).collect()
}

fn page_size_name(kilobytes: u64) -> String {
    let (mut value, mut unit) = (kilobytes, "KB");
    for next in ["MB", "GB", "TB"] {
        if value % 1024 != 0 {
            break;
        }
        (value, unit) = (value / 1024, next);
    }
    format!("{value}{unit}")
}

/// `PRETTY_NAME="..."` of an `os-release` file.
pub fn pretty_name(os_release: &str) -> Option<String> {
    let value = os_release.lines().find_map(|line| line.trim().strip_prefix("PRETTY_NAME="))?.trim();
    let quoted = |mark: char| value.strip_prefix(mark)?.strip_suffix(mark);
    let name = quoted('"').or_else(|| quoted('\'')).unwrap_or(value);
    (!name.is_empty()).then(|| name.to_owned())
}

/// The numbers of directories such as `cpu12`, ascending.
pub fn cpu_numbers(directories: &[impl AsRef<str>]) -> Vec<u32> {
    let mut numbers: Vec<u32> =
        directories.iter().filter_map(|name| name.as_ref().strip_prefix("cpu")?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// Whether `/proc/swaps` has lines below its heading.
pub fn swaps_in_use(swaps: &str) -> bool {
    swaps.lines().skip(1).any(|line| !line.trim().is_empty())
}

/// The cgroup of version 2 in `/proc/<pid>/cgroup`. `None` for a path that leads upwards, as it is shown from another
/// cgroup namespace.
pub fn unified_cgroup(cgroup: &str) -> Option<&str> {
    let path = cgroup.lines().find_map(|line| line.strip_prefix("0::"))?;
    (path.starts_with('/') && path.split('/').all(|part| part != "..")).then_some(path)
}

/// The host's own IPv4 addresses, in `/proc/net/fib_trie`: each address is the line before its `/32 host LOCAL`.
pub fn local_ipv4(fib_trie: &str) -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = Vec::new();
    let mut last = None;
    for line in fib_trie.lines() {
        let words = line.trim();
        if let Some(address) = words.strip_prefix("|-- ") {
            last = address.trim().parse::<Ipv4Addr>().ok();
        } else if words == "/32 host LOCAL"
            && let Some(address) = last.map(IpAddr::V4)
            && !found.contains(&address)
        {
            found.push(address);
        }
    }
    found
}

/// The host's own IPv6 addresses, in `/proc/net/if_inet6`: 32 hex digits first.
pub fn local_ipv6(if_inet6: &str) -> Vec<IpAddr> {
    let address = |line: &str| {
        let digits = line.split_whitespace().next().filter(|digits| digits.len() == 32)?;
        let bits = u128::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'))?;
        Some(IpAddr::V6(Ipv6Addr::from(bits)))
    };
    if_inet6.lines().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn subordinate_ids_are_one_line_and_the_same_for_groups() {
        let check = |users: &str, groups: &str, expect: Result<(u64, u64), &str>| {
            let got = subordinate_ids(users, groups).map(|range| (range.first, range.count));
            match (got, expect) {
                (Ok(got), Ok(expect)) => assert_eq!(got, expect, "{users:?}"),
                (Err(got), Err(part)) => assert!(got.contains(part), "{users:?}: {got}"),
                (got, _) => panic!("{users:?}: {got:?}"),
            }
        };
        let line = "0: kubelet 65536 7208960\n";
        check(line, line, Ok((65536, 7_208_960)));
        check(line, "0: kubelet 65536 1\n", Err("mismatched"));
        check("", "", Err("not 0"));
        let two = format!("{line}1: kubelet 1 2\n");
        check(&two, &two, Err("not 2"));
        check("0: root 1 2\n", "0: root 1 2\n", Err("no ids"));
        check("0: kubelet x 2\n", "0: kubelet x 2\n", Err("invalid digit"));
        check("0: kubelet 1\n", "0: kubelet 1\n", Err("no ids"));
    }

    #[test]
    fn memory() {
        let text = "MemTotal:       24682416 kB\nMemFree:  1 kB\nSwapTotal:             0 kB\nHugePages_Total:       3\n";
        let check = |text: &str, key: &str, expect: Option<u64>| {
            assert_eq!(meminfo_bytes(text, key), expect, "{key} in {text:?}");
        };
        check(text, "MemTotal", Some(24_682_416 * 1024));
        check(text, "SwapTotal", Some(0));
        check(text, "HugePages_Total", Some(3));
        check(text, "Mem", None);
        check("", "MemTotal", None);
        check("MemTotal:\n", "MemTotal", None);
        check("MemTotal: x kB\n", "MemTotal", None);
        check("MemTotal: 5 MB\n", "MemTotal", None);
        check("MemTotal: 18446744073709551615 kB\n", "MemTotal", None);
    }

    #[test]
    fn cpus() {
        let check = |list: &str, expect: Option<u32>| assert_eq!(cpu_count(list), expect, "{list:?}");
        check("0\n", Some(1));
        check("0-1\n", Some(2));
        check("0-3,8,10-11", Some(7));
        check("", None);
        check("3-1", None);
        check("0-", None);
        check("0-4294967295,0-4294967295", Some(u32::MAX));
        assert_eq!(cpuinfo_count("processor\t: 0\nmodel name\t: x\n\nprocessor\t: 1\n"), 2);
        assert_eq!(cpuinfo_count(""), 0);
        assert_eq!(cpu_numbers(&["cpu10", "cpu2", "cpufreq", "cpu", "online", "cpu-1"]), [2, 10]);
    }

    #[test]
    fn hugepages() {
        let check = |names: &[&str], expect: &[&str]| {
            assert_eq!(hugepage_sizes(names), expect, "{names:?}");
        };
        check(&["hugepages-1048576kB", "hugepages-2048kB"], &["2MB", "1GB"]);
        check(&["hugepages-64kB", "hugepages-32768kB", "hugepages-16777216kB"], &["64KB", "32MB", "16GB"]);
        check(&["hugepages-2048kB", "hugepages-0kB", "x", "hugepages-kB", "hugepages--1kB"], &["2MB"]);
        check(&[], &[]);
    }

    #[test]
    fn names_of_systems() {
        let check =
            |text: &str, expect: Option<&str>| assert_eq!(pretty_name(text).as_deref(), expect, "{text:?}");
        check(
            "NAME=\"x\"\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n",
            Some("Debian GNU/Linux 12 (bookworm)"),
        );
        check("PRETTY_NAME='Alpine'\n", Some("Alpine"));
        check("PRETTY_NAME=Arch\n", Some("Arch"));
        check("PRETTY_NAME=\"\"\n", None);
        check("PRETTY_NAME=\"\n", Some("\""));
        check("NAME=x\n", None);
    }

    #[test]
    fn swaps() {
        let heading = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
        assert!(!swaps_in_use(heading));
        assert!(!swaps_in_use(""));
        assert!(!swaps_in_use(&format!("{heading}\n")));
        assert!(swaps_in_use(&format!("{heading}/dev/sda2 partition 1 0 -2\n")));
    }

    #[test]
    fn own_cgroup() {
        let check = |text: &str, expect: Option<&str>| assert_eq!(unified_cgroup(text), expect, "{text:?}");
        check("9:name=systemd:/\n4:memory:/x\n0::/system.slice/a.service\n", Some("/system.slice/a.service"));
        check("0::/\n", Some("/"));
        check("0::/../../a\n", None);
        check("4:memory:/x\n", None);
        check("0::relative", None);
    }

    #[test]
    fn addresses() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n\
            Local:\n     +-- 127.0.0.0/8 2 0 2\n           |-- 127.0.0.1\n              /32 host LOCAL\n\
            \x20       |-- 192.0.2.7\n           /32 host LOCAL\n        |-- 192.0.2.255\n           /32 link BROADCAST\n\
            \x20       |-- 192.0.2.7\n           /32 host LOCAL\n";
        assert_eq!(local_ipv4(trie), ["127.0.0.1", "192.0.2.7"].map(|a| a.parse::<IpAddr>().unwrap()));
        assert!(local_ipv4("/32 host LOCAL\n|-- x\n/32 host LOCAL").is_empty());
        let inet6 = "00000000000000000000000000000001 01 80 10 80       lo\n\
            20010db8000000000000000000000005 02 40 00 80     eth0\nshort\n+0000000000000000000000000000001 x\n";
        assert_eq!(local_ipv6(inet6), ["::1", "2001:db8::5"].map(|a| a.parse::<IpAddr>().unwrap()));
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in r"[ -~\n\t]{0,200}", odd in ".{0,60}") {
            for text in [text.as_str(), odd.as_str()] {
                let _ = meminfo_bytes(text, "MemTotal");
                let _ = cpu_count(text);
                let _ = cpuinfo_count(text);
                let _ = hugepage_sizes(&text.lines().collect::<Vec<_>>());
                let _ = cpu_numbers(&text.lines().collect::<Vec<_>>());
                let _ = swaps_in_use(text);
                let _ = pretty_name(text);
                let _ = unified_cgroup(text);
                let _ = local_ipv4(text);
                let _ = local_ipv6(text);
            }
        }

        #[test]
        fn nearly_right_text_is_read_without_panic(number in any::<u64>(), digits in "[0-9a-fA-F+-]{30,34}") {
            let _ = meminfo_bytes(&format!("MemTotal: {number} kB"), "MemTotal");
            let _ = cpu_count(&format!("0-{number},{number}"));
            let name = format!("hugepages-{number}kB");
            prop_assert_eq!(hugepage_sizes(&[name]).len(), usize::from(number > 0));
            let _ = local_ipv6(&digits);
        }
    }
}
