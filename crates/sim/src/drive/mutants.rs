//! Intended mistakes, which prove that the invariants can fail. The first group is in the driver, which carries out
//! effects wrongly. The second is in the decisions: [`Mutant::step`] replaces [`decide::step`] and makes it forget or
//! overlook something, or changes what it decided, as a mistake inside it would.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use decide::csi::VolumeCallAnswer;
use decide::effect::{ApiCall, PodObject};
use decide::image_garbage::OutdatedAnswers;
use decide::lifecycle::Lifecycle;
use decide::observation_guard::{MAX_CONTRADICTIONS, ObservationGuard};
use decide::volume_operations::CsiVolumes;
use decide::{Action, Effect, Event, NodeState, Stage, TimerKey};
use model::csi::{CsiVolumeOnDisk, VolumeId};
use model::k8s::{PersistentVolumeClaim, Pod};
use model::pod::Source;
use model::storage::{StorageObject, StorageState};
use model::{Mono, Now, PodUid};

use crate::run::Profile;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mutant {
    #[default]
    None,

    // In the driver:
    /// Says that a reading began when it ended, and takes its time.
    LateReadingTimes,
    /// Never reports that a plan has ended.
    DropsPlanEnded,
    /// Continues a plan that was cancelled.
    IgnoresCancel,
    /// Starts all stages of a plan at once.
    IgnoresStages,
    /// Reports every call as successful.
    HidesFailures,
    /// Forgets every timer.
    DropsTimers,
    /// Forgets when to measure the logs of containers.
    ForgetsLogs,
    /// Writes the cgroups above pods when they are made, and never again.
    LosesCgroupNews,
    /// Never reads the node's figures again.
    ForgetsFigures,
    /// The node's figures have the time of their arrival instead of that of their reading.
    StampsFiguresLate,
    /// Delivers an object's first state, and never its changes.
    LosesObjectNews,
    /// Never delivers the outcome of certificate requests.
    LosesCertificateNews,
    /// Reads no pod while one pod is stuck.
    BlocksAllReadings,
    /// Publishes volumes that were not staged.
    SkipsStaging,
    /// Writes no records of volumes.
    SkipsRecords,
    /// Reports that a driver has not answered while it is still working.
    GivesUpEarly,
    /// Does not wait for a thread that walks through a volume.
    LeavesWalks,
    /// Leaves devices mapped and pinned.
    LeavesMaps,
    /// Reports a pod's volumes as torn down without checking CSI volumes.
    AnswersTearDownsAtOnce,
    /// Does not tell an agent that volumes of an earlier one may be on the node.
    ForgetsPastVolumes,
    /// Fails a whole reading when the runtime refuses one status.
    FailsTheWholeReading,

    // In the decisions:
    /// Does not remember that it changed something: plans on readings from before the change.
    ForgetsMutations,
    /// Publishes a pod that has ended as running.
    TerminalPhaseFlips,
    /// Offers pods all that the host has.
    ForgetsReservations,
    /// Overlooks that a pod is marked for deletion.
    IgnoresDeletion,
    /// Gives containers more time to stop with each plan.
    GraceGrows,
    /// Stops sidecars together with the containers that they serve.
    StopsAtOnce,
    /// Tears down volumes while containers are being stopped.
    ReleasesEarly,
    /// Deletes a pod's object as soon as its end is to be reported.
    DeletesObjectEarly,
    /// Does not remember that directories, volumes and cgroup were created.
    ForgetsPrepared,
    /// Treats containers of an earlier agent as if they had another definition.
    ForgetsContainerHashes,
    /// Does not remember how often a container crashed.
    ForgetsBackOffs,
    /// Treats a claim as bound as soon as it exists.
    IgnoresBinding,
    /// Ignores that a claim may be used by one pod only.
    SharesClaims,
    /// Accepts every reading at once, whatever the runtime said before.
    AcceptsEveryReading,
    /// Does not wait until a volume is attached.
    IgnoresAttachments,
    /// Reports only the volumes that pods want as in use, and not those that are still on the node.
    ForgetsWhatIsStaged,
    /// Does not remember what the runtime has reported as removed.
    ForgetsRemovals,
    /// Writes a new certificate next to the old key.
    MixesKeys,
    /// Publishes volumes for pods that are being deleted.
    PublishesForGoingPods,
    /// Ignores records of pods when it checks which pods use a volume.
    OverlooksUsers,
    /// Treats an unreadable record as if it did not exist.
    OverlooksBrokenRecords,
    /// Does not retry NodeUnstageVolume.
    UnstagesOnce,
    /// Overlooks what pods request.
    OverlooksRequests,
    /// Takes the most important pods for the least important ones.
    MisreadsPriorities,
    /// Removes a container that is shown as created at once, although nothing was heard of its start.
    ForgetsUnheardStarts,
    /// Removes images without asking who uses them.
    OverlooksImageUsers,
    /// Believes what was read of an image before it was removed.
    BelievesOutdatedImages,
}

