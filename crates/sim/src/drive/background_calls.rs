//! Effects that belong to no plan: the runtime's status, image calls, leftovers and sweeps.

use std::sync::Arc;

use decide::action::CallFailure;
use decide::effect::ApiCall;
use decide::event::{ApiFailure, PodArtifacts, PulledImage, RuntimeCheck};
use decide::image_pull::PullKey;
use decide::{Epoch, Event};
use model::cgroup::CgroupName;
use model::cluster::{ObjectKey, ObjectState, PodTokenRequest, Token};
use model::cri::{RuntimeCondition, RuntimeHandler, RuntimeStatus};
use model::eviction::PodToMeasure;
use model::k8s::{Node, Pod};
use model::log_rotation::LogCall;
use model::pod_certificate::{CertificateSource, CertificateWanted};
use model::probe::{ProbeKind, ProbeOutcome};
use model::storage::StorageKey;
use model::volume::VolumeSetup;
use model::{ContainerId, PodUid};

use super::executor::content_of;
use super::node_figures::TakenFigures;
use super::{SimEvent, Simulation};
use crate::time::{MILLI, SECOND};
use crate::workload::{
    NEW_LABEL, extreme_expiry, extreme_services, extreme_text, is_extreme, make_drivers_extreme,
    make_runtime_status_extreme,
};

pub enum BackgroundCall {
    CheckRuntime,
    Inspect(String),
    Pull {
        pull: PullKey,
        took: u64,
    },
    ListImages,
    RemoveImage(String),
    ReadObject(ObjectKey),
    ReadStorageObject(StorageKey),
    /// The CSIDriver objects and the registered drivers.
    Drivers,
    Registered,
    /// A patch that writes these volumes in use into the Node; it may be retried.
    PatchVolumesInUse(Vec<String>),
    RetryVolumesInUse,
    Services,
    Token(PodTokenRequest),
    AskCertificate {
        source: CertificateSource,
        call: u64,
        wanted: Box<CertificateWanted>,
    },
    /// The watch delivers all certificate requests.
    ShowRequests,
    UpdateVolume {
        uid: PodUid,
        volume: Box<VolumeSetup>,
    },
    ListPodArtifacts,
    ReadUserIds,
    NodeFigures(TakenFigures),
    PodFigures {
        call: u64,
        pods: Vec<PodToMeasure>,
    },
    Log {
        id: ContainerId,
        call: LogCall,
    },
    Probe {
        uid: PodUid,
        container: String,
        kind: ProbeKind,
        id: ContainerId,
    },
    /// One thing to sweep.
    Sweep(SweepItem),
    Swept,
    ShowNode,
    /// The Node is read past its watch.
    ReadNode,
    /// The call reaches the API server; `tell`: its answer reaches the agent.
    ApplyApi {
        call: ApiCall,
        tell: bool,
    },
    ApiFails {
        call: ApiCall,
        failure: ApiFailure,
    },
    /// The watch delivers an object.
    Watch(Arc<Pod>),
    /// The watch delivers a deletion.
    WatchGone(PodUid),
    /// The time at which a stage of a plan no longer waits for those before it.
    WakePlan {
        uid: PodUid,
        epoch: Epoch,
    },
}

pub enum SweepItem {
    PodDir(PodUid),
    LogDir(String),
    Link(String),
    Cgroup(CgroupName),
}

impl Simulation {
    pub(super) fn schedule_background_call(&mut self, background_call: BackgroundCall) {
        let wait = self.faults.latency(&mut self.rng, self.world.now);
        self.plan_in(wait, SimEvent::BackgroundCall { generation: self.generation, background_call });
    }

    pub(super) fn begin_pull(&mut self, pull: PullKey) {
        let took = if self.faults.pull_fails(&mut self.rng, self.world.now) && self.rng.per_mille(200) {
            self.rng.between(30 * SECOND, 90 * SECOND)
        } else {
            self.rng.between(20 * MILLI, 4 * SECOND)
        };
        let background_call = BackgroundCall::Pull { pull, took };
        self.plan_in(took, SimEvent::BackgroundCall { generation: self.generation, background_call });
    }

