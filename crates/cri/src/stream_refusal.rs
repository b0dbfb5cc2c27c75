//! Whether a service has streams of lists.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ports::RuntimeError;

/// Whether a service said, on its present connection, that it has no streams of lists.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamRefusal(Arc<AtomicBool>);

impl StreamRefusal {
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub fn forget(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// `None` when the call is not implemented: then the plain list is to be asked for, now and later.
    pub fn or_note<T>(
        &self,
        call: &'static str,
        answer: Result<T, RuntimeError>,
    ) -> Option<Result<T, RuntimeError>> {
        if matches!(answer, Err(RuntimeError::Unsupported { .. })) {
            tracing::info!(call, "the runtime has no streaming list calls, using plain ones");
            self.0.store(true, Ordering::Relaxed);
            return None;
        }
        Some(answer)
    }
}
