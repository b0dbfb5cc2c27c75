//! Joining a cluster: who this node is there, and what it stands on then.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use apiserver::certificates::{ClientIdentity, Loss, Rotation};
use apiserver::{Api, ApiPodFeed};
use host::clock::SystemClock;
use ports::{ClusterPorts, PodFeed};
use tokio_util::sync::CancellationToken;

use crate::config::KubeletConfiguration;
use crate::flags::{Flags, KUBERNETES_VERSION, RUBELET_VERSION};

pub struct Cluster {
    pub api: Api,
    pub ports: ClusterPorts,
    rotation: Option<Rotation>,
}

impl Cluster {
    pub fn feed(&self, node_name: &str) -> Box<dyn PodFeed> {
        Box::new(ApiPodFeed::new(&self.api, node_name))
    }

    /// Ends when the node has lost its identity for good, and another start could give it a new one.
    pub async fn lost(&self) -> Loss {
        match &self.rotation {
            Some(rotation) => rotation.lost(&SystemClock).await,
            None => std::future::pending().await,
        }
    }
}

/// `None`: no `--kubeconfig`, so the node stands alone. Without rotation a first certificate is waited for here.
pub async fn join(
    flags: &Flags,
    config: &KubeletConfiguration,
    node_name: &str,
    stop: &CancellationToken,
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
    let (connection, ends) = (identity.connection.clone(), stop.clone());
    tokio::spawn(async move { connection.follow_files(ends).await });
    let rotation = identity.rotation.map(|(rotator, rotation)| {
        tokio::spawn(rotator.run(stop.clone()));
        rotation
    });
    let api = Api::new(identity.connection);
    let ports = apiserver::cluster_ports(&api);
    Ok(Some(Cluster { api, ports, rotation }))
}

fn path(flag: &Option<PathBuf>) -> Option<&PathBuf> {
    flag.as_ref().filter(|path| !path.as_os_str().is_empty())
}
