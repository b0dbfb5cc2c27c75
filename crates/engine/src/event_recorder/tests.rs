//! With paused time, against an API that fails.

use model::{FullName, PodUid};
use tokio::time::{Instant, sleep};

use super::*;
use crate::fake_api::{FakeApi, Fault, TestWall};

fn start(api: &Arc<FakeApi>) -> (Arc<EventRecorder>, tokio_util::sync::DropGuard) {
    let stop = CancellationToken::new();
    let setup = NodeObjectConfig { name: "n".into(), ..NodeObjectConfig::default() };
    let recorder =
        EventRecorder::start(api.clone(), &setup, TestWall::new(), 1, stop.clone(), &EssentialTasks::new().0);
    (recorder, stop.drop_guard())
}

fn pod(name: &str) -> EventSubject {
    let full = FullName { namespace: "ns".into(), name: name.into() };
    EventSubject::Pod { uid: PodUid::from(name), name: full, resource_version: "1".into() }
}

#[tokio::test(start_paused = true)]
async fn a_repeated_event_is_counted_and_a_lost_one_made_again() {
    let api = FakeApi::new();
    let (recorder, _stop) = start(&api);
    let event = ApiEvent::warning("BackOff", "m");
    recorder.record(&pod("a"), &event);
    recorder.record(&pod("a"), &event);
    sleep(Duration::from_millis(5)).await;
    assert_eq!(api.calls().await, ["create event", "patch event"]);
    let sent = api.events().await;
    assert_eq!((sent.len(), sent[0].count), (1, Some(2)));
    api.fail("patch event", Fault::NotFound, 1).await;
    recorder.record(&pod("a"), &event);
    sleep(Duration::from_millis(5)).await;
    assert_eq!(api.calls().await, ["patch event", "create event"]);
    assert_eq!(api.events().await[1].count, Some(3));
}

#[tokio::test(start_paused = true)]
async fn an_absent_server_is_waited_for_and_a_refusal_is_not() {
    let api = FakeApi::new();
    let (recorder, _stop) = start(&api);
    api.fail("create event", Fault::Server, 5).await;
    recorder.record(&pod("a"), &ApiEvent::normal("A", "m"));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(api.calls().await, ["create event"; 6]);
    assert_eq!(api.events().await.len(), 1);
    for fault in [Fault::Invalid, Fault::Forbidden, Fault::Conflict] {
        api.fail("create event", fault, 1).await;
        recorder.record(&pod("a"), &ApiEvent::normal(&format!("{fault:?}"), "m"));
        sleep(Duration::from_secs(60)).await;
        assert_eq!(api.calls().await, ["create event"], "{fault:?}");
    }
    // Given up, and the next one goes out.
    api.fail("create event", Fault::Server, 12).await;
    recorder.record(&pod("a"), &ApiEvent::normal("B", "m"));
    recorder.record(&pod("b"), &ApiEvent::normal("C", "m"));
    sleep(Duration::from_secs(150)).await;
    let reasons: Vec<_> = api.events().await.into_iter().filter_map(|event| event.reason).collect();
    assert_eq!(reasons, ["A", "C"]);
}

#[tokio::test(start_paused = true)]
async fn who_records_never_waits() {
    let api = FakeApi::new();
    let (recorder, _stop) = start(&api);
    api.fail("create event", Fault::Hang, 1).await;
    let began = Instant::now();
    for number in 0..2000 {
        recorder.record(&pod(&format!("p{number}")), &ApiEvent::normal("R", "m"));
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!(recorder.dropped_count(), 1000);
}

#[tokio::test(start_paused = true)]
async fn a_storm_is_spread() {
    let api = FakeApi::new();
    let (recorder, _stop) = start(&api);
    for number in 0..300 {
        recorder.record(&pod(&format!("p{number}")), &ApiEvent::normal("R", "m"));
    }
    sleep(Duration::from_millis(5)).await;
    assert_eq!(api.calls().await.len(), 100);
    sleep(Duration::from_secs(2)).await;
    assert!((99..=101).contains(&api.calls().await.len()));
    sleep(Duration::from_secs(3)).await;
    assert_eq!(api.events().await.len(), 300);
}
