//! Picks the implementations and joins them: from configuration to a running agent.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use cri::{CriClient, RuntimeHints};
use decide::NodeState;
use decide::credentials::plugin_config;
use engine::{CsiPorts, EssentialTasks, EventRecorder, NodeDuties, Ports};
use host::cgroup::{CgroupLayout, HostCgroups};
use host::clock::SystemClock;
use host::credentials::{DockerConfigDirs, HostCredentials, HostPullRecords, read_plugin_config};
use host::facts::{FactsConfig, HostFactsReader};
use host::feed::{DecodedManifest, FileFeed, HttpFeed, ManifestDecoder, without_secrets};
use host::files::{HostCsiFiles, HostPodFiles, HostVolumeNotices};
use host::hook::HookClient;
use host::logs::HostLogFiles;
use host::oom_kills::HostOomKills;
use host::panic_records::HostPanicRecords;
use host::probe::{NetworkProber, PodProbeRecords};
use host::quota::ProjectQuotas;
use host::usage::{HostNodeSignals, HostUsage};
use manifest::{ReferencePolicy, StaticPodRules};
use model::cgroup::CgroupDriver;
use model::credentials::VerificationPolicy;
use model::image_garbage::ImageGarbageConfig;
use model::log_rotation::LogRotationConfig;
use model::node::{CgroupVersion, HostFacts, NodeConfig, NodeObjectConfig};
use model::pod::Source;
use model::quantity::Quantity;
use model::user_namespace::DEFAULT_IDS_PER_POD;
use otlp::OtlpTracer;
use plugins::{DriverClients, PluginRegistry};
use ports::{
    AgentView, ClusterPorts, EventSink, PodFeed, PodFiles, PodWatches, PullRecords, Tracing, WallClock,
};
use server::{
    AgentMetrics, BuildInfo, Endpoints, HealthChecks, MeteredCgroups, MeteredCsiDrivers, MeteredEvents,
    MeteredHttpHooks, MeteredImages, MeteredPluginSockets, MeteredRegistryCredentials, MeteredRuntime,
    NodeStats, ServerHandle, StatsPorts, StatsSettings,
};

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

mod eviction;
mod guard;
mod node;

pub use node::node_setup;

use crate::commands;
use crate::config::{FeatureGates, KubeletConfiguration, Stage};
use crate::flags::{Flags, KUBERNETES_VERSION, RUBELET_VERSION};
use crate::placement::ProcessPlacement;

/// Where upstream keeps the links that log collectors follow. Not configurable there either.
const CONTAINER_LINKS_DIR: &str = "/var/log/containers";
const KERNEL_LOG: &str = "/dev/kmsg";
const CGROUP_MOUNT: &str = "/sys/fs/cgroup";

/// Tells how the host is: before anything is decided, and now and then after that.
pub fn facts_reader(flags: &Flags, config: &KubeletConfiguration) -> anyhow::Result<HostFactsReader> {
    let given: Vec<String> =
        flags.node_ips.iter().filter(|ip| !ip.is_unspecified()).map(ToString::to_string).collect();
    Ok(HostFactsReader::new(FactsConfig {
        resolv_conf: config.resolv_conf.clone(),
        node_ips: (!given.is_empty()).then_some(given),
        root_dir: std::path::absolute(&flags.root_dir)?,
        hostname: node_name(flags)?,
        machine_id_files: flags.machine_id_files.clone(),
        boot_id_files: flags.boot_id_files.clone(),
        ..Default::default()
    }))
}

/// The hostname unless overridden, in lower case and without spaces around it.
pub fn node_name(flags: &Flags) -> anyhow::Result<String> {
    let name = match &flags.hostname_override {
        Some(name) if !name.trim().is_empty() => name.clone(),
        _ => rustix::system::uname().nodename().to_string_lossy().into_owned(),
    };
    let name = name.trim().to_lowercase();
    anyhow::ensure!(!name.is_empty(), "empty hostname is invalid: set one with --hostname-override");
    Ok(name)
}

