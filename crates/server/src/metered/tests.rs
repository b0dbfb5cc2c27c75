use super::*;
use crate::testing::metrics;
use model::pod::ContainerKind;
use model::{FullName, PodUid};

/// Knows one image; pulls never end.
struct Shelf;

#[async_trait]
impl Images for Shelf {
    async fn list_images(&self) -> Result<Vec<Image>, RuntimeError> {
        Ok(Vec::new())
    }
    async fn image_status(&self, _: &ImageSpec) -> Result<Option<Image>, RuntimeError> {
        Ok(None)
    }
    async fn pull_image(
        &self,
        _: &ImageSpec,
        _: Option<&RegistryAuth>,
        _: Option<&SandboxConfig>,
    ) -> Result<String, RuntimeError> {
        std::future::pending().await
    }
    async fn remove_image(&self, _: &ImageSpec) -> Result<(), RuntimeError> {
        Err(RuntimeError::NotFound { call: "RemoveImage", message: "no such image".into() })
    }
    async fn image_fs_info(&self) -> Result<(Vec<FilesystemUsage>, Vec<FilesystemUsage>), RuntimeError> {
        Ok(Default::default())
    }
}

fn has(metrics: &AgentMetrics, line: &str) {
    let text = metrics.text(&Default::default()).unwrap();
    assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
}

fn lacks(metrics: &AgentMetrics, start: &str) {
    let text = metrics.text(&Default::default()).unwrap();
    assert!(!text.lines().any(|found| found.starts_with(start)), "{start} in\n{text}");
}

