//! Invariants about the calls to the world and their effects.

use std::collections::BTreeMap;
use std::sync::Arc;

use decide::lifecycle::Lifecycle;
use decide::state::PodEntry;
use decide::{NodeState, StartContainer};
use model::cri::SandboxConfig;
use model::k8s::{Container as Spec, Pod, Volume};
use model::pod::{Source, is_sidecar};
use model::probe::ProbeKind;
use model::{ContainerId, FullName, PodUid};

use super::InvariantChecker;
use crate::drive::{LEAST_GRACE_SECS, WorldCall, WorldCallOutput};
use crate::time::{Nanos, SECOND};
use crate::workload::{VARIABLE, is_rejected, objects_of};
use crate::world::{Container, RESTART_ALL_EXIT_CODE, World, WorldError};

/// More starts of one container within this time than any back-off lets through.
const HOT_STARTS: usize = 12;
const HOT_WITHIN: Nanos = 12 * SECOND;

type Sources = BTreeMap<Source, BTreeMap<String, Arc<Pod>>>;

impl InvariantChecker {
    /// The agent issues a call.
    pub fn call_issued(
        &mut self,
        world: &World,
        state: Option<&NodeState>,
        sources: &Sources,
        uid: &PodUid,
        op: &WorldCall,
    ) {
        let entry = state.and_then(|s| s.pods.get(uid));
        match op {
            // A call that was sent before may still create a container, but must not start it.
            WorldCall::RunSandbox(_) | WorldCall::Start { .. } => {
                if !entry.is_some_and(|e| e.lifecycle().may_start()) || self.told_to_end.contains(uid) {
                    self.violate("K3", format!("{} of {uid}, which is to end", op.description()));
                }
                if let WorldCall::RunSandbox(config) = op {
                    self.name_is_free(world, uid, config);
                    self.ids_are_on_record(world, uid, config);
                }
                self.sandbox_is_prepared(world, uid, &op.description());
            }
            WorldCall::Create(start) => self.variables_are_real(world, uid, start),
            WorldCall::Stop { id, grace_secs, .. } => {
                let terminating = entry.is_some_and(|e| matches!(e.lifecycle(), Lifecycle::Terminating(_)));
                let orphan = entry.is_some_and(|e| e.standing().is_orphan());
                if terminating {
                    self.grace_shrinks(world, id, *grace_secs);
                }
                // After the grace period the order no longer counts.
                if terminating && !orphan && *grace_secs > LEAST_GRACE_SECS as i64 {
                    self.stops_in_order(world, uid, id);
                }
                self.stops_for_a_reason(world, entry, sources, uid, id);
            }
            WorldCall::RemoveContainer(id) if world.containers.get(id).is_some_and(Container::is_live) => {
                self.violate("no live removal", format!("container {id} of {uid} runs and is removed"));
            }
            WorldCall::TearDownVolumes
            | WorldCall::DestroyCgroup(_)
            | WorldCall::RemovePodDir
            | WorldCall::RemoveLogDir(_) => {
                self.nothing_lives(world, uid, &op.description());
                if matches!(op, WorldCall::RemovePodDir) && world.storage.has_any(uid) {
                    self.violate("no deletion through a mount", format!("{uid} has a volume mounted"));
                }
            }
            _ => {}
        }
    }

    /// Directories, volumes and cgroup exist before a sandbox is started.
    fn sandbox_is_prepared(&mut self, world: &World, uid: &PodUid, what: &str) {
        let Some(spec) = self.specs.get(uid).and_then(|p| p.spec.as_ref()) else { return };
        let volumes = spec.volumes.iter().flatten();
        let dir = world.disk.pods.get(uid);
        let missing = match dir {
            None => Some("directory".to_owned()),
            Some(there) => {
                let is_there = |volume: &Volume| match &volume.persistent_volume_claim {
                    Some(claim) => world.storage.has_claimed(uid, &claim.claim_name),
                    None => there.contains(&volume.name),
                };
                let missing = volumes.into_iter().find(|volume| !is_there(volume));
                missing.map(|volume| format!("volume {}", volume.name))
            }
        };
        let part = format!("pod{uid}");
        let cgroup = world.cgroups.keys().any(|name| name.0.last() == Some(&part));
        let missing = missing.or_else(|| (!cgroup).then(|| "cgroup".to_owned()));
        if let Some(missing) = missing {
            self.violate("prepare first", format!("{what} of {uid}, whose {missing} is missing"));
        }
    }