impl Mutant {
    pub const DRIVER: [Mutant; 21] = [
        Mutant::LateReadingTimes,
        Mutant::DropsPlanEnded,
        Mutant::IgnoresCancel,
        Mutant::IgnoresStages,
        Mutant::HidesFailures,
        Mutant::DropsTimers,
        Mutant::ForgetsLogs,
        Mutant::LosesCgroupNews,
        Mutant::ForgetsFigures,
        Mutant::StampsFiguresLate,
        Mutant::LosesObjectNews,
        Mutant::LosesCertificateNews,
        Mutant::BlocksAllReadings,
        Mutant::SkipsStaging,
        Mutant::SkipsRecords,
        Mutant::GivesUpEarly,
        Mutant::LeavesWalks,
        Mutant::LeavesMaps,
        Mutant::AnswersTearDownsAtOnce,
        Mutant::ForgetsPastVolumes,
        Mutant::FailsTheWholeReading,
    ];
    pub const DECISIONS: [Mutant; 27] = [
        Mutant::ForgetsMutations,
        Mutant::TerminalPhaseFlips,
        Mutant::ForgetsReservations,
        Mutant::IgnoresDeletion,
        Mutant::GraceGrows,
        Mutant::StopsAtOnce,
        Mutant::ReleasesEarly,
        Mutant::DeletesObjectEarly,
        Mutant::ForgetsPrepared,
        Mutant::ForgetsContainerHashes,
        Mutant::ForgetsBackOffs,
        Mutant::IgnoresBinding,
        Mutant::SharesClaims,
        Mutant::AcceptsEveryReading,
        Mutant::IgnoresAttachments,
        Mutant::ForgetsWhatIsStaged,
        Mutant::ForgetsRemovals,
        Mutant::MixesKeys,
        Mutant::PublishesForGoingPods,
        Mutant::OverlooksUsers,
        Mutant::OverlooksBrokenRecords,
        Mutant::UnstagesOnce,
        Mutant::ForgetsUnheardStarts,
        Mutant::OverlooksRequests,
        Mutant::MisreadsPriorities,
        Mutant::OverlooksImageUsers,
        Mutant::BelievesOutdatedImages,
    ];

    /// Every mistake, with the profile that shows it best.
    pub fn all() -> Vec<(Mutant, Profile)> {
        let profile = |mutant: Mutant| match mutant {
            Mutant::BlocksAllReadings => Profile::Stuck,
            Mutant::FailsTheWholeReading => Profile::Refused,
            Mutant::ForgetsRemovals => Profile::Ghosts,
            Mutant::ForgetsLogs => Profile::Logs,
            Mutant::OverlooksRequests | Mutant::MisreadsPriorities => Profile::Crowded,
            Mutant::ForgetsFigures | Mutant::StampsFiguresLate => Profile::Pressure,
            Mutant::OverlooksImageUsers | Mutant::BelievesOutdatedImages => Profile::Images,
            Mutant::LosesCertificateNews | Mutant::MixesKeys => Profile::Certificates,
            Mutant::LeavesMaps => Profile::Devices,
            Mutant::SkipsStaging
            | Mutant::SkipsRecords
            | Mutant::GivesUpEarly
            | Mutant::LeavesWalks
            | Mutant::AnswersTearDownsAtOnce
            | Mutant::ForgetsPastVolumes
            | Mutant::PublishesForGoingPods
            | Mutant::OverlooksUsers
            | Mutant::OverlooksBrokenRecords
            | Mutant::UnstagesOnce
            | Mutant::IgnoresBinding
            | Mutant::SharesClaims
            | Mutant::IgnoresAttachments
            | Mutant::ForgetsWhatIsStaged => Profile::Storage,
            Mutant::LateReadingTimes
            | Mutant::HidesFailures
            | Mutant::ForgetsContainerHashes
            | Mutant::AcceptsEveryReading
            | Mutant::GraceGrows
            | Mutant::ForgetsUnheardStarts => Profile::Faults,
            _ => Profile::Calm,
        };
        Self::DRIVER.into_iter().chain(Self::DECISIONS).map(|mutant| (mutant, profile(mutant))).collect()
    }

