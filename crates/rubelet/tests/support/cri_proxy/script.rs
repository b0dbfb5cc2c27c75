//! Rules that choose a fault for each call, and the counts of calls and faults.

use std::collections::BTreeMap;
use std::time::Duration;

/// A fault of one call, or of one message of a stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fault {
    /// It reaches the runtime later.
    Slow(Duration),
    /// Its answer comes later.
    Late(Duration),
    /// It never reaches the runtime, and fails with this gRPC code.
    Refused(u16),
    /// The same, with this message.
    RefusedWith(u16, &'static str),
    /// It is carried out, and its caller is told that it failed with this gRPC code.
    Forgotten(u16),
    /// It never reaches the runtime, and is never answered.
    Swallowed,
    /// It is carried out, and never answered.
    Mute,
    /// It is carried out twice; the second answer is given.
    Twice,
    /// The connection ends before it reached the runtime.
    CutBefore,
    /// The connection ends after it was carried out, before a byte of the answer.
    CutAfter,
    /// The connection ends in the middle of the answer.
    CutMidway,
    /// It is carried out, and the answer is no message at all.
    Garbled,
    /// It never reaches the runtime, and is answered with this message.
    Answered(&'static [u8]),
}

/// Which calls of its methods a rule is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    Always,
    /// The nth since the script began, from 1.
    Nth(u64),
    /// So many of a thousand, drawn from the script's seed: the nth call of a method always has the same fate.
    PerMille(u64),
}

#[derive(Clone, Debug)]
pub struct Rule {
    /// The last part of the path, such as `RunPodSandbox`; empty: every method.
    pub methods: &'static [&'static str],
    pub when: When,
    pub fault: Fault,
    /// Only requests that contain this text, such as an id; empty: every request.
    pub about: String,
}

impl Rule {
    pub fn new(methods: &'static [&'static str], when: When, fault: Fault) -> Rule {
        Rule { methods, when, fault, about: String::new() }
    }

    /// The same rule, for requests that contain this text only.
    pub fn about(self, text: &str) -> Rule {
        Rule { about: text.to_owned(), ..self }
    }

    fn fits(&self, method: &str, request: &[u8]) -> bool {
        let about = self.about.as_bytes();
        (self.methods.is_empty() || self.methods.contains(&method))
            && (about.is_empty() || request.windows(about.len()).any(|part| part == about))
    }
}

/// Rules in their order. The first one that matches the call and applies decides.
#[derive(Clone, Debug, Default)]
pub struct Script {
    pub seed: u64,
    pub rules: Vec<Rule>,
}

/// The current script, and what happened so far.
#[derive(Debug, Default)]
pub struct Book {
    script: Script,
    /// The number of the script: calls that are held for good fail when the next one begins.
    pub edition: u64,
    since_script: BTreeMap<String, u64>,
    ever: BTreeMap<String, u64>,
    faults: BTreeMap<String, u64>,
    /// The request of each `PullImage`, as bytes.
    pulls: Vec<Vec<u8>>,
}

impl Book {
    pub fn play(&mut self, script: Script) {
        self.script = script;
        self.edition += 1;
        self.since_script.clear();
    }

    pub fn calls(&self, method: &str) -> u64 {
        self.ever.get(method).copied().unwrap_or_default()
    }

    pub fn faults(&self) -> BTreeMap<String, u64> {
        self.faults.clone()
    }

    pub fn keep_pull(&mut self, request: &[u8]) {
        self.pulls.push(request.to_vec());
    }

    pub fn pulls(&self) -> Vec<Vec<u8>> {
        self.pulls.clone()
    }

    /// Counts a call, and gives its fault. `request`: its bytes.
    pub fn fate(&mut self, method: &str, request: &[u8]) -> Option<Fault> {
        *self.ever.entry(method.to_owned()).or_default() += 1;
        let count = self.since_script.entry(method.to_owned()).or_default();
        *count += 1;
        let nth = *count;
        let seed = self.script.seed;
        let strikes = |(index, rule): (usize, &Rule)| {
            let struck = match rule.when {
                When::Always => true,
                When::Nth(wanted) => nth == wanted,
                When::PerMille(rate) => draw(seed, method, nth, index) % 1000 < rate,
            };
            (rule.fits(method, request) && struck).then_some(rule.fault)
        };
        let fault = self.script.rules.iter().enumerate().find_map(strikes)?;
        *self.faults.entry(format!("{method} {}", name(fault))).or_default() += 1;
        Some(fault)
    }
}

fn name(fault: Fault) -> &'static str {
    match fault {
        Fault::Slow(_) => "slow",
        Fault::Late(_) => "late",
        Fault::Refused(_) | Fault::RefusedWith(..) => "refused",
        Fault::Forgotten(_) => "forgotten",
        Fault::Swallowed => "swallowed",
        Fault::Mute => "mute",
        Fault::Twice => "twice",
        Fault::CutBefore => "cut before",
        Fault::CutAfter => "cut after",
        Fault::CutMidway => "cut midway",
        Fault::Garbled => "garbled",
        Fault::Answered(_) => "answered",
    }
}

/// A number that depends on nothing but its arguments: the order in which calls of different methods arrive does not
/// matter.
fn draw(seed: u64, method: &str, nth: u64, rule: usize) -> u64 {
    let parts = method.bytes().map(u64::from).chain([nth, rule as u64]);
    parts.fold(mix(seed), |state, part| mix(state ^ part))
}

/// splitmix64
fn mix(state: u64) -> u64 {
    let mut mixed = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