    /// No container is created with a variable that its object never had.
    fn variables_are_real(&mut self, world: &World, uid: &PodUid, start: &StartContainer) {
        let Some(pod) = self.specs.get(uid) else { return };
        let (Some(object), _) = objects_of(pod) else { return };
        let regular = pod.spec.as_ref().is_some_and(|s| s.containers.iter().any(|c| c.name == start.name));
        let text = start.config.envs.iter().find(|e| e.key == VARIABLE).map(|e| e.value.as_str());
        if regular && !text.is_some_and(|text| world.objects.ever_was(&object, text)) {
            let message = format!("{} of {uid} is made with {text:?} of {object}", start.name);
            self.violate("objects first", message);
        }
    }

    fn nothing_lives(&mut self, world: &World, uid: &PodUid, what: &str) {
        if let Some(live) = world.of_pod(uid).find(|c| c.is_live()) {
            self.violate("release last", format!("{what} of {uid}, whose container {} runs", live.name));
        }
    }

    /// K6: the API object is deleted last.
    pub fn object_deleted(&mut self, world: &World, uid: &PodUid) {
        let live = world.of_pod(uid).find(|c| c.is_live()).map(|c| format!("container {}", c.name));
        let volumes = world.disk.pods.get(uid).filter(|v| !v.is_empty()).map(|_| "a volume".to_owned());
        let part = format!("pod{uid}");
        let cgroup = world.cgroups.keys().any(|n| n.0.last() == Some(&part)).then(|| "its cgroup".to_owned());
        if let Some(left) = live.or(volumes).or(cgroup) {
            self.violate("K6", format!("the object of {uid} is deleted while {left} is still there"));
        }
    }

    pub fn swept(&mut self, world: &World, uid: &PodUid) {
        self.nothing_lives(world, uid, "sweep");
    }

    /// A second stop never gives more time than the first (two seconds are the least that is ever given).
    fn grace_shrinks(&mut self, world: &World, id: &ContainerId, grace_secs: i64) {
        let kill = world.now.saturating_add((grace_secs.max(0) as u64).saturating_mul(SECOND));
        let least = world.now + 2 * SECOND;
        if let Some(before) = self.kill_times.insert(id.clone(), kill)
            && kill > before.max(least).saturating_add(SECOND)
        {
            let more = (kill - before) / SECOND;
            self.violate("K4", format!("container {id} is given {more} s more than before"));
        }
    }

    /// Sidecars stop after the regular containers, the last one first.
    fn stops_in_order(&mut self, world: &World, uid: &PodUid, id: &ContainerId) {
        let Some(spec) = self.specs.get(uid).and_then(|p| p.spec.as_ref()) else { return };
        let Some(stopped) = world.containers.get(id) else { return };
        let inits = spec.init_containers.as_deref().unwrap_or_default();
        let Some(rank) = inits.iter().position(|c| c.name == stopped.name && is_sidecar(c)) else { return };
        let before = spec.containers.iter().chain(inits[rank + 1..].iter().filter(|c| is_sidecar(c)));
        let live = |c: &&Spec| world.of_pod(uid).any(|w| w.name == c.name && w.is_live());
        if let Some(early) = before.into_iter().find(live) {
            let message = format!("sidecar {} of {uid} is stopped while {} runs", stopped.name, early.name);
            self.violate("K5", message);
        }
    }