    /// A background call reads or changes the world at this instant. Its result is sent right after.
    pub(super) fn run_background_call(&mut self, generation: u32, background_call: BackgroundCall) {
        let event = match background_call {
            BackgroundCall::CheckRuntime => Event::RuntimeChecked(self.runtime_status()),
            BackgroundCall::Inspect(image) => {
                let result = match self.call_fails() {
                    Some(failure) => Err(failure),
                    None => Ok(self.world.images.image(&image)),
                };
                Event::ImageInspected { image, result, history: Default::default() }
            }
            BackgroundCall::Pull { pull, took } => self.pulled(pull, took),
            BackgroundCall::ListImages => self.images_listed(),
            BackgroundCall::RemoveImage(image) => self.image_removed(generation, image),
            BackgroundCall::ReadObject(key) => match self.look_at(generation, &key) {
                Some(state) => Event::ObjectObserved { key, state },
                None => return,
            },
            later @ (BackgroundCall::Services
            | BackgroundCall::ShowNode
            | BackgroundCall::Drivers
            | BackgroundCall::ShowRequests)
                if self.api_unreachable =>
            {
                let wait = self.rng.between(MILLI, SECOND);
                return self.plan_in(wait, SimEvent::BackgroundCall { generation, background_call: later });
            }
            BackgroundCall::ReadStorageObject(key) => self.read_storage(key),
            BackgroundCall::Drivers => {
                let drivers = self.world.storage.drivers();
                Event::CsiDrivers(match self.faults.extreme {
                    true => make_drivers_extreme(drivers),
                    false => drivers,
                })
            }
            BackgroundCall::Registered => self.registered(),
            BackgroundCall::PatchVolumesInUse(volumes) => {
                return self.volumes_in_use_arrive(generation, volumes);
            }
            BackgroundCall::RetryVolumesInUse => return self.send_volumes_in_use(generation),
            BackgroundCall::Services if self.faults.extreme => Event::Services(extreme_services()),
            BackgroundCall::Services => Event::Services(Vec::new()),
            BackgroundCall::Token(wanted) => Event::TokenIssued { result: self.token(&wanted), wanted },
            BackgroundCall::AskCertificate { source, call, wanted } => {
                self.ask_certificate(source, call, &wanted)
            }
            BackgroundCall::ShowRequests => match self.show_requests() {
                Some(event) => event,
                None => return,
            },
            BackgroundCall::UpdateVolume { uid, volume } => {
                self.world.disk.set_up_volume(&uid, &volume.name, content_of(&volume).as_deref());
                Event::VolumeUpdated { uid, volume, result: Ok(()) }
            }
            BackgroundCall::Probe { uid, container, kind, id } => {
                let outcome = self.probed(&uid, &container, kind, &id);
                Event::ProbeDone {
                    uid,
                    container,
                    kind,
                    id,
                    outcome,
                    took: std::time::Duration::from_millis(1),
                }
            }
            BackgroundCall::ReadUserIds => {
                let ids = self.world.disk.user_ids.iter();
                let ids = ids.map(|(uid, ids)| (uid.clone(), Some(ids.clone()))).collect();
                Event::UserIdsRead { ids, unlisted: false }
            }
            BackgroundCall::NodeFigures(figures) => {
                if generation != self.generation {
                    return;
                }
                self.node_figures_arrive(figures)
            }
            BackgroundCall::PodFigures { call, pods } => self.pod_figures(call, pods),
            BackgroundCall::Log { id, call } => self.log_call_ended(id, &call),
            BackgroundCall::ListPodArtifacts => Event::PodArtifactsListed(self.leftovers()),
            BackgroundCall::Sweep(piece) => {
                if generation == self.generation && self.agent.is_some() {
                    self.sweep_piece(piece);
                }
                return;
            }
            BackgroundCall::ReadNode => Event::NodeRead(self.read_node()),
            BackgroundCall::ShowNode => Event::NodeObserved(Some(self.node_object())),
            BackgroundCall::ApplyApi { call, tell } => return self.apply_api(generation, call, tell),
            BackgroundCall::ApiFails { call, failure } => return self.api_fails(generation, call, failure),
            BackgroundCall::Watch(pod) => return self.watched(generation, pod),
            BackgroundCall::WatchGone(uid) => return self.watched_gone(generation, uid),
            BackgroundCall::WakePlan { uid, epoch } => {
                if generation == self.generation {
                    self.wake_plan(&uid, epoch);
                }
                return;
            }
            BackgroundCall::Swept => {
                let Some(agent) = self.agent.as_mut().filter(|_| generation == self.generation) else {
                    return;
                };
                if !agent.sweeping.is_empty() {
                    return self.plan_in(
                        5 * MILLI,
                        SimEvent::BackgroundCall { generation, background_call: BackgroundCall::Swept },
                    );
                }
                Event::SweepEnded { problems: std::mem::take(&mut agent.sweep_problems) }
            }
        };
        self.post(generation, event);
    }

