//! The state of the simulated runtime: sandboxes and containers, by ID and by pod.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::{Mutex, broadcast};
use tonic::Status;

use crate::pb;

const POD_UID: &str = "io.kubernetes.pod.uid";
/// Events that a subscriber may lag behind before its stream is cut off.
const EVENTS_KEPT: usize = 65_536;

/// The table and the subscribers of its changes.
pub struct SharedTable {
    world: Mutex<RuntimeTable>,
}

impl Default for SharedTable {
    fn default() -> Self {
        SharedTable { world: Mutex::new(RuntimeTable::default()) }
    }
}

impl SharedTable {
    /// For the server: counts the call, and works on the table.
    pub(crate) async fn count_call_and_lock<T>(
        &self,
        call: &'static str,
        work: impl FnOnce(&mut RuntimeTable) -> T,
    ) -> T {
        let mut world = self.world.lock().await;
        *world.calls.entry(call).or_default() += 1;
        work(&mut world)
    }

    /// For a thread outside the server.
    pub(crate) fn lock_from_thread<T>(&self, work: impl FnOnce(&mut RuntimeTable) -> T) -> T {
        work(&mut self.world.blocking_lock())
    }
}

pub(crate) struct Sandbox {
    pub config: pb::PodSandboxConfig,
    pub handler: String,
    pub ready: bool,
    pub created_at: i64,
    pub ip: String,
}

pub(crate) struct Container {
    pub sandbox: String,
    pub config: pb::ContainerConfig,
    pub log_directory: String,
    pub state: pb::ContainerState,
    pub created_at: i64,
    pub started_at: i64,
    pub finished_at: i64,
    pub exit_code: i32,
}

pub(crate) struct RuntimeTable {
    pub sandboxes: BTreeMap<String, Sandbox>,
    pub containers: BTreeMap<String, Container>,
    /// Ids of sandboxes and containers of a pod.
    of_pod: BTreeMap<String, BTreeSet<String>>,
    /// When containers were started, by the pod's name.
    pub starts: BTreeMap<String, Vec<SystemTime>>,
    pub calls: BTreeMap<&'static str, u64>,
    pub events: broadcast::Sender<pb::ContainerEventResponse>,
    next: u64,
}

impl Default for RuntimeTable {
    fn default() -> Self {
        RuntimeTable {
            sandboxes: BTreeMap::new(),
            containers: BTreeMap::new(),
            of_pod: BTreeMap::new(),
            starts: BTreeMap::new(),
            calls: BTreeMap::new(),
            events: broadcast::Sender::new(EVENTS_KEPT),
            next: 1,
        }
    }
}

// The clock of the simulated runtime is the machine's, as a real one's is.
#[allow(clippy::disallowed_methods)]
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}

fn nanos(at: SystemTime) -> i64 {
    i64::try_from(at.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()).unwrap_or(i64::MAX)
}

fn unknown(what: &str, id: &str) -> Status {
    Status::not_found(format!("{what} {id:?}: not found"))
}

impl RuntimeTable {
    pub fn running(&self) -> usize {
        self.containers.values().filter(|c| c.state == pb::ContainerState::ContainerRunning).count()
    }

    /// Has the form of real runtimes' IDs.
    fn new_id(&mut self) -> String {
        let id = format!("{:064x}", self.next);
        self.next += 1;
        id
    }

    pub fn run_sandbox(&mut self, config: pb::PodSandboxConfig, handler: String) -> String {
        let id = self.new_id();
        let number = self.next;
        let ip = format!("10.{}.{}.{}", (number >> 16) & 255, (number >> 8) & 255, number & 255);
        let uid = config.metadata.as_ref().map(|m| m.uid.clone()).unwrap_or_default();
        self.of_pod.entry(uid).or_default().insert(id.clone());
        let sandbox = Sandbox { config, handler, ready: true, created_at: nanos(now()), ip };
        self.sandboxes.insert(id.clone(), sandbox);
        self.send_container_event(&id, &id);
        id
    }

    pub fn create_container(&mut self, sandbox: &str, config: pb::ContainerConfig) -> Result<String, Status> {
        let found = self.sandboxes.get(sandbox).ok_or_else(|| unknown("sandbox", sandbox))?;
        let log_directory = found.config.log_directory.clone();
        let uid = found.config.metadata.as_ref().map(|m| m.uid.clone()).unwrap_or_default();
        let id = self.new_id();
        self.of_pod.entry(uid).or_default().insert(id.clone());
        let container = Container {
            sandbox: sandbox.to_owned(),
            config,
            log_directory,
            state: pb::ContainerState::ContainerCreated,
            created_at: nanos(now()),
            started_at: 0,
            finished_at: 0,
            exit_code: 0,
        };
        self.containers.insert(id.clone(), container);
        self.send_container_event(sandbox, &id);
        Ok(id)
    }

