//! Waiting for the outside world, with a deadline and a last word.

use std::fmt::Display;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Long enough for a busy machine: a deadline against hanging, never a measure of speed.
pub const SLOW: Duration = Duration::from_secs(180);

const POLL: Duration = Duration::from_millis(50);

/// Polls until the probe gives a value; its errors say what was seen instead.
///
/// # Panics
/// At the deadline, with what was waited for and the last error.
#[track_caller]
pub fn wait<T, E: Display>(what: &str, deadline: Duration, mut probe: impl FnMut() -> Result<T, E>) -> T {
    let start = Instant::now();
    loop {
        let asked = Instant::now();
        match probe() {
            Ok(value) => return value,
            Err(seen) if start.elapsed() >= deadline => {
                panic!("waited {deadline:?} for {what}; last seen: {seen}")
            }
            // What is dear to ask, such as a program of its own, is asked more rarely: others run beside this test.
            Err(_) => sleep(POLL.max(2 * asked.elapsed())),
        }
    }
}

/// Polls until the probe is true.
#[track_caller]
pub fn wait_until(what: &str, deadline: Duration, mut probe: impl FnMut() -> bool) {
    wait(what, deadline, || if probe() { Ok(()) } else { Err("not yet") });
}
