//! The agent's main job: start, serve, wait for the signal to end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use engine::{EngineError, EssentialTasks};
use host::kernel_tunables::{self, DifferentTunables, TunableError};
use host::process::FileLock;
use model::node::CgroupVersion;
use model::pod::Source;
use model::{ApiEvent, EventSubject};
use ports::{AgentView, EventSink, HostFactsSource};
use server::ServerHandle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;

use crate::cluster::{self, ServingRequest};
use crate::config::{self, FeatureGates, Host, KubeletConfiguration, LoadedConfig};
use crate::flags::{Flags, KUBERNETES_VERSION, RUBELET_VERSION};
use crate::logging::{self, LogHandle};
use crate::notify::Supervisor;
use crate::secure_port::{self, SecurePort};
use crate::test_panics;
use crate::wire;

/// Runs until SIGTERM or SIGINT. Pods are left as they are: the next agent takes them over.
pub fn run(flags: Flags) -> anyhow::Result<()> {
    let loaded = config::load(&flags.sources())?;
    let log = logging::init(&loaded.config.logging)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("starting the async runtime")?;
    let ended = runtime.block_on(serve(&flags, loaded, log));
    // A blocking thread may hang on a file server. The shutdown waits for it no longer than this.
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    ended
}

/// How long a file that is being written may take when the agent ends.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

