use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use model::k8s::Service;

use super::*;

/// Says no so many times, and then that there is nothing.
struct Refusing {
    refusals: u32,
    entries: WatchStatuses,
    asked: Arc<AtomicU32>,
}

impl ListWatcher for Refusing {
    type Item = Service;

    fn list(&self) -> BoxFuture<'_, Result<ObjectList<Service>, ApiError>> {
        let refused = self.asked.fetch_add(1, Ordering::Relaxed) < self.refusals;
        Box::pin(async move {
            if refused {
                return Err(ApiError::Forbidden { call: "list".into(), message: "no".into() });
            }
            Ok(ObjectList {
                items: Vec::new(),
                unreadable: Vec::new(),
                resource_version: "1".into(),
                continue_token: String::new(),
            })
        })
    }

    fn watch<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Watch<Service>, ApiError>> {
        Box::pin(std::future::pending())
    }

    fn entries(&self) -> &WatchStatuses {
        &self.entries
    }

    fn name(&self) -> (&'static str, String) {
        ("services", String::new())
    }

    fn meta(service: &Service) -> &ObjectMeta {
        &service.metadata
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_told_when_it_lasts() {
    for (refusals, expect) in [(0, "all"), (1, "all"), (3, "all"), (4, "failing"), (9, "failing")] {
        let asked = Arc::new(AtomicU32::new(0));
        let mut notices =
            reflect(Refusing { refusals, entries: WatchStatuses::default(), asked: asked.clone() });
        let first = match notices.next().await {
            Some(ReflectorEvent::All { .. }) => "all",
            Some(ReflectorEvent::Failing(_)) => "failing",
            other => panic!("{other:?}"),
        };
        assert_eq!(first, expect, "after {refusals} refusals");
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_says_what_holds_it_and_for_how_long() {
    let entries = WatchStatuses::default();
    let target = Refusing { refusals: 9, entries: entries.clone(), asked: Arc::default() };
    let mut notices = reflect(target);
    assert!(matches!(notices.next().await, Some(ReflectorEvent::Failing(_))));
    let report = entries.reports().pop().expect("an entry");
    assert_eq!((report.name().as_str(), report.problem.as_str()), ("services", "list: no"));
    assert!(report.last_word_secs > 0.5, "{report:?}");
    // In the end it is listed.
    assert!(matches!(notices.next().await, Some(ReflectorEvent::All { .. })));
    let report = entries.reports().pop().expect("an entry");
    assert_eq!((report.problem.as_str(), report.last_word_secs), ("", 0.0));
    drop(notices);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(entries.reports(), []);
}
