//! Pods and containers with their usage.

use std::sync::Arc;

use model::cri::FilesystemUsage;
use model::observed::{ContainerState, ObservedPod};
use model::volume::MeasuredVolume;
use model::{ContainerId, PodUid, Wall};
use ports::{CgroupUsage, InterfaceFigures, NamedUsage, PodCgroups, PodDetails};

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

/// A pod with a sandbox: only these have figures. A cgroup is needed as well where they come from there.
pub(super) struct PodToRead {
    pub inside: PodDetails,
    pub query: PodCgroups,
    observed: Arc<ObservedPod>,
    /// Which of its containers run, by name.
    running: Vec<usize>,
    started: Wall,
}

impl PodToRead {
    pub fn of(inside: &PodDetails) -> Option<Self> {
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

    pub fn with(self, found: ports::PodCgroupUsage) -> PodFigures {
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
