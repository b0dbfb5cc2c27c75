//! Calls about the logs of running containers: measuring, rotating and compressing them.

use std::path::Path;

use decide::event::Event;
use model::ContainerId;
use model::log_rotation::{LogCall, LogCallResult};
use model::text_limits::{self, TextLimit};

use crate::context::EngineContext;

pub(crate) async fn call(ctx: EngineContext, id: ContainerId, path: String, call: LogCall) {
    let (files, log) = (&ctx.ports.log_files, Path::new(&path));
    let text = |error: std::io::Error| text_limits::truncate_text(error.to_string(), TextLimit::LogLine);
    let result = match call {
        LogCall::Measure => LogCallResult::Measured(files.size(log).await.map_err(text)),
        LogCall::AwaitWrite { size } => {
            LogCallResult::Written(files.wait_until_written(log, size).await.map_err(text))
        }
        LogCall::Rotate { max_files } => LogCallResult::Rotated(rotate(&ctx, &id, log, max_files).await),
        LogCall::Compress { max_files } => {
            LogCallResult::Compressed(files.compress(log, max_files).await.map_err(text))
        }
    };
    ctx.outbox.send(Event::LogCallEnded { id, result });
}

/// The runtime goes on writing to the renamed file until it reopens its log, so that no line is lost.
async fn rotate(ctx: &EngineContext, id: &ContainerId, log: &Path, max_files: u32) -> Result<(), String> {
    let files = &ctx.ports.log_files;
    let renamed = files.rename(log, max_files).await.map_err(|error| format!("renaming it: {error}"))?;
    let Err(error) = ctx.ports.runtime.reopen_container_log(id).await else { return Ok(()) };
    if let Some(renamed) = renamed {
        let back = files.rename_back(&renamed, log).await;
        if let Err(error) = back {
            tracing::warn!("renaming {} back to {}: {error}", renamed.display(), log.display());
        }
    }
    Err(format!("failed to reopen container log {:?}: {}", id.as_str(), error.user_message()))
}
