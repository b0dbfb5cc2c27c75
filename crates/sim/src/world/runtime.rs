//! The runtime's objects and what its calls do to them.

use std::collections::{BTreeMap, BTreeSet};

use model::cri::{ContainerConfig, IdMapping, NamespaceMode, SandboxConfig};
use model::observed::ContainerState;
use model::pod::{
    ANNOTATION_CONTAINER_HASH, ANNOTATION_POD_DELETION_GRACE, ANNOTATION_POD_GRACE, ANNOTATION_RESTART_COUNT,
    LABEL_CONTAINER_NAME,
};
use model::{ContainerId, FullName, PodUid, SandboxId, Wall};

use super::{Lifetime, OnTerm, ProgramEvent, RESTART_ALL_EXIT_CODE, World, WorldChange, WorldError};
use crate::time::{MILLI, Nanos};

const KILLED: i32 = 137;
const START_ERROR: i32 = 128;
/// How long a program runs that then exits with [`super::RESTART_ALL_EXIT_CODE`].
const RESTART_ALL_EXIT_AFTER: Nanos = 700 * MILLI;

#[derive(Clone, Debug)]
pub struct Sandbox {
    pub uid: PodUid,
    pub full_name: FullName,
    pub attempt: u32,
    pub created_at: Wall,
    pub ready: bool,
    pub network: NamespaceMode,
    pub ips: Vec<String>,
    pub log_directory: String,
    pub cgroup_parent: String,
    /// The host's user IDs that it maps to.
    pub user_ids: Option<IdMapping>,
}

#[derive(Clone, Debug)]
pub struct Container {
    pub id: ContainerId,
    pub uid: PodUid,
    pub full_name: FullName,
    pub sandbox: SandboxId,
    pub name: String,
    pub restart_count: u32,
    pub attempt: u32,
    pub hash: Option<u32>,
    pub pod_grace: Option<i64>,
    pub state: ContainerState,
    /// By the world's time, which never jumps.
    pub made: Nanos,
    pub ended: Option<Nanos>,
    pub created_at: Wall,
    pub started_at: Wall,
    pub finished_at: Wall,
    pub exit_code: i32,
    pub reason: String,
    pub image: String,
    pub image_ref: String,
    pub log_path: String,
    /// A start call is in progress: the container can't be removed meanwhile.
    pub starting: bool,
    /// The runtime lost its record of the container, although it runs.
    pub lost: bool,
    /// A signal was sent, but has not taken effect yet.
    pub terminating: bool,
}

impl Container {
    pub fn is_live(&self) -> bool {
        self.state == ContainerState::Running
    }
    /// The state that a list shows.
    pub fn shown_state(&self) -> ContainerState {
        if self.lost && self.is_live() { ContainerState::Unknown } else { self.state }
    }
}

pub fn sandbox_name(config: &SandboxConfig) -> String {
    format!("sandbox {}_{}", config.metadata.uid, config.metadata.attempt)
}

pub fn container_name(sandbox: &SandboxConfig, config: &ContainerConfig) -> String {
    format!("container {}_{}_{}", config.metadata.name, sandbox.metadata.uid, config.metadata.attempt)
}

impl World {
    fn told(&mut self, uid: &PodUid, id: &str) {
        self.changes.push(WorldChange::Runtime { uid: uid.clone(), id: id.to_owned() });
    }

    pub fn sandbox_name_taken(&self, config: &SandboxConfig) -> bool {
        let (uid, attempt) = (&config.metadata.uid, config.metadata.attempt);
        self.sandboxes.values().any(|s| s.uid.as_str() == uid && s.attempt == attempt)
    }

    pub fn container_name_taken(&self, uid: &str, config: &ContainerConfig) -> bool {
        let (name, attempt) = (&config.metadata.name, config.metadata.attempt);
        self.containers.values().any(|c| c.uid.as_str() == uid && c.name == *name && c.attempt == attempt)
    }

