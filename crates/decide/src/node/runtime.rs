//! The runtime's part of the node's readiness, with upstream's messages.

use std::time::Duration;

use model::cri::{RuntimeCondition, RuntimeStatus};
use model::{Mono, Now};

use crate::back_off::go_duration;

/// How long a healthy runtime may fail to answer before the node is not ready.
const RUNTIME_DOWN_AFTER: Duration = Duration::from_secs(30);
/// Interval of the status check while the runtime is healthy; a lost event stream triggers one earlier.
const RUNTIME_CHECK_PERIOD: Duration = Duration::from_secs(35);

/// Last known state of the runtime.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct RuntimeSnapshot {
    pub name: String,
    pub version: String,
    /// The last answer of the status check.
    pub status: Option<RuntimeStatus>,
    pub answered_at: Option<Mono>,
    /// The last status check failed.
    pub last_check_failed: bool,
    /// Time of the last complete relist.
    pub relisted_at: Option<Mono>,
}

/// Errors of the runtime, then of its network, and when the next error is due if nothing changes.
pub(super) fn readiness_errors(
    view: &RuntimeSnapshot,
    threshold: Duration,
    now: Now,
) -> (Vec<String>, Option<Mono>) {
    let mut errors = Vec::new();
    let mut next = None;
    match view.answered_at {
        None => errors.push("container runtime status check may not have completed yet".to_owned()),
        Some(answered) => {
            let patience = if view.last_check_failed {
                RUNTIME_DOWN_AFTER
            } else {
                RUNTIME_DOWN_AFTER + RUNTIME_CHECK_PERIOD
            };
            let down_at = answered.plus(patience);
            if now.mono >= down_at {
                errors.push("container runtime is down".to_owned());
            } else {
                next = Some(down_at);
            }
        }
    }
    match view.relisted_at {
        None => errors.push("PLEG is not healthy: pleg has yet to be successful".to_owned()),
        Some(read) => {
            let stale_at = read.plus(threshold);
            if now.mono > stale_at {
                let (ago, threshold) = (go_duration(now.mono.since(read)), go_duration(threshold));
                errors.push(format!(
                    "PLEG is not healthy: pleg was last seen active {ago} ago; threshold is {threshold}"
                ));
            } else {
                let stale_at = stale_at.plus(Duration::from_nanos(1));
                next = Some(next.map_or(stale_at, |next: Mono| next.min(stale_at)));
            }
        }
    }
    let Some(status) = &view.status else {
        errors.push("network state unknown".to_owned());
        return (errors, next);
    };
    errors.extend(fault(status.condition("RuntimeReady"), "container runtime not ready"));
    errors.extend(fault(status.condition("NetworkReady"), "container runtime network not ready"));
    (errors, next)
}

fn fault(condition: Option<&RuntimeCondition>, label: &str) -> Option<String> {
    match condition {
        Some(c) if c.status => None,
        Some(c) => Some(format!("{label}: {}=false reason:{} message:{}", c.r#type, c.reason, c.message)),
        None => Some(format!("{label}: <nil>")),
    }
}

/// One error as it is, several as a list without duplicates.
pub(super) fn aggregate(errors: &[String]) -> Option<String> {
    let mut distinct: Vec<&str> = Vec::new();
    for error in errors {
        if !distinct.contains(&error.as_str()) {
            distinct.push(error);
        }
    }
    match distinct[..] {
        [] => None,
        [one] => Some(one.to_owned()),
        _ => Some(format!("[{}]", distinct.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(kind: &str, status: bool) -> RuntimeCondition {
        RuntimeCondition { r#type: kind.into(), status, reason: "R".into(), message: "m".into() }
    }

    fn view(conditions: Vec<RuntimeCondition>) -> RuntimeSnapshot {
        RuntimeSnapshot {
            status: Some(RuntimeStatus { conditions, ..RuntimeStatus::default() }),
            answered_at: Some(at(0)),
            relisted_at: Some(at(0)),
            ..RuntimeSnapshot::default()
        }
    }

    fn at(secs: u64) -> Mono {
        Mono::from_duration(Duration::from_secs(secs))
    }

    fn check(view: &RuntimeSnapshot, secs: u64, expect: &str, next: Option<u64>) {
        let now = Now { mono: at(secs), ..Now::default() };
        let (errors, wake) = readiness_errors(view, Duration::from_secs(180), now);
        assert_eq!(aggregate(&errors).unwrap_or_default(), expect);
        assert_eq!(wake.map(|at| at.as_duration().as_secs()), next, "{expect}");
    }

    #[test]
    fn words() {
        let good = view(vec![condition("RuntimeReady", true), condition("NetworkReady", true)]);
        check(&good, 10, "", Some(65));
        check(&good, 65, "container runtime is down", Some(180));
        let failed = RuntimeSnapshot { last_check_failed: true, ..good.clone() };
        check(&failed, 29, "", Some(30));
        check(&failed, 30, "container runtime is down", Some(180));
        let unread = RuntimeSnapshot { answered_at: Some(at(190)), ..good.clone() };
        check(
            &unread,
            191,
            "PLEG is not healthy: pleg was last seen active 3m11s ago; threshold is 3m0s",
            Some(255),
        );
        let network = view(vec![condition("RuntimeReady", true), condition("NetworkReady", false)]);
        check(
            &network,
            1,
            "container runtime network not ready: NetworkReady=false reason:R message:m",
            Some(65),
        );
        check(
            &view(vec![condition("RuntimeReady", false)]),
            1,
            "[container runtime not ready: RuntimeReady=false reason:R message:m, \
             container runtime network not ready: <nil>]",
            Some(65),
        );
        check(
            &RuntimeSnapshot::default(),
            1,
            "[container runtime status check may not have completed yet, \
             PLEG is not healthy: pleg has yet to be successful, network state unknown]",
            None,
        );
    }

    #[test]
    fn the_same_error_is_said_once() {
        let errors = ["a", "b", "a"].map(str::to_owned);
        assert_eq!(aggregate(&errors).as_deref(), Some("[a, b]"));
        assert_eq!(aggregate(&errors[..1]).as_deref(), Some("a"));
        assert_eq!(aggregate(&[]), None);
    }
}
