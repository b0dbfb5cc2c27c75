//! One reading of the usage of every cgroup.

use std::sync::Arc;

use model::cri::FilesystemUsage;
use model::observed::{ContainerState, ObservedPod};
use model::volume::MeasuredVolume;
use model::{ContainerId, PodUid, Wall};
use ports::{
    CgroupDetailLevel, CgroupUsage, InterfaceFigures, MachineUsage, NamedUsage, PodCgroups, PodDetails,
    UsageReader,
};

use super::of_runtime::RuntimeFigures;
use super::{StatsError, StatsPorts, StatsSettings};
use crate::endpoints::ask_agent;

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
    /// The one that a summary shows by itself, where the runtime has told.
    pub default_interface: Option<InterfaceFigures>,
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
    /// Where the runtime has told it together with the rest.
    pub layer: Option<FilesystemUsage>,
}

/// A part of the system that has a cgroup of its own.
pub(crate) struct SystemContainerStats {
    pub name: &'static str,
    pub cgroup: String,
    pub started: Option<Wall>,
    pub usage: CgroupUsage,
}

pub(crate) struct StatsReading {
    pub depth: CgroupDetailLevel,
    pub machine: MachineUsage,
    pub system: Vec<SystemContainerStats>,
    /// Cgroups between the pods' root and the pods: one per class of service. With [`CgroupDetailLevel::Full`].
    pub qos_cgroups: Vec<(String, CgroupUsage)>,
    pub pods: Vec<PodFigures>,
    /// The usage of pods and containers is from the runtime.
    pub is_of_runtime: bool,
}

pub(super) async fn read(
    ports: &StatsPorts,
    of_runtime: &RuntimeFigures,
    settings: &StatsSettings,
    depth: CgroupDetailLevel,
) -> Result<StatsReading, StatsError> {
    let usage = &*ports.usage;
    let machine = usage.machine(depth).await.map_err(StatsError::Machine)?;
    let insides = ask_agent(ports.agent.all_pod_details()).await?;
    let wanted = || insides.iter().filter_map(PodToRead::of);
    let told = match settings.stats_from_runtime {
        true => of_runtime.pods(&*ports.runtime, wanted().collect(), ports.wall.wall()).await?,
        false => None,
    };
    let is_of_runtime = told.is_some();
    let pods = match told {
        Some(pods) => pods,
        None => {
            of_cgroups(usage, wanted().filter(|pod| pod.inside.cgroup.is_some()).collect(), depth).await?
        }
    };
    let system = system(usage, settings, depth).await?;
    let classes = match depth {
        CgroupDetailLevel::Basic => Vec::new(),
        CgroupDetailLevel::Full => qos_cgroups(usage, &pods, settings).await?,
    };
    Ok(StatsReading { depth, machine, system, qos_cgroups: classes, pods, is_of_runtime })
}

async fn of_cgroups(
    usage: &dyn UsageReader,
    wanted: Vec<PodToRead>,
    depth: CgroupDetailLevel,
) -> Result<Vec<PodFigures>, StatsError> {
    let queries = wanted.iter().map(|pod| pod.query.clone()).collect();
    let found = usage.pods(queries, depth).await.map_err(StatsError::Machine)?;
    Ok(wanted.into_iter().zip(found).map(|(pod, found)| pod.with(found)).collect())
}

/// A pod with a sandbox: only these have figures. A cgroup is needed as well where they come from there.
pub(super) struct PodToRead {
    inside: PodDetails,
    query: PodCgroups,
    observed: Arc<ObservedPod>,
    /// Which of its containers run, by name.
    running: Vec<usize>,
    started: Wall,
}

impl PodToRead {
    fn of(inside: &PodDetails) -> Option<Self> {
        let observed = inside.observed.as_ref()?;
        let sandbox = observed.sandboxes.iter().find(|sandbox| sandbox.ready)?;
        let containers = &observed.containers;
        let runs = |index: &usize| containers[*index].state == ContainerState::Running;
        let mut running: Vec<usize> = (0..containers.len()).filter(runs).collect();
        running.sort_by(|a, b| containers[*a].name.cmp(&containers[*b].name));
        let query = PodCgroups {
            cgroup: inside.cgroup.clone().unwrap_or_default(),
            sandbox: sandbox.id.to_string(),
            containers: running.iter().map(|index| containers[*index].id.to_string()).collect(),
            own_network: sandbox.network != model::cri::NamespaceMode::Node,
        };
        let (started, observed) = (sandbox.created_at, observed.clone());
        Some(Self { inside: inside.clone(), query, observed, running, started })
    }

    pub fn sandbox_id(&self) -> &str {
        &self.query.sandbox
    }

    fn with(self, found: ports::PodCgroupUsage) -> PodFigures {
        let mut containers = found.containers.into_iter();
        // They are in the order of the question, which is that of the figures.
        let of_container = |_: &str| containers.next().flatten().map(|found| (found.path, found.usage, None));
        let mut figures = self.figures(of_container);
        figures.sandbox = found.sandbox;
        figures.usage = found.whole;
        figures.interfaces = found.interfaces;
        figures
    }

    /// With what is found of each running container: its cgroup, its numbers and its layer.
    pub fn figures(
        self,
        mut of_container: impl FnMut(&str) -> Option<(String, CgroupUsage, Option<FilesystemUsage>)>,
    ) -> PodFigures {
        let containers = self.running.iter().filter_map(|index| {
            let container = &self.observed.containers[*index];
            let (cgroup, usage, layer) = of_container(container.id.as_str())?;
            Some(ContainerFigures {
                id: container.id.clone(),
                name: container.name.clone(),
                started: container.started_at,
                log_dir: container.log_path.rsplit_once('/').map_or("", |(dir, _)| dir).to_owned(),
                image: container.image.clone(),
                cgroup,
                usage,
                layer,
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
            sandbox: None,
            started: self.started,
            usage: None,
            interfaces: Vec::new(),
            default_interface: None,
            containers,
            volumes: self.inside.volumes,
        }
    }
}

async fn system(
    usage: &dyn UsageReader,
    settings: &StatsSettings,
    depth: CgroupDetailLevel,
) -> Result<Vec<SystemContainerStats>, StatsError> {
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
        system.push(SystemContainerStats { name, cgroup, started, usage: found });
    }
    Ok(system)
}

async fn qos_cgroups(
    usage: &dyn UsageReader,
    pods: &[PodFigures],
    settings: &StatsSettings,
) -> Result<Vec<(String, CgroupUsage)>, StatsError> {
    let parents =
        pods.iter().filter_map(|pod| pod.cgroup.rsplit_once('/')).map(|(parent, _)| parent.to_owned());
    let root = settings.pods_cgroup.as_deref().unwrap_or_default();
    let parents = parents.filter(|parent| !parent.is_empty() && parent != root);
    let parents: Vec<String> = parents.collect::<std::collections::BTreeSet<_>>().into_iter().collect();
    let found = usage.cgroups(parents.clone(), CgroupDetailLevel::Full).await.map_err(StatsError::Machine)?;
    Ok(parents.into_iter().zip(found).filter_map(|(path, usage)| Some((path, usage?))).collect())
}
