use super::*;
use crate::files::testing::{Mounts, bind};

fn record(driver: &str, handle: &str) -> VolumeRecord {
    VolumeRecord { driver_name: driver.into(), volume_handle: handle.into(), ..Default::default() }
}

#[tokio::test]
async fn a_directory_that_cannot_be_listed_hides_nothing_else() {
    let temp = tempfile::tempdir().unwrap();
    let files = HostCsiFiles::new(temp.path().to_owned());
    let volumes = |uid: &str| temp.path().join("pods").join(uid).join("volumes");
    for uid in ["a", "b", "c"] {
        fs::create_dir_all(volumes(uid)).unwrap();
    }
    fs::create_dir_all(volumes("c").join(CSI_PLUGIN_DIR).join("v")).unwrap();
    // A symlink to itself can't be listed.
    std::os::unix::fs::symlink(volumes("b").join(CSI_PLUGIN_DIR), volumes("b").join(CSI_PLUGIN_DIR)).unwrap();
    let found = files.list_volumes().await.expect("the others");
    let pods: Vec<_> = found.iter().map(|one| (one.pod.clone().unwrap(), one.record.is_err())).collect();
    assert_eq!(pods, [(PodUid::new("b"), true), (PodUid::new("c"), false)]);
}

#[tokio::test]
async fn what_was_written_is_found_and_goes_without_a_trace() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path();
    let files = HostCsiFiles::new(root);
    let stage = root.join(PLUGIN).join("d.example/abc");
    let pod = root.join("pods/u/volumes").join(CSI_PLUGIN_DIR).join("pv");
    files.make_dir(&text(&stage.join("globalmount"))).await.unwrap();
    files.write_record(&text(&stage.join(RECORD)), &record("d.example", "h")).await.unwrap();
    files.write_record(&text(&pod.join(RECORD)), &record("d.example", "h")).await.unwrap();
    files.make_dir(&text(&pod.join("mount"))).await.unwrap();
    let device = root.join(PLUGIN).join(DEVICES);
    files
        .write_record(&text(&device.join("bpv/data").join(RECORD)), &record("d.example", "b"))
        .await
        .unwrap();
    let link = root.join("pods/u").join(DEVICES).join(CSI_PLUGIN_DIR).join("bpv");
    let place = device.join("publish/bpv/u");
    files.link_device(&text(&place), &text(&link)).await.unwrap();
    files.link_device(&text(&place), &text(&link)).await.unwrap();
    assert!(files.link_device(&text(&stage), &text(&link)).await.is_err(), "it leads elsewhere");

    let found = files.list_volumes().await.unwrap();
    let shown: Vec<_> = found
        .iter()
        .map(|one| (one.pod.is_some(), one.block, one.spec_name.as_str(), one.record.is_ok()))
        .collect();
    assert_eq!(
        shown,
        [
            (false, false, "abc", true),
            (false, true, "bpv", true),
            (true, false, "pv", true),
            (true, true, "bpv", true)
        ]
    );
    for one in &found {
        files.remove(&one.mount_dir, Some(&one.record_path)).await.unwrap();
        if let Some(paths) = &one.device {
            files.unlink_device(&paths.link).await.unwrap();
        }
    }
    assert_eq!(files.list_volumes().await.unwrap(), []);
    assert!(!stage.exists() && !pod.exists() && !device.join("bpv").exists());
}

#[test]
fn work_on_one_volume_waits_for_nobody_elses() {
    let check = |path: &str, expect: (WorkOwner, &str)| {
        let (who, volume) = work_owner(Path::new("/r"), &Path::new("/r").join(path));
        assert_eq!((who, volume.as_str()), expect, "{path}");
    };
    let pod = |name| (WorkOwner::Pod(PodUid::new("u")), name);
    let node = |dir: &str, name| (WorkOwner::Node(format!("{dir}/{name}")), name);
    check("pods/u/volumes/kubernetes.io~csi/pv/mount", pod("pv"));
    check("pods/u/volumes/kubernetes.io~csi/pv/vol_data.json", pod("pv"));
    check("pods/u/volumeDevices/kubernetes.io~csi/pv", pod("pv"));
    check("plugins/kubernetes.io/csi/volumeDevices/publish/pv/u", pod("pv"));
    check("plugins/kubernetes.io/csi/volumeDevices/pv/dev/u", pod("pv"));
    check("plugins/kubernetes.io/csi/volumeDevices/publish/pv", node(DEVICES, "pv"));
    check("plugins/kubernetes.io/csi/volumeDevices/staging/pv", node(DEVICES, "pv"));
    check("plugins/kubernetes.io/csi/volumeDevices/pv/data/vol_data.json", node(DEVICES, "pv"));
    check("plugins/kubernetes.io/csi/d.example/abc/globalmount", node("d.example", "abc"));
    check("plugins/kubernetes.io/csi/d.example/abc/vol_data.json", node("d.example", "abc"));
    check("elsewhere", node("elsewhere", ""));
}

#[tokio::test]
async fn nothing_goes_while_something_is_mounted_or_left() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path();
    let _mounts = Mounts::below(root);
    let files = HostCsiFiles::new(root);
    let dir = root.join("pods/u/volumes").join(CSI_PLUGIN_DIR).join("pv");
    files.write_record(&text(&dir.join(RECORD)), &record("d", "h")).await.unwrap();
    fs::create_dir(dir.join("mount")).unwrap();
    fs::create_dir(root.join("data")).unwrap();
    fs::write(root.join("data/precious"), "x").unwrap();
    bind(&root.join("data"), &dir.join("mount"));
    let (place, path) = (text(&dir.join("mount")), text(&dir.join(RECORD)));
    let error = files.remove(&place, Some(&path)).await.unwrap_err();
    assert!(matches!(error, FilesError::Mounted { .. }), "{error:?}");
    rustix::mount::unmount(dir.join("mount"), rustix::mount::UnmountFlags::empty()).unwrap();
    fs::write(dir.join("mount/left"), "x").unwrap();
    assert!(files.remove(&place, Some(&path)).await.is_err());
    assert!(dir.join(RECORD).exists() && root.join("data/precious").exists());
    fs::remove_file(dir.join("mount/left")).unwrap();
    files.remove(&place, Some(&path)).await.unwrap();
    assert!(!dir.exists());
}

#[tokio::test]
async fn a_record_that_makes_no_sense_is_told_with_its_place() {
    let temp = tempfile::tempdir().unwrap();
    let files = HostCsiFiles::new(temp.path());
    for (name, content) in [("half", "{\"driverName\":"), ("nobody", "{}"), ("number", "7")] {
        let dir = temp.path().join("pods/u/volumes").join(CSI_PLUGIN_DIR).join(name);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(RECORD), content).unwrap();
    }
    fs::create_dir_all(temp.path().join("pods/u/volumes").join(CSI_PLUGIN_DIR).join("none")).unwrap();
    let found = files.list_pod_volumes(&PodUid::new("u")).await.unwrap();
    let shown: Vec<_> = found.iter().map(|one| (one.spec_name.as_str(), one.record.is_err())).collect();
    assert_eq!(shown, [("half", true), ("nobody", true), ("none", false), ("number", true)]);
    assert!(files.list_pod_volumes(&PodUid::new("../u")).await.is_err());
    assert!(files.make_dir("/etc/x").await.is_err());
    assert!(files.make_dir(&format!("{}/../x", temp.path().display())).await.is_err());
}