    /// No container that is as it should be is stopped (K9), not by a new agent either.
    fn stops_for_a_reason(
        &mut self,
        world: &World,
        entry: Option<&PodEntry>,
        sources: &Sources,
        uid: &PodUid,
        id: &ContainerId,
    ) {
        let (Some(container), Some(entry)) = (world.containers.get(id), entry) else { return };
        let wanted = sources
            .values()
            .flat_map(|set| set.values())
            .find(|p| p.metadata.uid.as_deref() == Some(uid.as_str()));
        let Some(pod) = wanted else { return };
        let terminating = matches!(entry.lifecycle(), Lifecycle::Terminating(_));
        let was_gone = terminating
            && (self.missing_in_source.contains(uid) || pod.metadata.deletion_timestamp.is_some());
        let deadline =
            decide::status::deadline_exceeded(entry.view(), entry.status.as_deref(), world.clocks());
        let ended_by_node = terminating && (entry.standing().eviction().is_some() || deadline);
        let image = entry.view().container(&container.name).and_then(|(_, c)| c.image.clone());
        let hash = decide::render::container_hash(&container.name, &image.unwrap_or_default());
        let sandbox_broken = !world.sandboxes.get(&container.sandbox).is_some_and(|s| s.ready)
            || world.sandboxes_of(uid).filter(|(_, s)| s.ready).count() > 1;
        let regular_live = world
            .of_pod(uid)
            .any(|c| c.is_live() && pod.spec.iter().flat_map(|s| &s.containers).any(|r| r.name == c.name));
        let excused = is_rejected(pod)
            || was_gone
            || ended_by_node
            || container.hash != Some(hash)
            || sandbox_broken
            || container.lost
            || !container.is_live()
            || self.may_be_stopped.contains(id)
            || asked_for(world, entry, uid)
            || !regular_live;
        if !excused {
            let name = &container.name;
            self.violate("K9", format!("container {name} of {uid} is healthy and wanted, and is stopped"));
        }
    }

    /// A call had its effect.
    pub fn call_applied(
        &mut self,
        world: &World,
        uid: &PodUid,
        op: &WorldCall,
        result: &Result<WorldCallOutput, WorldError>,
    ) {
        match (op, result) {
            (WorldCall::RunSandbox(_), Ok(_)) => {
                self.one_ready_sandbox(world, uid);
                self.ids_are_its_own(world, uid);
            }
            (WorldCall::RemoveContainer(_), Ok(_)) => self.forget_passed(world, uid),
            (WorldCall::Start { id, .. }, Ok(_)) => {
                self.restarts_grow(world, id);
                self.pauses_grow(world, id);
                self.started(world, id);
            }
            (WorldCall::RemoveLogDir(_), _) => self.logs_gone(uid),
            _ => {}
        }
    }

    /// Forgets init containers of sandboxes that were removed: a pod that starts over runs them again.
    fn forget_passed(&mut self, world: &World, uid: &PodUid) {
        for (sandbox, _) in world.sandboxes_of(uid).filter(|(_, s)| s.ready) {
            if let Some(passed) = self.completed_inits.get_mut(sandbox) {
                passed.retain(|name| world.of_pod(uid).any(|c| c.name == *name && c.sandbox == *sandbox));
            }
        }
    }

    /// A pod's host IDs are on disk before its sandbox is created, because the next agent needs them.
    fn ids_are_on_record(&mut self, world: &World, uid: &PodUid, config: &SandboxConfig) {
        let context = config.linux.as_ref().and_then(|l| l.security_context.as_ref());
        let users = context.and_then(|c| c.namespace_options.as_ref()?.userns_options.as_ref());
        let ids = users.and_then(|users| users.uids.first());
        if ids.is_some() && world.disk.user_ids.get(uid) != ids {
            self.violate("own ids", format!("pod {uid} comes up with ids that are not on record"));
        }
    }

    /// No two running pods share an ID.
    fn ids_are_its_own(&mut self, world: &World, uid: &PodUid) {
        let mut own = world.sandboxes_of(uid).filter(|(_, s)| s.ready);
        let Some(ids) = own.find_map(|(_, s)| s.user_ids.clone()) else { return };
        let overlap = |other: &model::cri::IdMapping| {
            ids.host_id < other.host_id + other.length && other.host_id < ids.host_id + ids.length
        };
        let others = world.sandboxes.values().filter(|s| s.ready && s.uid != *uid);
        if let Some(other) = others.into_iter().find(|s| s.user_ids.as_ref().is_some_and(overlap)) {
            self.violate("own ids", format!("pods {uid} and {} have the same ids", other.uid));
        }
    }

    fn one_ready_sandbox(&mut self, world: &World, uid: &PodUid) {
        if world.sandboxes_of(uid).filter(|(_, s)| s.ready).count() > 1 {
            self.violate("K1", format!("pod {uid} has two ready sandboxes"));
        }
    }

