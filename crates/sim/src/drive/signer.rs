//! Signers of pod certificates: they sign soon, late or never, or deny. While there are faults they also lose requests.
//! A clean-up removes answered requests, and requests of pods that were deleted.

use decide::Effect;
use decide::Event;
use decide::action::Action;
use model::pod_certificate::{CertificateRequested, CertificateSource, CertificateWanted};

use super::background_calls::BackgroundCall;
use super::executor::content_of;
use super::{Mutant, SimEvent, Simulation};
use crate::check::Violation;
use crate::time::{MILLI, SECOND};
use crate::world::{DENIES, names_in};

impl Simulation {
    pub(super) fn follow_requests(&mut self) {
        if let Some(agent) = &mut self.agent {
            agent.follows_requests = true;
        }
        self.schedule_background_call(BackgroundCall::ShowRequests);
    }

    /// The set of requests at this moment: a watch keeps its order.
    pub(super) fn show_requests(&mut self) -> Option<Event> {
        let follows = self.agent.as_ref().is_some_and(|agent| agent.follows_requests);
        let loses = self.mutant == Mutant::LosesCertificateNews;
        (follows && !loses).then(|| Event::CertificateRequests(self.world.signer.all()))
    }

    pub(super) fn ask_certificate(
        &mut self,
        source: CertificateSource,
        call: u64,
        wanted: &CertificateWanted,
    ) -> Event {
        let fails = self.api_unreachable || self.faults.pull_fails(&mut self.rng, self.world.now);
        // The call sometimes has its effect although the caller gets an error.
        if fails && (self.api_unreachable || self.rng.coin()) {
            let result = Err("the API server is away".to_owned());
            return Event::CertificateRequested { source, call, result };
        }
        let name = format!("req-{}", self.number());
        let key = self.world.signer.add(&name, wanted);
        let wait = match wanted.signer_name.ends_with("late") {
            true => self.rng.between(SECOND, 40 * SECOND),
            false => self.rng.between(MILLI, 2 * SECOND),
        };
        self.plan_in(wait, SimEvent::Sign(name.clone()));
        self.schedule_background_call(BackgroundCall::ShowRequests);
        let requested = CertificateRequested { name, key };
        let result = if fails { Err("no answer in time".to_owned()) } else { Ok(requested) };
        Event::CertificateRequested { source, call, result }
    }

    /// Runs the signer, or the clean-up.
    pub(super) fn sign(&mut self, name: String) {
        let Some(request) = self.world.signer.get(&name) else { return };
        let (answered, signer) = (request.status.is_some(), request.spec.signer_name.clone());
        let uid = request.spec.pod_uid.clone();
        let mut pods = self.sources.values().flat_map(|set| set.values());
        let wanted = pods.any(|pod| pod.metadata.uid.as_deref() == Some(uid.as_str()));
        let troubled = self.world.now < self.faults.until;
        if answered || !wanted || (troubled && self.rng.per_mille(150)) {
            self.world.signer.remove(&name);
        } else if troubled && self.rng.per_mille(200) {
            let wait = self.rng.between(SECOND, 30 * SECOND);
            return self.plan_in(wait, SimEvent::Sign(name));
        } else {
            self.answer(&name, &signer);
            let wait = self.rng.between(60 * SECOND, 120 * SECOND);
            self.plan_in(wait, SimEvent::Sign(name));
        }
        self.schedule_background_call(BackgroundCall::ShowRequests);
    }

    fn answer(&mut self, name: &str, signer: &str) {
        if signer == DENIES {
            return self.world.signer.deny(name);
        }
        let now = self.world.wall();
        let begin = now.plus(std::time::Duration::from_nanos(self.rng.between(20 * SECOND, 90 * SECOND)));
        let end = begin.plus(std::time::Duration::from_secs(300));
        self.world.signer.issue(name, now, begin, end);
    }

    /// The key and the chain in a pod's files belong to the same request.
    pub(super) fn look_at_files(&mut self, effect: &Effect) {
        let volumes = match effect {
            Effect::RunPlan { stages, .. } => {
                let actions = stages.iter().flat_map(|stage| &stage.actions);
                let volumes = actions.filter_map(|action| match action {
                    Action::SetUpVolume { volume } => content_of(volume),
                    _ => None,
                });
                volumes.collect()
            }
            Effect::UpdateVolume { volume, .. } => content_of(volume).into_iter().collect(),
            _ => Vec::new(),
        };
        for files in volumes {
            if names_in(&files).len() > 1 {
                let message = format!("files of {:?} are written together", names_in(&files));
                self.check.add_violation(Some(Violation { invariant: "one key", message }));
            }
        }
    }
}