pub fn node_config(
    flags: &Flags,
    config: &KubeletConfiguration,
    gates: &FeatureGates,
    facts: &HostFacts,
    node_name: &str,
) -> anyhow::Result<NodeConfig> {
    let (crash_initial, crash_max) = crash_back_off(config, gates);
    let max_pods = u32::try_from(config.max_pods).unwrap_or(0);
    let ids_per_pod = config.user_namespaces.as_ref().and_then(|namespaces| namespaces.ids_per_pod);
    let ids_per_pod = ids_per_pod.and_then(|ids| u32::try_from(ids).ok()).unwrap_or(DEFAULT_IDS_PER_POD);
    let user_ids = decide::user_namespaces::range(facts.subordinate_ids, ids_per_pod, max_pods)
        .context("reading the subordinate ids of user kubelet")?;
    let sources = [
        (!config.static_pod_path.is_empty()).then_some(Source::File),
        (!config.static_pod_url.is_empty()).then_some(Source::Http),
    ];
    Ok(NodeConfig {
        node_name: node_name.to_owned(),
        root_dir: text(&std::path::absolute(&flags.root_dir)?),
        pod_logs_dir: config.pod_logs_dir.clone(),
        container_links_dir: CONTAINER_LINKS_DIR.into(),
        cluster_dns: config.cluster_dns.clone(),
        cluster_domain: config.cluster_domain.clone(),
        resolv_conf: config.resolv_conf.clone(),
        cgroups_per_qos: config.cgroups_per_qos,
        cgroup_driver: match config.cgroup_driver.as_str() {
            "systemd" => CgroupDriver::Systemd,
            _ => CgroupDriver::Cgroupfs,
        },
        cgroup_root: config.cgroup_root.split('/').filter(|p| !p.is_empty()).map(str::to_owned).collect(),
        allocatable: guard::allocatable_config(config, gates, facts)?,
        cpu_cfs_quota: config.cpu_cfs_quota,
        cpu_cfs_quota_period: config.cpu_cfs_quota_period.to_std(),
        pod_pids_limit: config.pod_pids_limit,
        seccomp_default: flags.effective_seccomp_default(config),
        single_process_oom_kill: config
            .single_process_oom_kill
            .unwrap_or(facts.cgroup_version == CgroupVersion::V1),
        allowed_unsafe_sysctls: config.allowed_unsafe_sysctls.clone(),
        ids_per_pod,
        user_ids,
        node_object: node_setup(flags, config, gates, facts, node_name)?,
        crash_back_off_initial: crash_initial,
        crash_back_off_max: crash_max,
        serialize_image_pulls: config.serialize_image_pulls,
        max_parallel_image_pulls: config.max_parallel_image_pulls.and_then(|n| u32::try_from(n).ok()),
        registry_pull_qps: u32::try_from(config.registry_pull_qps).unwrap_or(0),
        registry_burst: u32::try_from(config.registry_burst).unwrap_or(0),
        // Known when the plugins are: see `state`.
        credential_plugins: Vec::new(),
        pull_verification: gates
            .enabled("KubeletEnsureSecretPulledImages")
            .then(|| verification_policy(config))
            .transpose()?,
        log_rotation: log_rotation(config)?,
        eviction: eviction::eviction_config(config, flags.experimental_allocatable_ignore_eviction)?,
        image_garbage: Some(image_garbage(config)),
        max_dead_containers_per_container: flags.maximum_dead_containers_per_container,
        max_dead_containers: flags.maximum_dead_containers,
        min_container_ttl: flags.minimum_container_ttl_duration.to_std(),
        full_relist_period: config.sync_frequency.to_std(),
        sync_frequency: config.sync_frequency.to_std(),
        features: gates.all().map(|(gate, on)| (gate.name.to_owned(), on)).collect(),
        sources: sources.into_iter().flatten().collect(),
    })
}

