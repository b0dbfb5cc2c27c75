//! Keeps the agent's own processes where the configuration wants them: its cgroup, its OOM score, and the cgroup of all
//! that is left in the root.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use host::cgroup::{CgroupLayout, ProcessCgroup};

use crate::config::KubeletConfiguration;

/// Somebody may move the agent or the system's processes back, and nothing tells of it.
const PLACEMENT_PERIOD: Duration = Duration::from_secs(60);
/// Where only the score is to be kept.
const SCORE_PERIOD: Duration = Duration::from_secs(300);

pub struct ProcessPlacement {
    own: Option<ProcessCgroup>,
    system: Option<ProcessCgroup>,
    oom_score_adj: i32,
}

impl ProcessPlacement {
    pub fn new(config: &KubeletConfiguration, layout: &CgroupLayout) -> anyhow::Result<Self> {
        let cgroup = |path: &str| match path {
            "" => Ok(None),
            path => ProcessCgroup::new(layout.clone(), path)
                .map(Some)
                .with_context(|| format!("{path:?} is no cgroup that processes can be moved to")),
        };
        if !config.system_cgroups.is_empty() && config.system_cgroups.split('/').all(str::is_empty) {
            bail!("system container cannot be root (\"/\")");
        }
        Ok(Self {
            own: cgroup(&config.kubelet_cgroups).context("kubeletCgroups")?,
            system: cgroup(&config.system_cgroups).context("systemCgroups")?,
            oom_score_adj: config.oom_score_adj,
        })
    }

    /// Runs until it is cancelled. A failure is logged, and tried again the next time.
    pub async fn maintain(self) {
        let placement = std::sync::Arc::new(self);
        let period = match placement.own.is_some() || placement.system.is_some() {
            true => PLACEMENT_PERIOD,
            false => SCORE_PERIOD,
        };
        loop {
            let once = placement.clone();
            if let Err(error) = tokio::task::spawn_blocking(move || once.apply()).await {
                tracing::error!("placing processes in cgroups: {error}");
            }
            tokio::time::sleep(period).await;
        }
    }

    fn apply(&self) {
        // In a pid namespace of its own the agent can't say which process is whose.
        if !host::process::in_pid_namespace_of_init(Path::new("/proc")) {
            return;
        }
        let log = |what: &str, error: anyhow::Error| tracing::warn!("{what}: {error:#}");
        if let Some(own) = &self.own
            && let Err(error) = own.move_self()
        {
            log("moving this agent to kubeletCgroups", error.into());
        }
        if let Err(error) = host::process::set_oom_score_adj(self.oom_score_adj) {
            log("setting oomScoreAdj", error.into());
        }
        if let Some(system) = &self.system {
            // The agent has a place of its own if one is configured.
            let own_pid = self.own.as_ref().map(|_| std::process::id());
            match system.move_from_root(Path::new("/proc"), |pid| Some(pid) == own_pid) {
                Ok(0) => {}
                Ok(moved) => tracing::info!(moved, "moved processes of the root cgroup to systemCgroups"),
                Err(error) => log("moving processes to systemCgroups", error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(own: &str, system: &str) -> anyhow::Result<ProcessPlacement> {
        let config = KubeletConfiguration {
            kubelet_cgroups: own.into(),
            system_cgroups: system.into(),
            ..KubeletConfiguration::default()
        };
        ProcessPlacement::new(&config, &CgroupLayout::V2 { root: "/nowhere".into() })
    }

    #[test]
    fn cgroups_of_the_configuration() {
        let neither = placement("", "").unwrap();
        assert!(neither.own.is_none() && neither.system.is_none());
        let both = placement("/kubelet.slice", "/system").unwrap();
        assert!(both.own.is_some() && both.system.is_some());
        let refused = |own, system| format!("{:#}", placement(own, system).err().unwrap());
        assert_eq!(refused("", "/"), "system container cannot be root (\"/\")");
        assert!(refused("/a/../b", "").starts_with("kubeletCgroups: "));
    }
}