    pub fn start_container(&mut self, id: &str) -> Result<(), Status> {
        let container = self.containers.get_mut(id).ok_or_else(|| unknown("container", id))?;
        let at = now();
        container.state = pb::ContainerState::ContainerRunning;
        container.started_at = nanos(at);
        let sandbox = container.sandbox.clone();
        let name =
            self.sandboxes.get(&sandbox).and_then(|s| s.config.metadata.as_ref()).map(|m| m.name.clone());
        self.starts.entry(name.unwrap_or_default()).or_default().push(at);
        self.send_container_event(&sandbox, id);
        Ok(())
    }

    /// Ends the container if it runs; otherwise changes nothing.
    pub fn end_container(&mut self, id: &str, exit_code: i32) -> Result<SystemTime, Status> {
        let container = self.containers.get_mut(id).ok_or_else(|| unknown("container", id))?;
        let at = now();
        if container.state == pb::ContainerState::ContainerRunning {
            container.state = pb::ContainerState::ContainerExited;
            container.finished_at = nanos(at);
            container.exit_code = exit_code;
            let sandbox = container.sandbox.clone();
            self.send_container_event(&sandbox, id);
        }
        Ok(at)
    }

    /// The running container of a pod, by the pod's name. The names of static pods end with the node's name.
    pub fn exit_container_of_pod(&mut self, pod: &str, exit_code: i32) -> Option<SystemTime> {
        let runs = |c: &Container| {
            let sandbox = self.sandboxes.get(&c.sandbox).and_then(|s| s.config.metadata.as_ref());
            c.state == pb::ContainerState::ContainerRunning && sandbox.is_some_and(|m| m.name == pod)
        };
        let id = self.containers.iter().find(|(_, c)| runs(c)).map(|(id, _)| id.clone())?;
        self.end_container(&id, exit_code).ok()
    }

    pub fn remove_container(&mut self, id: &str) {
        if let Some(container) = self.containers.remove(id) {
            self.leave_pod(&container.sandbox.clone(), id);
            self.send_container_event(&container.sandbox, id);
        }
    }

    pub fn stop_sandbox(&mut self, id: &str) {
        let of_sandbox: Vec<String> = self.containers_of(id);
        for container in of_sandbox {
            let _ = self.end_container(&container, 137);
        }
        if let Some(sandbox) = self.sandboxes.get_mut(id) {
            sandbox.ready = false;
            self.send_container_event(id, id);
        }
    }

    pub fn remove_sandbox(&mut self, id: &str) {
        for container in self.containers_of(id) {
            self.remove_container(&container);
        }
        self.leave_pod(id, id);
        self.send_container_event(id, id);
        self.sandboxes.remove(id);
    }

    fn containers_of(&self, sandbox: &str) -> Vec<String> {
        let own = |(_, container): &(&String, &Container)| container.sandbox == sandbox;
        self.containers.iter().filter(own).map(|(id, _)| id.clone()).collect()
    }

    fn leave_pod(&mut self, sandbox: &str, id: &str) {
        let uid = self.sandboxes.get(sandbox).and_then(|s| s.config.metadata.as_ref()).map(|m| m.uid.clone());
        let Some(uid) = uid else { return };
        if let Some(ids) = self.of_pod.get_mut(&uid) {
            ids.remove(id);
            if ids.is_empty() {
                self.of_pod.remove(&uid);
            }
        }
    }

    fn send_container_event(&self, sandbox: &str, id: &str) {
        let event = pb::ContainerEventResponse {
            container_id: id.to_owned(),
            pod_sandbox_status: self.sandboxes.get(sandbox).map(|s| s.status(sandbox)),
        };
        // Sending fails if there is no subscriber, which is fine.
        let _ = self.events.send(event);
    }

    /// The IDs that a filter selects: those of one pod if it names one, else all.
    pub fn selected<'a, T>(
        &'a self,
        all: &'a BTreeMap<String, T>,
        id: &str,
        labels: &BTreeMap<String, String>,
    ) -> Vec<(&'a String, &'a T)> {
        match labels.get(POD_UID) {
            Some(uid) => {
                let ids = self.of_pod.get(uid).into_iter().flatten();
                ids.filter_map(|found| all.get_key_value(found))
                    .filter(|(found, _)| id.is_empty() || *found == id)
                    .collect()
            }
            None if id.is_empty() => all.iter().collect(),
            None => all.get_key_value(id).into_iter().collect(),
        }
    }
}