/// `None`: a negative size turns rotation off.
fn log_rotation(config: &KubeletConfiguration) -> anyhow::Result<Option<LogRotationConfig>> {
    let size: Quantity = config.container_log_max_size.parse().context("containerLogMaxSize")?;
    Ok(u64::try_from(size.value()).ok().map(|max_bytes| LogRotationConfig {
        max_bytes,
        max_files: u32::try_from(config.container_log_max_files).unwrap_or(u32::MAX),
        workers: u32::try_from(config.container_log_max_workers).unwrap_or(1),
        interval: config.container_log_monitor_interval.to_std(),
    }))
}

/// The limits of each value are those that the configuration was checked for.
fn image_garbage(config: &KubeletConfiguration) -> ImageGarbageConfig {
    let percent = |percent: i32| u8::try_from(percent).unwrap_or(100);
    let max_age = config.image_maximum_gc_age.to_std();
    ImageGarbageConfig {
        high_percent: percent(config.image_gc_high_threshold_percent),
        low_percent: percent(config.image_gc_low_threshold_percent),
        min_age: config.image_minimum_gc_age.to_std(),
        max_age: (!max_age.is_zero()).then_some(max_age),
    }
}

/// Which images on the node a pod may use without showing credentials for them.
fn verification_policy(config: &KubeletConfiguration) -> anyhow::Result<VerificationPolicy> {
    let list = &config.preloaded_images_verification_allowlist;
    Ok(match config.image_pull_credentials_verification_policy.as_str() {
        "NeverVerify" => VerificationPolicy::NeverVerify,
        "" | "NeverVerifyPreloadedImages" => VerificationPolicy::NeverVerifyPreloaded,
        "AlwaysVerify" => VerificationPolicy::AlwaysVerify,
        "NeverVerifyAllowlistedImages" => VerificationPolicy::NeverVerifyAllowlisted(list.clone()),
        other => anyhow::bail!("imagePullCredentialsVerificationPolicy: {other:?} is not known"),
    })
}

/// Docker's files and, where they are configured, plugins. What is wrong with their configuration ends the start.
fn credentials(flags: &Flags, node: &NodeConfig, metrics: &AgentMetrics) -> anyhow::Result<HostCredentials> {
    let home = std::env::var_os("HOME").map(Into::into);
    let places = DockerConfigDirs::standard(Path::new(&node.root_dir), std::env::current_dir().ok(), home);
    let found = HostCredentials::new(places);
    let (config, bin_dir) =
        (&flags.image_credential_provider_config, &flags.image_credential_provider_bin_dir);
    let (config, bin_dir) = match (config, bin_dir) {
        (None, None) => return Ok(found),
        (Some(config), Some(bin_dir)) => (config, bin_dir),
        _ => anyhow::bail!(
            "--image-credential-provider-config and --image-credential-provider-bin-dir must be set together"
        ),
    };
    let context = "failed to register CRI auth plugins";
    let files = read_plugin_config(config).context(context)?;
    metrics.set_credential_config(files.iter().map(|(_, bytes)| bytes.as_slice()));
    let takes_tokens = node.feature(plugin_config::TOKEN_GATE);
    let plugins = plugin_config::parse(&files, takes_tokens).context(context)?;
    found.with_plugins(bin_dir, plugins).context(context)
}

fn text(path: &Path) -> String {
    path.to_string_lossy().trim_end_matches('/').to_owned()
}

