//! Entry points for `crates/fuzz` to parsers that are otherwise private.

use crate::WatchEvent;
use crate::json::{WatchLineError, pod_event};
use crate::status::from_watch_error;
use crate::watch::LineSplitter;

/// How a watch of pods parses a response that arrives in pieces of this length: one entry per line up to the line that
/// ends the watch, and the number of bytes left over.
pub fn pod_watch(answer: &[u8], piece: usize) -> (Vec<String>, usize) {
    let mut cutter = LineSplitter::default();
    let mut words = Vec::new();
    for piece in answer.chunks(piece.max(1)) {
        cutter.feed(piece);
        while let Some(line) = cutter.whole_line() {
            let name = |pod: model::k8s::Pod| pod.metadata.name.unwrap_or_default();
            words.push(match pod_event(&line) {
                Ok(WatchEvent::Added(pod)) => format!("+ {}", name(pod)),
                Ok(WatchEvent::Modified(pod)) => format!("~ {}", name(pod)),
                Ok(WatchEvent::Deleted(identity)) => format!("- {identity}"),
                Ok(WatchEvent::Unreadable(object)) => format!("? {}: {}", object.identity, object.problem),
                Ok(WatchEvent::Bookmark { resource_version, ends_initial_events: initial_end }) => {
                    format!("| {resource_version} {initial_end}")
                }
                Err(WatchLineError::ErrorStatus(told)) => {
                    return (ended(words, from_watch_error("watch".into(), told).to_string()), 0);
                }
                Err(WatchLineError::Malformed(error)) => return (ended(words, error.to_string()), 0),
            });
        }
    }
    (words, cutter.buffered_bytes())
}

fn ended(mut words: Vec<String>, why: String) -> Vec<String> {
    words.push(why);
    words
}