#[tokio::test(start_paused = true)]
async fn calls_are_handed_on_and_counted() {
    let metrics = metrics();
    let images = MeteredImages::new(Arc::new(Shelf), metrics.clone());
    let image = ImageSpec::default();
    assert!(images.image_status(&image).await.unwrap().is_none());
    assert!(images.image_status(&image).await.unwrap().is_none());
    assert!(images.remove_image(&image).await.is_err());
    let given_up = tokio::time::timeout(Duration::from_secs(30), images.pull_image(&image, None, None)).await;
    assert!(given_up.is_err());

    has(&metrics, r#"kubelet_runtime_operations_total{operation_type="image_status"} 2"#);
    lacks(&metrics, r#"kubelet_runtime_operations_errors_total{operation_type="image_status"}"#);
    has(&metrics, r#"kubelet_runtime_operations_errors_total{operation_type="remove_image"} 1"#);
    has(&metrics, r#"kubelet_runtime_operations_errors_total{operation_type="pull_image"} 1"#);
    has(&metrics, r#"kubelet_runtime_operations_duration_seconds_sum{operation_type="pull_image"} 30"#);
    lacks(&metrics, r#"kubelet_run_podsandbox"#);
}

#[tokio::test(start_paused = true)]
async fn sandboxes_are_counted_by_handler_too() {
    let metrics = metrics();
    let made = count(&metrics, "run_podsandbox", Some(("kata", true)), async { Ok(()) }).await;
    assert!(made.is_ok());
    let refused: Result<(), _> = count(&metrics, "run_podsandbox", Some(("", false)), async {
        Err(RuntimeError::Failed { call: "RunPodSandbox", code: 2, message: "no".into() })
    })
    .await;
    assert!(refused.is_err());
    has(&metrics, r#"kubelet_run_podsandbox_duration_seconds_count{runtime_handler="kata"} 1"#);
    has(&metrics, r#"kubelet_run_podsandbox_errors_total{runtime_handler=""} 1"#);
    has(&metrics, "kubelet_started_pods_total 2");
    has(&metrics, "kubelet_started_pods_errors_total 1");
    has(&metrics, "kubelet_started_user_namespaced_pods_total 1");
    has(&metrics, "kubelet_started_user_namespaced_pods_errors_total 0");
}

#[derive(Default)]
struct Ledger(std::sync::atomic::AtomicUsize);

impl EventSink for Ledger {
    fn record(&self, _: &EventSubject, _: &ApiEvent) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn events_tell_of_started_containers() {
    let metrics = metrics();
    let ledger = Arc::new(Ledger::default());
    let events = MeteredEvents::new(ledger.clone(), metrics.clone());
    let about = EventSubject::Pod {
        uid: PodUid::from("u1"),
        name: FullName { name: "web".into(), namespace: "default".into() },
        resource_version: String::new(),
    };
    events.record(
        &about,
        &ApiEvent::normal("Started", "Started container web").about(ContainerKind::Regular, "web"),
    );
    events.record(
        &about,
        &ApiEvent::normal("Created", "Created container web").about(ContainerKind::Regular, "web"),
    );
    events.record(&about, &ApiEvent::normal("Started", "about the whole pod"));
    assert_eq!(ledger.0.load(std::sync::atomic::Ordering::Relaxed), 3);
    has(&metrics, r#"kubelet_started_containers_total{container_type="container"} 1"#);
}

/// A runtime that refuses everything, and a client that asks it everything.
macro_rules! refusing_runtime {
    ($($method:ident($($name:ident: $of:ty = $value:expr),*) -> $answer:ty;)*) => {
        struct Refusing;

        #[async_trait]
        impl Runtime for Refusing {
            $(async fn $method(&self, $(_: $of),*) -> Result<$answer, RuntimeError> {
                Err(RuntimeError::Unsupported { call: stringify!($method) })
            })*
        }

        async fn ask_everything(runtime: &dyn Runtime) -> Vec<RuntimeError> {
            let mut refusals = Vec::new();
            $(refusals.extend(runtime.$method($($value),*).await.err());)*
            refusals
        }
    };
}

refusing_runtime! {
    version() -> RuntimeVersion;
    status() -> RuntimeStatus;
    cgroup_driver() -> model::cgroup::CgroupDriver;
    update_runtime_config(cidr: &str = "10.0.0.0/24") -> ();
    run_pod_sandbox(config: &SandboxConfig = &SandboxConfig::default(), handler: &str = "kata") -> SandboxId;
    stop_pod_sandbox(id: &SandboxId = &"s".into()) -> ();
    remove_pod_sandbox(id: &SandboxId = &"s".into()) -> ();
    pod_sandbox_status(id: &SandboxId = &"s".into()) -> SandboxStatus;
    list_pod_sandboxes(filter: &SandboxFilter = &SandboxFilter::default()) -> Vec<SandboxInfo>;
    update_pod_sandbox_resources(
        id: &SandboxId = &"s".into(), overhead: Option<&LinuxResources> = None, own: Option<&LinuxResources> = None
    ) -> ();
    create_container(
        sandbox: &SandboxId = &"s".into(),
        config: &ContainerConfig = &ContainerConfig::default(),
        of: &SandboxConfig = &SandboxConfig::default()
    ) -> ContainerId;
    start_container(id: &ContainerId = &"c".into()) -> ();
    stop_container(id: &ContainerId = &"c".into(), grace: Duration = Duration::ZERO) -> ();
    remove_container(id: &ContainerId = &"c".into()) -> ();
    list_containers(filter: &ContainerFilter = &ContainerFilter::default()) -> Vec<ContainerInfo>;
    container_status(id: &ContainerId = &"c".into()) -> ContainerStatus;
    update_container_resources(
        id: &ContainerId = &"c".into(), resources: &LinuxResources = &LinuxResources::default()
    ) -> ();
    reopen_container_log(id: &ContainerId = &"c".into()) -> ();
    checkpoint_container(
        id: &ContainerId = &"c".into(), location: &str = "/x", timeout: Duration = Duration::ZERO
    ) -> ();
    exec_sync(
        id: &ContainerId = &"c".into(), command: &[String] = &[], timeout: Duration = Duration::ZERO
    ) -> ExecResult;
    exec(
        id: &ContainerId = &"c".into(), command: &[String] = &[], streams: StreamFlags = StreamFlags::default()
    ) -> String;
    attach(id: &ContainerId = &"c".into(), streams: StreamFlags = StreamFlags::default()) -> String;
    port_forward(id: &SandboxId = &"s".into(), ports: &[i32] = &[]) -> String;
    container_stats(id: &ContainerId = &"c".into()) -> ContainerStats;
    list_container_stats(filter: &ContainerFilter = &ContainerFilter::default()) -> Vec<ContainerStats>;
}

#[tokio::test]
async fn every_call_of_the_runtime_is_counted_under_the_kubelets_word() {
    let metrics = metrics();
    let metered = MeteredRuntime::new(Arc::new(Refusing), metrics.clone());
    let refusals = ask_everything(&metered).await;
    assert_eq!(refusals, ask_everything(&Refusing).await, "each call reaches its own method");
    for operation in "version status runtime_config update_runtime_config run_podsandbox stop_podsandbox \
        remove_podsandbox podsandbox_status list_podsandbox update_podsandbox_resources create_container \
        start_container stop_container remove_container list_containers container_status update_container \
        reopen_container_log checkpoint_container exec_sync exec attach port_forward container_stats \
        list_container_stats"
        .split_whitespace()
    {
        has(
            &metrics,
            &format!(r#"kubelet_runtime_operations_errors_total{{operation_type="{operation}"}} 1"#),
        );
    }
    has(&metrics, r#"kubelet_run_podsandbox_errors_total{runtime_handler="kata"} 1"#);
}
