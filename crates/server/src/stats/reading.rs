//! One look at everything that has a cgroup.

use std::sync::Arc;

use model::observed::{ContainerState, ObservedPod};
use model::volume::MeasuredVolume;
use model::{ContainerId, PodUid, Wall};
use ports::{
    AgentView, CgroupUsage, Depth, InterfaceFigures, MachineUsage, NamedUsage, PodInside, PodQuery,
    UsageReader,
};

use super::{StatsError, StatsSettings};
use crate::endpoints::ask;

pub(crate) struct PodFigures {
    pub namespace: String,
    pub name: String,
    pub uid: PodUid,
    /// As the driver spells it.
    pub cgroup: String,
    pub sandbox_id: String,
    pub sandbox: Option<NamedUsage>,
    pub started: Wall,
    pub usage: Option<CgroupUsage>,
    pub interfaces: Vec<InterfaceFigures>,
    pub containers: Vec<ContainerFigures>,
    pub volumes: Vec<MeasuredVolume>,
}

pub(crate) struct ContainerFigures {
    pub id: ContainerId,
    pub name: String,
    pub started: Wall,
    pub log_dir: String,
    pub image: String,
    pub cgroup: String,
    pub usage: CgroupUsage,
}

/// A part of the system that has a cgroup of its own.
pub(crate) struct SystemFigures {
    pub name: &'static str,
    pub cgroup: String,
    pub started: Option<Wall>,
    pub usage: CgroupUsage,
}

pub(crate) struct Reading {
    pub depth: Depth,
    pub machine: MachineUsage,
    pub system: Vec<SystemFigures>,
    /// Cgroups between the pods' root and the pods: one per class of service. With [`Depth::Full`].
    pub classes: Vec<(String, CgroupUsage)>,
    pub pods: Vec<PodFigures>,
}

pub(super) async fn read(
    agent: &dyn AgentView,
    usage: &dyn UsageReader,
    settings: &StatsSettings,
    depth: Depth,
) -> Result<Reading, StatsError> {
    let machine = usage.machine(depth).await.map_err(StatsError::Machine)?;
    let wanted: Vec<_> = ask(agent.insides()).await?.iter().filter_map(Wanted::of).collect();
    let queries = wanted.iter().map(|pod| pod.query.clone()).collect();
    let found = usage.pods(queries, depth).await.map_err(StatsError::Machine)?;
    let pods: Vec<_> = wanted.into_iter().zip(found).map(|(pod, found)| pod.with(found)).collect();
    let system = system(usage, settings, depth).await?;
    let classes = match depth {
        Depth::Basic => Vec::new(),
        Depth::Full => classes(usage, &pods, settings).await?,
    };
    Ok(Reading { depth, machine, system, classes, pods })
}

/// A pod with a sandbox and a cgroup: only these have figures.
struct Wanted {
    inside: PodInside,
    query: PodQuery,
    observed: Arc<ObservedPod>,
    /// Which of its containers run, by name.
    running: Vec<usize>,
    started: Wall,
}

impl Wanted {
    fn of(inside: &PodInside) -> Option<Self> {
        let observed = inside.observed.as_ref()?;
        let sandbox = observed.sandboxes.iter().find(|sandbox| sandbox.ready)?;
        let containers = &observed.containers;
        let runs = |index: &usize| containers[*index].state == ContainerState::Running;
        let mut running: Vec<usize> = (0..containers.len()).filter(runs).collect();
        running.sort_by(|a, b| containers[*a].name.cmp(&containers[*b].name));
        let query = PodQuery {
            cgroup: inside.cgroup.clone()?,
            sandbox: sandbox.id.to_string(),
            containers: running.iter().map(|index| containers[*index].id.to_string()).collect(),
            own_network: sandbox.network != model::cri::NamespaceMode::Node,
        };
        let (started, observed) = (sandbox.created_at, observed.clone());
        Some(Self { inside: inside.clone(), query, observed, running, started })
    }

    fn with(self, found: ports::PodUsage) -> PodFigures {
        let containers = self.running.iter().zip(found.containers).filter_map(|(index, found)| {
            let (container, found) = (&self.observed.containers[*index], found?);
            Some(ContainerFigures {
                id: container.id.clone(),
                name: container.name.clone(),
                started: container.started_at,
                log_dir: container.log_path.rsplit_once('/').map_or("", |(dir, _)| dir).to_owned(),
                image: container.image.clone(),
                cgroup: found.path,
                usage: found.usage,
            })
        });
        let containers = containers.collect();
        let meta = &self.inside.pod.metadata;
        PodFigures {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            uid: self.inside.uid,
            cgroup: self.query.cgroup,
            sandbox_id: self.query.sandbox,
            sandbox: found.sandbox,
            started: self.started,
            usage: found.whole,
            interfaces: found.interfaces,
            containers,
            volumes: self.inside.volumes,
        }
    }
}

async fn system(
    usage: &dyn UsageReader,
    settings: &StatsSettings,
    depth: Depth,
) -> Result<Vec<SystemFigures>, StatsError> {
    let own = usage.own_cgroup().await;
    let named = [
        ("kubelet", own),
        ("runtime", settings.runtime_cgroup.clone()),
        ("misc", settings.system_cgroup.clone()),
        ("pods", settings.pods_cgroup.clone()),
    ];
    let named: Vec<_> = named.into_iter().filter_map(|(name, cgroup)| Some((name, cgroup?))).collect();
    let paths = named.iter().map(|(_, cgroup)| cgroup.clone()).collect();
    let found = usage.cgroups(paths, depth).await.map_err(StatsError::Machine)?;
    let mut system = Vec::new();
    for ((name, cgroup), found) in named.into_iter().zip(found) {
        let Some(found) = found else { continue };
        let started = match name {
            "kubelet" => crate::process::start(),
            _ => usage.cgroup_start(&cgroup).await,
        };
        system.push(SystemFigures { name, cgroup, started, usage: found });
    }
    Ok(system)
}

async fn classes(
    usage: &dyn UsageReader,
    pods: &[PodFigures],
    settings: &StatsSettings,
) -> Result<Vec<(String, CgroupUsage)>, StatsError> {
    let parents =
        pods.iter().filter_map(|pod| pod.cgroup.rsplit_once('/')).map(|(parent, _)| parent.to_owned());
    let root = settings.pods_cgroup.as_deref().unwrap_or_default();
    let parents = parents.filter(|parent| !parent.is_empty() && parent != root);
    let parents: Vec<String> = parents.collect::<std::collections::BTreeSet<_>>().into_iter().collect();
    let found = usage.cgroups(parents.clone(), Depth::Full).await.map_err(StatsError::Machine)?;
    Ok(parents.into_iter().zip(found).filter_map(|(path, usage)| Some((path, usage?))).collect())
}