    pub fn run_sandbox(&mut self, config: &SandboxConfig) -> Result<SandboxId, WorldError> {
        if self.sandbox_name_taken(config) {
            return Err(WorldError::because(format!(
                "failed to reserve sandbox name: {} is reserved",
                sandbox_name(config)
            )));
        }
        let id = SandboxId::from(self.fresh_id());
        let linux = config.linux.clone().unwrap_or_default();
        let namespaces = linux.security_context.and_then(|s| s.namespace_options).unwrap_or_default();
        let host = namespaces.network == NamespaceMode::Node;
        let sandbox = Sandbox {
            uid: config.metadata.uid.as_str().into(),
            full_name: FullName::new(&config.metadata.name, &config.metadata.namespace),
            attempt: config.metadata.attempt,
            created_at: self.wall(),
            ready: true,
            network: namespaces.network,
            ips: if host {
                Vec::new()
            } else {
                vec![format!("10.0.{}.{}", self.made / 200, 2 + self.made % 200)]
            },
            log_directory: config.log_directory.clone(),
            cgroup_parent: linux.cgroup_parent,
            user_ids: namespaces.userns_options.and_then(|users| users.uids.into_iter().next()),
        };
        self.told(&sandbox.uid.clone(), id.as_str());
        self.sandboxes.insert(id.clone(), sandbox);
        Ok(id)
    }

    pub fn create_container(
        &mut self,
        sandbox_id: &SandboxId,
        config: &ContainerConfig,
    ) -> Result<ContainerId, WorldError> {
        let Some(sandbox) = self.sandboxes.get(sandbox_id).cloned() else {
            return Err(WorldError::absent(sandbox_id));
        };
        if !sandbox.ready {
            return Err(WorldError::because(format!("sandbox {sandbox_id} is not running")));
        }
        if self.container_name_taken(sandbox.uid.as_str(), config) {
            let name = &config.metadata.name;
            return Err(WorldError::because(format!("failed to reserve container name {name}")));
        }
        let annotation = |key: &str| config.annotations.get(key).map(String::as_str);
        let name = config.labels.get(LABEL_CONTAINER_NAME).unwrap_or(&config.metadata.name).clone();
        if let Some(script) = self.scripts.get_mut(&(sandbox.uid.clone(), name.clone()))
            && script.failing_creates > 0
        {
            script.failing_creates -= 1;
            return Err(WorldError::because("the simulated runtime can't create this container yet"));
        }
        let image = config.image.clone().unwrap_or_default();
        if self.images.is_missing(&image.image) {
            return Err(WorldError::because(format!("image {} not found", image.image)));
        }
        let grace = |key: &str| annotation(key).and_then(|text| text.parse().ok());
        let id = ContainerId::from(self.fresh_id());
        let container = Container {
            id: id.clone(),
            uid: sandbox.uid.clone(),
            full_name: sandbox.full_name.clone(),
            sandbox: sandbox_id.clone(),
            name,
            restart_count: annotation(ANNOTATION_RESTART_COUNT)
                .and_then(|text| text.parse().ok())
                .unwrap_or(config.metadata.attempt),
            attempt: config.metadata.attempt,
            hash: annotation(ANNOTATION_CONTAINER_HASH).and_then(|text| u32::from_str_radix(text, 16).ok()),
            pod_grace: grace(ANNOTATION_POD_DELETION_GRACE).or(grace(ANNOTATION_POD_GRACE)),
            state: ContainerState::Created,
            made: self.now,
            ended: None,
            created_at: self.wall(),
            started_at: Wall(0),
            finished_at: Wall(0),
            exit_code: 0,
            reason: String::new(),
            image: image.user_specified_image,
            image_ref: image.image,
            log_path: format!("{}/{}", sandbox.log_directory, config.log_path),
            starting: false,
            lost: false,
            terminating: false,
        };
        self.told(&container.uid.clone(), id.as_str());
        self.containers.insert(id.clone(), container);
        Ok(id)
    }

