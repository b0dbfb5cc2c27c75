//! The four conditions of a node, and the Events about their changes.

use model::ApiEvent;
use model::eviction::NodePressure;
use model::k8s::{NodeCondition, Time};

/// Reason and message of one state of a condition.
struct ConditionText {
    reason: &'static str,
    message: &'static str,
    event: &'static str,
}

struct PressureCondition {
    name: &'static str,
    yes: ConditionText,
    no: ConditionText,
}

const MEMORY: PressureCondition = PressureCondition {
    name: "MemoryPressure",
    yes: ConditionText {
        reason: "KubeletHasInsufficientMemory",
        message: "kubelet has insufficient memory available",
        event: "NodeHasInsufficientMemory",
    },
    no: ConditionText {
        reason: "KubeletHasSufficientMemory",
        message: "kubelet has sufficient memory available",
        event: "NodeHasSufficientMemory",
    },
};

const DISK: PressureCondition = PressureCondition {
    name: "DiskPressure",
    yes: ConditionText {
        reason: "KubeletHasDiskPressure",
        message: "kubelet has disk pressure",
        event: "NodeHasDiskPressure",
    },
    no: ConditionText {
        reason: "KubeletHasNoDiskPressure",
        message: "kubelet has no disk pressure",
        event: "NodeHasNoDiskPressure",
    },
};

const PID: PressureCondition = PressureCondition {
    name: "PIDPressure",
    yes: ConditionText {
        reason: "KubeletHasInsufficientPID",
        message: "kubelet has insufficient PID available",
        event: "NodeHasInsufficientPID",
    },
    no: ConditionText {
        reason: "KubeletHasSufficientPID",
        message: "kubelet has sufficient PID available",
        event: "NodeHasSufficientPID",
    },
};

/// Sets all conditions, Ready last. `not_ready`: why the node is not ready.
pub(super) fn set(
    conditions: &mut Vec<NodeCondition>,
    node: &str,
    pressure: NodePressure,
    not_ready: Option<String>,
    now: &Time,
) -> Vec<ApiEvent> {
    let pressures = [(MEMORY, pressure.memory), (DISK, pressure.disk), (PID, pressure.pid)];
    let mut events: Vec<ApiEvent> = pressures
        .into_iter()
        .filter_map(|(kind, holds)| set_pressure(conditions, &kind, holds, now))
        .map(|reason| status_event(node, reason))
        .collect();
    events.extend(set_ready(conditions, not_ready, now).map(|reason| status_event(node, reason)));
    events
}

pub(super) fn status_event(node: &str, reason: &str) -> ApiEvent {
    ApiEvent::normal(reason, format!("Node {node} status is now: {reason}"))
}

/// Returns an Event also if the condition is new.
fn set_pressure(
    conditions: &mut Vec<NodeCondition>,
    kind: &PressureCondition,
    holds: bool,
    now: &Time,
) -> Option<&'static str> {
    let found = conditions.iter().position(|condition| condition.type_ == kind.name);
    let index = found.unwrap_or_else(|| {
        conditions.push(NodeCondition {
            type_: kind.name.into(),
            status: "Unknown".into(),
            ..NodeCondition::default()
        });
        conditions.len() - 1
    });
    let condition = &mut conditions[index];
    condition.last_heartbeat_time = Some(now.clone());
    let (status, words) = if holds { ("True", &kind.yes) } else { ("False", &kind.no) };
    if condition.status == status {
        return None;
    }
    condition.status = status.into();
    condition.reason = Some(words.reason.into());
    condition.message = Some(words.message.into());
    condition.last_transition_time = Some(now.clone());
    Some(words.event)
}

/// Returns an Event only if the condition existed and changed.
fn set_ready(
    conditions: &mut Vec<NodeCondition>,
    not_ready: Option<String>,
    now: &Time,
) -> Option<&'static str> {
    let (status, reason, message, event) = match not_ready {
        None => ("True", "KubeletReady", "kubelet is posting ready status".to_owned(), "NodeReady"),
        Some(errors) => ("False", "KubeletNotReady", errors, "NodeNotReady"),
    };
    let mut ready = NodeCondition {
        type_: "Ready".into(),
        status: status.into(),
        reason: Some(reason.into()),
        message: Some(message),
        last_heartbeat_time: Some(now.clone()),
        last_transition_time: Some(now.clone()),
    };
    let Some(present) = conditions.iter_mut().find(|condition| condition.type_ == "Ready") else {
        conditions.push(ready);
        return None;
    };
    let changed = present.status != status;
    if !changed {
        ready.last_transition_time = present.last_transition_time.clone();
    }
    *present = ready;
    changed.then_some(event)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Wall;

    fn at(secs: i64) -> Time {
        Wall(secs * 1_000_000_000).api_time()
    }

    fn told(events: &[ApiEvent]) -> Vec<&str> {
        events.iter().map(|event| event.reason.as_str()).collect()
    }

    #[test]
    fn transitions_and_heartbeats() {
        let mut conditions = Vec::new();
        let first = set(&mut conditions, "n", NodePressure::default(), Some("x".into()), &at(1));
        assert_eq!(
            told(&first),
            ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"]
        );
        assert_eq!(first[0].message, "Node n status is now: NodeHasSufficientMemory");
        let kinds: Vec<&str> = conditions.iter().map(|c| c.type_.as_str()).collect();
        assert_eq!(kinds, ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]);
        assert_eq!((conditions[3].status.as_str(), conditions[3].message.as_deref()), ("False", Some("x")));

        let second = set(&mut conditions, "n", NodePressure::default(), None, &at(2));
        assert_eq!(told(&second), ["NodeReady"]);
        assert_eq!(conditions[3].last_transition_time, Some(at(2)));
        assert_eq!(conditions[0].last_transition_time, Some(at(1)));
        assert_eq!(conditions[0].last_heartbeat_time, Some(at(2)));

        let pressure = NodePressure { disk: true, ..NodePressure::default() };
        let third = set(&mut conditions, "n", pressure, None, &at(3));
        assert_eq!(told(&third), ["NodeHasDiskPressure"]);
        assert_eq!(conditions[1].reason.as_deref(), Some("KubeletHasDiskPressure"));
        assert_eq!(conditions[3].last_transition_time, Some(at(2)));

        let fourth = set(&mut conditions, "n", pressure, Some("y".into()), &at(4));
        assert_eq!(told(&fourth), ["NodeNotReady"]);
        assert_eq!(told(&set(&mut conditions, "n", pressure, Some("z".into()), &at(5))), [""; 0]);
        assert_eq!(conditions[3].message.as_deref(), Some("z"));
        assert_eq!(conditions[3].last_transition_time, Some(at(4)));
    }

    #[test]
    fn conditions_of_others_stay() {
        let other = NodeCondition { type_: "NetworkUnavailable".into(), ..NodeCondition::default() };
        let mut conditions = vec![other.clone()];
        set(&mut conditions, "n", NodePressure::default(), None, &at(1));
        assert_eq!((conditions.len(), &conditions[0]), (5, &other));
    }
}