/// Sources of pods without a cluster.
pub fn feeds(
    config: &KubeletConfiguration,
    gates: &FeatureGates,
    node_name: &str,
    alone: bool,
) -> anyhow::Result<Vec<Box<dyn PodFeed>>> {
    let allowed = match (alone, gates.enabled("PreventStaticPodAPIReferences")) {
        (true, _) => ReferencePolicy::AllowLocal,
        (false, true) => ReferencePolicy::Deny,
        (false, false) => ReferencePolicy::Allow,
    };
    let own_users_on_host_network = gates.enabled("UserNamespacesHostNetworkSupport");
    let rules =
        StaticPodRules { references: allowed, user_namespace_with_host_network: own_users_on_host_network };
    let mut feeds: Vec<Box<dyn PodFeed>> = Vec::new();
    if !config.static_pod_path.is_empty() {
        let node = node_name.to_owned();
        let decoder: ManifestDecoder = Arc::new(move |path, bytes| {
            let content = manifest::decode_file(bytes, path, &node, rules);
            DecodedManifest {
                pods: content.pods,
                runtime_classes: content.runtime_classes,
                objects: content.objects,
                problems: content.errors.iter().map(ToString::to_string).collect(),
            }
        });
        let period = config.file_check_frequency.to_std();
        feeds.push(Box::new(FileFeed::new(&config.static_pod_path, period, decoder)));
    }
    if !config.static_pod_url.is_empty() {
        let node = node_name.to_owned();
        let decoder: ManifestDecoder =
            Arc::new(move |url, bytes| match manifest::decode_http(bytes, url, &node, rules) {
                Ok(pods) => DecodedManifest { pods, ..DecodedManifest::default() },
                Err(problem) => {
                    DecodedManifest { problems: vec![problem.to_string()], ..DecodedManifest::default() }
                }
            });
        let headers = &config.static_pod_url_header;
        let feed =
            HttpFeed::new(&config.static_pod_url, headers, config.http_check_frequency.to_std(), decoder);
        let shown = || format!("staticPodURL {:?}", without_secrets(&config.static_pod_url));
        feeds.push(Box::new(feed.with_context(shown)?));
    }
    Ok(feeds)
}

/// Where traces go, if the configuration names a place; and what to wait for at the end, so that the last ones arrive.
pub fn tracing(
    config: &KubeletConfiguration,
    node_name: &str,
    stop: &CancellationToken,
) -> anyhow::Result<(Tracing, Option<JoinHandle<()>>)> {
    let Some(wanted) = &config.tracing else { return Ok((Tracing::default(), None)) };
    let rate = wanted.sampling_rate_per_million.unwrap_or_default();
    let settings = otlp::OtlpSettings {
        endpoint: wanted.endpoint.clone().unwrap_or_else(|| otlp::DEFAULT_ENDPOINT.to_owned()),
        sampled_per_million: u32::try_from(rate).unwrap_or_default(),
        resource: [("service.name", "kubelet".to_owned()), ("host.name", node_name.to_owned())].into(),
    };
    tracing::info!(endpoint = settings.endpoint, rate, "exporting traces");
    let (tracer, task) =
        OtlpTracer::start(&settings, Arc::new(SystemClock), stop.clone()).context("tracing.endpoint")?;
    Ok((Tracing::new(tracer), Some(task)))
}

