//! Directories, volumes and log files of pods on this node's disk.
//!
//! Pods name things (uids, volumes, sub-paths) and containers write into volumes; both may be hostile, while
//! this code runs as root. Hence three rules: names are single path components, what lies inside a volume is
//! opened through descriptors that can't leave it, and no mount point that is not ours is entered or removed.
//!
//! ```text
//! <root>/pods/<uid>/volumes/kubernetes.io~empty-dir/<volume>   written by containers, maybe a tmpfs
//!                  /plugins/kubernetes.io~empty-dir/<volume>/ready
//!                  /volumes/kubernetes.io~configmap/<volume>   content from the cluster (also ~secret, ~projected,
//!                                                              ~downward-api, these on a tmpfs), see `content`
//!                  /volumes/kubernetes.io~local-volume/<pv>        bind mount of a directory or disk (also ~nfs), see
//!                                                              `persistent`: the content is not the pod's
//!                  /volumeDevices/kubernetes.io~local-volume/<pv>  link to a device, see `device_map`
//!                  /volume-subpaths/<volume>/<container>/<n>   bind mounts of a volume's inside
//!                  /containers/<container>/<id>                termination messages, written by containers
//!                  /etc-hosts
//!                  /userns                                     ids of the host that are the pod's
//! ```
//!
//! All of it is blocking work. Work on volumes may hang on a server, so it runs on dedicated threads (`workers`); the
//! rest runs on tokio's blocking threads.

mod confined_open;
mod container;
mod content;
mod csi;
mod device_map;
mod disk;
mod disk_use;
mod empty_dir;
mod env_file;
mod fs_group;
mod host_path;
mod layout;
mod log_files;
mod node;
mod persistent;
mod program;
mod steps;
mod sub_path;
mod tear_down;
mod termination;
mod tree;
mod user_ids;
mod volume_notices;
mod workers;

pub(crate) use confined_open::{open_subdir_on_same_mount, open_without_symlinks};
pub(crate) use steps::step;
#[cfg(test)]
pub(crate) use tree::remove_tree;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use model::cri::IdMapping;
use model::files::{ContainerFiles, EnvFile, TerminationMessageRequest};
use model::user_namespace::UserNamespaceScan;
use model::volume::{VolumeKind, VolumeSetup};
use model::{FullName, PodUid};
use ports::{FilesError, LeftoverFiles, PodFiles};

use crate::quota::ProjectQuotas;
use layout::FilesLayout;
use steps::WorkProgress;
use workers::{VolumeWorkers, WorkScope};

pub use csi::HostCsiFiles;
pub use volume_notices::HostVolumeNotices;

/// How long the disk may take for a termination message. It is far shorter than for a volume, because a reading of the
/// runtime waits for it.
const MESSAGE_STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// [`PodFiles`] on the real disk.
#[derive(Clone, Debug)]
pub struct HostPodFiles {
    layout: Arc<FilesLayout>,
    workers: VolumeWorkers,
    /// Workers for termination messages, which are read while volumes of the same pod hang.
    message_workers: VolumeWorkers,
    quotas: ProjectQuotas,
}

impl HostPodFiles {
    /// `root_dir` is the agent's own directory, `links_dir` usually `/var/log/containers`.
    pub fn new(
        root_dir: impl Into<PathBuf>,
        pod_logs_dir: impl Into<PathBuf>,
        links_dir: impl Into<PathBuf>,
    ) -> Self {
        let (root, pod_logs, links) = (root_dir.into(), pod_logs_dir.into(), links_dir.into());
        Self {
            layout: Arc::new(FilesLayout { root, pod_logs, log_links_dir: links }),
            workers: VolumeWorkers::new(),
            message_workers: VolumeWorkers::with_stall_timeout(MESSAGE_STALL_TIMEOUT),
            quotas: ProjectQuotas::default(),
        }
    }

    pub fn with_quotas(self, quotas: ProjectQuotas) -> Self {
        Self { quotas, ..self }
    }

    /// Sends notices about the work there.
    pub fn reporting_to(self, news: &HostVolumeNotices) -> Self {
        Self { workers: self.workers.reporting_to(news.sender()), ..self }
    }

    /// Runs work on a worker thread, because what is mounted may hang.
    async fn run_on_worker(
        &self,
        uid: &PodUid,
        lane: WorkScope<'_>,
        what: String,
        work: impl FnOnce(&FilesLayout, &PodUid) -> Result<(), FilesError> + Send + 'static,
    ) -> Result<(), FilesError> {
        let (layout, own_uid) = (Arc::clone(&self.layout), uid.clone());
        self.workers.run(uid, lane, what, move |_| work(&layout, &own_uid)).await
    }