    pub fn start_container(&mut self, id: &ContainerId) -> Result<(), WorldError> {
        let (now, wall) = (self.now, self.wall());
        let Some(container) = self.containers.get_mut(id) else { return Err(WorldError::absent(id)) };
        container.starting = false;
        if container.state != ContainerState::Created {
            return Err(WorldError::because(format!("container {id} is not in created state")));
        }
        let ready = self.sandboxes.get(&container.sandbox).is_some_and(|s| s.ready);
        let script = self.scripts.get_mut(&(container.uid.clone(), container.name.clone()));
        let refuses = script.as_ref().is_some_and(|s| s.failing_starts > 0);
        let uid = container.uid.clone();
        if !ready || refuses {
            if let Some(script) = script.filter(|s| s.failing_starts > 0) {
                script.failing_starts -= 1;
            }
            container.state = ContainerState::Exited;
            container.ended = Some(now);
            container.started_at = Wall(0);
            container.finished_at = wall;
            container.exit_code = START_ERROR;
            container.reason = "StartError".into();
            self.told(&uid, id.as_str());
            return Err(WorldError::because("the simulated program could not be started"));
        }
        container.state = ContainerState::Running;
        container.started_at = wall;
        let life = script.map(|s| match s.restart_all_exits {
            0 => s.life.clone(),
            _ => {
                s.restart_all_exits -= 1;
                Lifetime::Ends { after: RESTART_ALL_EXIT_AFTER, code: RESTART_ALL_EXIT_CODE }
            }
        });
        if let Some(Lifetime::Ends { after, code }) = life {
            self.program_events.push((now + after, ProgramEvent::Ends { id: id.clone(), code }));
        }
        self.disk.write_log(&container.log_path);
        self.begin_log(id);
        self.told(&uid, id.as_str());
        Ok(())
    }

    pub fn run_hook(&mut self, uid: &PodUid, name: &str) -> Result<(), WorldError> {
        let script = self.scripts.get_mut(&(uid.clone(), name.to_owned()));
        match script.filter(|s| s.failing_hooks > 0) {
            Some(script) => {
                script.failing_hooks -= 1;
                Err(WorldError::because("the simulated hook failed"))
            }
            None => Ok(()),
        }
    }

    /// Whether a probe fails now. `no`: it may fail.
    pub fn probe_fails(&mut self, uid: &PodUid, name: &str, no: bool) -> bool {
        let script = self.scripts.get_mut(&(uid.clone(), name.to_owned()));
        let Some(script) = script.filter(|s| no && s.failing_probes > 0) else { return false };
        script.failing_probes -= 1;
        true
    }

    /// Sends SIGTERM. The program decides how it reacts.
    pub fn terminate(&mut self, id: &ContainerId) {
        let now = self.now;
        let Some(container) = self.containers.get_mut(id).filter(|c| c.is_live() && !c.terminating) else {
            return;
        };
        container.terminating = true;
        let script = self.scripts.get(&(container.uid.clone(), container.name.clone()));
        if let Some(OnTerm::Ends { after, code }) = script.map(|s| s.on_term.clone()) {
            self.program_events.push((now + after, ProgramEvent::Ends { id: id.clone(), code }));
        }
    }

    pub fn kill(&mut self, id: &ContainerId) {
        self.ends(id, KILLED);
    }

    pub fn ends(&mut self, id: &ContainerId, code: i32) {
        let (now, wall) = (self.now, self.wall());
        let Some(container) = self.containers.get_mut(id).filter(|c| c.is_live()) else { return };
        container.state = ContainerState::Exited;
        container.ended = Some(now);
        container.lost = false;
        container.finished_at = wall;
        container.exit_code = code;
        container.reason = if code == 0 { "Completed".into() } else { "Error".into() };
        let uid = container.uid.clone();
        self.told(&uid, id.as_str());
    }