/// Everything the engine stands on. Touches nothing yet but the socket's name.
pub fn ports(
    flags: &Flags,
    config: &KubeletConfiguration,
    node: &NodeConfig,
    metrics: &Arc<AgentMetrics>,
    tracing: &Tracing,
) -> anyhow::Result<Ports> {
    let image_endpoint = Some(config.image_service_endpoint.as_str()).filter(|e| !e.is_empty());
    let timeout = config.runtime_request_timeout.to_std();
    let client = Arc::new(
        CriClient::connect(&config.container_runtime_endpoint, image_endpoint, timeout)
            .context("containerRuntimeEndpoint")?
            .with_tracing(tracing.clone())
            .with_list_streaming(node.feature("CRIListStreaming")),
    );
    let hints = RuntimeHints::new(&config.container_runtime_endpoint).context("containerRuntimeEndpoint")?;
    let root_dir = Path::new(&node.root_dir);
    let layout = host::cgroup::detect(Path::new(CGROUP_MOUNT)).context("finding the cgroup hierarchy")?;
    if node.cgroups_per_qos {
        check_cgroup_root(&layout, &node.cgroup_root)?;
    }
    let volume_news = HostVolumeNotices::default();
    let node_signals = Arc::new(HostNodeSignals::new(&layout));
    let usage = HostUsage::new(layout.clone(), Arc::new(SystemClock)).with_quotas(quotas(node));
    Ok(Ports {
        usage: Arc::new(usage),
        runtime: Arc::new(MeteredRuntime::new(client.clone(), metrics.clone())),
        images: Arc::new(MeteredImages::new(client, metrics.clone())),
        credentials: Arc::new(MeteredRegistryCredentials::new(
            Arc::new(credentials(flags, node, metrics)?),
            metrics.clone(),
        )),
        pull_records: node
            .pull_verification
            .is_some()
            .then(|| Arc::new(HostPullRecords::new(root_dir)) as Arc<dyn PullRecords>),
        hints: Arc::new(hints),
        files: Arc::new(
            HostPodFiles::new(&node.root_dir, &node.pod_logs_dir, &node.container_links_dir)
                .reporting_to(&volume_news)
                .with_quotas(quotas(node)),
        ),
        cgroups: Arc::new(MeteredCgroups::new(
            Arc::new(HostCgroups::new(layout, node.cgroup_driver)),
            metrics.clone(),
        )),
        events: Arc::new(MeteredEvents::new(Arc::new(LoggedEvents), metrics.clone())),
        http_hooks: Arc::new(MeteredHttpHooks::new(Arc::new(HookClient::default()), metrics.clone())),
        prober: Arc::new(NetworkProber::default()),
        probe_records: Arc::new(PodProbeRecords::new(&node.root_dir)),
        panic_records: Arc::new(HostPanicRecords::new(&node.root_dir)),
        wall: Arc::new(SystemClock),
        meter: metrics.clone(),
        csi: Some(CsiPorts {
            drivers: Arc::new(MeteredCsiDrivers::new(Arc::new(DriverClients::default()), metrics.clone())),
            files: Arc::new(HostCsiFiles::new(root_dir).reporting_to(&volume_news)),
            sockets: Arc::new(MeteredPluginSockets::new(
                Arc::new(PluginRegistry::new(root_dir.join("plugins_registry"))),
                metrics.clone(),
            )),
        }),
        volume_news: Arc::new(volume_news),
        log_files: Arc::new(HostLogFiles::new(&config.pod_logs_dir, Arc::new(SystemClock))),
        node_signals,
        oom_kills: Arc::new(HostOomKills::new(KERNEL_LOG)),
        tracing: tracing.clone(),
        cluster: None,
    })
}

/// Where the agent's own processes and those of the system are to be.
pub fn placement(config: &KubeletConfiguration) -> anyhow::Result<ProcessPlacement> {
    let layout = host::cgroup::detect(Path::new(CGROUP_MOUNT)).context("finding the cgroup hierarchy")?;
    ProcessPlacement::new(config, &layout)
}

/// The agent makes cgroups below its root, and never the root itself: whoever runs the machine decides where it is.
fn check_cgroup_root(layout: &CgroupLayout, root: &[String]) -> anyhow::Result<()> {
    let missing = layout.missing(&format!("/{}", root.join("/")));
    anyhow::ensure!(
        missing.is_empty(),
        "invalid configuration: cgroup {root:?} (cgroupRoot) has some missing paths: {}",
        missing.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    );
    Ok(())
}

pub fn state(node: NodeConfig, facts: HostFacts, ports: &Ports) -> NodeState {
    let credential_plugins = ports.credentials.plugins().to_vec();
    NodeState::new(NodeConfig { credential_plugins, ..node }, facts, SystemClock.wall())
}

pub async fn prepare_node(files: &dyn PodFiles) -> anyhow::Result<()> {
    files.prepare_node().await.context("creating the agent's directories")
}

/// Events go to the log, and to the API server where there is one.
pub fn cluster_event_sink(
    cluster: &ClusterPorts,
    setup: &NodeObjectConfig,
    metrics: &Arc<AgentMetrics>,
    stop: &CancellationToken,
    essential: &EssentialTasks,
) -> Arc<dyn EventSink> {
    let events = cluster.events.clone();
    let recorder =
        EventRecorder::start(events, setup, Arc::new(SystemClock), seed(), stop.clone(), essential);
    Arc::new(MeteredEvents::new(Arc::new(BothEvents(recorder)), metrics.clone()))
}

