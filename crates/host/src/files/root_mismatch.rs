//! `fsGroupChangePolicy`: whether a volume's files are walked depends on its root, for local and CSI volumes alike.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use model::PodUid;
use model::volume::{LocalVolume, VolumeKind, VolumeSetup};
use ports::{CsiFiles, PodFiles};

use super::killed::text;
use super::testing::{Mounts, plain_volume};
use super::{HostCsiFiles, HostPodFiles};

const GROUP: u32 = 4711;
/// Group and mode of a file below the root, which show whether it was walked.
const STRANGER: (u32, u32) = (99, 0o600);
const WALKED: (u32, u32) = (GROUP, 0o660);

/// Group and mode of the root, whether the policy is OnRootMismatch, and whether a walk is expected.
const ROOTS: [(u32, u32, bool, bool); 9] = [
    (GROUP, 0o2770, true, false),
    (GROUP, 0o2777, true, false),
    (GROUP, 0o2770, false, true),
    (GROUP, 0o0770, true, true),
    (GROUP, 0o2750, true, true),
    (GROUP, 0o2760, true, true),
    (GROUP, 0o2570, true, true),
    (99, 0o2770, true, true),
    (0, 0o755, true, true),
];

fn give(path: &Path, group: u32, mode: u32) {
    chown(path, None, Some(group)).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn make_volume(at: PathBuf, group: u32, mode: u32) -> PathBuf {
    fs::create_dir_all(at.join("below")).unwrap();
    fs::write(at.join("below/file"), "x").unwrap();
    give(&at.join("below/file"), STRANGER.0, STRANGER.1);
    give(&at, group, mode);
    at
}

fn check(volume: &Path, walked: bool, what: &str) {
    let of = |path: &Path| {
        let found = path.metadata().unwrap();
        (found.gid(), found.mode() & 0o777)
    };
    assert_eq!(of(&volume.join("below/file")), if walked { WALKED } else { STRANGER }, "{what}");
    assert_eq!(of(volume).0, GROUP, "{what}");
    assert_eq!(volume.metadata().unwrap().mode() & 0o2770, 0o2770, "{what}");
}

#[tokio::test]
async fn of_directories_of_the_node() {
    let temp = tempfile::tempdir().unwrap();
    let base = temp.path().canonicalize().unwrap();
    let _mounts = Mounts::below(&base);
    let files = HostPodFiles::new(base.join("root"), base.join("logs"), base.join("links"));
    files.prepare_node().await.unwrap();
    for (number, (group, mode, on_root_mismatch, walked)) in ROOTS.into_iter().enumerate() {
        let source = make_volume(base.join(format!("data-{number}")), group, mode);
        let (uid, name) = (PodUid::new(format!("u{number}")), format!("pv-{number}"));
        files.make_pod_dirs(&uid, &text(&base.join(format!("logs/ns_p_{uid}")))).await.unwrap();
        let target = base.join(format!("root/pods/{uid}/volumes/kubernetes.io~local-volume/{name}"));
        let local = LocalVolume {
            name: name.clone(),
            target: text(&target),
            fs_group: Some(GROUP.into()),
            on_root_mismatch,
            ..plain_volume(&source)
        };
        let kind = VolumeKind::Local(Box::new(local));
        let setup = VolumeSetup { name: "v".into(), spec_name: name, kind };
        files.set_up_volume(&uid, &setup).await.unwrap();
        check(&target, walked, &format!("{group} {mode:o}, on mismatch only: {on_root_mismatch}"));
        files.tear_down_volumes(&uid).await.unwrap();
    }
}

#[tokio::test]
async fn of_volumes_of_drivers() {
    let temp = tempfile::tempdir().unwrap();
    let files = HostCsiFiles::new(temp.path());
    for (number, (group, mode, on_root_mismatch, walked)) in ROOTS.into_iter().enumerate() {
        let place = temp.path().join(format!("pods/u/volumes/kubernetes.io~csi/pv-{number}/mount"));
        let place = make_volume(place, group, mode);
        files.apply_fs_group(&text(&place), GROUP.into(), on_root_mismatch).await.unwrap();
        check(&place, walked, &format!("{group} {mode:o}, on mismatch only: {on_root_mismatch}"));
    }
}