    async fn blocking<T: Send + 'static>(&self, work: impl FnOnce(&FilesLayout) -> T + Send + 'static) -> T {
        let layout = Arc::clone(&self.layout);
        match tokio::task::spawn_blocking(move || work(&layout)).await {
            Ok(value) => value,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The tokio runtime is shutting down, and with it the task that waits here.
            Err(_) => std::future::pending().await,
        }
    }
}

#[async_trait]
impl PodFiles for HostPodFiles {
    async fn prepare_node(&self) -> Result<(), FilesError> {
        let quotas = self.quotas.clone();
        self.blocking(move |layout| {
            node::prepare(layout)?;
            quotas.prepare(&layout.pods());
            Ok(())
        })
        .await
    }

    async fn make_pod_dirs(&self, uid: &PodUid, log_dir: &str) -> Result<(), FilesError> {
        let (uid, log_dir) = (uid.clone(), log_dir.to_owned());
        self.blocking(move |layout| container::make_pod_dirs(layout, &uid, &log_dir)).await
    }

    async fn set_up_volume(&self, uid: &PodUid, volume: &VolumeSetup) -> Result<(), FilesError> {
        let wanted = volume.clone();
        let what = format!("setting up volume {:?}", volume.name);
        let lane = WorkScope::Volume(&volume.name);
        let shared = match &volume.kind {
            VolumeKind::Local(local) => {
                let local = local.clone();
                self.workers
                    .run(uid, lane, what.clone(), move |_| Ok(persistent::shared_resources(&local)))
                    .await?
            }
            VolumeKind::Device(device) => {
                vec![device_map::lock_name(&device_map::volume_of(Path::new(&device.paths.map)))]
            }
            _ => Vec::new(),
        };
        let (layout, own_uid) = (Arc::clone(&self.layout), uid.clone());
        let quotas = self.quotas.clone();
        let work = move |_: &WorkProgress| set_up(&layout, &quotas, &own_uid, &wanted);
        self.workers.run_on(uid, lane, &shared, what, work).await
    }

    async fn disk_use(&self, uid: &PodUid, paths: &[String]) -> Result<Vec<u64>, FilesError> {
        let known = |path: &String| self.layout.in_pod(uid, path).or_else(|_| self.layout.in_pod_logs(path));
        let paths = paths.iter().map(known).collect::<Result<Vec<_>, _>>()?;
        let quotas = self.quotas.clone();
        let measure = move |path: &PathBuf| match quotas.usage(path) {
            Some(figures) => Ok(figures.bytes),
            None => disk_use::measure(path),
        };
        let work = move |_: &WorkProgress| paths.iter().map(measure).collect();
        self.workers.run(uid, WorkScope::Measuring, format!("measuring the storage of pod {uid}"), work).await
    }

    async fn write_user_ids(&self, uid: &PodUid, ids: &IdMapping) -> Result<(), FilesError> {
        let (uid, ids) = (uid.clone(), ids.clone());
        self.blocking(move |layout| user_ids::write(layout, &uid, &ids)).await
    }

    async fn user_ids(&self) -> UserNamespaceScan {
        self.blocking(user_ids::read_all).await
    }

    async fn read_env_file(&self, uid: &PodUid, file: &EnvFile) -> Result<String, FilesError> {
        let (layout, own_uid, wanted) = (Arc::clone(&self.layout), uid.clone(), file.clone());
        let what = format!("reading variables from {} in volume {}", file.path, file.volume);
        let work = move |_: &WorkProgress| env_file::read(&layout, &own_uid, &wanted);
        self.workers.run(uid, WorkScope::Volume(&file.volume), what, work).await
    }

    async fn prepare_container(&self, uid: &PodUid, files: &ContainerFiles) -> Result<(), FilesError> {
        let wanted = files.clone();
        let work = move |layout: &FilesLayout, uid: &PodUid| container::prepare(layout, uid, &wanted);
        let what = format!("preparing files and sub-paths for {}", files.log_dir);
        self.run_on_worker(uid, WorkScope::Container(&files.log_dir), what, work).await
    }

    async fn link_log(&self, pod: &FullName, container: &str, id: &str, log: &str) -> Result<(), FilesError> {
        let (name, log) = (log_files::link_name(pod, container, id), log.to_owned());
        self.blocking(move |layout| log_files::link(layout, &name, &log)).await
    }

    async fn remove_container_logs(&self, log: &str) -> Result<(), FilesError> {
        let log = log.to_owned();
        self.blocking(move |layout| log_files::remove_logs(layout, &log)).await
    }

    async fn highest_log_number(&self, container_log_dir: &str) -> Result<Option<u32>, FilesError> {
        let dir = container_log_dir.to_owned();
        self.blocking(move |layout| log_files::highest_number(layout, &dir)).await
    }

