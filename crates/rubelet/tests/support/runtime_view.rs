//! What the runtime itself says of pods, past the agent: tests of crashes must not ask the one that crashed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cri::CriClient;
use model::observed::ContainerState;
use ports::{ContainerFilter, ContainerInfo, Runtime as _, RuntimeError, SandboxFilter, SandboxInfo};

use crate::support::harness::{Runtime, wait};

/// For the slowest burst on a machine that does other things as well: against hanging, not a measure.
pub const BURST: Duration = Duration::from_secs(240);

const ANSWER: Duration = Duration::from_secs(30);
const LABEL_POD_NAME: &str = "io.kubernetes.pod.name";
const ANNOTATION_RESTART_COUNT: &str = "io.kubernetes.container.restartCount";

/// A line to the private containerd.
pub struct RuntimeView {
    client: CriClient,
    io: tokio::runtime::Runtime,
}

/// One pod, as the runtime lists it.
#[derive(Clone, Debug, Default)]
pub struct RuntimePod {
    pub sandboxes: Vec<SandboxInfo>,
    pub containers: Vec<ContainerInfo>,
}

impl RuntimeView {
    pub fn new(runtime: &Runtime) -> RuntimeView {
        let io = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let io = io.expect("an async runtime");
        let inside = io.enter();
        let client = CriClient::connect(&runtime.endpoint(), None, ANSWER).expect("the runtime's endpoint");
        drop(inside);
        RuntimeView { client, io }
    }

    /// Every pod of the runtime by the name in its manifest.
    pub fn pods(&self) -> Result<BTreeMap<String, RuntimePod>, String> {
        self.list().map_err(|error| error.to_string())
    }

    fn list(&self) -> Result<BTreeMap<String, RuntimePod>, RuntimeError> {
        let (sandboxes, containers) = self.io.block_on(async {
            let sandboxes = self.client.list_pod_sandboxes(&SandboxFilter::default()).await?;
            Ok((sandboxes, self.client.list_containers(&ContainerFilter::default()).await?))
        })?;
        let mut pods: BTreeMap<String, RuntimePod> = BTreeMap::new();
        for sandbox in sandboxes {
            pods.entry(manifest_name(&sandbox.name)).or_default().sandboxes.push(sandbox);
        }
        for container in containers {
            let name = container.labels.get(LABEL_POD_NAME).map(String::as_str).unwrap_or_default();
            pods.entry(manifest_name(name)).or_default().containers.push(container);
        }
        Ok(pods)
    }

    /// Waits until exactly these pods are there, each with one ready sandbox and `containers` running containers of
    /// different names and nothing else that lives. Gives, by pod, the ids of what runs.
    #[track_caller]
    pub fn wait_running(&self, names: &[String], containers: usize, deadline: Duration) -> RunningIds {
        wait(&format!("{} pods to run", names.len()), deadline, || {
            let pods = self.pods()?;
            let mut running = RunningIds::new();
            let mut faults = Vec::new();
            for name in names {
                match pods.get(name).map(|pod| pod.ids_when_whole(containers)) {
                    Some(Ok(ids)) => {
                        running.insert(name.clone(), ids);
                    }
                    Some(Err(fault)) => faults.push(format!("{name}: {fault}")),
                    None => faults.push(format!("{name}: not in the runtime")),
                }
            }
            let strangers = pods.keys().filter(|name| !names.contains(name));
            faults.extend(strangers.map(|name| format!("{name}: not asked for")));
            if faults.is_empty() { Ok(running) } else { Err(faults.join("\n  ")) }
        })
    }

    /// Waits until the pod is as wanted, and gives it.
    #[track_caller]
    pub fn wait_pod(
        &self,
        name: &str,
        deadline: Duration,
        wanted: impl Fn(&RuntimePod) -> bool,
    ) -> RuntimePod {
        wait(&format!("the pod {name} in the runtime"), deadline, || {
            let pod = self.pods()?.remove(name).unwrap_or_default();
            if wanted(&pod) { Ok(pod) } else { Err(format!("{pod:?}")) }
        })
    }

    /// The ids of all containers that run now, by pod.
    #[track_caller]
    pub fn running(&self) -> RunningIds {
        // A runtime that was just started may answer that it is not ready to.
        let pods = wait("a list of the runtime", ANSWER * 4, || self.pods());
        let ids = |pod: &RuntimePod| pod.running().map(|c| c.id.to_string()).collect();
        pods.iter().map(|(name, pod)| (name.clone(), ids(pod))).collect()
    }
}

/// Ids of running containers, by pod.
pub type RunningIds = BTreeMap<String, BTreeSet<String>>;

/// Asserts that every container of `before` still runs in `after`, under the same id.
#[track_caller]
pub fn assert_kept(before: &RunningIds, after: &RunningIds) {
    for (pod, ids) in before {
        let now = after.get(pod).cloned().unwrap_or_default();
        assert!(ids.is_subset(&now), "{pod} ran {ids:?} and now runs {now:?}");
    }
}

impl RuntimePod {
    pub fn running(&self) -> impl Iterator<Item = &ContainerInfo> {
        self.containers.iter().filter(|c| c.state == ContainerState::Running)
    }

    pub fn dead(&self) -> impl Iterator<Item = &ContainerInfo> {
        self.containers.iter().filter(|c| c.state == ContainerState::Exited)
    }

    pub fn ready_sandboxes(&self) -> impl Iterator<Item = &SandboxInfo> {
        self.sandboxes.iter().filter(|s| s.ready)
    }

    /// The highest count of restarts that any instance of the container carries.
    pub fn restarts(&self, container: &str) -> Option<u32> {
        let of = self.containers.iter().filter(|c| c.name == container);
        of.filter_map(|c| c.annotations.get(ANNOTATION_RESTART_COUNT)?.parse().ok()).max()
    }

    /// The ids of its running containers, when it is whole: one ready sandbox, and so many containers that run in it.
    pub fn ids_when_whole(&self, containers: usize) -> Result<BTreeSet<String>, String> {
        let ready: Vec<_> = self.ready_sandboxes().collect();
        let [sandbox] = ready[..] else {
            return Err(format!("{} ready sandboxes", ready.len()));
        };
        let names: BTreeSet<_> = self.running().map(|c| c.name.as_str()).collect();
        let ids: BTreeSet<_> = self.running().map(|c| c.id.to_string()).collect();
        if ids.len() != containers || names.len() != containers {
            return Err(format!("{} containers of {} names run", ids.len(), names.len()));
        }
        if let Some(lost) = self.running().find(|c| c.sandbox_id != sandbox.id) {
            return Err(format!("{} runs in another sandbox", lost.id));
        }
        Ok(ids)
    }
}

/// Static pods are called after their node as well.
fn manifest_name(pod: &str) -> String {
    pod.strip_suffix("-node").unwrap_or(pod).to_owned()
}

/// `count` names of pods.
pub fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}-{number:02}")).collect()
}

/// A pod that runs until it is told to end, and has a mount of its own (memory) to be cleaned up.
pub fn sleeper(name: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata:
  name: {name}
spec:
  terminationGracePeriodSeconds: 5
  containers:
  - name: main
    image: rubelet.test/busybox:1
    command: [sh, -c, \"trap 'exit 0' TERM; echo up; sleep 1000000 & wait\"]
    volumeMounts:
    - {{name: scratch, mountPath: /scratch}}
  volumes:
  - name: scratch
    emptyDir: {{medium: Memory, sizeLimit: 1Mi}}
"
    )
}
