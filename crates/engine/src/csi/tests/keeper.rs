//! The state of volumes with the shipped calls around it, without the rest of the engine: requests, calls and timers.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use decide::action::ExpandOutcome;
use decide::csi::{VolumeCallId, VolumeRequest, VolumeRequestFrom, VolumeRequestId};
use decide::volume_operations::CsiVolumes;
use decide::{ActionResult, Effect, Epoch, Event, TimerKey};
use model::csi::{CsiVolume, Expansion, VolumeId};
use model::volume::MountStage;
use model::{Mono, Now, PodUid, Wall};
use ports::StorageApi;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::{CsiPorts, VolumeCalls, VolumeRequests, VolumeWork, WantedVolumeOperation};
use crate::outbox::Outbox;

/// The volumes on the node, sent at each change.
pub type OnNode = mpsc::UnboundedReceiver<BTreeSet<VolumeId>>;

pub struct Keeper {
    pub requests: VolumeRequests,
    orders: mpsc::UnboundedSender<Order>,
    epochs: AtomicU64,
}

/// Why the set-up of a volume failed, and at which point.
pub struct Trouble {
    pub stage: MountStage,
    pub message: String,
}

enum Order {
    LookAround,
    Cancel(PodUid, Epoch),
    TellHowMuchIsRemembered(oneshot::Sender<usize>),
}

impl Keeper {
    pub fn start(ports: CsiPorts, storage: Option<Arc<dyn StorageApi>>) -> (Arc<Self>, OnNode) {
        let (requests, wanted) = VolumeRequests::new();
        let (orders, ordered) = mpsc::unbounded_channel();
        let (told, on_node) = mpsc::unbounded_channel();
        let (events, inbox) = mpsc::unbounded_channel();
        let state = State {
            volumes: CsiVolumes::default(),
            work: VolumeWork::new(Some(VolumeCalls { ports, storage })),
            outbox: Outbox(events),
            timers: HashMap::new(),
            told,
            began: Instant::now(),
        };
        tokio::spawn(state.run(wanted, ordered, inbox));
        (Arc::new(Self { requests, orders, epochs: AtomicU64::new(1) }), on_node)
    }

    fn send(&self, order: Order) {
        self.orders.send(order).expect("the state lives");
    }

    pub async fn look_around(self: Arc<Self>) {
        self.send(Order::LookAround);
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }

    pub async fn remembered(&self) -> usize {
        let (tell, told) = oneshot::channel();
        self.send(Order::TellHowMuchIsRemembered(tell));
        told.await.expect("the state lives")
    }

    /// `cancel`: as if the pod's plan was cancelled.
    async fn ask(&self, uid: &PodUid, what: VolumeRequest, cancel: &CancellationToken) -> ActionResult {
        let epoch = Epoch(self.epochs.fetch_add(1, Ordering::Relaxed));
        let from = VolumeRequestFrom::Plan { epoch, stage: 0, action: 0 };
        let work = self.requests.perform(VolumeRequestId { uid: uid.clone(), from }, what);
        tokio::pin!(work);
        if let Some(result) = cancel.run_until_cancelled(&mut work).await {
            return result;
        }
        self.send(Order::Cancel(uid.clone(), epoch));
        work.await
    }

    /// `None`: it was interrupted.
    pub async fn set_up(
        &self,
        uid: &PodUid,
        volume: &CsiVolume,
        cancel: &CancellationToken,
    ) -> Option<Result<(), Trouble>> {
        let what = VolumeRequest::SetUp { volume: Box::new(volume.clone()) };
        match self.ask(uid, what, cancel).await {
            ActionResult::Interrupted => None,
            ActionResult::Ok => Some(Ok(())),
            ActionResult::VolumeFailed { stage, failure } => {
                Some(Err(Trouble { stage, message: failure.message }))
            }
            other => panic!("{other:?}"),
        }
    }

    pub async fn tear_down(&self, uid: &PodUid) -> Result<(), String> {
        let request = VolumeRequestId { uid: uid.clone(), from: VolumeRequestFrom::Sweep };
        match self.requests.perform(request, VolumeRequest::TearDown).await {
            ActionResult::Ok => Ok(()),
            ActionResult::Failed(failure) => Err(failure.message),
            other => panic!("{other:?}"),
        }
    }