    fn name_is_free(&mut self, world: &World, uid: &PodUid, config: &SandboxConfig) {
        let name = FullName::new(&config.metadata.name, &config.metadata.namespace);
        // The API server keeps the names of its pods unique, and may have force-deleted the earlier pod.
        let is_static = |uid: &PodUid| self.origins.get(uid).is_some_and(|s| s.is_static());
        if !is_static(uid) {
            return;
        }
        let other = world
            .containers
            .values()
            .find(|c| c.is_live() && c.uid != *uid && c.full_name == name && is_static(&c.uid));
        if let Some(other) = other {
            self.violate("K1", format!("pod {uid} comes up while {} of its name still runs", other.uid));
        }
    }

    fn restarts_grow(&mut self, world: &World, id: &ContainerId) {
        let Some(container) = world.containers.get(id) else { return };
        let spec = self.specs.get(&container.uid).and_then(|p| p.spec.as_ref());
        // Init containers are removed with their logs when a pod starts over, and their count starts again.
        if !spec.is_some_and(|s| s.containers.iter().any(|c| c.name == container.name)) {
            return;
        }
        let key = (container.uid.clone(), container.name.clone());
        let count = container.restart_count;
        if let Some(before) = self.made_restarts.insert(key, count)
            && count <= before
        {
            let (name, uid) = (&container.name, &container.uid);
            self.violate(
                "restart counts",
                format!("{name} of {uid} is started with count {count} after {before}"),
            );
        }
    }

    /// K10: the pauses between starts of a crashing container grow.
    fn pauses_grow(&mut self, world: &World, id: &ContainerId) {
        let Some(container) = world.containers.get(id) else { return };
        let key = (container.uid.clone(), container.name.clone());
        let starts = self.starts.entry(key).or_default();
        starts.retain(|at| at + HOT_WITHIN > world.now);
        starts.push(world.now);
        if starts.len() > HOT_STARTS {
            let (name, uid) = (&container.name, &container.uid);
            let message = format!("{name} of {uid} was started {HOT_STARTS} times within seconds");
            self.violate("K10", message);
        }
    }

    fn started(&mut self, world: &World, id: &ContainerId) {
        let Some(container) = world.containers.get(id) else { return };
        let (uid, name) = (&container.uid, &container.name);
        if world.of_pod(uid).filter(|c| c.name == *name && c.is_live()).count() > 1 {
            self.violate("K1", format!("container {name} of {uid} runs twice"));
        }
        let Some(spec) = self.specs.get(uid).and_then(|p| p.spec.clone()) else { return };
        if spec.ephemeral_containers.iter().flatten().any(|c| c.name == *name) {
            // Such a container waits for no other, and no other waits for it; it is started once per sandbox.
            let before =
                world.of_pod(uid).filter(|c| c.name == *name && c.sandbox == container.sandbox).count();
            if before > 1 {
                self.violate("ephemeral once", format!("{name} of {uid} is started a second time"));
            }
            return;
        }
        let inits = spec.init_containers.unwrap_or_default();
        let passed = self.completed_inits.entry(container.sandbox.clone()).or_default();
        let rank = inits.iter().position(|c| c.name == *name);
        let missing = inits[..rank.unwrap_or(inits.len())].iter().find(|c| !passed.contains(&c.name));
        if let Some(missing) = missing {
            let message = format!("{name} of {uid} starts before {} is done", missing.name);
            return self.violate("K5", message);
        }
        if rank.is_some_and(|rank| is_sidecar(&inits[rank]) && inits[rank].startup_probe.is_none()) {
            passed.insert(name.clone());
        }
    }

    /// A sidecar passed the probe that later containers wait for.
    pub fn probe_passed(&mut self, world: &World, kind: ProbeKind, id: &ContainerId) {
        if let Some(container) = world.containers.get(id).filter(|_| kind == ProbeKind::Startup) {
            self.completed_inits.entry(container.sandbox.clone()).or_default().insert(container.name.clone());
        }
    }

    pub fn container_ended(&mut self, world: &World, id: &ContainerId) {
        if let Some(container) = world.containers.get(id).filter(|c| !c.is_live() && c.exit_code == 0) {
            self.completed_inits.entry(container.sandbox.clone()).or_default().insert(container.name.clone());
        }
    }
}

/// A container exited as the restart-all rule says, or it did and is being removed for that.
fn asked_for(world: &World, entry: &PodEntry, uid: &PodUid) -> bool {
    let asked = world.of_pod(uid).any(|c| !c.is_live() && c.exit_code == RESTART_ALL_EXIT_CODE);
    asked && decide::restart::may_restart_all_containers(entry.view())
}
