//! Panics on purpose, so that tests see what follows. What ships does not have them.
//!
//! | variable | what panics |
//! | --- | --- |
//! | `RUBELET_TEST_PANIC_ON` | each step that plans a pod, or a pod with a container, of this name |
//! | `RUBELET_TEST_PANIC_IN` | the essential task of this name, when the process gets SIGUSR1 |

use engine::{Engine, EssentialTasks};

#[cfg(debug_assertions)]
pub fn add_to_engine(mut engine: Engine) -> Engine {
    if let Ok(name) = std::env::var("RUBELET_TEST_PANIC_ON") {
        engine = engine.with_test_panic(name);
    }
    match task_panic() {
        Some(panic) => engine.with_task_panic(panic),
        None => engine,
    }
}

#[cfg(debug_assertions)]
pub fn add_to_tasks(tasks: EssentialTasks) -> EssentialTasks {
    match task_panic() {
        Some(panic) => tasks.with_test_panic(panic),
        None => tasks,
    }
}

#[cfg(debug_assertions)]
fn task_panic() -> Option<engine::TaskPanic> {
    use tokio::signal::unix::{SignalKind, signal};

    let task = std::env::var("RUBELET_TEST_PANIC_IN").ok()?;
    let trigger = tokio_util::sync::CancellationToken::new();
    let mut signals = signal(SignalKind::user_defined1()).ok()?;
    let panic = engine::TaskPanic { task, trigger: trigger.clone() };
    tokio::spawn(async move {
        signals.recv().await;
        trigger.cancel();
    });
    Some(panic)
}

#[cfg(not(debug_assertions))]
pub fn add_to_engine(engine: Engine) -> Engine {
    engine
}

#[cfg(not(debug_assertions))]
pub fn add_to_tasks(tasks: EssentialTasks) -> EssentialTasks {
    tasks
}