    /// [`decide::step`], with the mistake.
    pub fn step(self, state: &mut NodeState, now: Now, mut event: Event) -> Vec<Effect> {
        if !Self::DECISIONS.contains(&self) {
            return decide::step(state, now, event);
        }
        if self == Mutant::OverlooksImageUsers
            && matches!(event, Event::ImagesListed(_) | Event::ImageRemoved { .. })
        {
            return step_without_pods(state, now, event);
        }
        self.before(state, &mut event);
        let ended: Vec<PodUid> = state
            .pods
            .iter()
            .filter(|(_, e)| e.status.as_ref().is_some_and(|s| is_terminal(s.phase.as_deref())))
            .map(|(uid, _)| uid.clone())
            .collect();
        let before = (state.csi_volumes.clone(), wanted(state));
        let mut effects = decide::step(state, now, event);
        self.after_volumes(state, before, &mut effects);
        self.after(state, &ended, &mut effects);
        effects
    }

    fn before(self, state: &mut NodeState, event: &mut Event) {
        if self == Mutant::BelievesOutdatedImages {
            state.image_garbage.outdated = OutdatedAnswers::default();
        }
        match (self, event) {
            (Mutant::IgnoresDeletion, Event::PodSetDelivered { pods, .. }) => {
                pods.iter_mut().for_each(unmark)
            }
            (Mutant::IgnoresDeletion, Event::PodChanged { pod, .. }) => unmark(pod),
            (Mutant::OverlooksRequests | Mutant::MisreadsPriorities, Event::PodSetDelivered { pods, .. }) => {
                pods.iter_mut().for_each(|pod| self.misread_spec(pod))
            }
            (Mutant::OverlooksRequests | Mutant::MisreadsPriorities, Event::PodChanged { pod, .. }) => {
                self.misread_spec(pod);
            }
            (
                Mutant::IgnoresBinding | Mutant::SharesClaims,
                Event::StorageRead { state: StorageState::Present(StorageObject::Claim(claim)), .. },
            ) => self.misread(Arc::make_mut(claim)),
            (
                Mutant::SharesClaims,
                Event::StorageRead { state: StorageState::Present(StorageObject::Volume(volume)), .. },
            ) => {
                if let Some(spec) = &mut Arc::make_mut(volume).spec {
                    spec.access_modes = Some(vec!["ReadWriteMany".into()]);
                }
            }
            (Mutant::IgnoresAttachments, Event::CsiDrivers(drivers)) => {
                drivers.iter_mut().for_each(|d| Arc::make_mut(d).spec.attach_required = Some(false));
            }
            (Mutant::MixesKeys, Event::CertificateRequested { result: Ok(requested), .. }) => {
                requested.key.0 = "key req-0\n".to_owned();
            }
            (
                Mutant::OverlooksUsers | Mutant::OverlooksBrokenRecords,
                Event::VolumeCallEnded { result: Ok(VolumeCallAnswer::Records(found)), .. },
            ) => self.overlook(found),
            (Mutant::ForgetsContainerHashes, Event::Observed(seen)) => {
                for pod in &mut seen.pods {
                    if pod.containers.iter().any(|c| c.created_at < state.started) {
                        let old = |c: &&mut model::observed::ObservedContainer| c.created_at < state.started;
                        Arc::make_mut(pod).containers.iter_mut().filter(old).for_each(|c| c.hash = Some(1));
                    }
                }
            }
            _ => {}
        }
        for entry in state.pods.values_mut() {
            match (self, entry.lifecycle()) {
                (Mutant::ForgetsMutations, _) => {
                    entry.last_mutation = Mono::ZERO;
                    entry.unread_since_mutation = false;
                }
                (Mutant::AcceptsEveryReading, _) => {
                    for number in 0..MAX_CONTRADICTIONS {
                        entry.observation_guard.needs_confirmation(
                            &[number.to_string()],
                            Mono::ZERO,
                            Mono::ZERO,
                        );
                    }
                }
                (Mutant::ForgetsRemovals, _) => entry.observation_guard = ObservationGuard::default(),
                (Mutant::ForgetsPrepared, Lifecycle::Syncing) => entry.ledger.prerequisites_ready = false,
                (Mutant::ForgetsUnheardStarts, _) => {
                    entry.ledger.may_start_until.values_mut().for_each(|until| *until = Mono::ZERO);
                }
                (Mutant::ForgetsBackOffs, _) => entry.ledger.crash_back_offs.clear(),
                _ => {}
            }
        }
    }

