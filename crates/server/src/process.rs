//! Figures about this process, as every Prometheus client tells them under the name `process_`.

use std::fs;

/// Ticks of the times in `/proc/<pid>/stat`: fixed at 100 for user space on the architectures that we run on.
const TICKS_PER_SECOND: f64 = 100.0;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ProcessFigures {
    pub cpu_seconds: f64,
    /// Since the Unix epoch.
    pub start_seconds: f64,
    pub resident_bytes: f64,
    pub virtual_bytes: f64,
    pub open_fds: f64,
    pub max_fds: f64,
    pub max_virtual_bytes: f64,
    /// Of the whole network namespace, as every Prometheus client tells them.
    pub received_bytes: f64,
    pub sent_bytes: f64,
}

/// When this machine was started.
pub(crate) fn boot() -> Option<model::Wall> {
    let seconds = value_of(&fs::read_to_string("/proc/stat").ok()?, "btime ")?;
    Some(model::Wall((seconds * 1e9) as i64))
}

/// When this process was started.
pub(crate) fn start() -> Option<model::Wall> {
    let (stat, system) =
        (fs::read_to_string("/proc/self/stat").ok()?, fs::read_to_string("/proc/stat").ok()?);
    let ticks: f64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let seconds = value_of(&system, "btime ")? + ticks / TICKS_PER_SECOND;
    Some(model::Wall((seconds * 1e9) as i64))
}

/// `None` where /proc does not tell, which leaves these figures out of a scrape.
pub(crate) fn figures() -> Option<ProcessFigures> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let open_fds = fs::read_dir("/proc/self/fd").ok()?.count() as f64;
    let texts = Texts {
        stat: &read("/proc/self/stat")?,
        status: &read("/proc/self/status")?,
        limits: &read("/proc/self/limits")?,
        system: &read("/proc/stat")?,
        network: &read("/proc/self/net/netstat").unwrap_or_default(),
    };
    // The directory that is being counted is open itself.
    parse(&texts, open_fds - 1.0)
}

struct Texts<'a> {
    stat: &'a str,
    status: &'a str,
    limits: &'a str,
    system: &'a str,
    network: &'a str,
}

fn parse(texts: &Texts, open_fds: f64) -> Option<ProcessFigures> {
    // The program's name stands in parentheses and may hold anything, also a closing one.
    let after_name = texts.stat.rsplit_once(')')?.1;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let ticks = |at: usize| Some(fields.get(at)?.parse::<f64>().ok()? / TICKS_PER_SECOND);
    let boot: f64 = value_of(texts.system, "btime ")?;
    Some(ProcessFigures {
        cpu_seconds: ticks(11)? + ticks(12)?,
        start_seconds: boot + ticks(19)?,
        resident_bytes: value_of(texts.status, "VmRSS:")? * 1024.0,
        virtual_bytes: value_of(texts.status, "VmSize:")? * 1024.0,
        open_fds,
        max_fds: value_of(texts.limits, "Max open files")?,
        max_virtual_bytes: value_of(texts.limits, "Max address space")?,
        received_bytes: column(texts.network, "InOctets").unwrap_or_default(),
        sent_bytes: column(texts.network, "OutOctets").unwrap_or_default(),
    })
}

/// A line of names and a line of numbers, both with the same first word.
fn column(text: &str, name: &str) -> Option<f64> {
    let mut lines = text.lines().filter(|line| line.starts_with("IpExt:"));
    let at = lines.next()?.split_whitespace().position(|word| word == name)?;
    lines.next()?.split_whitespace().nth(at)?.parse().ok()
}

/// The first number of the line that begins so.
fn value_of(text: &str, start: &str) -> Option<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(start))?;
    match rest.split_whitespace().next()? {
        "unlimited" => Some(f64::INFINITY),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXTS: Texts = Texts {
        stat: "42 (a b) c) S 1 42 42 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 3 0 12345 9999 88 18446744073709551615",
        status: "Name:\tx\nVmSize:\t    2000 kB\nVmRSS:\t     1000 kB\n",
        limits: "Limit                     Soft Limit           Hard Limit           Units\nMax open files            1024                 524288               files\nMax address space         unlimited            unlimited            bytes\n",
        system: "cpu  1 2 3\nbtime 1700000000\nprocesses 5\n",
        network: "TcpExt: A\nTcpExt: 1\nIpExt: InNoRoutes InOctets OutOctets\nIpExt: 0 70 80\n",
    };

    #[test]
    fn proc_is_understood() {
        let expect = ProcessFigures {
            cpu_seconds: 3.0,
            start_seconds: 1_700_000_123.45,
            resident_bytes: 1_024_000.0,
            virtual_bytes: 2_048_000.0,
            open_fds: 7.0,
            max_fds: 1024.0,
            max_virtual_bytes: f64::INFINITY,
            received_bytes: 70.0,
            sent_bytes: 80.0,
        };
        assert_eq!(parse(&TEXTS, 7.0), Some(expect));
        assert_eq!(
            parse(&Texts { limits: "Max open files unlimited\nMax address space 5", ..TEXTS }, 7.0)
                .unwrap()
                .max_fds,
            f64::INFINITY
        );
        assert_eq!(parse(&Texts { status: "", ..TEXTS }, 7.0), None);
        assert_eq!(parse(&Texts { stat: "1 (x) S", ..TEXTS }, 7.0), None);
    }

    #[test]
    fn this_process_has_figures() {
        let now = figures().unwrap();
        assert!(now.resident_bytes > 0.0 && now.virtual_bytes >= now.resident_bytes);
        assert!(now.open_fds >= 3.0 && now.max_fds >= now.open_fds);
        assert!(now.start_seconds > 1_600_000_000.0);
    }
}
