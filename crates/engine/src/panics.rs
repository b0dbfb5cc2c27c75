//! Records of panics: read before anything is decided, written as the last thing that the engine does.

use std::time::Duration;

use model::panic_record::PanicRecord;

use crate::dispatcher::Shop;

/// A disk that does not answer by then is not waited for any longer.
const PATIENCE: Duration = Duration::from_secs(10);

/// What earlier agents left. Records that can't be read set nobody aside.
pub(crate) async fn load(shop: &Shop) -> Vec<PanicRecord> {
    match tokio::time::timeout(PATIENCE, shop.ports.panic_records.load()).await {
        Ok(Ok(records)) => records,
        Ok(Err(error)) => {
            tracing::error!("records of panics: {}", error.user_message());
            Vec::new()
        }
        Err(_) => {
            tracing::error!("records of panics: no answer from the disk");
            Vec::new()
        }
    }
}

pub(crate) async fn save(shop: &Shop, records: Vec<PanicRecord>) {
    match tokio::time::timeout(PATIENCE, shop.ports.panic_records.save(&records)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!("a panic is not on record: {}", error.user_message()),
        Err(_) => tracing::error!("a panic is not on record: no answer from the disk"),
    }
}
