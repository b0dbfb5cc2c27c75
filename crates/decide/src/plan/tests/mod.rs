//! Tables: one pod, one reading, one plan.

mod containers;
mod converged;
mod ending;
mod ephemeral;
mod garbage;
mod init;
mod reset;
mod sandboxes;
pub(crate) mod words;

use model::node::{HostFacts, NodeConfig};
use model::observed::ObservedPod;
use model::pod::PodView;

use self::words::{at, observed, pod, show_stages, show_time, show_why};
use super::{PlanInputs, PlanNote, PodPlan, plan_pod};
use crate::images::{ImageState, ResolvedImage};
use crate::runtime_health::RuntimeHealth;
use crate::sandbox_placement::{SandboxPlacement, SandboxPlacementError};
use crate::state::{EndReason, PodEntry};
use crate::status::IpFamily;

/// When every case is looked at, in seconds.
const NOW: f64 = 1000.0;

/// One pod that was prepared and whose images are all there, in front of a runtime that is well.
struct Scene {
    config: NodeConfig,
    runtime: RuntimeHealth,
    entry: PodEntry,
    observed: ObservedPod,
    name_holder: Option<String>,
    place: Result<SandboxPlacement, SandboxPlacementError>,
}

impl Scene {
    fn new(pod_text: &str, reading: &str) -> Self {
        Self::of(pod(pod_text), reading)
    }

    fn of(pod: PodView, reading: &str) -> Self {
        let mut entry = PodEntry::new(pod);
        let names: Vec<String> = entry.view().all_containers().map(|(_, c)| c.name.clone()).collect();
        let ready =
            || ImageState::Ready(ResolvedImage { reference: "sha256:i".into(), ..Default::default() });
        entry.ledger.image_states = names.into_iter().map(|name| (name, ready())).collect();
        entry.ledger.prerequisites_ready = true;
        Self {
            config: NodeConfig { cluster_dns: vec!["10.0.0.10".into()], ..Default::default() },
            runtime: RuntimeHealth { ready: true, network_ready: true, ..Default::default() },
            entry,
            observed: observed("p", reading, at(NOW)),
            name_holder: None,
            place: Ok(SandboxPlacement::default()),
        }
    }

    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Its end was asked for `ago` seconds before, with this grace.
    fn terminating(self, grace_secs: i64, ago: f64) -> Self {
        self.with(|scene| scene.end(EndReason::Deleted, grace_secs, ago))
    }

    fn end(&mut self, reason: EndReason, grace_secs: i64, ago: f64) {
        self.entry.standing_mut().end(reason, grace_secs, at(NOW - ago).mono);
    }

    fn plan(&self) -> PodPlan {
        plan_pod(&PlanInputs {
            config: &self.config,
            facts: &HostFacts::default(),
            runtime: &self.runtime,
            entry: &self.entry,
            observed: &self.observed,
            name_holder: self.name_holder.clone(),
            primary_family: IpFamily::V4,
            placement: self.place.clone(),
            cluster: None,
            node: None,
            now: at(NOW),
        })
    }

    #[track_caller]
    fn stages(&self, expect: &str) {
        let plan = self.plan();
        assert_eq!(show_stages(&plan.stages), expect, "why: {}", show_why(&plan.why));
    }

    #[track_caller]
    fn why(&self, expect: &str) {
        assert_eq!(show_why(&self.plan().why), expect);
    }

    #[track_caller]
    fn wakes(&self, expect: &str) {
        assert_eq!(self.plan().wake_at.map_or("-".into(), show_time), expect);
    }

    /// The Events that the plan would have recorded, as `Reason` or `Reason container`.
    fn announced(&self) -> Vec<String> {
        let words = |note: &PlanNote| match note {
            PlanNote::Announce { event, .. } => {
                let about = event.container.as_ref().map(|(_, name)| format!(" {name}")).unwrap_or_default();
                Some(format!("{}{about}", event.reason))
            }
            _ => None,
        };
        self.plan().notes.iter().filter_map(words).collect()
    }
}

/// Rows of (pod, reading, plan).
#[track_caller]
fn check(rows: &[(&str, &str, &str)]) {
    for (pod, reading, expect) in rows {
        let plan = Scene::new(pod, reading).plan();
        assert_eq!(show_stages(&plan.stages), *expect, "{pod} | {reading} | why: {}", show_why(&plan.why));
    }
}
