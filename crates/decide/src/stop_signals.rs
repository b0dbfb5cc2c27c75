//! Stop signals: names in the API, numbers in the CRI.

/// The gate that lets containers choose one.
pub const GATE: &str = "ContainerStopSignals";

/// In the order of the CRI's numbers, which begin with one. Zero is the runtime's own choice.
const NAMED: [&str; 34] = [
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
];
const RTMIN: i32 = 35;
const RTMIN_MOST: i32 = 15;
const RTMAX: i32 = 65;
const RTMAX_MOST: i32 = 14;

/// The CRI's number; none for what is no signal.
pub fn number(name: &str) -> Option<i32> {
    let offset = |text: &str, most: i32| text.parse().ok().filter(|n| (1..=most).contains(n));
    match name {
        "SIGRTMIN" => Some(RTMIN),
        "SIGRTMAX" => Some(RTMAX),
        _ => match (name.strip_prefix("SIGRTMIN+"), name.strip_prefix("SIGRTMAX-")) {
            (Some(text), _) => Some(RTMIN + offset(text, RTMIN_MOST)?),
            (_, Some(text)) => Some(RTMAX - offset(text, RTMAX_MOST)?),
            _ => NAMED.iter().zip(1..).find(|(known, _)| **known == name).map(|(_, number)| number),
        },
    }
}

/// The API's name; none for the runtime's own choice, and for what is no signal.
pub fn name(number: i32) -> Option<String> {
    match number {
        RTMIN => Some("SIGRTMIN".into()),
        RTMAX => Some("SIGRTMAX".into()),
        _ if (RTMIN + 1..=RTMIN + RTMIN_MOST).contains(&number) => {
            Some(format!("SIGRTMIN+{}", number - RTMIN))
        }
        _ if (RTMAX - RTMAX_MOST..RTMAX).contains(&number) => Some(format!("SIGRTMAX-{}", RTMAX - number)),
        _ => {
            let index = usize::try_from(number.checked_sub(1)?).ok()?;
            NAMED.get(index).map(|name| (*name).to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        for (name_of, number_of) in [
            ("SIGABRT", 1),
            ("SIGHUP", 8),
            ("SIGKILL", 13),
            ("SIGQUIT", 18),
            ("SIGTERM", 23),
            ("SIGUSR1", 29),
            ("SIGXFSZ", 34),
            ("SIGRTMIN", 35),
            ("SIGRTMIN+1", 36),
            ("SIGRTMIN+15", 50),
            ("SIGRTMAX-14", 51),
            ("SIGRTMAX-1", 64),
            ("SIGRTMAX", 65),
        ] {
            assert_eq!(number(name_of), Some(number_of), "{name_of}");
            assert_eq!(name(number_of).as_deref(), Some(name_of), "{number_of}");
        }
    }

    #[test]
    fn what_is_no_signal() {
        for bad in ["", "TERM", "SIGNONE", "SIGRTMIN+0", "SIGRTMIN+16", "SIGRTMAX-15", "SIGRTMIN+x"] {
            assert_eq!(number(bad), None, "{bad}");
        }
        for bad in [0, -1, 66, i32::MIN, i32::MAX] {
            assert_eq!(name(bad), None, "{bad}");
        }
    }

    #[test]
    fn every_number_comes_back() {
        for n in 1..=65 {
            assert_eq!(name(n).as_deref().and_then(number), Some(n), "{n}");
        }
    }
}
