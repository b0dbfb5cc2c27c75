//! Every kept input, some mutations of each, and inputs of a mebibyte, for every target. `RUBELET_FUZZ_ROUNDS` makes
//! more mutations, `RUBELET_FUZZ_SEED` others.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use fuzz::mutate::{RandomSource, mutated, repeated};
use fuzz::{Target, corpus_dir, targets};

/// Mutations per target, in the normal run.
const ROUNDS: usize = 400;
const LONG: usize = 1 << 20;
/// Of an input that breaks a target so much is printed.
const SHOWN: usize = 600;
/// Far more than a mebibyte takes on a busy machine, and far less than its square would.
const INPUT_TIMEOUT: Duration = Duration::from_secs(300);

fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn corpus_inputs(target: &Target) -> Vec<Vec<u8>> {
    let dir = corpus_dir(target);
    let mut paths: Vec<_> =
        fs::read_dir(&dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let inputs: Vec<_> = paths.iter().map(|path| fs::read(path).expect("read a kept input")).collect();
    assert!(!inputs.is_empty(), "{} holds no input for {}", dir.display(), target.name);
    inputs
}

/// Runs a target, and says by which input it broke, if it did.
fn panic_report(target: &Target, input: &[u8]) -> Option<String> {
    catch_unwind(AssertUnwindSafe(|| (target.run)(input))).err()?;
    let shown = input[..input.len().min(SHOWN)].escape_ascii();
    Some(format!("{} broke on these {} bytes: {shown}", target.name, input.len()))
}

/// One input of each target that broke is enough to mend it; each target has its turn.
fn assert_none_broken(found: &[String]) {
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn every_kept_input_is_read() {
    let first = |target: Target| {
        let mut inputs = corpus_inputs(&target);
        inputs.push(Vec::new());
        inputs.iter().find_map(|input| panic_report(&target, input))
    };
    assert_none_broken(&targets().into_iter().filter_map(first).collect::<Vec<_>>());
}

#[test]
fn mutations_of_kept_inputs_are_read() {
    let rounds = number("RUBELET_FUZZ_ROUNDS", ROUNDS);
    let mut chance = RandomSource(number("RUBELET_FUZZ_SEED", 1) as u64);
    let first = |target: Target| {
        let inputs = corpus_inputs(&target);
        (0..rounds).find_map(|_| {
            let seed = &inputs[chance.below(inputs.len())];
            let other = &inputs[chance.below(inputs.len())];
            panic_report(&target, &mutated(&mut chance, seed, other, target.dictionary))
        })
    };
    assert_none_broken(&targets().into_iter().filter_map(first).collect::<Vec<_>>());
}

/// What takes time by the square of its length never ends here.
#[test]
fn long_inputs_are_read_in_their_time() {
    let found: Vec<String> = targets().into_iter().filter_map(broken_by_length).collect();
    assert_none_broken(&found);
}

fn broken_by_length(target: Target) -> Option<String> {
    let (done, ended) = channel();
    thread::spawn(move || {
        let inputs = corpus_inputs(&target);
        let longest = inputs.iter().max_by_key(|input| input.len()).expect("an input");
        let pieces = [longest.as_slice(), b"[", b"*", b"a: ", b"1", b" ", b"\n"];
        // Nobody listens any more when the patience was over.
        let _ = done.send(pieces.iter().find_map(|piece| panic_report(&target, &repeated(piece, LONG))));
    });
    match ended.recv_timeout(INPUT_TIMEOUT) {
        Ok(found) => found,
        Err(why) => Some(format!("{} did not end within {INPUT_TIMEOUT:?}: {why}", target.name)),
    }
}
