//! Event aggregation, deduplication and spam filter, with the rules of client-go's EventCorrelator.

use std::collections::BTreeSet;
use std::time::Duration;

use model::k8s::{Event, Time};
use model::{Now, Wall};
use serde_json::{Value, json};

use super::bucket::TokenBucket;
use super::lru::LruMap;
use super::object::event_name;

/// How many keys of each kind are remembered.
const REMEMBERED: usize = 4096;
/// From this many different messages of one reason within the interval on, they share one Event.
const SIMILAR: usize = 10;
const SIMILAR_WITHIN: Duration = Duration::from_secs(600);
const COMBINED: &str = "(combined from similar events): ";
/// Events about one object: a burst, then one per five minutes.
const SPAM_BURST: u32 = 25;
const SPAM_REFILL: Duration = Duration::from_secs(300);

/// What to send.
#[derive(Clone, PartialEq, Debug)]
pub enum EventWrite {
    Create(Box<Event>),
    /// Increase the count of an Event that was sent before. If that Event no longer exists, create `event`.
    Patch {
        event: Box<Event>,
        patch: Value,
    },
}

impl EventWrite {
    pub fn event(&self) -> &Event {
        match self {
            EventWrite::Create(event) | EventWrite::Patch { event, .. } => event,
        }
    }
}

#[derive(Clone, Debug)]
struct SimilarEvents {
    messages: BTreeSet<String>,
    last: Wall,
}

#[derive(Clone, Debug, Default)]
struct RepeatCount {
    count: i32,
    first: Option<Time>,
    name: String,
}

/// Remembers which Events were sent.
#[derive(Clone, Debug)]
pub struct EventCorrelator {
    alike: LruMap<SimilarEvents>,
    seen: LruMap<RepeatCount>,
    spam: LruMap<TokenBucket>,
}

impl Default for EventCorrelator {
    fn default() -> Self {
        Self { alike: LruMap::new(REMEMBERED), seen: LruMap::new(REMEMBERED), spam: LruMap::new(REMEMBERED) }
    }
}

impl EventCorrelator {
    /// `None`: the Event is dropped, because there are too many about this object.
    pub fn correlate(&mut self, event: Event, now: Now) -> Option<EventWrite> {
        let (event, key) = self.combine(event, now);
        let send = self.count(event, &key);
        let bucket = self.spam.entry(&spam_key(send.event()), || TokenBucket::new(SPAM_REFILL, SPAM_BURST));
        bucket.try_take(now.mono).then_some(send)
    }

    /// From the tenth message of one reason on, all of them share one Event.
    fn combine(&mut self, event: Event, now: Now) -> (Event, String) {
        let key = reason_key(&event);
        let fresh = || SimilarEvents { messages: BTreeSet::new(), last: now.wall };
        let alike = self.alike.entry(&key, fresh);
        if now.wall.since(alike.last) > SIMILAR_WITHIN {
            alike.messages.clear();
        }
        let message = event.message.clone().unwrap_or_default();
        alike.messages.insert(message.clone());
        alike.last = now.wall;
        if alike.messages.len() < SIMILAR {
            let key = event_key(&event);
            return (event, key);
        }
        alike.messages.pop_first();
        let mut combined = event;
        let about = combined.involved_object.name.clone().unwrap_or_default();
        combined.metadata.name = Some(event_name(&about, now.wall));
        combined.message = Some(format!("{COMBINED}{message}"));
        (combined, key)
    }

    fn count(&mut self, mut event: Event, key: &str) -> EventWrite {
        let seen = self.seen.entry(key, RepeatCount::default);
        seen.count += 1;
        if seen.count == 1 {
            seen.first = event.first_timestamp.clone();
            seen.name = event.metadata.name.clone().unwrap_or_default();
            return EventWrite::Create(Box::new(event));
        }
        event.metadata.name = Some(seen.name.clone());
        event.first_timestamp = seen.first.clone();
        event.count = Some(seen.count);
        let patch = json!({
            "count": event.count,
            "lastTimestamp": event.last_timestamp,
            "message": event.message,
        });
        EventWrite::Patch { event: Box::new(event), patch }
    }
}

/// The type is part of the key, so that a flood of warnings does not suppress normal Events.
fn spam_key(event: &Event) -> String {
    format!("{}{}", about_key(event), join(&[&event.type_]))
}

fn about_key(event: &Event) -> String {
    let (source, about) = (event.source.clone().unwrap_or_default(), &event.involved_object);
    join(&[
        &source.component,
        &source.host,
        &about.kind,
        &about.namespace,
        &about.name,
        &about.uid,
        &about.api_version,
    ])
}

fn reason_key(event: &Event) -> String {
    let instance =
        join(&[&event.type_, &event.reason, &event.reporting_component, &event.reporting_instance]);
    format!("{}{instance}", about_key(event))
}

