//! statfs and tree walks may block for ever on a dead server. Each query runs on its own thread, at most one per path;
//! later queries for the path wait for it.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::{Mutex, oneshot};

#[derive(Default)]
pub(super) struct PathQueries {
    /// The lock of a path is held by the thread that runs its query.
    paths: Mutex<BTreeMap<PathBuf, Arc<Mutex<()>>>>,
}

impl PathQueries {
    pub async fn ask<T: Send + 'static>(
        &self,
        path: PathBuf,
        question: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let turn = {
            let mut paths = self.paths.lock().await;
            // Unused locks can be dropped.
            paths.retain(|_, lock| Arc::strong_count(lock) > 1);
            paths.entry(path.clone()).or_default().clone()
        };
        let turn = turn.lock_owned().await;
        let (told, answer) = oneshot::channel();
        let ask = move || {
            let found = question(&path);
            drop(turn);
            // The receiver may have been dropped.
            let _ = told.send(found);
        };
        std::thread::Builder::new().name("usage".into()).spawn(ask)?;
        answer.await.map_err(io::Error::other)?
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_path_without_an_answer_costs_one_thread() {
        let questions = PathQueries::default();
        let (release, held) = std::sync::mpsc::channel::<()>();
        let asked = Arc::new(AtomicUsize::new(0));
        let count = |number: u32| {
            let asked = asked.clone();
            move |_: &Path| {
                asked.fetch_add(1, Ordering::SeqCst);
                Ok(number)
            }
        };
        let hangs = questions.ask("/dead".into(), move |_: &Path| held.recv().map_err(io::Error::other));
        let soon = Duration::from_millis(20);
        assert!(tokio::time::timeout(soon, hangs).await.is_err());
        for _ in 0..3 {
            assert!(tokio::time::timeout(soon, questions.ask("/dead".into(), count(1))).await.is_err());
        }
        assert_eq!(asked.load(Ordering::SeqCst), 0);
        assert_eq!(questions.ask("/well".into(), count(2)).await.unwrap(), 2);
        release.send(()).unwrap();
        assert_eq!(questions.ask("/dead".into(), count(3)).await.unwrap(), 3);
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }
}
