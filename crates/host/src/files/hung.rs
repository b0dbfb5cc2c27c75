//! Tests with a filesystem whose server never answers: a real one, by the kernel's protocol for such servers.

use std::ffi::CString;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use model::PodUid;
use model::csi::VolumeRecord;
use model::files::TerminationMessageRequest;
use model::volume::{EmptyDirMedium, HostPathCheck, VolumeKind, VolumeSetup};
use ports::{CsiFiles, FilesError, PodFiles};
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountFlags;

use super::testing::Mounts;
use super::workers::VolumeWorkers;
use super::{HostCsiFiles, HostPodFiles};

/// The server is this descriptor, from which nothing is read. When it is dropped, all pending calls fail.
struct DeadServer(#[allow(dead_code)] OwnedFd);

fn mount_dead_server(at: &Path) -> DeadServer {
    let server = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
    let options = CString::new(options).unwrap();
    rustix::mount::mount("dead", at, "fuse", MountFlags::empty(), options.as_c_str()).unwrap();
    DeadServer(server)
}

struct Bench {
    mounts: Mounts,
    temp: tempfile::TempDir,
    files: HostPodFiles,
}

async fn bench() -> Bench {
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str| temp.path().join(name);
    let lanes = VolumeWorkers::with_stall_timeout(Duration::from_secs(4));
    let message_lanes = VolumeWorkers::with_stall_timeout(Duration::from_secs(4));
    let new = HostPodFiles::new(at("root"), at("logs"), at("links"));
    let files = HostPodFiles { workers: lanes, message_workers: message_lanes, ..new };
    let mounts = Mounts::below(temp.path());
    files.prepare_node().await.unwrap();
    Bench { mounts, files, temp }
}

impl Bench {
    async fn pod(&self, uid: &str) -> PodUid {
        let uid = PodUid::new(uid);
        let log_dir = self.temp.path().join(format!("logs/ns_p_{uid}"));
        self.files.make_pod_dirs(&uid, log_dir.to_str().unwrap()).await.unwrap();
        uid
    }

    async fn set_up_empty_dir(&self, uid: &PodUid, medium: EmptyDirMedium) -> Result<(), FilesError> {
        let pod = self.temp.path().join(format!("root/pods/{uid}"));
        let pod = pod.to_str().unwrap();
        let kind = VolumeKind::EmptyDir {
            path: format!("{pod}/volumes/kubernetes.io~empty-dir/v"),
            ready_marker: format!("{pod}/plugins/kubernetes.io~empty-dir/v/ready"),
            medium,
            fs_group: None,
            project_quota: false,
        };
        self.files.set_up_volume(uid, &VolumeSetup { name: "v".into(), spec_name: "v".into(), kind }).await
    }

    async fn take_away(&self, uid: &PodUid) -> Result<(), FilesError> {
        self.files.tear_down_volumes(uid).await?;
        self.files.remove_pod_dir(uid).await
    }
}

#[tokio::test]
async fn a_dead_server_holds_up_its_own_pod_only() {
    let b = bench().await;
    let before = b.mounts.count();
    let share = b.temp.path().join("share");
    fs::create_dir(&share).unwrap();
    let server = mount_dead_server(&share);
    let bad = b.pod("bad").await;
    let kind = VolumeKind::HostPath {
        path: share.join("inside").to_str().unwrap().into(),
        check: HostPathCheck::Directory,
    };
    let volume = VolumeSetup { name: "share".into(), spec_name: "share".into(), kind };
    let hangs = |result: Result<(), FilesError>, what: &str| {
        let error = result.expect_err(what);
        assert!(matches!(error, FilesError::Hung { .. }), "{what}: {error:?}");
        assert!(error.to_string().starts_with(what), "{error}");
    };
    hangs(b.files.set_up_volume(&bad, &volume).await, "setting up volume \"share\"");
    let (again, away) = tokio::join!(b.files.set_up_volume(&bad, &volume), b.take_away(&bad));
    hangs(again, "setting up volume \"share\"");
    hangs(away, "tearing down the volumes of pod bad");

    // Meanwhile the pod's other volumes, and a hundred other pods, can be set up and torn down.
    b.set_up_empty_dir(&bad, EmptyDirMedium::Disk).await.unwrap();
    let others = (0..100).map(|number| {
        let b = &b;
        async move {
            let uid = b.pod(&format!("good-{number}")).await;
            let medium = match number % 2 {
                0 => EmptyDirMedium::Disk,
                _ => EmptyDirMedium::Memory { size_bytes: Some(1 << 16) },
            };
            b.set_up_empty_dir(&uid, medium).await.unwrap();
            b.take_away(&uid).await.unwrap();
        }
    });
    futures::future::join_all(others).await;

    // The administrator ends the server: the hung calls fail, and the pod can be removed.
    drop(server);
    let after = wait_for_the_end(&b, &bad).await;
    assert!(after.is_ok(), "{after:?}");
    assert_eq!(b.mounts.count(), before + 1, "the share itself is not ours");
    assert!(!b.temp.path().join("root/pods/bad").exists());
}

async fn wait_for_the_end(b: &Bench, uid: &PodUid) -> Result<(), FilesError> {
    for _ in 0..100 {
        match b.take_away(uid).await {
            Err(FilesError::Hung { .. }) => {}
            other => return other,
        }
    }
    b.take_away(uid).await
}

/// Another process has mounted it in a volume of the pod: we must neither remove it nor wait for it.
#[tokio::test]
async fn a_dead_server_inside_a_volume_is_left_alone() {
    let b = bench().await;
    let uid = b.pod("inner").await;
    b.set_up_empty_dir(&uid, EmptyDirMedium::Disk).await.unwrap();
    let volume = b.temp.path().join("root/pods/inner/volumes/kubernetes.io~empty-dir/v");
    fs::create_dir(volume.join("mounted")).unwrap();
    fs::write(volume.join("own"), "x").unwrap();
    let server = mount_dead_server(&volume.join("mounted"));
    let error = b.take_away(&uid).await.unwrap_err();
    assert!(matches!(&error, FilesError::Mounted { path } if path.ends_with("mounted")), "{error:?}");
    assert!(!volume.join("own").exists(), "what is the pod's goes all the same");
    drop(server);
    rustix::mount::unmount(volume.join("mounted"), rustix::mount::UnmountFlags::NOFOLLOW).unwrap();
    b.take_away(&uid).await.unwrap();
    assert!(!b.temp.path().join("root/pods/inner").exists());
}

/// A reading of the runtime waits for termination messages, so no message may wait for a volume.
#[tokio::test]
async fn a_dead_server_holds_up_no_termination_message() {
    let b = bench().await;
    let share = b.temp.path().join("share");
    fs::create_dir(&share).unwrap();
    let server = mount_dead_server(&share);
    let bad = b.pod("bad").await;
    let own = b.temp.path().join("root/pods/bad/containers/c/0a1b2c3d");
    fs::create_dir_all(own.parent().unwrap()).unwrap();
    fs::write(&own, "the end").unwrap();
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let request = TerminationMessageRequest {
        pod: bad.clone(),
        container: "c".into(),
        mounted: vec![path(&share.join("inside")), path(&own)],
        log_fallback: None,
    };
    // Every worker thread for volumes of this pod is stuck.
    let volumes = ["a", "b", "c", "d"].map(|name| {
        let kind = VolumeKind::HostPath { path: path(&share.join(name)), check: HostPathCheck::Directory };
        VolumeSetup { name: name.into(), spec_name: name.into(), kind }
    });
    let stuck = volumes.iter().map(|volume| b.files.set_up_volume(&bad, volume));
    let stuck = futures::future::join_all(stuck);
    let message = async {
        let read = b.files.termination_message(&request);
        tokio::time::timeout(Duration::from_secs(60), read).await.expect("nothing to wait for")
    };
    let (stuck, message) = tokio::join!(stuck, message);
    assert!(stuck.iter().all(|result| matches!(result, Err(FilesError::Hung { .. }))), "{stuck:?}");
    assert_eq!(message, "the end");
    assert_eq!(b.files.termination_message(&request).await, "the end");
    drop(server);

    // The agent's own disk hangs: the read is abandoned, and the message says so.
    let pods = b.temp.path().join("root/pods");
    let server = mount_dead_server(&pods);
    let read = b.files.termination_message(&request);
    let message =
        tokio::time::timeout(Duration::from_secs(60), read).await.expect("a read that is left behind");
    let expect = "Error on reading termination log: reading the termination message of container c made no progress for";
    assert!(message.starts_with(expect), "{message}");
    drop(server);
    rustix::mount::unmount(&pods, rustix::mount::UnmountFlags::DETACH).unwrap();
    for _ in 0..100 {
        if b.files.termination_message(&request).await == "the end" {
            return;
        }
    }
    panic!("the message can't be read after the disk answers again");
}

/// CSI volumes, as they are on disk.
struct OfDrivers {
    root: std::path::PathBuf,
    files: HostCsiFiles,
}

impl OfDrivers {
    fn new(temp: &Path) -> Self {
        let root = temp.join("root");
        // Records are synced to the disk, which may be busy.
        let lanes = VolumeWorkers::with_stall_timeout(Duration::from_secs(20));
        Self { files: HostCsiFiles { workers: lanes, ..HostCsiFiles::new(&root) }, root }
    }

    fn record(handle: &str) -> VolumeRecord {
        VolumeRecord { driver_name: "d".into(), volume_handle: handle.into(), ..Default::default() }
    }

    /// The directory of a pod's volume, and its record.
    async fn publish(&self, uid: &str, name: &str) -> (String, String) {
        let dir = self.root.join(format!("pods/{uid}/volumes/kubernetes.io~csi/{name}"));
        let text = |name: &str| dir.join(name).to_str().unwrap().to_owned();
        let (place, record) = (text("mount"), text("vol_data.json"));
        self.files.write_record(&record, &Self::record(name)).await.unwrap();
        self.files.make_dir(&place).await.unwrap();
        (place, record)
    }
}

#[tokio::test]
async fn a_dead_server_behind_a_driver_holds_up_its_own_volume_only() {
    let temp = tempfile::tempdir().unwrap();
    let _mounts = Mounts::below(temp.path());
    let d = OfDrivers::new(temp.path());
    let staging = d.root.join("plugins/kubernetes.io/csi/d/abc/globalmount");
    let staging = staging.to_str().unwrap();
    let stage_record = staging.replace("globalmount", "vol_data.json");
    d.files.write_record(&stage_record, &OfDrivers::record("pv")).await.unwrap();
    d.files.make_dir(staging).await.unwrap();
    let (place, record) = d.publish("bad", "pv").await;
    let staged_server = mount_dead_server(Path::new(staging));
    let server = mount_dead_server(Path::new(&place));
    let hangs = |result: Result<(), FilesError>, what: &str| {
        let error = result.expect_err(what);
        assert!(matches!(error, FilesError::Hung { .. }), "{what}: {error:?}");
        assert!(error.to_string().starts_with(what), "{error}");
    };
    hangs(d.files.apply_fs_group(&place, 7, false).await, &format!("giving what is in {place} to group 7"));
    let (again, rest, removed) = tokio::join!(
        d.files.apply_fs_group(&place, 7, true),
        d.files.wait_until_idle(&place),
        d.files.remove(&place, Some(&record)),
    );
    hangs(again, "giving what is in");
    hangs(rest, &format!("earlier work on {place}"));
    hangs(removed, "removing");

    // Volumes can be listed, and a directory with a foreign mount is not touched.
    let (found, of_bad) =
        (d.files.list_volumes().await.unwrap(), d.files.list_pod_volumes(&PodUid::new("bad")).await);
    assert_eq!((found.len(), of_bad.unwrap().len()), (2, 1));
    d.files.make_dir(staging).await.unwrap();
    d.files.write_record(&stage_record, &OfDrivers::record("pv")).await.unwrap();

    // The pod's other volume, and other pods with the same volume, can be set up and torn down.
    let others = (0..30).map(|number| format!("good-{number}")).chain(["bad".to_owned()]);
    let others = others.map(|uid| {
        let d = &d;
        async move {
            let (place, record) = d.publish(&uid, if uid == "bad" { "other" } else { "pv" }).await;
            d.files.apply_fs_group(&place, 7, false).await.unwrap();
            d.files.wait_until_idle(&place).await.unwrap();
            d.files.remove(&place, Some(&record)).await.unwrap();
        }
    });
    futures::future::join_all(others).await;
    assert_eq!(d.files.list_volumes().await.unwrap().len(), 2);

    // The administrator ends the server: the walk ends, and what is mounted must still not be removed.
    drop((server, staged_server));
    for _ in 0..100 {
        match d.files.wait_until_idle(&place).await {
            Err(FilesError::Hung { .. }) => {}
            other => {
                other.unwrap();
                break;
            }
        }
    }
    for (place, record) in [(place.as_str(), &record), (staging, &stage_record)] {
        let error = d.files.remove(place, Some(record)).await.unwrap_err();
        assert!(matches!(error, FilesError::Mounted { .. }), "{error:?}");
        rustix::mount::unmount(place, rustix::mount::UnmountFlags::NOFOLLOW).unwrap();
        d.files.remove(place, Some(record)).await.unwrap();
    }
    assert_eq!(d.files.list_volumes().await.unwrap(), []);
}