    pub async fn expand(
        &self,
        uid: &PodUid,
        volume: CsiVolume,
        wanted: Expansion,
    ) -> Result<ExpandOutcome, String> {
        let what = VolumeRequest::Expand { volume: Box::new(volume), expansion: Box::new(wanted) };
        match self.ask(uid, what, &CancellationToken::new()).await {
            ActionResult::ExpandOutcome(how) => Ok(how),
            ActionResult::Failed(failure) => Err(failure.message),
            other => panic!("{other:?}"),
        }
    }
}

struct State {
    volumes: CsiVolumes,
    work: VolumeWork,
    outbox: Outbox,
    timers: HashMap<TimerKey, CancellationToken>,
    told: mpsc::UnboundedSender<BTreeSet<VolumeId>>,
    began: Instant,
}

impl State {
    async fn run(
        mut self,
        mut wanted: mpsc::UnboundedReceiver<WantedVolumeOperation>,
        mut ordered: mpsc::UnboundedReceiver<Order>,
        mut inbox: mpsc::UnboundedReceiver<Event>,
    ) {
        loop {
            let event = tokio::select! {
                Some(wanted) = wanted.recv() => self.work.wanted(wanted),
                Some(event) = inbox.recv() => event,
                Some(order) = ordered.recv() => match order {
                    Order::LookAround => Event::CsiEnabled,
                    Order::Cancel(uid, epoch) => {
                        self.change(|volumes, now| volumes.cancel(now, &uid, epoch));
                        continue;
                    }
                    Order::TellHowMuchIsRemembered(tell) => {
                        tell.send(self.volumes.remembered()).expect("somebody asked");
                        continue;
                    }
                },
                else => return,
            };
            self.step(event);
        }
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::CsiEnabled => self.change(|volumes, now| volumes.list_records(now)),
            Event::VolumeRequested { request, what } => {
                self.change(|volumes, now| volumes.request(now, request, what));
            }
            Event::VolumeCallEnded { id, result } => {
                self.work.ended(id);
                self.change(|volumes, now| volumes.call_ended(now, id, result));
            }
            Event::Timer(TimerKey::Unstage(volume)) => {
                self.change(|volumes, now| volumes.unstage_due(now, &volume));
            }
            Event::Timer(TimerKey::ListVolumes) => self.change(|volumes, now| volumes.list_records(now)),
            other => panic!("{other:?}"),
        }
    }

    fn change(&mut self, input: impl FnOnce(&mut CsiVolumes, Now) -> Vec<Effect>) {
        let now = Now { mono: Mono(self.began.elapsed().as_nanos() as u64), wall: Wall(0) };
        let changes = self.volumes.on_node_changes();
        for effect in input(&mut self.volumes, now) {
            match effect {
                Effect::CallVolume { id, call } => self.work.call(&self.outbox, id, call),
                Effect::CancelVolumeCall { id } => self.work.cancel(id),
                Effect::AnswerVolumeRequest { request, result } => self.work.answer(&request, result),
                Effect::SetTimer { key, at } => self.set_timer(key, at.expect("a time")),
                Effect::Log { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        if changes != self.volumes.on_node_changes()
            && let Some(on_node) = self.volumes.on_node()
        {
            // Most tests do not receive.
            let _ = self.told.send(on_node.clone());
        }
    }

    fn set_timer(&mut self, key: TimerKey, at: Mono) {
        let cancel = CancellationToken::new();
        if let Some(old) = self.timers.insert(key.clone(), cancel.clone()) {
            old.cancel();
        }
        let (due, outbox) = (self.began + Duration::from_nanos(at.0), self.outbox.clone());
        tokio::spawn(async move {
            if cancel.run_until_cancelled(tokio::time::sleep_until(due)).await.is_some() {
                outbox.send(Event::Timer(key));
            }
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_cancelled_tells_nothing() {
    let world = super::world::World::new();
    let (events, mut inbox) = mpsc::unbounded_channel();
    let mut work = VolumeWork::new(Some(VolumeCalls { ports: world.ports(), storage: None }));
    let outbox = Outbox(events);
    let list = || decide::csi::VolumeCall::ListRecords;
    work.call(&outbox, VolumeCallId(1), list());
    work.call(&outbox, VolumeCallId(2), list());
    work.cancel(VolumeCallId(1));
    world.rest().await;
    let told = inbox.try_recv();
    assert!(matches!(told, Ok(Event::VolumeCallEnded { id: VolumeCallId(2), .. })), "{told:?}");
    assert!(inbox.try_recv().is_err());
}
