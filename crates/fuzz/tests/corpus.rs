//! Every kept input, some mutations of each, and inputs of a mebibyte, for every target. `RUBELET_FUZZ_ROUNDS` makes
//! more mutations, `RUBELET_FUZZ_SEED` others.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use fuzz::mutate::{Chance, mutated, repeated};
use fuzz::{Target, corpus, targets};

/// Mutations per target, in the normal run.
const ROUNDS: usize = 400;
const LONG: usize = 1 << 20;
/// Far more than a mebibyte takes on a busy machine, and far less than its square would.
const PATIENCE: Duration = Duration::from_secs(300);

fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn kept(target: &Target) -> Vec<Vec<u8>> {
    let dir = corpus(target);
    let mut paths: Vec<_> =
        fs::read_dir(&dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let inputs: Vec<_> = paths.iter().map(|path| fs::read(path).expect("read a kept input")).collect();
    assert!(!inputs.is_empty(), "{} holds no input for {}", dir.display(), target.name);
    inputs
}

/// Runs a target, and says by which input it broke.
fn run(target: &Target, input: &[u8]) {
    if catch_unwind(AssertUnwindSafe(|| (target.run)(input))).is_err() {
        let shown = String::from_utf8_lossy(&input[..input.len().min(2000)]).into_owned();
        panic!(
            "{} broke on {} bytes: {shown:?}\nas bytes: {:?}",
            target.name,
            input.len(),
            &input[..input.len().min(2000)]
        );
    }
}

#[test]
fn every_kept_input_is_read() {
    for target in targets() {
        for input in kept(&target) {
            run(&target, &input);
        }
        run(&target, b"");
    }
}

#[test]
fn mutations_of_kept_inputs_are_read() {
    let rounds = number("RUBELET_FUZZ_ROUNDS", ROUNDS);
    let mut chance = Chance(number("RUBELET_FUZZ_SEED", 1) as u64);
    for target in targets() {
        let inputs = kept(&target);
        for _ in 0..rounds {
            let seed = &inputs[chance.below(inputs.len())];
            let other = &inputs[chance.below(inputs.len())];
            run(&target, &mutated(&mut chance, seed, other, target.words));
        }
    }
}

/// What takes time by the square of its length never ends here.
#[test]
fn long_inputs_are_read_in_their_time() {
    for target in targets() {
        let (done, ended) = channel();
        let worker = thread::spawn(move || {
            let inputs = kept(&target);
            let longest = inputs.iter().max_by_key(|input| input.len()).expect("an input");
            run(&target, &repeated(longest, LONG));
            for piece in [&b"["[..], b"*", b"a: ", b"1", b" ", b"\n"] {
                run(&target, &repeated(piece, LONG));
            }
            // Nobody listens any more when the patience was over.
            let _ = done.send(());
        });
        match ended.recv_timeout(PATIENCE) {
            Ok(()) => {}
            Err(RecvTimeoutError::Timeout) => panic!("{} did not end within {PATIENCE:?}", target.name),
            Err(RecvTimeoutError::Disconnected) => panic!("{}: {:?}", target.name, worker.join().err()),
        }
    }
}
