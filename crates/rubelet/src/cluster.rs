//! Joins a cluster: the node's identity, and the ports that use the API server.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use apiserver::certificates::{
    CertificateLoss, CertificateRotator, CertificateTemplate, ClientIdentity, RotationStatus,
};
use apiserver::{Api, ApiPodFeed, PolledObjects};
use engine::EssentialTasks;
use futures::StreamExt;
use host::clock::SystemClock;
use ports::{ClusterPorts, ObservedObject, PodFeed};
use server::{AgentMetrics, CertificateFigures, MeteredNodeApi, ServingCertificate};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::KubeletConfiguration;
use crate::flags::{Flags, KUBERNETES_VERSION, RUBELET_VERSION};

/// The serving certificate that the cluster issued, in the directory of certificates.
const ISSUED_FILE: &str = "kubelet-server-current.pem";
/// Time to live of config maps and secrets with the change detection strategy `Cache`.
const OBJECT_CACHE_TTL: Duration = Duration::from_secs(60);

pub struct Cluster {
    pub api: Api,
    pub ports: ClusterPorts,
    rotation: Option<RotationStatus>,
}

/// Which serving certificate is requested.
#[derive(Clone, Copy)]
pub struct ServingRequest<'a> {
    pub cert_dir: &'a Path,
    pub node_name: &'a str,
    /// The gate `AllowDNSOnlyNodeCSR`: a node that has names but no address may request one as well.
    pub allow_dns_only: bool,
}

impl Cluster {
    pub fn feed(&self, node_name: &str) -> Box<dyn PodFeed> {
        Box::new(ApiPodFeed::new(&self.api, node_name))
    }

    /// Keeps the slot filled with a certificate that the cluster signs for the node's addresses (`serverTLSBootstrap`).
    pub fn keep_serving_certificate(
        &self,
        slot: Arc<ServingCertificate>,
        request: &ServingRequest<'_>,
        metrics: &Arc<AgentMetrics>,
        stop: &CancellationToken,
        essential: &EssentialTasks,
    ) -> anyhow::Result<()> {
        let (wanted, template) = watch::channel(None);
        let ServingRequest { cert_dir, node_name, allow_dns_only: names_suffice } = *request;
        let (rotator, rotation) =
            CertificateRotator::serving(self.api.clone(), cert_dir, None, template, Arc::new(SystemClock))
                .context("serverTLSBootstrap")?;
        metrics.register_certificate("server", certificate_expiry(&rotation));
        let counted = Arc::clone(metrics);
        let rotator = rotator.on_replaced(Box::new(move |age| counted.server_certificate_replaced(age)));
        essential.spawn("serving certificate rotation", rotator.run(stop.clone()));
        let mut nodes = self.ports.node.watch(node_name);
        let name = node_name.to_owned();
        let follow = stop.clone().run_until_cancelled_owned(async move {
            while let Some(seen) = nodes.next().await {
                let ObservedObject::Present(node) = seen else { continue };
                let status = node.status.as_ref().and_then(|status| status.addresses.as_deref());
                let template = CertificateTemplate::serving(&name, status.unwrap_or_default(), names_suffice);
                wanted.send_if_modified(|known| {
                    template.is_some() && std::mem::replace(known, template.clone()) != template
                });
            }
        });
        essential.spawn("node address watch", follow);
        let file = cert_dir.join(ISSUED_FILE);
        let show = stop.clone().run_until_cancelled_owned(async move {
            let mut held = rotation.held();
            loop {
                if held.borrow_and_update().is_some() {
                    install_certificate(&slot, &file).await;
                }
                if held.changed().await.is_err() {
                    return;
                }
            }
        });
        essential.spawn("serving certificate installation", show);
        Ok(())
    }

    /// Ends when the node has lost its identity for good, and another start could give it a new one.
    pub async fn lost(&self) -> CertificateLoss {
        match &self.rotation {
            Some(rotation) => rotation.wait_until_lost(&SystemClock).await,
            None => std::future::pending().await,
        }
    }
}