    /// A container that runs answers the probe as its script says.
    fn probed(&mut self, uid: &PodUid, container: &str, kind: ProbeKind, id: &ContainerId) -> ProbeOutcome {
        let live = self.world.containers.get(id).is_some_and(|c| c.is_live() && !c.lost);
        if self.runtime_away || !live {
            return ProbeOutcome::unknown("nobody answers");
        }
        let no = self.rng.coin();
        if !self.world.probe_fails(uid, container, no) {
            self.check.probe_passed(&self.world, kind, id);
            return ProbeOutcome::Success;
        }
        if kind != ProbeKind::Readiness {
            self.check.excuse_stop_of(id);
        }
        ProbeOutcome::failure("the simulated program says no")
    }

    /// What a watch delivers, if it still exists. If the API server is unreachable, the answer comes later.
    fn look_at(&mut self, generation: u32, key: &ObjectKey) -> Option<ObjectState> {
        let watched = self.agent.as_ref().is_some_and(|agent| agent.watching.contains(key));
        if generation != self.generation || !watched {
            return None;
        }
        if self.api_unreachable {
            return Some(ObjectState::Unreachable { message: "the API server can't be reached".into() });
        }
        if self.faults.pull_fails(&mut self.rng, self.world.now) {
            let wait = self.rng.between(10 * MILLI, 20 * SECOND);
            self.plan_in(
                wait,
                SimEvent::BackgroundCall {
                    generation,
                    background_call: BackgroundCall::ReadObject(key.clone()),
                },
            );
            return Some(ObjectState::Unreachable { message: "the API server is away".into() });
        }
        Some(self.world.objects.object_state(key))
    }

    /// What the watch has not shown: a label that some pods select.
    fn read_node(&mut self) -> Result<Arc<Node>, String> {
        if self.api_unreachable || self.faults.pull_fails(&mut self.rng, self.world.now) {
            return Err("the API server is away".into());
        }
        let mut node = self.node_object();
        Arc::make_mut(&mut node).metadata.labels = Some([NEW_LABEL.map(str::to_owned).into()].into());
        Ok(node)
    }

    fn token(&mut self, wanted: &PodTokenRequest) -> Result<Token, String> {
        if self.api_unreachable || self.faults.pull_fails(&mut self.rng, self.world.now) {
            return Err("the API server is away".into());
        }
        let lasts = std::time::Duration::from_secs(wanted.expiration_secs.max(0) as u64);
        let token = format!("token {}", self.number());
        let expires = match is_extreme(&wanted.pod_uid) {
            true => extreme_expiry(&mut self.rng),
            false => self.world.wall().plus(lasts),
        };
        Ok(Token { token, expires })
    }

    pub(super) fn call_fails(&mut self) -> Option<CallFailure> {
        if self.runtime_away {
            return Some(CallFailure { unreachable: true, message: "the runtime is away".into() });
        }
        let fails = self.faults.pull_fails(&mut self.rng, self.world.now);
        fails.then(|| CallFailure { unreachable: self.rng.coin(), message: "simulated image trouble".into() })
    }

