//! Entry points for `crates/fuzz` to parsers that are otherwise private.

use ports::LogOptions;

use crate::logs::render::Renderer;
use crate::probe::url::Url;

/// The output of a log stream when the file is read in pieces of this length.
pub fn log(options: &LogOptions, text: &[u8], piece: usize) -> Vec<u8> {
    let mut renderer = Renderer::new(options);
    let mut out = Vec::new();
    for piece in text.chunks(piece.max(1)) {
        out.extend_from_slice(&renderer.feed(piece));
    }
    out.extend_from_slice(&renderer.finish());
    out
}

/// The kills in records of the kernel's log, which are separated by zeros.
pub fn oom_kills(records: &[u8]) -> Vec<model::oom_kill::OomKill> {
    let mut reader = crate::oom_kills::KillReader::default();
    records.split(|byte| *byte == 0).filter_map(|record| reader.record(record)).collect()
}

/// The target of a redirect, by the URL that returned it.
pub fn redirection(from: &model::probe::HttpCheck, location: &str) -> Result<String, String> {
    Url::of(from).join(location).map(|url| url.to_string())
}

/// How many facts can be parsed from a text, as any of the host's files.
pub fn facts(text: &str) -> usize {
    use crate::facts::parse;
    let lines: Vec<&str> = text.lines().collect();
    parse::meminfo_bytes(text, "MemTotal").map_or(0, |_| 1)
        + parse::subordinate_ids(text, text).map_or(0, |_| 1)
        + parse::cpu_count(text.trim()).map_or(0, |_| 1)
        + parse::cpuinfo_count(text).min(1) as usize
        + parse::hugepage_sizes(&lines).len()
        + parse::pretty_name(text).map_or(0, |_| 1)
        + parse::cpu_numbers(&lines).len()
        + usize::from(parse::swaps_in_use(text))
        + parse::unified_cgroup(text).map_or(0, |_| 1)
        + parse::local_ipv4(text).len()
        + parse::local_ipv6(text).len()
        + crate::usage::interfaces(text).len()
}