/// The first wait and the longest one of a container that crashes. What is configured counts more than the gate that
/// makes both shorter.
fn crash_back_off(config: &KubeletConfiguration, gates: &FeatureGates) -> (Duration, Duration) {
    let (initial, most) = match gates.enabled("ReduceDefaultCrashLoopBackOffDecay") {
        true => (1, 60),
        false => (10, 300),
    };
    let configured = config.crash_loop_back_off.max_container_restart_period;
    let most = configured.map_or(Duration::from_secs(most), |period| period.to_std());
    (Duration::from_secs(initial).min(most), most)
}

/// Another number on every start: what many nodes do at their own times must not fall together.
fn seed() -> u64 {
    SystemClock.wall().0 as u64 ^ u64::from(std::process::id()).rotate_left(32)
}

/// What the agent does for its node beside running pods.
pub fn node_duties(node: &NodeConfig, now: &HostFacts, facts: HostFactsReader) -> NodeDuties {
    let events_at_start = decide::node::events_at_start(node, now, host::facts::is_swap_enabled());
    NodeDuties { setup: node.node_object.clone(), facts: Arc::new(facts), seed: seed(), events_at_start }
}

struct BothEvents(Arc<EventRecorder>);

impl EventSink for BothEvents {
    fn record(&self, about: &model::EventSubject, event: &model::ApiEvent) {
        LoggedEvents.record(about, event);
        self.0.record(about, event);
    }
}

/// Without an API server, Events go to the log alone.
struct LoggedEvents;

impl EventSink for LoggedEvents {
    fn record(&self, about: &model::EventSubject, event: &model::ApiEvent) {
        let (pod, uid) = match about {
            model::EventSubject::Pod { uid, name, .. } => {
                (format!("{}/{}", name.namespace, name.name), uid.as_str())
            }
            model::EventSubject::Node { .. } | model::EventSubject::Claim(_) => (String::new(), ""),
        };
        let container = event.container.as_ref().map(|(_, name)| name.as_str()).unwrap_or_default();
        let (reason, message) = (&event.reason, &event.message);
        match event.kind {
            model::EventType::Normal => tracing::info!(pod, pod_uid = uid, container, reason, "{message}"),
            model::EventType::Warning => tracing::warn!(pod, pod_uid = uid, container, reason, "{message}"),
        }
    }
}

pub fn metrics(facts: &HostFacts, gates: &FeatureGates) -> Arc<AgentMetrics> {
    let build = BuildInfo { kubernetes: KUBERNETES_VERSION.into(), rubelet: RUBELET_VERSION.into() };
    let metrics = AgentMetrics::new(build, Arc::new(SystemClock));
    for (gate, enabled) in gates.all() {
        let stage = match gate.stage {
            Stage::Alpha => "ALPHA",
            Stage::Beta => "BETA",
            Stage::Ga => "",
            Stage::Deprecated => "DEPRECATED",
        };
        metrics.set_feature(gate.name, stage, enabled);
    }
    metrics.set_cgroup_version(match facts.cgroup_version {
        CgroupVersion::V1 => 1,
        CgroupVersion::V2 => 2,
    });
    metrics
}

/// What both volumes and their statistics ask for the usage of volumes.
pub fn quotas(node: &NodeConfig) -> ProjectQuotas {
    ProjectQuotas::enabled(node.feature(decide::disk_limits::QUOTA_GATE))
}

/// What `/stats`, `/metrics/resource` and `/metrics/cadvisor` are read from.
pub fn stats(
    agent: Arc<dyn AgentView>,
    ports: &Ports,
    settings: StatsSettings,
    metrics: &Arc<AgentMetrics>,
) -> Arc<NodeStats> {
    let wall = Arc::new(SystemClock);
    let (runtime, images, usage) = (ports.runtime.clone(), ports.images.clone(), ports.usage.clone());
    let drivers = ports.csi.as_ref().map(|csi| csi.drivers.clone());
    let ports = StatsPorts { agent, usage, runtime, images, drivers, events: ports.events.clone(), wall };
    Arc::new(NodeStats::new(ports, settings, metrics.clone()))
}