    async fn termination_message(&self, request: &TerminationMessageRequest) -> String {
        let (layout, wanted) = (Arc::clone(&self.layout), request.clone());
        let work = move |_: &WorkProgress| Ok(termination::message(&layout, &wanted));
        let what = format!("reading the termination message of container {}", request.container);
        let lane = WorkScope::Container(&request.container);
        let message = self.message_workers.run(&request.pod, lane, what, work).await;
        message.unwrap_or_else(|error| format!("Error on reading termination log: {}", error.user_message()))
    }

    async fn tear_down_volumes(&self, uid: &PodUid) -> Result<(), FilesError> {
        let what = format!("tearing down the volumes of pod {uid}");
        let pod = self.layout.pod(uid)?;
        let (layout, own, own_uid) = (Arc::clone(&self.layout), pod.clone(), uid.clone());
        let (pods, quotas) = (self.layout.pods(), self.quotas.clone());
        let work = move |_: &WorkProgress| {
            let torn_down = tear_down::tear_down_volumes(&own);
            quotas.release_gone(&pods);
            let devices = device_map::local_names(&layout, &own, &own_uid)?;
            Ok((torn_down, persistent::local_names(&own)?, devices))
        };
        let (mut result, local, devices) = self.workers.run(uid, WorkScope::Pod, what.clone(), work).await?;
        for name in local {
            let (layout, pod) = (Arc::clone(&self.layout), pod.clone());
            let shared = [persistent::device_mount_name(&name)];
            let work = move |_: &WorkProgress| persistent::release_local_volume(&layout, &pod, &name);
            let given_up = self.workers.run_on(uid, WorkScope::Pod, &shared, what.clone(), work).await;
            result = result.and(given_up);
        }
        for name in devices {
            let (layout, pod, own_uid) = (Arc::clone(&self.layout), pod.clone(), uid.clone());
            let shared = [device_map::lock_name(&name)];
            let work = move |_: &WorkProgress| device_map::release_local(&layout, &pod, &own_uid, &name);
            let released = self.workers.run_on(uid, WorkScope::Pod, &shared, what.clone(), work).await;
            result = result.and(released);
        }
        result
    }

    async fn remove_pod_dir(&self, uid: &PodUid) -> Result<(), FilesError> {
        let work = |layout: &FilesLayout, uid: &PodUid| tear_down::remove_pod_dir(&layout.pod(uid)?);
        self.run_on_worker(uid, WorkScope::Pod, format!("removing the directory of pod {uid}"), work).await
    }

    async fn remove_log_dir(&self, name: &str) -> Result<(), FilesError> {
        let name = name.to_owned();
        self.blocking(move |layout| log_files::remove_dir(layout, &name)).await
    }

    async fn remove_link(&self, name: &str) -> Result<(), FilesError> {
        let name = name.to_owned();
        self.blocking(move |layout| log_files::remove_link(layout, &name)).await
    }

    async fn leftovers(&self) -> Result<LeftoverFiles, FilesError> {
        self.blocking(log_files::leftovers).await
    }
}

fn set_up(
    layout: &FilesLayout,
    quotas: &ProjectQuotas,
    uid: &PodUid,
    volume: &VolumeSetup,
) -> Result<(), FilesError> {
    match &volume.kind {
        VolumeKind::EmptyDir { path, ready_marker, medium, fs_group, project_quota } => {
            let path = layout.in_pod(uid, path)?;
            let ready_marker = layout.in_pod(uid, ready_marker)?;
            if *project_quota {
                empty_dir::assign_quota(&path, &ready_marker, quotas)?;
            }
            empty_dir::set_up(&path, &ready_marker, medium, *fs_group)
        }
        VolumeKind::HostPath { path, check } => host_path::check(path, *check),
        VolumeKind::Content(content) => content::set_up(&layout.in_pod(uid, &content.path)?, content),
        VolumeKind::Csi(csi) => Err(FilesError::Refused {
            message: format!("the volume is set up by the storage driver {}", csi.id.driver),
        }),
        VolumeKind::Local(local) => {
            persistent::set_up_local(layout, &layout.in_pod(uid, &local.target)?, local)
        }
        VolumeKind::Nfs(nfs) => persistent::set_up_nfs(&layout.in_pod(uid, &nfs.target)?, nfs),
        VolumeKind::Device(device) => device_map::set_up_local(layout, uid, device),
    }
}

#[cfg(test)]
mod attacks;
#[cfg(test)]
mod hung;
#[cfg(test)]
pub(crate) mod killed;
#[cfg(test)]
mod killed_csi;
#[cfg(test)]
mod root_mismatch;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
