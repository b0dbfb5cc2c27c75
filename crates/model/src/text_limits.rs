//! Limits on the length of text that comes from outside.
//!
//! Containers, runtimes, plugins and servers may return text of any length. It ends up in statuses, Events, log lines
//! and answers of `why`, so each kind of text has a limit, and all limits are in this table. A text is cut where it
//! comes in (output of commands, messages of errors) and again where it goes out (statuses, Events, log lines), because
//! one message of the agent may contain several such texts.

/// A kind of text, and how long it may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TextLimit {
    /// What a failed lifecycle hook printed.
    HookOutput,
    /// What a failed probe printed or answered; the kubelet shows as much.
    ProbeOutput,
    /// What the container runtime says of an error or of the end of a container.
    RuntimeMessage,
    /// A name, version or reason that a runtime or a plugin gives. None that is valid is longer.
    Name,
    /// A refused value of a manifest, as its error quotes it.
    QuotedValue,
    /// What a plugin (CSI, credentials) says of an error.
    PluginMessage,
    /// What the API server says of an error.
    ServerMessage,
    /// What a program of the host printed before it failed.
    ProgramOutput,
    /// The file that a container leaves; the kubelet reads as much.
    TerminationMessage,
    /// The end of a log where that file is empty; the kubelet reads as much.
    TerminationMessageFromLog,
    /// All termination messages of a pod together; the kubelet keeps as much.
    TerminationMessagesOfPod,
    /// The message of an Event; the API server takes no more.
    EventMessage,
    /// Every other message in a pod's status: of the pod, of a condition, of a container that waits.
    StatusMessage,
    /// A message in the agent's own log, and a value beside it.
    LogLine,
    /// One answer of `rubelet why`.
    Why,
}

impl TextLimit {
    pub const ALL: [TextLimit; 15] = [
        TextLimit::HookOutput,
        TextLimit::ProbeOutput,
        TextLimit::RuntimeMessage,
        TextLimit::Name,
        TextLimit::QuotedValue,
        TextLimit::PluginMessage,
        TextLimit::ServerMessage,
        TextLimit::ProgramOutput,
        TextLimit::TerminationMessage,
        TextLimit::TerminationMessageFromLog,
        TextLimit::TerminationMessagesOfPod,
        TextLimit::EventMessage,
        TextLimit::StatusMessage,
        TextLimit::LogLine,
        TextLimit::Why,
    ];

    pub const fn bytes(self) -> usize {
        match self {
            TextLimit::HookOutput => 2 << 10,
            TextLimit::ProbeOutput => 10 << 10,
            TextLimit::RuntimeMessage | TextLimit::PluginMessage | TextLimit::ServerMessage => 4 << 10,
            TextLimit::Name => 256,
            TextLimit::QuotedValue => 1 << 10,
            TextLimit::ProgramOutput => 2 << 10,
            TextLimit::TerminationMessage => 4 << 10,
            TextLimit::TerminationMessageFromLog => 2 << 10,
            TextLimit::TerminationMessagesOfPod => 12 << 10,
            TextLimit::EventMessage => 1 << 10,
            TextLimit::StatusMessage => 8 << 10,
            TextLimit::LogLine => 16 << 10,
            TextLimit::Why => 8 << 10,
        }
    }
}

/// Room for the marker that states how many bytes were left out.
const MARKER: usize = "... ( bytes left out)".len() + 20;

/// The beginning of a text, and how much of it was left out. Never longer than the bound.
pub fn truncate_text(text: impl Into<String>, bound: TextLimit) -> String {
    let mut text = text.into();
    if text.len() > bound.bytes() {
        let kept = text.floor_char_boundary(bound.bytes() - MARKER);
        let left_out = text.len() - kept;
        text.truncate(kept);
        mark(&mut text, left_out);
    }
    text
}

/// The same for output that may not be text: what is not is shown as a replacement character, which takes three bytes.
/// No more than what is shown is decoded.
pub fn truncate_output(output: &[u8], bound: TextLimit) -> String {
    if output.len() <= bound.bytes() {
        let text = String::from_utf8_lossy(output);
        if text.len() <= bound.bytes() {
            return text.into_owned();
        }
    }
    let most = bound.bytes() - MARKER;
    let (mut text, mut shown) = (String::new(), 0);
    'output: for chunk in output[..output.len().min(most)].utf8_chunks() {
        let valid = chunk.valid().chars().map(|character| (character, character.len_utf8()));
        let invalid =
            Some((char::REPLACEMENT_CHARACTER, chunk.invalid().len())).filter(|(_, bytes)| *bytes > 0);
        for (character, bytes) in valid.chain(invalid) {
            if text.len() + character.len_utf8() > most {
                break 'output;
            }
            text.push(character);
            shown += bytes;
        }
    }
    mark(&mut text, output.len() - shown);
    text
}

fn mark(text: &mut String, left_out: usize) {
    text.push_str(&format!("... ({left_out} bytes left out)"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bound_holds_and_says_what_is_missing() {
        for bound in TextLimit::ALL {
            let most = bound.bytes();
            for length in [0, 1, most - 1, most] {
                let text = "x".repeat(length);
                assert_eq!(truncate_text(text.as_str(), bound), text, "{bound:?}");
                assert_eq!(truncate_output(text.as_bytes(), bound), text, "{bound:?}");
            }
            for length in [most + 1, 2 * most, 16 << 20] {
                let text = "x".repeat(length);
                for short in [truncate_text(text.as_str(), bound), truncate_output(text.as_bytes(), bound)] {
                    let kept = short.bytes().take_while(|byte| *byte == b'x').count();
                    assert!(
                        short.len() <= most && kept + 64 > most,
                        "{bound:?}: {} of {length}",
                        short.len()
                    );
                    assert_eq!(
                        &short[kept..],
                        format!("... ({} bytes left out)", length - kept),
                        "{bound:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_character_is_shown_whole_or_not_at_all() {
        for shift in 0..4 {
            let text = "a".repeat(shift) + &"\u{1f600}".repeat(TextLimit::EventMessage.bytes());
            let short = truncate_text(text.as_str(), TextLimit::EventMessage);
            assert!(short.len() <= TextLimit::EventMessage.bytes(), "{}", short.len());
            let kept = short.find("...").unwrap();
            assert!(text.starts_with(&short[..kept]) && (kept - shift).is_multiple_of(4));
        }
    }

    #[test]
    fn output_that_is_no_text_stays_within_the_bound() {
        for bound in TextLimit::ALL {
            let noise = vec![0xff; 3 * bound.bytes()];
            for length in [bound.bytes() / 2, bound.bytes(), noise.len()] {
                assert!(
                    truncate_output(&noise[..length], bound).len() <= bound.bytes(),
                    "{bound:?} {length}"
                );
            }
        }
    }
}
