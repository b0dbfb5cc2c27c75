//! Tasks beside the dispatcher, and what follows when one panics.
//!
//! ```text
//!   a call for the dispatcher ── panics ──> its outcome is a failure, and the next plan decides
//!   an essential task ────────── panics ──> the engine ends, and the process with it
//!   work about one thing ─────── panics ──> it is started again with back-off, and nothing else is concerned
//! ```
//!
//! tokio catches a panic in the task. Without this module the agent would go on without the task, and nothing would
//! show it.

use std::any::Any;
use std::panic::AssertUnwindSafe;

use decide::Event;
use decide::back_off::volume_delay;
use futures::FutureExt;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::outbox::Outbox;

/// The message of a panic.
pub(crate) fn panic_message(cause: &(dyn Any + Send)) -> String {
    let text = cause.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| cause.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned()
}

/// Runs a call beside the dispatcher. `failed` makes the event for a call that panics, so that the state does not wait
/// for ever.
pub(crate) fn spawn_call(
    outbox: &Outbox,
    call: impl Future<Output = ()> + Send + 'static,
    failed: impl FnOnce(String) -> Option<Event> + Send + 'static,
) {
    let outbox = outbox.clone();
    tokio::spawn(async move {
        if let Err(cause) = AssertUnwindSafe(call).catch_unwind().await {
            let message = format!("internal error: {}", panic_message(&*cause));
            tracing::error!("a call panicked: {message}");
            if let Some(event) = failed(message) {
                outbox.send(event);
            }
        }
    });
}

/// Runs work that is about one thing outside of the agent: an object, a plugin. After a panic it is started again with
/// back-off, because one odd object or plugin must not end the agent.
pub(crate) async fn restart_after_panic<W: Future>(what: &str, mut work: impl FnMut() -> W) -> W::Output {
    let mut panics = 0_u32;
    loop {
        match AssertUnwindSafe(work()).catch_unwind().await {
            Ok(done) => return done,
            Err(cause) => {
                tracing::error!("{what} panicked, starting it again: {}", panic_message(&*cause));
            }
        }
        panics = panics.saturating_add(1);
        tokio::time::sleep(volume_delay(panics)).await;
    }
}

/// Starts tasks the agent can't run without. If one panics or ends early, its name is sent on the channel and the
/// engine stops.
#[derive(Clone)]
pub struct EssentialTasks {
    deaths: mpsc::UnboundedSender<String>,
    #[cfg(debug_assertions)]
    test_panic: Option<TaskPanic>,
}

/// A task that panics on purpose, so that tests see what follows.
#[cfg(debug_assertions)]
#[derive(Clone, Debug)]
pub struct TaskPanic {
    pub task: String,
    /// It panics when this is cancelled.
    pub trigger: CancellationToken,
}

impl EssentialTasks {
    /// The receiver gets the name of each task that ended unexpectedly, and why.
    pub fn new() -> (Self, mpsc::UnboundedReceiver<String>) {
        let (deaths, told) = mpsc::unbounded_channel();
        let tasks = Self {
            deaths,
            #[cfg(debug_assertions)]
            test_panic: None,
        };
        (tasks, told)
    }

    /// Makes one of the tasks that are started from now on panic. Only in debug builds.
    #[cfg(debug_assertions)]
    pub fn with_test_panic(self, panic: TaskPanic) -> Self {
        Self { test_panic: Some(panic), ..self }
    }

    /// Starts a task that may end when its work is done.
    pub fn spawn<W>(&self, name: &'static str, work: W)
    where
        W: Future<Output: Send> + Send + 'static,
    {
        let deaths = self.deaths.clone();
        #[cfg(debug_assertions)]
        let work = with_panic(self.test_panic.clone().filter(|panic| panic.task == name), work);
        tokio::spawn(async move {
            if let Err(cause) = AssertUnwindSafe(work).catch_unwind().await {
                // The receiver is dropped only while the agent shuts down.
                let _ = deaths.send(format!("{name} panicked: {}", panic_message(&*cause)));
            }
        });
    }

    /// Starts a task that may end only when `stop` is cancelled.
    pub fn spawn_until(
        &self,
        name: &'static str,
        stop: &CancellationToken,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        let (deaths, stop) = (self.deaths.clone(), stop.clone());
        self.spawn(name, async move {
            if stop.run_until_cancelled(work).await.is_some() && !stop.is_cancelled() {
                let _ = deaths.send(format!("{name} ended unexpectedly"));
            }
        });
    }
}

#[cfg(debug_assertions)]
async fn with_panic<T>(panic: Option<TaskPanic>, work: impl Future<Output = T>) -> T {
    let Some(panic) = panic else { return work.await };
    tokio::select! {
        output = work => output,
        () = panic.trigger.cancelled() => panic!("a mistake on purpose"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_death_of_an_essential_task_is_told() {
        let (tasks, mut deaths) = EssentialTasks::new();
        let stop = CancellationToken::new();
        tasks.spawn("one", async {});
        tasks.spawn_until("two", &stop, std::future::pending());
        tasks.spawn_until("three", &stop, async {});
        assert_eq!(deaths.recv().await.as_deref(), Some("three ended unexpectedly"));
        tasks.spawn("four", async { panic!("far {}", "away") });
        assert_eq!(deaths.recv().await.as_deref(), Some("four panicked: far away"));
        tasks.spawn_until("five", &stop, async { panic!("here") });
        assert_eq!(deaths.recv().await.as_deref(), Some("five panicked: here"));
        stop.cancel();
        drop(tasks);
        assert_eq!(deaths.recv().await, None, "an end that was asked for is none");
    }

    #[tokio::test(start_paused = true)]
    async fn work_about_one_thing_goes_on_after_panics() {
        let mut tries = 0;
        let began = tokio::time::Instant::now();
        let done = restart_after_panic("the work", || {
            tries += 1;
            let number = tries;
            async move { if number < 4 { panic!("try {number}") } else { number } }
        });
        assert_eq!(done.await, 4);
        let delays = [1, 2, 3].map(volume_delay);
        assert!(began.elapsed() >= delays.iter().sum::<std::time::Duration>(), "with back-off");
    }

    #[tokio::test]
    async fn a_call_that_panics_has_an_outcome() {
        let (events, mut inbox) = mpsc::unbounded_channel();
        let outbox = Outbox(events);
        let failed = |message| Some(Event::SweepEnded { problems: vec![message] });
        spawn_call(&outbox, async { panic!("no such luck") }, failed);
        let Some(Event::SweepEnded { problems }) = inbox.recv().await else { panic!("another event") };
        assert_eq!(problems, ["internal error: no such luck"]);
        spawn_call(&outbox, async {}, failed);
        spawn_call(&outbox, async { panic!("nobody waits") }, |_| None);
        drop(outbox);
        assert!(inbox.recv().await.is_none());
    }
}