    pub fn stop_sandbox(&mut self, id: &SandboxId) -> Result<(), WorldError> {
        if !self.sandboxes.contains_key(id) {
            return Err(WorldError::absent(id));
        }
        self.break_sandbox(id);
        Ok(())
    }

    /// The sandbox's processes have ended, by a call or by themselves.
    pub fn break_sandbox(&mut self, id: &SandboxId) {
        let inside: Vec<ContainerId> =
            self.containers.values().filter(|c| c.sandbox == *id).map(|c| c.id.clone()).collect();
        inside.iter().for_each(|container| self.kill(container));
        if let Some(sandbox) = self.sandboxes.get_mut(id).filter(|s| s.ready) {
            sandbox.ready = false;
            sandbox.ips.clear();
            let uid = sandbox.uid.clone();
            self.told(&uid, id.as_str());
        }
    }

    /// The machine restarts: only what is on disk is left.
    pub fn reboot(&mut self) {
        let all: Vec<SandboxId> = self.sandboxes.keys().cloned().collect();
        all.iter().for_each(|id| self.break_sandbox(id));
        self.cgroups.clear();
        let targets: Vec<String> = self.storage.targets.keys().cloned().collect();
        targets.iter().for_each(|target| self.unpublish_volume(target));
        self.storage.staged.clear();
    }

    pub fn remove_container(&mut self, id: &ContainerId) -> Result<(), WorldError> {
        self.removed_but_listed.count(id.as_str());
        let Some(container) = self.containers.get(id) else { return Err(WorldError::absent(id)) };
        if container.starting {
            return Err(WorldError::because(format!(
                "container {id} is in starting state, can't be removed"
            )));
        }
        let uid = container.uid.clone();
        self.kill(id);
        if let Some(container) =
            self.containers.remove(id).filter(|_| self.removed_but_listed.of.contains(&uid))
        {
            self.removed_but_listed.containers.insert(id.clone(), container);
        }
        self.told(&uid, id.as_str());
        Ok(())
    }

    pub fn remove_sandbox(&mut self, id: &SandboxId) -> Result<(), WorldError> {
        self.removed_but_listed.count(id.as_str());
        let Some(sandbox) = self.sandboxes.get(id) else { return Err(WorldError::absent(id)) };
        let uid = sandbox.uid.clone();
        self.break_sandbox(id);
        let inside = self.containers.extract_if(.., |_, c| c.sandbox == *id).collect::<Vec<_>>();
        let sandbox = self.sandboxes.remove(id);
        if self.removed_but_listed.of.contains(&uid) {
            self.removed_but_listed.containers.extend(inside);
            self.removed_but_listed.sandboxes.extend(sandbox.map(|sandbox| (id.clone(), sandbox)));
        }
        self.told(&uid, id.as_str());
        Ok(())
    }
}

/// Objects that were removed, but stay in the runtime's lists for ever.
#[derive(Clone, Debug, Default)]
pub struct RemovedButListed {
    /// Everything that is removed of these pods stays listed.
    pub of: BTreeSet<PodUid>,
    pub sandboxes: BTreeMap<SandboxId, Sandbox>,
    pub containers: BTreeMap<ContainerId, Container>,
    /// How often this agent asked to remove each of them after the first removal.
    pub removals: BTreeMap<String, u32>,
}

impl RemovedButListed {
    pub fn any_of(&self, uid: &PodUid) -> bool {
        self.sandboxes.values().any(|s| s.uid == *uid) || self.containers.values().any(|c| c.uid == *uid)
    }

    fn count(&mut self, id: &str) {
        let listed = self.sandboxes.contains_key(&SandboxId::from(id.to_owned()))
            || self.containers.contains_key(&ContainerId::from(id.to_owned()));
        if listed {
            *self.removals.entry(id.to_owned()).or_default() += 1;
        }
    }
}
