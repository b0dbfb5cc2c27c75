//! Registration of CSI drivers.

use model::GrpcCode;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use decide::Event;
use model::csi::PluginInfo;
use ports::PluginSocketEvent;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::super::registry::Registry;
use super::world::World;
use crate::outbox::Outbox;

struct Scene {
    periods: watch::Sender<BTreeMap<String, u64>>,
    world: Arc<World>,
    inbox: UnboundedReceiver<Event>,
    stop: CancellationToken,
    registry: Arc<Registry>,
}

impl Scene {
    fn new() -> Self {
        let world = World::new();
        let (outbox, inbox) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        let periods = watch::Sender::default();
        let registry = Registry::new(world.ports(), None, Outbox(outbox), periods.subscribe());
        tokio::spawn(registry.clone().run(stop.clone()));
        Self { periods, world, inbox, stop, registry }
    }

    async fn comes(&self, socket: &str, kind: &str, name: &str, version: &str) {
        let info = PluginInfo {
            kind: kind.into(),
            name: name.into(),
            endpoint: String::new(),
            versions: vec![version.into()],
        };
        self.world.inner.lock().await.infos.insert(socket.into(), info);
        self.world.tell.send(PluginSocketEvent::Added { path: socket.into() }).unwrap();
        self.world.rest().await;
    }

    async fn goes(&self, socket: &str) {
        self.world.tell.send(PluginSocketEvent::Gone { path: socket.into() }).unwrap();
        self.world.rest().await;
    }

    /// The registered drivers, as they were last sent.
    fn registered(&mut self) -> Option<BTreeSet<String>> {
        let mut last = None;
        while let Ok(event) = self.inbox.try_recv() {
            if let Event::CsiDriversRegistered(drivers) = event {
                last = Some(drivers);
            }
        }
        last
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn names(list: &[&str]) -> Option<BTreeSet<String>> {
    Some(list.iter().map(|name| (*name).to_owned()).collect())
}

#[tokio::test(start_paused = true)]
async fn drivers_come_and_go() {
    let mut scene = Scene::new();
    scene.comes("/a", "CSIPlugin", "a.example", "1.0.0").await;
    assert_eq!(scene.registered(), names(&["a.example"]));
    assert_eq!(scene.world.asked().await, ["info a.example", "tell /a registered"]);
    scene.comes("/b", "CSIPlugin", "b.example", "1.0.0").await;
    assert_eq!(scene.registered(), names(&["a.example", "b.example"]));
    scene.goes("/a").await;
    assert_eq!(scene.registered(), names(&["b.example"]));
    scene.goes("/nobody").await;
    assert_eq!(scene.registered(), None);
}

#[tokio::test(start_paused = true)]
async fn a_newer_driver_takes_the_name_and_the_old_one_takes_nothing_with_it() {
    let mut scene = Scene::new();
    scene.comes("/old", "CSIPlugin", "d.example", "1.0.0").await;
    scene.comes("/new", "CSIPlugin", "d.example", "1.1.0").await;
    assert_eq!(scene.registered(), names(&["d.example"]));
    scene.goes("/old").await;
    assert_eq!(scene.registered(), None, "the name is the other one's by now");
    scene.goes("/new").await;
    assert_eq!(scene.registered(), names(&[]));
}

#[tokio::test(start_paused = true)]
async fn who_is_refused_is_told_why() {
    let mut scene = Scene::new();
    scene.comes("/device", "DevicePlugin", "gpu", "v1beta1").await;
    let said = scene.world.asked().await;
    assert!(said[0].starts_with("tell /device refused: RegisterPlugin error -- no handler"), "{said:?}");
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(scene.world.asked().await, Vec::<String>::new(), "it is not asked again");
    scene.comes("/odd", "CSIPlugin", "d.example", "2.0.0").await;
    let said = scene.world.asked().await;
    assert!(said[0].contains("None of the versions specified"), "{said:?}");
    assert_eq!(scene.registered(), None);
}

#[tokio::test(start_paused = true)]
async fn one_that_does_not_answer_is_tried_again_and_hurts_nobody() {
    let mut scene = Scene::new();
    scene.world.fail("info", GrpcCode::Internal).await;
    scene.comes("/a", "CSIPlugin", "a.example", "1.0.0").await;
    let said = scene.world.asked().await;
    assert!(said[1].contains("RegisterPlugin error -- plugin registration failed"), "{said:?}");
    scene.world.tell.send(PluginSocketEvent::Added { path: "/nobody-listens".into() }).unwrap();
    scene.world.mend("info").await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    scene.world.rest().await;
    assert_eq!(scene.registered(), names(&["a.example"]));
}

#[tokio::test(start_paused = true)]
async fn a_driver_is_asked_as_often_as_it_wants() {
    let scene = Scene::new();
    scene.comes("/a", "CSIPlugin", "a.example", "1.0.0").await;
    scene.world.asked().await;
    tokio::time::sleep(Duration::from_secs(1000)).await;
    assert_eq!(scene.world.asked().await, Vec::<String>::new(), "it has not said that it wants to be");
    scene.periods.send_replace([("a.example".to_owned(), 10), ("other".to_owned(), 1)].into());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(scene.world.asked().await, ["info a.example"], "its last answer is older");
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(scene.world.asked().await.len(), 2);
    // Requests for other drivers do not delay it.
    for number in 0..20 {
        scene.periods.send_replace([("a.example".to_owned(), 10), (format!("other-{number}"), 1)].into());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(scene.world.asked().await.len(), 2);
    scene.goes("/a").await;
    tokio::time::sleep(Duration::from_secs(1000)).await;
    assert_eq!(scene.world.asked().await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_driver_is_asked_at_once_when_it_has_no_room() {
    let scene = Scene::new();
    scene.comes("/a", "CSIPlugin", "a.example", "1.0.0").await;
    scene.world.asked().await;
    scene.registry.ask("a.example").await;
    assert_eq!(scene.world.asked().await, ["info a.example"]);
    // If a driver does not answer, that is logged and has no other effect.
    scene.world.fail("info", GrpcCode::Internal).await;
    scene.registry.ask("a.example").await;
}
