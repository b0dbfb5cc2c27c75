use super::*;
use crate::testing::metrics;
use model::GrpcCode;
use model::pod::ContainerKind;
use model::{FullName, PodUid};

/// Knows no image; pulls never end.
pub(crate) struct FakeImages;

#[async_trait]
impl Images for FakeImages {
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
    let images = MeteredImages::new(Arc::new(FakeImages), metrics.clone());
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
        Err(RuntimeError::Failed { call: "RunPodSandbox", code: GrpcCode::Unknown, message: "no".into() })
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
pub(crate) struct CountingEventSink(std::sync::atomic::AtomicUsize);

impl EventSink for CountingEventSink {
    fn record(&self, _: &EventSubject, _: &ApiEvent) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn events_tell_of_started_containers() {
    let metrics = metrics();
    let ledger = Arc::new(CountingEventSink::default());
    let events = MeteredEvents::new(ledger.clone(), metrics.clone());
    let about = EventSubject::Pod {
        uid: PodUid::from("u1"),
        name: FullName { name: "web".into(), namespace: "default".into() },
        resource_version: String::new(),
    };
    events.record(
        &about,
        &ApiEvent::normal("Started", "Started container web").for_container(ContainerKind::Regular, "web"),
    );
    events.record(
        &about,
        &ApiEvent::normal("Created", "Created container web").for_container(ContainerKind::Regular, "web"),
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
    list_pod_sandbox_stats(filter: &SandboxFilter = &SandboxFilter::default()) -> Vec<SandboxStats>;
    list_metric_descriptors() -> Vec<MetricDescriptor>;
    list_pod_sandbox_metrics() -> Vec<Metric>;
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
        list_container_stats list_podsandbox_stats list_metric_descriptors list_podsandbox_metrics"
        .split_whitespace()
    {
        has(
            &metrics,
            &format!(r#"kubelet_runtime_operations_errors_total{{operation_type="{operation}"}} 1"#),
        );
    }
    has(&metrics, r#"kubelet_run_podsandbox_errors_total{runtime_handler="kata"} 1"#);
}

#[test]
fn images_that_are_volumes_are_counted_by_what_became_of_them() {
    let metrics = metrics();
    let image = |name: &str| model::cri::Mount {
        container_path: name.into(),
        image: Some(ImageSpec { image: name.into(), ..Default::default() }),
        ..Default::default()
    };
    let mounts = vec![image("/a"), image("/b"), model::cri::Mount::default()];
    let config = ContainerConfig { mounts, ..Default::default() };
    let failed = |message: &str| -> Result<(), RuntimeError> {
        Err(RuntimeError::Failed {
            call: "CreateContainer",
            code: GrpcCode::Unknown,
            message: message.into(),
        })
    };
    count_image_volumes(&metrics, &config, &Ok(()));
    count_image_volumes(&metrics, &config, &failed("ImageVolumeMountFailed: no such layer"));
    count_image_volumes(&metrics, &config, &failed("no such sandbox"));
    count_image_volumes(&metrics, &ContainerConfig::default(), &Ok(()));
    has(&metrics, "kubelet_image_volume_requested_total 6");
    has(&metrics, "kubelet_image_volume_mounted_succeed_total 2");
    has(&metrics, "kubelet_image_volume_mounted_errors_total 2");
}

/// Answers as it is told to.
struct Answers(Result<HookAnswer, String>);

#[async_trait]
impl HttpHooks for Answers {
    async fn get(&self, _: &HttpHook) -> Result<HookAnswer, String> {
        self.0.clone()
    }
}

#[tokio::test]
async fn hooks_that_fell_back_and_sleeps_that_were_cut_short_are_counted() {
    let metrics = metrics();
    let hook = HttpHook { https: true, host: "h".into(), port: 1, path: "/".into(), headers: Vec::new() };
    for answer in [Ok(HookAnswer::Answered), Ok(HookAnswer::AnsweredWithoutTls), Err("no".to_owned())] {
        let hooks = MeteredHttpHooks::new(Arc::new(Answers(answer.clone())), metrics.clone());
        assert_eq!(hooks.get(&hook).await, answer);
    }
    has(&metrics, "kubelet_lifecycle_handler_http_fallbacks_total 1");
    has(&metrics, "kubelet_sleep_action_terminated_early_total 0");
    EngineMetrics::record_sleep_cut_short(&*metrics);
    has(&metrics, "kubelet_sleep_action_terminated_early_total 1");
    metrics.record_sweep(5, 2);
    has(&metrics, "kubelet_orphan_pod_cleaned_volumes 5");
    has(&metrics, "kubelet_orphan_pod_cleaned_volumes_errors 2");
    metrics.record_sweep(0, 0);
    has(&metrics, "kubelet_orphan_pod_cleaned_volumes 0");
}

/// Remembers what was made.
#[derive(Default)]
struct Trees(tokio::sync::watch::Sender<Vec<CgroupName>>);

#[async_trait]
impl Cgroups for Trees {
    fn use_driver(&self, _: CgroupDriver) {}
    async fn ensure(&self, spec: &CgroupSpec) -> Result<(), CgroupError> {
        self.0.send_modify(|made| made.push(spec.name.clone()));
        Ok(())
    }
    async fn update(&self, _: &CgroupSpec) -> Result<(), CgroupError> {
        Ok(())
    }
    async fn exists(&self, name: &CgroupName) -> Result<bool, CgroupError> {
        Ok(self.0.borrow().contains(name))
    }
    fn removals(&self, _: Vec<CgroupName>) -> BoxStream<'static, CgroupName> {
        Box::pin(futures::stream::pending())
    }
    async fn destroy(&self, _: &CgroupName) -> Result<(), CgroupError> {
        Ok(())
    }
    async fn children(&self, _: &CgroupName) -> Result<Vec<String>, CgroupError> {
        Ok(Vec::new())
    }
}

#[tokio::test]
async fn cgroups_are_made_once_and_written_later() {
    let metrics = metrics();
    let cgroups = MeteredCgroups::new(Arc::new(Trees::default()), metrics.clone());
    let spec = CgroupSpec { name: CgroupName(vec!["kubepods".into()]), values: Default::default() };
    for _ in 0..3 {
        cgroups.ensure(&spec).await.unwrap();
    }
    cgroups.update(&spec).await.unwrap();
    cgroups.destroy(&spec.name).await.unwrap();
    for (operation, count) in [("create", 1), ("update", 3), ("destroy", 1)] {
        let labels = format!("{{operation_type=\"{operation}\"}}");
        has(&metrics, &format!("kubelet_cgroup_manager_duration_seconds_count{labels} {count}"));
    }
}