async fn serve(flags: &Flags, loaded: LoadedConfig, log: LogHandle) -> anyhow::Result<()> {
    let supervisor = Supervisor::of_environment()?;
    let lock = hold_lock(flags).await?;
    // From now on, so that an agent that comes while this one starts is seen too.
    let contention = match lock.as_ref().filter(|_| flags.exit_on_lock_contention) {
        Some((path, _)) => {
            let path = path.clone();
            Some(tokio::spawn(async move { host::process::wait_for_contention(&path).await }))
        }
        None => None,
    };
    let LoadedConfig { mut config, gates, set, warnings } = loaded;
    for warning in flags.warnings.iter().chain(&warnings) {
        tracing::warn!("{warning}");
    }
    let reader = wire::facts_reader(flags, &config)?;
    let facts = reader.read().await.context("reading the facts of this host")?;
    let host = Host { cgroup_v1: facts.cgroup_version == CgroupVersion::V1 };
    if let Err(faults) = config::validate(&config, &gates, host) {
        let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
        bail!("failed to validate kubelet configuration: {}", faults.join("; "));
    }
    check_swap(&config)?;
    set_kernel_tunables(&config, &gates)?;
    apply_process_settings(&config);
    let node_name = wire::node_name(flags)?;
    tracing::info!(node = node_name, kubernetes = KUBERNETES_VERSION, rubelet = RUBELET_VERSION, "starting");
    let stop = CancellationToken::new();
    let (essential, mut deaths) = EssentialTasks::new();
    let essential = test_panics::add_to_tasks(essential);
    let metrics = wire::metrics(&facts, &gates);
    let cluster = cluster::join(flags, &config, &node_name, &metrics, &stop, &essential).await?;
    secure_port::apply_standalone_defaults(&mut config, &set, cluster.is_none());
    let mut node = wire::node_config(flags, &config, &gates, &facts, &node_name)?;
    node.sources.extend(cluster.as_ref().map(|_| Source::Api));
    let root_dir = node.root_dir.clone();
    let figures = wire::stats_settings(flags, &config, &node);
    let traces_stop = CancellationToken::new();
    let (tracing, traces) = wire::tracing(&config, &node_name, &traces_stop)?;
    let mut ports = wire::ports(flags, &config, &node, &metrics, &tracing)?;
    if let Some(cluster) = &cluster {
        cluster.api.connection().set_tracing(tracing.clone());
        ports.cluster = Some(cluster.ports.clone());
        ports.events =
            wire::cluster_event_sink(&cluster.ports, &node.node_object, &metrics, &stop, &essential);
    }
    let duties = wire::node_duties(&node, &facts, reader);
    if let Err(error) = wire::prepare_node(&*ports.files).await {
        record_setup_failure(&*ports.events, &node_name, &error).await;
        return Err(error);
    }
    let mut feeds = wire::feeds(&config, &gates, &node_name, cluster.is_none())?;
    feeds.extend(cluster.as_ref().map(|cluster| cluster.feed(&node_name)));
    let state = wire::state(node, facts, &ports);
    let held = ports.clone();
    let reviews = ports.cluster.as_ref().map(|cluster| cluster.reviews.clone());
    let (agent, engine) = engine::new(state, ports, feeds, stop.clone());
    // The control socket is opened before anything is changed. If another agent answers on it, this one does not start:
    // two agents with one root directory would both manage its pods.
    let root_dir = Path::new(&root_dir);
    let watches = Arc::new(agent.clone());
    let agent: Arc<dyn AgentView> = Arc::new(agent);
    let stats = wire::stats(agent.clone(), &held, figures, &metrics);
    let (endpoints, mut open) =
        wire::serve(&config, root_dir, agent, metrics.clone(), stats, &tracing, &stop).await?;
    open.extend(wire::serve_pods_api(&gates, root_dir, watches, &metrics, &stop).await?);
    let health = endpoints.health.clone();
    let secure = SecurePort {
        flags,
        config: &config,
        gates: &gates,
        node_name: &node_name,
        root_dir,
        endpoints,
        runtime: held.runtime,
        reviews,
        tracing,
        log,
    };
    if let Some((slot, serving)) = secure.open(&stop).await? {
        open.push(serving);
        if let Some(cluster) = cluster.as_ref().filter(|_| config.server_tls_bootstrap) {
            let names_suffice = gates.enabled("AllowDNSOnlyNodeCSR");
            let request = ServingRequest {
                cert_dir: &flags.cert_dir,
                node_name: &node_name,
                allow_dns_only: names_suffice,
            };
            cluster.keep_serving_certificate(slot, &request, &metrics, &stop, &essential)?;
        }
    }
    let mut engine = test_panics::add_to_engine(engine.with_node_duties(duties)).start();
    tokio::spawn(stop.clone().run_until_cancelled_owned(release_code_pages()));
    if config.make_iptables_util_chains {
        let chains = host::iptables::IptablesChains::default();
        essential.spawn("the iptables chains", stop.clone().run_until_cancelled_owned(chains.maintain()));
    }
    let placement = wire::placement(&config)?;
    essential.spawn("the places of processes", stop.clone().run_until_cancelled_owned(placement.maintain()));
    let ends = stop.clone();
    let told = tokio::spawn(async move { supervisor.notify_until_stopped(&health, ends).await });
    let lost = async {
        match &cluster {
            Some(cluster) => cluster.lost().await,
            None => std::future::pending().await,
        }
    };
    let contended = async {
        match contention {
            Some(contention) => contention.await,
            None => std::future::pending().await,
        }
    };
    let ended = tokio::select! {
        watched = contended => {
            tracing::info!(?watched, "another process wants the lock file");
            Ok(())
        }
        signal = wait_for_signal() => signal,
        loss = lost => Err(loss.into()),
        // If the engine ends, the process must end: otherwise it would keep its ports open without managing pods.
        end = &mut engine => {
            if let Ok(Err(EngineError::Unguarded(_))) = &end {
                // Its Event is on its way.
                tokio::time::sleep(FINAL_EVENT_WAIT).await;
            }
            return Err(engine_end(end));
        }
        Some(death) = deaths.recv() => return Err(fatal_error(death)),
        address = wait_first_closed(&mut open) => return Err(fatal_error(format!("the server on {address} ended"))),
    };
    tracing::info!("stopping; pods keep running");
    stop.cancel();
    engine.await.context("the engine failed")?.context("the engine failed")?;
    told.await.context("the systemd notifier failed")?;
    // Requests in progress get a short time to finish.
    futures::future::join_all(open.into_iter().map(ServerHandle::ended)).await;
    traces_stop.cancel();
    if let Some(traces) = traces {
        traces.await.context("the span exporter failed")?;
    }
    ended
}

/// How long the agent waits for an Event about its own end to be sent.
const FINAL_EVENT_WAIT: Duration = Duration::from_secs(2);

/// Records on the node why the agent ends.
async fn record_setup_failure(events: &dyn EventSink, node_name: &str, error: &anyhow::Error) {
    let about = EventSubject::Node { name: node_name.to_owned() };
    events.record(&about, &ApiEvent::warning("KubeletSetupFailed", format!("{error:#}")));
    tokio::time::sleep(FINAL_EVENT_WAIT).await;
}

