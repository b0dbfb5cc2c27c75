//! One reading of the usage of every cgroup.

use model::Wall;
use ports::{CgroupDetailLevel, CgroupUsage, MachineUsage, UsageReader};

use super::figures::{PodFigures, PodToRead};
use super::of_runtime::RuntimeFigures;
use super::{StatsError, StatsPorts, StatsSettings};
use crate::endpoints::ask_agent;

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