fn event_key(event: &Event) -> String {
    let rest = join(&[&event.involved_object.field_path, &event.type_, &event.reason, &event.message]);
    format!("{}{rest}", about_key(event))
}

fn join(parts: &[&Option<String>]) -> String {
    // With a separator, so that keys of different parts are never equal.
    parts.iter().map(|part| format!("{}\u{0}", part.as_deref().unwrap_or_default())).collect()
}

#[cfg(test)]
mod tests {
    use super::super::object::{EventSource, event_object};
    use super::*;
    use model::{ApiEvent, EventSubject, FullName, Mono, PodUid};

    struct Bench {
        correlator: EventCorrelator,
        secs: u64,
    }

    impl Bench {
        fn new() -> Self {
            Self { correlator: EventCorrelator::default(), secs: 1_000 }
        }

        fn send(&mut self, pod: &str, reason: &str, message: &str) -> Option<EventWrite> {
            self.send_event(pod, &ApiEvent::normal(reason, message))
        }

        fn send_event(&mut self, pod: &str, event: &ApiEvent) -> Option<EventWrite> {
            let now = Now {
                mono: Mono::from_duration(Duration::from_secs(self.secs)),
                wall: Wall(self.secs as i64 * 1_000_000_000),
            };
            let about = EventSubject::Pod {
                uid: PodUid::from(pod),
                name: FullName { namespace: "ns".into(), name: pod.into() },
                resource_version: String::new(),
            };
            let source = EventSource { host: "n".into() };
            let event = event_object(&source, &about, event, now.wall);
            self.correlator.correlate(event, now)
        }

        fn shown(&mut self, pod: &str, reason: &str, message: &str) -> String {
            match self.send(pod, reason, message) {
                None => "-".into(),
                Some(EventWrite::Create(event)) => format!("new {}", event.message.unwrap()),
                Some(EventWrite::Patch { event, patch }) => {
                    assert_eq!(patch["count"], json!(event.count));
                    format!("{} x {}", patch["count"], patch["message"].as_str().unwrap())
                }
            }
        }
    }

    #[test]
    fn a_repeated_one_is_counted() {
        let mut bench = Bench::new();
        let Some(EventWrite::Create(first)) = bench.send("a", "Pulled", "m") else { panic!("a new one") };
        bench.secs += 10;
        let Some(EventWrite::Patch { event, patch }) = bench.send("a", "Pulled", "m") else {
            panic!("a patch")
        };
        assert_eq!(event.metadata.name, first.metadata.name);
        assert_eq!(event.first_timestamp, first.first_timestamp);
        assert_eq!(patch, json!({"count": 2, "lastTimestamp": "1970-01-01T00:16:50Z", "message": "m"}));
        assert_eq!(bench.shown("a", "Pulled", "other"), "new other");
        assert_eq!(bench.shown("b", "Pulled", "m"), "new m");
        assert_eq!(bench.shown("a", "Pulled", "m"), "3 x m");
    }

    #[test]
    fn many_alike_become_one() {
        let mut bench = Bench::new();
        for number in 0..9 {
            assert_eq!(bench.shown("a", "Unhealthy", &format!("m{number}")), format!("new m{number}"));
        }
        assert_eq!(bench.shown("a", "Unhealthy", "m9"), "new (combined from similar events): m9");
        assert_eq!(bench.shown("a", "Unhealthy", "m10"), "2 x (combined from similar events): m10");
        assert_eq!(bench.shown("a", "Other", "m"), "new m");
        bench.secs += 601;
        assert_eq!(bench.shown("a", "Unhealthy", "m11"), "new m11");
    }

    #[test]
    fn spam_is_left_out_by_object() {
        let mut bench = Bench::new();
        let sent = (0..40).filter(|_| bench.send("a", "R", "m").is_some()).count();
        assert_eq!(sent, 25);
        assert_eq!(bench.shown("b", "R", "m"), "new m");
        bench.secs += 299;
        assert_eq!(bench.shown("a", "R", "m"), "-");
        bench.secs += 1;
        assert_eq!(bench.shown("a", "R", "m"), "42 x m");
        assert_eq!(bench.shown("a", "R", "m"), "-");
    }

    #[test]
    fn warnings_do_not_drown_what_is_normal() {
        let mut bench = Bench::new();
        let warning = ApiEvent::warning("Unhealthy", "m");
        let sent = (0..40).filter(|_| bench.send_event("a", &warning).is_some()).count();
        assert_eq!(sent, 25);
        assert_eq!(bench.shown("a", "Killing", "m"), "new m");
    }

    #[test]
    fn memory_is_bounded() {
        let mut bench = Bench::new();
        bench.send("first", "R", "m");
        for number in 0..REMEMBERED {
            bench.send(&format!("p{number}"), "R", "m");
        }
        assert_eq!(bench.shown("first", "R", "m"), "new m");
        assert_eq!(bench.shown(&format!("p{}", REMEMBERED - 1), "R", "m"), "2 x m");
    }
}