/// The error for an engine that ended although it was not stopped.
fn engine_end(end: Result<Result<(), EngineError>, JoinError>) -> anyhow::Error {
    match end {
        Ok(Ok(())) => fatal_error("the engine ended unexpectedly".into()),
        Ok(Err(EngineError::Unguarded(reason))) => {
            fatal_error(format!("Failed to start ContainerManager: {reason}"))
        }
        Ok(Err(end)) => fatal_error(format!("the engine ended: {end}")),
        Err(error) => fatal_error(format!("the engine ended: {error}")),
    }
}

/// Also written to the log, because standard error may go nowhere.
fn fatal_error(reason: String) -> anyhow::Error {
    tracing::error!("the agent stops, pods keep running: {reason}");
    anyhow::anyhow!(reason)
}

/// The address of the first server that ended although it was not stopped.
async fn wait_first_closed(open: &mut [ServerHandle]) -> String {
    let closed = open.iter_mut().map(|serving| {
        let address = serving.address().map_or("a unix socket".to_owned(), |address| address.to_string());
        Box::pin(async move {
            serving.closed().await;
            address
        })
    });
    futures::future::select_all(closed).await.0
}

/// Waits until no other agent holds the lock file. `None`: there is none.
async fn hold_lock(flags: &Flags) -> anyhow::Result<Option<(PathBuf, FileLock)>> {
    let Some(path) = flags.lock_file.clone().filter(|path| !path.as_os_str().is_empty()) else {
        ensure!(
            !flags.exit_on_lock_contention,
            "cannot exit on lock file contention: no lock file specified"
        );
        return Ok(None);
    };
    let file = path.clone();
    let lock = tokio::task::spawn_blocking(move || FileLock::acquire(&file)).await?;
    Ok(Some((path, lock.context("--lock-file")?)))
}

/// The kernel is set up before anything relies on it.
fn set_kernel_tunables(config: &KubeletConfiguration, gates: &FeatureGates) -> anyhow::Result<()> {
    let different = match config.protect_kernel_defaults {
        true => DifferentTunables::Refuse,
        false => DifferentTunables::Change,
    };
    let may_fail =
        gates.enabled("KubeletInUserNamespace") && host::process::in_user_namespace(Path::new("/proc"));
    let (ignored, faults): (Vec<_>, Vec<_>) = kernel_tunables::apply(Path::new("/proc/sys"), different)
        .into_iter()
        .partition(|fault| may_fail && fault.is_refused_write());
    let shown = |faults: Vec<TunableError>| -> String {
        let texts = faults.into_iter().map(|fault| format!("{:#}", anyhow::Error::new(fault)));
        texts.collect::<Vec<_>>().join("; ")
    };
    if !ignored.is_empty() {
        tracing::warn!("in this user namespace: {}", shown(ignored));
    }
    ensure!(faults.is_empty(), "setting up the kernel: {}", shown(faults));
    Ok(())
}

fn check_swap(config: &KubeletConfiguration) -> anyhow::Result<()> {
    if config.fail_swap_on && host::facts::is_swap_enabled() {
        bail!(
            "running with swap on is not supported, please disable swap or set --fail-swap-on flag to false"
        );
    }
    Ok(())
}

/// Settings of our own process that make the node safer, but are no reason not to start.
fn apply_process_settings(config: &KubeletConfiguration) {
    if let Err(error) = host::process::set_oom_score_adj(config.oom_score_adj) {
        tracing::warn!("setting oomScoreAdj failed: {:#}", anyhow::Error::new(error));
    }
    let files = u64::try_from(config.max_open_files).unwrap_or(1_000_000);
    if let Err(error) = host::process::raise_open_files(files) {
        tracing::warn!("setting maxOpenFiles failed: {:#}", anyhow::Error::new(error));
    }
}

/// How often the pages of the program are released.
const CODE_RELEASE_INTERVAL: Duration = Duration::from_secs(20);

/// Most of the code runs only at the start or when a pod comes. Without this its pages would stay resident.
async fn release_code_pages() {
    let own = match host::program_pages::ProgramPages::find() {
        Ok(own) => own,
        Err(error) => return tracing::debug!("releasing code pages failed: {error}"),
    };
    loop {
        tokio::time::sleep(CODE_RELEASE_INTERVAL).await;
        if let Err(error) = own.release() {
            return tracing::debug!("releasing code pages failed: {error}");
        }
    }
}

async fn wait_for_signal() -> anyhow::Result<()> {
    let mut term = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let mut int = signal(SignalKind::interrupt()).context("listening for SIGINT")?;
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    Ok(())
}