    /// Applies to the check which pods use a volume, and not to the list of a pod's volumes.
    fn overlook(self, found: &mut Vec<CsiVolumeOnDisk>) {
        let of_node = found.iter().any(|one| one.pod.is_none());
        if self == Mutant::OverlooksUsers && of_node {
            found.retain(|one| one.pod.is_none());
        }
        for one in found.iter_mut().filter(|_| self == Mutant::OverlooksBrokenRecords) {
            if one.record.is_err() {
                one.record = Ok(None);
            }
        }
    }

    /// `before`: the volume state before the step, and what pods wanted then.
    fn after_volumes(
        self,
        state: &mut NodeState,
        (before, wanted_before): (CsiVolumes, Vec<String>),
        effects: &mut Vec<Effect>,
    ) {
        match self {
            Mutant::PublishesForGoingPods
                if effects.iter().any(|e| matches!(e, Effect::CancelPlan { .. })) =>
            {
                // The volumes' state does not learn that the pod is being deleted.
                state.csi_volumes = before;
                effects.retain(|effect| {
                    !matches!(
                        effect,
                        Effect::CallVolume { .. }
                            | Effect::CancelVolumeCall { .. }
                            | Effect::AnswerVolumeRequest { .. }
                    )
                });
            }
            Mutant::UnstagesOnce => {
                effects.retain(|effect| !matches!(effect, Effect::SetTimer { key: TimerKey::Unstage(_), .. }))
            }
            Mutant::ForgetsWhatIsStaged => {
                let told = effects.len();
                effects.retain(|effect| !matches!(effect, Effect::ReportVolumesInUse { .. }));
                let volumes = wanted(state);
                let known = state.csi_volumes.on_node().is_some();
                if known && (told != effects.len() || volumes != wanted_before) {
                    effects.push(Effect::ReportVolumesInUse { volumes });
                }
            }
            _ => {}
        }
    }

    fn misread_spec(self, pod: &mut Arc<Pod>) {
        let Some(spec) = &mut Arc::make_mut(pod).spec else { return };
        match self {
            Mutant::OverlooksRequests => spec.containers.iter_mut().for_each(|c| c.resources = None),
            _ => spec.priority = Some(2_000_000_500 - spec.priority.unwrap_or(0)),
        }
    }

    fn misread(self, claim: &mut PersistentVolumeClaim) {
        let Some(spec) = &mut claim.spec else { return };
        if self == Mutant::SharesClaims {
            spec.access_modes = Some(vec!["ReadWriteMany".into()]);
        } else if let Some(uid) = &claim.metadata.uid {
            spec.volume_name = Some(format!("pv-{uid}"));
            claim.status.get_or_insert_default().phase = Some("Bound".into());
        }
    }

