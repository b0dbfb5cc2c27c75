//! Records of panics: read before anything is decided, written as the last action of the engine.

use std::time::Duration;

use model::panic_record::PanicRecord;

use crate::context::EngineContext;

/// How long we wait for the disk.
const DISK_TIMEOUT: Duration = Duration::from_secs(10);

/// The panic records of earlier agents. If they can't be read, no pod is set aside.
pub(crate) async fn load(ctx: &EngineContext) -> Vec<PanicRecord> {
    match tokio::time::timeout(DISK_TIMEOUT, ctx.ports.panic_records.load()).await {
        Ok(Ok(records)) => records,
        Ok(Err(error)) => {
            tracing::error!("panic records could not be read: {}", error.user_message());
            Vec::new()
        }
        Err(_) => {
            tracing::error!("panic records could not be read: no answer from the disk");
            Vec::new()
        }
    }
}

pub(crate) async fn save(ctx: &EngineContext, records: Vec<PanicRecord>) {
    match tokio::time::timeout(DISK_TIMEOUT, ctx.ports.panic_records.save(&records)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!("the panic record could not be written: {}", error.user_message()),
        Err(_) => tracing::error!("the panic record could not be written: no answer from the disk"),
    }
}
