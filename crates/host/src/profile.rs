//! Samples this process: after every [`PERIOD`] of CPU time the kernel sends a signal to the thread that uses it, and
//! the signal handler records where that thread was.
//!
//! The handler only stores a number into its own slot: it can't block, allocate or fail. Only the program counter is
//! recorded, because a signal handler can't safely walk the stack without frame pointers.

use std::fs;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use ports::{CodeMapping, CpuProfiler, CpuSamples, ProfileError, WallClock};

use crate::clock::SystemClock;

const PERIOD: Duration = Duration::from_millis(10);
/// Ten minutes of one CPU.
const MAX_SAMPLES: usize = 1 << 16;

static SAMPLE_COUNT: AtomicUsize = AtomicUsize::new(0);
static SAMPLES: [AtomicUsize; MAX_SAMPLES] = [const { AtomicUsize::new(0) }; MAX_SAMPLES];
static IN_USE: AtomicBool = AtomicBool::new(false);

/// The profiler of this process. There is only one.
pub struct SignalProfiler;

#[async_trait]
impl CpuProfiler for SignalProfiler {
    async fn sample(&self, length: Duration) -> Result<CpuSamples, ProfileError> {
        let _running = ProfilingSession::start()?;
        let (begun, clock) = (SystemClock.wall(), tokio::time::Instant::now());
        tokio::time::sleep(length).await;
        set_timer(Duration::ZERO)?;
        let count = SAMPLE_COUNT.load(Ordering::SeqCst).min(MAX_SAMPLES);
        let addresses = SAMPLES[..count].iter().map(|slot| slot.load(Ordering::SeqCst) as u64).collect();
        let mappings = code_mappings(&fs::read_to_string("/proc/self/maps")?);
        Ok(CpuSamples { addresses, mappings, begun, lasted: clock.elapsed(), period: PERIOD })
    }
}

/// Runs the timer while it lives, because the caller may be gone before the end.
struct ProfilingSession;

impl ProfilingSession {
    fn start() -> Result<Self, ProfileError> {
        if IN_USE.swap(true, Ordering::SeqCst) {
            return Err(ProfileError::InUse);
        }
        let running = ProfilingSession;
        install_signal_handler()?;
        SAMPLE_COUNT.store(0, Ordering::SeqCst);
        set_timer(PERIOD)?;
        Ok(running)
    }
}

impl Drop for ProfilingSession {
    fn drop(&mut self) {
        // The handler stays installed: a signal that is still pending must not end the process.
        let _ = set_timer(Duration::ZERO);
        IN_USE.store(false, Ordering::SeqCst);
    }
}

#[allow(unsafe_code)]
fn install_signal_handler() -> Result<(), ProfileError> {
    // SAFETY: all zeros is a valid `sigaction`, which is plain data.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = record_sample;
    action.sa_sigaction = handler as usize;
    // System calls that the signal interrupts are restarted.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: `action` lives through the call, its handler has the signature that SA_SIGINFO requires and does only
    // what a handler may (see `note`), and the old action is not requested.
    match unsafe { libc::sigaction(libc::SIGPROF, &action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error().into()),
    }
}

/// Zero stops it.
#[allow(unsafe_code)]
fn set_timer(period: Duration) -> io::Result<()> {
    let every = libc::timeval { tv_sec: 0, tv_usec: period.subsec_micros().into() };
    let timer = libc::itimerval { it_interval: every, it_value: every };
    // SAFETY: `timer` lives through the call, and the old value is not requested.
    match unsafe { libc::setitimer(libc::ITIMER_PROF, &timer, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn record_sample(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let slot = SAMPLE_COUNT.fetch_add(1, Ordering::Relaxed);
    if let Some(slot) = SAMPLES.get(slot) {
        slot.store(program_counter(context), Ordering::Relaxed);
    }
}

/// Records where the interrupted thread was.
#[allow(unsafe_code)]
fn program_counter(context: *mut libc::c_void) -> usize {
    // SAFETY: with SA_SIGINFO the kernel passes a pointer to the `ucontext_t` of the interrupted thread, which lives as
    // long as the handler runs.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    #[cfg(target_arch = "x86_64")]
    let counter = context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize;
    #[cfg(target_arch = "aarch64")]
    let counter = context.uc_mcontext.pc as usize;
    counter
}

/// The lines of `/proc/self/maps` that can be executed and come from a file.
fn code_mappings(maps: &str) -> Vec<CodeMapping> {
    let mapping = |line: &str| {
        let mut words = line.split_whitespace();
        let (range, rights, offset) = (words.next()?, words.next()?, words.next()?);
        let path = words.nth(2)?;
        let (start, end) = range.split_once('-')?;
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let found =
            CodeMapping { start: hex(start)?, end: hex(end)?, offset: hex(offset)?, path: path.to_owned() };
        (rights.contains('x') && path.starts_with('/')).then_some(found)
    };
    maps.lines().filter_map(mapping).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_in_memory() {
        let maps = "55d0c0000000-55d0c0100000 r--p 00000000 08:01 42 /usr/bin/agent\n\
                    55d0c0100000-55d0c0500000 r-xp 00100000 08:01 42 /usr/bin/agent\n\
                    7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0 [vdso]\n\
                    7f0000000000-7f0000001000 rwxp 00000000 00:00 0\n";
        let found = code_mappings(maps);
        let (start, end, offset) = (0x55d0_c010_0000, 0x55d0_c050_0000, 0x10_0000);
        assert_eq!(found, [CodeMapping { start, end, offset, path: "/usr/bin/agent".into() }]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn work_is_found_where_it_is_done_and_only_one_looks() {
        let busy = std::sync::Arc::new(AtomicBool::new(true));
        let goes_on = busy.clone();
        let work = std::thread::spawn(move || {
            let mut sum = 0_u64;
            while goes_on.load(Ordering::Relaxed) {
                sum = std::hint::black_box(sum.wrapping_mul(3).wrapping_add(1));
            }
            sum
        });
        let mut found = 0;
        // On a busy machine this process may get little CPU time.
        for _ in 0..50 {
            let (samples, second) = tokio::join!(
                SignalProfiler.sample(Duration::from_millis(300)),
                SignalProfiler.sample(Duration::from_millis(300))
            );
            assert!(matches!(second, Err(ProfileError::InUse)));
            let samples = samples.unwrap();
            assert!(samples.lasted >= Duration::from_millis(300));
            let own = std::env::current_exe().unwrap();
            let is_ours = |at: &&u64| {
                let mut code = samples.mappings.iter();
                let mapping = code.find(|code| (code.start..code.end).contains(*at));
                mapping.is_some_and(|code| own.as_os_str() == code.path.as_str())
            };
            found += samples.addresses.iter().filter(is_ours).count();
            if found >= 5 {
                break;
            }
        }
        busy.store(false, Ordering::Relaxed);
        work.join().unwrap();
        assert!(found >= 5, "{found} samples in our own code");
    }
}