    fn after(self, state: &NodeState, ended: &[PodUid], effects: &mut Vec<Effect>) {
        let mut more = Vec::new();
        for effect in effects.iter_mut() {
            match (self, effect) {
                (Mutant::TerminalPhaseFlips, Effect::StatusChanged { uid, status })
                    if ended.contains(uid) =>
                {
                    Arc::make_mut(status).phase = Some("Running".into());
                }
                (Mutant::ForgetsReservations, Effect::EnsureCgroups { specs }) => {
                    let all = i64::try_from(state.facts.memory_bytes).ok();
                    specs.iter_mut().take(1).for_each(|pods| pods.values.memory_limit = all);
                }
                (Mutant::StopsAtOnce, Effect::RunPlan { stages, .. }) => *stages = Arc::new(at_once(stages)),
                (Mutant::GraceGrows, Effect::RunPlan { epoch, stages, .. }) => {
                    for action in Arc::make_mut(stages).iter_mut().flat_map(|stage| &mut stage.actions) {
                        if let Action::StopContainer { deadline, .. } = action {
                            *deadline = deadline.plus(Duration::from_secs(epoch.0));
                        }
                    }
                }
                (Mutant::ReleasesEarly, Effect::RunPlan { stages, .. }) => {
                    let stops = |s: &&mut Stage| s.actions.iter().any(is_stop);
                    if let Some(first) = Arc::make_mut(stages).iter_mut().find(stops) {
                        first.actions.push(Action::TearDownVolumes);
                    }
                }
                (Mutant::DeletesObjectEarly, Effect::StatusChanged { uid, .. }) => {
                    more.extend(state.pods.get(uid).and_then(early_deletion));
                }
                _ => {}
            }
        }
        effects.extend(more);
    }
}

/// What pods are to have, by unique names. Another report before makes sure that it is one.
fn wanted(state: &NodeState) -> Vec<String> {
    let Some(mut csi) = state.objects.as_ref().map(|desk| desk.csi.clone()) else { return Vec::new() };
    let other = VolumeId { driver: "other".into(), handle: "other".into() };
    csi.on_node_changed();
    csi.report(Some(&BTreeSet::from([other])), |_| false, |_| true);
    csi.on_node_changed();
    csi.report(Some(&BTreeSet::new()), |_| false, |_| true).unwrap_or_default()
}

/// Only what is known of images is kept of the step.
fn step_without_pods(state: &mut NodeState, now: Now, mut event: Event) -> Vec<Effect> {
    if let Event::ImagesListed(Ok(listing)) = &mut event {
        listing.container_images.clear();
    }
    let mut blind = state.clone();
    blind.pods = Default::default();
    blind.unclaimed.clear();
    blind.images = Default::default();
    let effects = decide::step(&mut blind, now, event);
    state.image_garbage = blind.image_garbage;
    effects
}

fn is_terminal(phase: Option<&str>) -> bool {
    matches!(phase, Some("Succeeded" | "Failed"))
}

fn unmark(pod: &mut Arc<Pod>) {
    if pod.metadata.deletion_timestamp.is_some() {
        let meta = &mut Arc::make_mut(pod).metadata;
        meta.deletion_timestamp = None;
        meta.deletion_grace_period_seconds = None;
    }
}

fn is_stop(action: &Action) -> bool {
    matches!(action, Action::StopContainer { .. })
}

/// Moves all stops into the first stage. Stages and their actions keep their numbers, so that outcomes find their
/// place.
fn at_once(stages: &[Stage]) -> Vec<Stage> {
    let mut stages = stages.to_vec();
    let stopping: Vec<usize> = (0..stages.len()).filter(|n| stages[*n].actions.iter().any(is_stop)).collect();
    if let [first, .., last] = stopping[..] {
        stages.swap(first, last);
    }
    stages
}

fn early_deletion(entry: &decide::state::PodEntry) -> Option<Effect> {
    let going = matches!(entry.lifecycle(), Lifecycle::Terminating(_)) && entry.view().is_deleting();
    if !going || entry.view().source != Source::Api {
        return None;
    }
    let pod = PodObject {
        namespace: entry.view().namespace().to_owned(),
        name: entry.view().name().to_owned(),
        uid: entry.view().uid.clone(),
    };
    Some(Effect::CallApi(ApiCall::DeletePod { uid: entry.view().uid.clone(), pod }))
}
