//! Runs lifecycle hooks.

use std::time::Duration;

use decide::Event;
use model::cri::ExecResult;
use model::hook::{Hook, HookCall};
use model::text_limits::{TextLimit, truncate_output, truncate_text};
use model::{ContainerId, PodUid};
use ports::HookAnswer;

use crate::context::EngineContext;

/// Sleeps. `cut_short` runs if the sleep is dropped before its end.
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

/// Runs a hook to its end. The error is the complete message about it.
pub(crate) async fn run(
    ctx: EngineContext,
    uid: PodUid,
    id: ContainerId,
    call: HookCall,
) -> Result<(), String> {
    let hook = match call.hook {
        Ok(hook) => hook,
        Err(error) => return Err(format!("{} failed - error: {error}", call.describe)),
    };
    let failed = |error: String| format!("{} failed - error: {error}", call.describe);
    match hook {
        Hook::Sleep { secs } => {
            let length = Duration::from_secs(secs.max(0) as u64);
            sleep(length, || ctx.ports.meter.record_sleep_cut_short()).await;
            Ok(())
        }
        Hook::Http(request) => {
            let answer = ctx.ports.http_hooks.get(&request).await.map_err(failed)?;
            if answer == HookAnswer::AnsweredWithoutTls {
                let host = format!("{}:{}", request.host, request.port);
                ctx.outbox.send(Event::HookFellBackToHttp { uid, host });
            }
            Ok(())
        }
        Hook::Exec { command } => match ctx.ports.runtime.exec_sync(&id, &command, Duration::ZERO).await {
            Ok(result) if result.exit_code == 0 => Ok(()),
            Ok(result) => {
                let (error, output) = exec_failure(&command, &result);
                Err(format!("{}, message: \"{output}\"", failed(error)))
            }
            Err(error) => Err(format!("{}, message: \"\"", failed(error.user_message()))),
        },
    }
}

/// The failure of a command: the message, and all of its output.
fn exec_failure(command: &[String], result: &ExecResult) -> (String, String) {
    let complaint = truncate_output(&result.stderr, TextLimit::HookOutput);
    let command = truncate_text(command.join(" "), TextLimit::HookOutput);
    let error = format!("command '{command}' exited with {}: {complaint}", result.exit_code);
    let output = [result.stdout.as_slice(), result.stderr.as_slice()].concat();
    (error, truncate_output(&output, TextLimit::HookOutput))
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

    #[test]
    fn a_hook_that_prints_megabytes_is_told_of_in_a_few_lines() {
        let command = ["sh".to_owned(), "-c".to_owned(), "exit 3".to_owned()];
        let result = |stdout: &str, stderr: Vec<u8>| ExecResult {
            exit_code: 3,
            stdout: stdout.as_bytes().to_vec(),
            stderr,
        };
        let (error, output) = exec_failure(&command, &result("out", b"err".to_vec()));
        assert_eq!(
            (error.as_str(), output.as_str()),
            ("command 'sh -c exit 3' exited with 3: err", "outerr")
        );
        let (error, output) = exec_failure(&command, &result("begins ", vec![b'x'; 16 << 20]));
        assert!(output.starts_with("begins xxx") && output.ends_with("bytes left out)"), "{output}");
        assert!(
            error.len() + output.len() <= 3 * TextLimit::HookOutput.bytes(),
            "{}",
            error.len() + output.len()
        );
        let loud = [vec!["echo".to_owned()], vec!["x".repeat(1000); 1000]].concat();
        assert!(exec_failure(&loud, &result("", Vec::new())).0.len() < 2 * TextLimit::HookOutput.bytes());
    }
}