    fn runtime_status(&mut self) -> RuntimeCheck {
        if self.runtime_away {
            return RuntimeCheck::Failed { message: "the runtime is away".into() };
        }
        let condition =
            |kind: &str, status: bool| RuntimeCondition { r#type: kind.into(), status, ..Default::default() };
        let (runtime, network) = (self.not_ready != Some(false), self.not_ready.is_none());
        let mut status = RuntimeStatus {
            conditions: vec![condition("RuntimeReady", runtime), condition("NetworkReady", network)],
            handlers: vec![RuntimeHandler { user_namespaces: true, ..Default::default() }],
            ..Default::default()
        };
        let mut runtime_name = "simulated".to_owned();
        if self.faults.extreme {
            make_runtime_status_extreme(&mut status);
            runtime_name = extreme_text();
        }
        RuntimeCheck::Answered { runtime_name, status, cgroup_driver: None }
    }

    fn pulled(&mut self, pull: PullKey, took: u64) -> Event {
        let failure = self.call_fails();
        let result = match failure {
            Some(failure) => Err(failure),
            None => match self.world.pull(&pull.image) {
                Ok(reference) => {
                    self.check.image_came(&reference);
                    let image = self.world.images.image(&pull.image);
                    Ok(PulledImage { reference, image, took: std::time::Duration::from_nanos(took) })
                }
                Err(message) => Err(CallFailure { unreachable: false, message }),
            },
        };
        Event::ImagePulled { pull, result }
    }

    fn leftovers(&self) -> PodArtifacts {
        let is_pod = |name: &&CgroupName| name.0.last().is_some_and(|part| part.starts_with("pod"));
        PodArtifacts {
            pod_dirs: self.world.disk.pods.keys().cloned().collect(),
            pod_dirs_complete: true,
            log_dirs: self.world.disk.logs.keys().cloned().collect(),
            dead_links: self.world.disk.dead_links(),
            pod_cgroups: self.world.cgroups.keys().filter(is_pod).cloned().collect(),
        }
    }

    pub(super) fn begin_sweep(&mut self, sweep: decide::Sweep) {
        let generation = self.generation;
        let dirs = sweep.pod_dirs.into_iter().map(SweepItem::PodDir);
        let logs = sweep.log_dirs.into_iter().map(SweepItem::LogDir);
        let links = sweep.links.into_iter().map(SweepItem::Link);
        let cgroups = sweep.cgroups.into_iter().map(SweepItem::Cgroup);
        let mut then = 0;
        for piece in dirs.chain(logs).chain(links).chain(cgroups).collect::<Vec<_>>() {
            then += self.rng.between(MILLI / 10, 5 * MILLI);
            self.plan_in(
                then,
                SimEvent::BackgroundCall { generation, background_call: BackgroundCall::Sweep(piece) },
            );
        }
        then += MILLI / 10;
        self.plan_in(then, SimEvent::BackgroundCall { generation, background_call: BackgroundCall::Swept });
    }

    fn sweep_piece(&mut self, piece: SweepItem) {
        match piece {
            SweepItem::PodDir(uid) => {
                self.check.swept(&self.world, &uid);
                self.sweep_volumes(uid);
            }
            SweepItem::LogDir(name) => {
                if let Some((_, uid)) = name.rsplit_once('_') {
                    self.check.swept(&self.world, &uid.into());
                    self.check.logs_gone(&uid.into());
                }
                self.world.disk.logs.remove(&name);
            }
            SweepItem::Link(name) => {
                self.world.disk.links.remove(&name);
            }
            SweepItem::Cgroup(name) => {
                if let Some(uid) = name.0.last().and_then(|part| part.strip_prefix("pod")) {
                    self.check.swept(&self.world, &uid.into());
                }
                self.world.cgroups.remove(&name);
            }
        }
    }
}
