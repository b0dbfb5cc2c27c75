//! Carrying out lifecycle hooks.

use std::time::Duration;

use decide::Event;
use model::hook::{Hook, HookCall};
use model::{ContainerId, PodUid};
use ports::HookAnswer;

use crate::dispatcher::Shop;

/// Sleeps, and says when it was dropped before its end.
async fn sleep(length: Duration, cut_short: impl FnOnce()) {
    let mut guard = OnDrop(Some(cut_short));
    tokio::time::sleep(length).await;
    guard.0 = None;
}

struct OnDrop<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        if let Some(tell) = self.0.take() {
            tell();
        }
    }
}

/// Runs a hook to its end. The error is the whole sentence about it.
pub(crate) async fn run(shop: Shop, uid: PodUid, id: ContainerId, call: HookCall) -> Result<(), String> {
    let hook = match call.hook {
        Ok(hook) => hook,
        Err(error) => return Err(format!("{} failed - error: {error}", call.describe)),
    };
    let failed = |error: String| format!("{} failed - error: {error}", call.describe);
    match hook {
        Hook::Sleep { secs } => {
            let length = Duration::from_secs(secs.max(0) as u64);
            sleep(length, || shop.ports.meter.sleep_cut_short()).await;
            Ok(())
        }
        Hook::Http(request) => {
            let answer = shop.ports.http_hooks.get(&request).await.map_err(failed)?;
            if answer == HookAnswer::AnsweredWithoutTls {
                let host = format!("{}:{}", request.host, request.port);
                shop.outbox.send(Event::HookFellBackToHttp { uid, host });
            }
            Ok(())
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[tokio::test(start_paused = true)]
    async fn only_a_sleep_that_was_cut_short_is_told() {
        let told = Cell::new(0);
        let length = Duration::from_secs(30);
        let nap = || sleep(length, || told.set(told.get() + 1));
        assert!(tokio::time::timeout(length * 2, nap()).await.is_ok());
        assert_eq!(told.get(), 0);
        assert!(tokio::time::timeout(length / 2, nap()).await.is_err());
        assert_eq!(told.get(), 1);
    }
}