/// `None`: no `--kubeconfig`, so this is a standalone node. Without rotation this waits for the first certificate.
pub async fn join(
    flags: &Flags,
    config: &KubeletConfiguration,
    node_name: &str,
    metrics: &Arc<AgentMetrics>,
    stop: &CancellationToken,
    essential: &EssentialTasks,
) -> anyhow::Result<Option<Cluster>> {
    let Some(kubeconfig) = path(&flags.kubeconfig) else { return Ok(None) };
    let bootstrap = path(&flags.bootstrap_kubeconfig);
    let agent = format!("kubelet/{KUBERNETES_VERSION} rubelet/{RUBELET_VERSION}");
    let identity = ClientIdentity {
        kubeconfig,
        bootstrap_kubeconfig: bootstrap.map(PathBuf::as_path),
        cert_dir: &flags.cert_dir,
        node: node_name,
        rotate: config.rotate_certificates,
        agent: &agent,
        wall: Arc::new(SystemClock),
    };
    let identity = identity
        .establish()
        .await
        .with_context(|| format!("joining the cluster of --kubeconfig {}", kubeconfig.display()))?;
    identity.connection.set_meter(metrics.clone());
    let (per_second, burst) = call_rate(config);
    identity.connection.set_call_rate(per_second, burst);
    let (connection, ends) = (identity.connection.clone(), stop.clone());
    essential.spawn("credential file watch", async move { connection.watch_credential_files(ends).await });
    let rotation = identity.rotation.map(|(rotator, rotation)| {
        essential.spawn("client certificate rotation", rotator.run(stop.clone()));
        metrics.register_certificate("client", certificate_expiry(&rotation));
        rotation
    });
    let api = Api::new(identity.connection);
    let mut ports = apiserver::cluster_ports(&api);
    if let Some(every) = object_poll_interval(config) {
        ports.objects = Arc::new(PolledObjects::new(&api, every));
    }
    ports.node = Arc::new(MeteredNodeApi::new(ports.node, metrics.clone()));
    Ok(Some(Cluster { api, ports, rotation }))
}

/// Calls per second, and at once after a quiet time. Zero means the client library's default, as upstream.
fn call_rate(config: &KubeletConfiguration) -> (u32, u32) {
    let or = |number: i32, default| u32::try_from(number).ok().filter(|n| *n != 0).unwrap_or(default);
    (or(config.kube_api_qps, 5), or(config.kube_api_burst, 10))
}

/// `None`: config maps and secrets are watched.
fn object_poll_interval(config: &KubeletConfiguration) -> Option<Duration> {
    match config.config_map_and_secret_change_detection_strategy.as_str() {
        "Get" => Some(config.sync_frequency.to_std()),
        "Cache" => Some(OBJECT_CACHE_TTL),
        _ => None,
    }
}

fn certificate_expiry(rotation: &RotationStatus) -> CertificateFigures {
    let (rotation, held) = (rotation.clone(), rotation.held());
    Arc::new(move || (held.borrow().as_ref().map(|held| held.not_after), rotation.renew_errors()))
}

/// The pair is where upstream keeps it, certificates and key in one file.
async fn install_certificate(slot: &ServingCertificate, file: &Path) {
    let place = file.display().to_string();
    let shown = match tokio::fs::read(file).await {
        Ok(text) => slot.set_pem(&place, &text, &text).map_err(anyhow::Error::new),
        Err(error) => Err(anyhow::Error::new(error).context(place)),
    };
    match shown {
        Ok(()) => tracing::info!("the secure port uses a serving certificate issued by the cluster"),
        Err(error) => tracing::error!("installing the serving certificate failed: {error:#}"),
    }
}

fn path(flag: &Option<PathBuf>) -> Option<&PathBuf> {
    flag.as_ref().filter(|path| !path.as_os_str().is_empty())
}