/// Which cgroups are the system's, and how often volumes are measured.
pub fn stats_settings(flags: &Flags, config: &KubeletConfiguration, node: &NodeConfig) -> StatsSettings {
    let named = |name: &str| (!name.is_empty()).then(|| name.to_owned());
    let pods = decide::cgroups::kubepods(node).to_path(node.cgroup_driver);
    let period = config.volume_stats_agg_period.to_std();
    StatsSettings {
        node_name: node.node_name.clone(),
        root_dir: node.root_dir.clone(),
        pods_cgroup: node.cgroups_per_qos.then_some(pods),
        runtime_cgroup: flags.runtime_cgroups.as_deref().and_then(named),
        system_cgroup: named(&config.system_cgroups),
        // A negative period, which is not one, turns it off.
        volume_period: (!period.is_zero()).then_some(period),
        volume_health: node.feature("CSIVolumeHealth"),
        stats_from_runtime: node.feature("PodAndContainerStatsFromCRI"),
    }
}

/// Opens the ports and the control socket. Whichever is taken or can't be made is an error of the start. They are to be
/// waited for at the end, so that open requests have their time.
pub async fn serve(
    config: &KubeletConfiguration,
    root_dir: &Path,
    agent: Arc<dyn AgentView>,
    metrics: Arc<AgentMetrics>,
    stats: Arc<NodeStats>,
    tracing: &Tracing,
    stop: &CancellationToken,
) -> anyhow::Result<(Endpoints, Vec<ServerHandle>)> {
    let health = Arc::new(HealthChecks::of_agent(agent.clone(), server::AGENT_TIMEOUT));
    let endpoints = Endpoints { agent, health, metrics, stats: Some(stats) };
    let socket = root_dir.join(commands::SOCKET);
    let control = server::serve_unix("control socket", &socket, endpoints.control(), stop.clone()).await?;
    let mut open = vec![control];
    if let Some(port) = port(config.healthz_port) {
        let host = &config.healthz_bind_address;
        open.push(server::serve_tcp("health port", host, port, endpoints.healthz(), stop.clone()).await?);
    }
    if let Some(port) = port(config.read_only_port).filter(|_| config.enable_server) {
        let (host, router) = (&config.address, endpoints.read_only(tracing));
        open.push(server::serve_tcp("read-only port", host, port, router, stop.clone()).await?);
    }
    Ok((endpoints, open))
}

/// The socket for agents beside this one that want to know its pods, if the gate is on.
pub async fn serve_pods_api(
    gates: &FeatureGates,
    root_dir: &Path,
    pods: Arc<dyn PodWatches>,
    metrics: &Arc<AgentMetrics>,
    stop: &CancellationToken,
) -> anyhow::Result<Option<ServerHandle>> {
    if !gates.enabled(decide::state::shown_pod::GATE) {
        return Ok(None);
    }
    Ok(Some(server::serve_pods_api(root_dir, pods, metrics.clone(), stop.clone()).await?))
}

/// Zero means no port.
fn port(configured: i32) -> Option<u16> {
    u16::try_from(configured).ok().filter(|port| *port != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crashes_wait_as_configured_or_as_the_gate_says() {
        const GATE: &str = "ReduceDefaultCrashLoopBackOffDecay";
        let check = |reduced: bool, configured: Option<&str>, expect: (u64, u64)| {
            let gates = FeatureGates::resolve(&[(GATE.to_owned(), reduced)].into()).expect("gates");
            let mut config = KubeletConfiguration::default();
            let period = configured.map(|text| serde_json::from_value(text.into()).expect("a duration"));
            config.crash_loop_back_off.max_container_restart_period = period;
            let (initial, most) = crash_back_off(&config, &gates);
            assert_eq!((initial.as_secs(), most.as_secs()), expect, "{reduced} {configured:?}");
        };
        check(false, None, (10, 300));
        check(false, Some("4s"), (4, 4));
        check(true, None, (1, 60));
        check(true, Some("5m"), (1, 300));
    }
}
