//! Carrying out lifecycle hooks.

use std::time::Duration;

use model::ContainerId;
use model::hook::{Hook, HookCall};

use crate::dispatcher::Shop;

/// Runs a hook to its end. The error is the whole sentence about it.
pub(crate) async fn run(shop: Shop, id: ContainerId, call: HookCall) -> Result<(), String> {
    let hook = match call.hook {
        Ok(hook) => hook,
        Err(error) => return Err(format!("{} failed - error: {error}", call.describe)),
    };
    let failed = |error: String| format!("{} failed - error: {error}", call.describe);
    match hook {
        Hook::Sleep { secs } => {
            tokio::time::sleep(Duration::from_secs(secs.max(0) as u64)).await;
            Ok(())
        }
        Hook::Http(request) => shop.ports.http_hooks.get(&request).await.map(|_| ()).map_err(failed),
        Hook::Exec { command } => match shop.ports.runtime.exec_sync(&id, &command, Duration::ZERO).await {
            Ok(result) if result.exit_code == 0 => Ok(()),
            Ok(result) => {
                let (out, err) =
                    (String::from_utf8_lossy(&result.stdout), String::from_utf8_lossy(&result.stderr));
                let command = command.join(" ");
                let error = format!("command '{command}' exited with {}: {err}", result.exit_code);
                Err(format!("{}, message: \"{out}{err}\"", failed(error)))
            }
            Err(error) => Err(format!("{}, message: \"\"", failed(error.user_message()))),
        },
    }
}
