//! A pod's files from set-up to tear-down, through the port, and names that would lead elsewhere.

use std::fs;
use std::path::Path;

use model::files::{ContainerFiles, FileContent, TerminationMessageRequest};
use model::volume::{EmptyDirMedium, HostPathCheck, SubPathMount, VolumeKind, VolumeSetup};
use model::{FullName, PodUid};
use ports::{Disposition, PodFiles};

use super::HostPodFiles;
use super::testing::Mounts;

struct Bench {
    mounts: Mounts,
    temp: tempfile::TempDir,
    files: HostPodFiles,
}

async fn bench() -> Bench {
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str| temp.path().join(name);
    let files = HostPodFiles::new(at("root"), at("logs"), at("links"));
    let mounts = Mounts::below(temp.path());
    files.prepare_node().await.unwrap();
    Bench { mounts, files, temp }
}

impl Bench {
    fn at(&self, name: &str) -> String {
        self.temp.path().join(name).to_str().unwrap().to_owned()
    }
}

fn empty_dir(pod: &str, name: &str, medium: EmptyDirMedium) -> VolumeSetup {
    let path = format!("{pod}/volumes/kubernetes.io~empty-dir/{name}");
    let ready_marker = format!("{pod}/plugins/kubernetes.io~empty-dir/{name}/ready");
    let kind =
        VolumeKind::EmptyDir { path, ready_marker, medium, fs_group: Some(2000), project_quota: false };
    VolumeSetup::inline(name, kind)
}

#[tokio::test]
async fn a_pod_comes_works_and_goes() {
    let b = bench().await;
    let own_mounts = b.mounts.count();
    let uid = PodUid::new("0123");
    let pod = b.at("root/pods/0123");
    let log_dir = b.at("logs/ns_p_0123");
    b.files.make_pod_dirs(&uid, &log_dir).await.unwrap();
    let disk = empty_dir(&pod, "disk", EmptyDirMedium::Disk);
    b.files.set_up_volume(&uid, &disk).await.unwrap();
    let memory = empty_dir(&pod, "memory", EmptyDirMedium::Memory { size_bytes: Some(1 << 20) });
    b.files.set_up_volume(&uid, &memory).await.unwrap();
    let kind = VolumeKind::HostPath { path: "/etc".into(), check: HostPathCheck::Directory };
    b.files.set_up_volume(&uid, &VolumeSetup::inline("etc", kind)).await.unwrap();
    let target = format!("{pod}/volume-subpaths/disk/c/0");
    let termination_log = format!("{pod}/containers/c/89abcdef");
    let wanted = ContainerFiles {
        log_dir: format!("{log_dir}/c"),
        etc_hosts: Some(FileContent { path: format!("{pod}/etc-hosts"), text: "hosts\n".into() }),
        termination_log: Some(termination_log.clone()),
        sub_paths: vec![SubPathMount {
            volume_path: format!("{pod}/volumes/kubernetes.io~empty-dir/disk"),
            sub_path: "a/b".into(),
            target: target.clone(),
            mount_name: "disk".into(),
            container: "c".into(),
            create: true,
            read_only: false,
        }],
    };
    b.files.prepare_container(&uid, &wanted).await.unwrap();
    assert_eq!(b.mounts.count(), own_mounts + 2);

    let log = format!("{log_dir}/c/0.log");
    fs::write(&log, "2024-05-06T07:08:09Z stdout F done\n").unwrap();
    fs::write(format!("{target}/data"), "x").unwrap();
    assert!(Path::new(&format!("{pod}/volumes/kubernetes.io~empty-dir/disk/a/b/data")).exists());
    b.files.link_log(&FullName::new("p", "ns"), "c", "cid", &log).await.unwrap();
    assert_eq!(fs::read_link(b.at("links/p_ns_c-cid.log")).unwrap().to_str().unwrap(), log);
    assert_eq!(b.files.highest_log_number(&format!("{log_dir}/c")).await.unwrap(), Some(0));
    let request = TerminationMessageRequest {
        pod: uid.clone(),
        container: "c".into(),
        mounted: vec![termination_log],
        log_fallback: Some(log.clone()),
    };
    assert_eq!(b.files.termination_message(&request).await, "done\n");

    let left = b.files.leftovers().await.unwrap();
    assert_eq!((left.pod_dirs, left.log_dirs), (vec![uid.clone()], vec!["ns_p_0123".to_owned()]));
    let busy = b.files.remove_pod_dir(&uid).await.unwrap_err();
    assert_eq!(busy.disposition(), Disposition::Retry);
    b.files.tear_down_volumes(&uid).await.unwrap();
    b.files.remove_pod_dir(&uid).await.unwrap();
    b.files.remove_container_logs(&log).await.unwrap();
    b.files.remove_log_dir("ns_p_0123").await.unwrap();
    let nothing = ports::LeftoverFiles { pod_dirs_complete: true, ..Default::default() };
    assert_eq!(b.files.leftovers().await.unwrap(), nothing);
    assert_eq!(b.mounts.count(), own_mounts);
}

#[tokio::test]
async fn names_that_lead_elsewhere_are_refused() {
    let b = bench().await;
    fs::create_dir_all(b.at("outside/volumes")).unwrap();
    fs::write(b.at("outside/precious"), "x").unwrap();
    for uid in ["", ".", "..", "../../outside", "a/../../outside"].map(PodUid::new) {
        let refused = [
            b.files.make_pod_dirs(&uid, &b.at("logs/x")).await,
            b.files.tear_down_volumes(&uid).await,
            b.files.remove_pod_dir(&uid).await,
            b.files.set_up_volume(&uid, &empty_dir(&b.at("outside"), "v", EmptyDirMedium::Disk)).await,
        ];
        for result in refused {
            assert_eq!(result.unwrap_err().disposition(), Disposition::Refused, "{uid}");
        }
    }
    let uid = PodUid::new("u");
    let elsewhere =
        b.files.set_up_volume(&uid, &empty_dir(&b.at("outside"), "v", EmptyDirMedium::Disk)).await;
    assert_eq!(elsewhere.unwrap_err().disposition(), Disposition::Refused);
    for name in ["", "..", "../outside", "a/b"] {
        assert_eq!(
            b.files.remove_log_dir(name).await.unwrap_err().disposition(),
            Disposition::Refused,
            "{name}"
        );
        assert_eq!(
            b.files.remove_link(name).await.unwrap_err().disposition(),
            Disposition::Refused,
            "{name}"
        );
    }
    let log = b.at("logs/../outside/precious");
    assert_eq!(b.files.remove_container_logs(&log).await.unwrap_err().disposition(), Disposition::Refused);
    assert!(b.files.highest_log_number(&b.at("outside")).await.is_err());
    assert_eq!(fs::read_to_string(b.at("outside/precious")).unwrap(), "x");
}
