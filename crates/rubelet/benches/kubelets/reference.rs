//! The runtime's own time: the calls that any kubelet has to make for these pods, made one after the other without a
//! kubelet. What a kubelet takes beyond that is its own.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cri::CriClient;
use model::cri::{
    ContainerConfig, ContainerMetadata, ContainerSecurityContext, ImageSpec, LinuxContainerConfig,
    LinuxSandboxConfig, Mount, NamespaceOptions, SandboxConfig, SandboxMetadata, SandboxSecurityContext,
};
use model::observed::ContainerState;
use model::{ContainerId, SandboxId};
use ports::Runtime as _;

use crate::figures::{Samples, between, soon};
use crate::marks::{IMAGE, Marks, PATIENCE, any_alive, processes_of};
use crate::support::harness::Runtime;
use crate::{Out, Sizes};

struct Reference {
    runtime: Runtime,
    client: CriClient,
    marks: Marks,
}

struct Pod {
    config: SandboxConfig,
    sandbox: SandboxId,
    container: ContainerId,
}

pub fn measure(sizes: Sizes, out: &mut Out<'_>) {
    let runtime = Runtime::start();
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let tokio = tokio.expect("an async runtime");
    let client = {
        let _inside = tokio.enter();
        CriClient::connect(&runtime.endpoint(), None, PATIENCE).expect("the runtime's socket")
    };
    let marks = Marks::new(&runtime.dir);
    let reference = Arc::new(Reference { runtime, client, marks });
    tokio.block_on(singles(&reference, sizes.single, out));
    let burst = tokio.block_on(burst(&reference, sizes.burst));
    out.put("burst", burst);
}

async fn singles(reference: &Arc<Reference>, count: usize, out: &mut Out<'_>) {
    let [mut running, mut restarted, mut gone, mut nothing] = [(); 4].map(|()| Samples::default());
    for number in 0..count {
        let name = format!("single-{number}");
        let begun = SystemTime::now();
        let pod = reference.start(&name).await;
        running.add(between(begun, reference.marks.wait(&name, "run")));

        reference.marks.ask_to_exit(&name);
        let exited = reference.marks.wait(&name, "exit");
        reference.wait_exited(&pod.container).await;
        let second = reference.start_container(&pod.config, &pod.sandbox, &name, 1).await;
        restarted.add(between(exited, reference.marks.wait(&name, "again")));

        let processes = processes_of(&reference.runtime.cgroup_root, &cgroup(&name));
        assert!(!processes.is_empty(), "no processes in the cgroup of {name}");
        let begun = SystemTime::now();
        reference.client.stop_container(&second, Duration::from_secs(30)).await.expect("StopContainer");
        reference.client.stop_pod_sandbox(&pod.sandbox).await.expect("StopPodSandbox");
        soon("the processes to go", PATIENCE, || (!any_alive(&processes)).then_some(()));
        gone.add(between(begun, SystemTime::now()));
        reference.client.remove_container(&pod.container).await.expect("RemoveContainer");
        reference.client.remove_container(&second).await.expect("RemoveContainer");
        reference.client.remove_pod_sandbox(&pod.sandbox).await.expect("RemovePodSandbox");
        nothing.add(between(begun, SystemTime::now()));
    }
    out.put_samples("running", &running);
    out.put_samples("restarted", &restarted);
    out.put_samples("processes gone", &gone);
    out.put_samples("nothing left", &nothing);
}

/// All at once, each pod's calls in their order.
async fn burst(reference: &Arc<Reference>, count: usize) -> f64 {
    let begun = SystemTime::now();
    let pods = (0..count).map(|number| {
        let reference = reference.clone();
        tokio::spawn(async move { reference.start(&format!("burst-{number}")).await })
    });
    for pod in pods.collect::<Vec<_>>() {
        pod.await.expect("a pod of the burst");
    }
    let last = (0..count).map(|number| reference.marks.wait(&format!("burst-{number}"), "run")).max();
    between(begun, last.expect("a pod"))
}

fn cgroup(name: &str) -> String {
    format!("pod-{name}-")
}

impl Reference {
    async fn start(&self, name: &str) -> Pod {
        let config = self.sandbox_config(name);
        let sandbox = self.client.run_pod_sandbox(&config, "").await.expect("RunPodSandbox");
        let container = self.start_container(&config, &sandbox, name, 0).await;
        Pod { config, sandbox, container }
    }

    async fn start_container(
        &self,
        sandbox_config: &SandboxConfig,
        sandbox: &SandboxId,
        name: &str,
        attempt: u32,
    ) -> ContainerId {
        let config = self.container_config(name, attempt);
        let id = self.client.create_container(sandbox, &config, sandbox_config).await;
        let id = id.expect("CreateContainer");
        self.client.start_container(&id).await.expect("StartContainer");
        id
    }

    async fn wait_exited(&self, id: &ContainerId) {
        loop {
            let status = self.client.container_status(id).await.expect("ContainerStatus");
            if status.state == ContainerState::Exited {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    fn sandbox_config(&self, name: &str) -> SandboxConfig {
        let logs = self.runtime.dir.join("logs").join(name);
        std::fs::create_dir_all(logs.join("main")).expect("make a directory for logs");
        SandboxConfig {
            metadata: SandboxMetadata {
                name: name.into(),
                uid: format!("reference-{name}"),
                namespace: "default".into(),
                attempt: 0,
            },
            hostname: name.into(),
            log_directory: logs.to_string_lossy().into_owned(),
            linux: Some(LinuxSandboxConfig {
                cgroup_parent: format!("{}/{}", self.runtime.cgroup_root, cgroup(name)),
                security_context: Some(SandboxSecurityContext {
                    namespace_options: Some(namespaces()),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    fn container_config(&self, name: &str, attempt: u32) -> ContainerConfig {
        ContainerConfig {
            metadata: ContainerMetadata { name: "main".into(), attempt },
            image: Some(ImageSpec { image: IMAGE.into(), ..Default::default() }),
            command: self.marks.command(name),
            mounts: vec![Mount {
                container_path: "/marks".into(),
                host_path: self.marks.dir.to_string_lossy().into_owned(),
                ..Default::default()
            }],
            log_path: format!("main/{attempt}.log"),
            linux: Some(LinuxContainerConfig {
                security_context: Some(ContainerSecurityContext {
                    namespace_options: Some(namespaces()),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }
    }
}

/// As of a pod without wishes: processes of its own per container.
fn namespaces() -> NamespaceOptions {
    NamespaceOptions { pid: model::cri::NamespaceMode::Container, ..Default::default() }
}
