//! SELinux labels of volumes.

use super::*;

/// A pod with these options for itself, and for two containers that mount the volume.
fn labelled_pod(pod: Value, containers: [Value; 2], policy: &str) -> PodView {
    let container = |name: &str, options: &Value| {
        json!({
            "name": name, "securityContext": {"seLinuxOptions": options},
            "volumeMounts": [{"name": "data", "mountPath": "/d"}],
        })
    };
    let [first, second] = &containers;
    sample::pod(json!({
        "securityContext": {"seLinuxOptions": pod, "seLinuxChangePolicy": policy},
        "containers": [container("a", first), container("b", second)],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "x"}}],
    }))
}

fn labelled() -> Scene {
    let mut scene = scene();
    scene.selinux = true;
    scene.pod = labelled_pod(json!({"level": "s0:c1,c2"}), [Value::Null, Value::Null], "MountOption");
    scene.volume["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
    scene.driver = Some(json!({"attachRequired": true, "seLinuxMount": true}));
    scene
}

#[test]
fn who_is_mounted_with_a_label() {
    let check = |change: &dyn Fn(&mut Scene), expect: &str| {
        let mut scene = labelled();
        change(&mut scene);
        let volume = scene.volume().unwrap();
        assert_eq!(volume.selinux_context, expect);
        let context = (!expect.is_empty()).then(|| format!("context=\"{expect}\""));
        let flags = [Some("noatime".to_owned()), context].into_iter().flatten().collect();
        assert_eq!(volume.access, VolumeAccessType::Mount { fs_type: String::new(), flags });
        // The runtime labels the files of the others.
        let place = scene.with(|inputs| volume_paths(inputs).unwrap().volumes.remove("data"));
        let Some(VolumePath::Directory(source)) = place else { panic!("{place:?}") };
        assert_eq!(source.managed, expect.is_empty());
    };
    const LABEL: &str = "system_u:object_r:container_file_t:s0:c1,c2";
    let modes = |modes: Value| move |s: &mut Scene| s.volume["spec"]["accessModes"] = modes.clone();
    check(&|_| (), LABEL);
    check(&|s| s.selinux = false, "");
    check(&|s| s.driver = Some(json!({"attachRequired": true})), "");
    check(&|s| s.driver = Some(json!({"attachRequired": true, "seLinuxMount": false})), "");
    check(&modes(json!(["ReadWriteOnce"])), "");
    check(&modes(json!(["ReadWriteOncePod", "ReadWriteOnce"])), "");
    check(
        &|s| {
            modes(json!(["ReadWriteMany"]))(s);
            s.gate = true;
        },
        LABEL,
    );
    let pod = |pod: Value, containers: [Value; 2], policy: &'static str| {
        move |s: &mut Scene| s.pod = labelled_pod(pod.clone(), containers.clone(), policy)
    };
    let level = json!({"level": "s0:c1,c2"});
    let none = [Value::Null, Value::Null];
    check(&pod(level.clone(), none.clone(), "Recursive"), "");
    check(&pod(Value::Null, none.clone(), "MountOption"), "");
    check(&pod(json!({"type": "spc_t"}), none.clone(), "MountOption"), "");
    check(
        &pod(json!({"level": "s0", "user": "u", "role": "r", "type": "t"}), none, "MountOption"),
        "u:object_r:container_file_t:s0",
    );
    check(&pod(Value::Null, [level.clone(), Value::Null], "MountOption"), LABEL);
    check(&pod(json!({"level": "s0:c9"}), [level.clone(), level], "MountOption"), LABEL);
}

#[test]
fn two_labels_can_not_be_mounted_at_once() {
    let mut scene = labelled();
    let (one, two) = (json!({"level": "s0:c1"}), json!({"level": "s0:c2"}));
    scene.pod = labelled_pod(Value::Null, [one, two], "MountOption");
    let failed = scene.volume().unwrap_err();
    let labels = "system_u:object_r:container_file_t:s0:c1,system_u:object_r:container_file_t:s0:c2";
    assert!(failed.contains(&format!("multiple SELinux labels found: {labels}")), "{failed}");
    // Where files are labelled one by one, that is the runtime's affair.
    scene.volume["spec"]["accessModes"] = json!(["ReadWriteOnce"]);
    assert_eq!(scene.volume().unwrap().selinux_context, "");
}

/// Counts after these scenes were added, each a pod of its own.
fn counted(scenes: &[&Scene]) -> Vec<String> {
    let mut counts = SelinuxCounts::default();
    for scene in scenes {
        scene.with(|inputs| counts.add_pod(inputs));
    }
    let shown = |count: model::report::SelinuxCount| {
        format!("{:?} {} {} {}", count.outcome, count.plugin, count.access_mode, count.count)
    };
    counts.into_counts().into_iter().map(shown).collect()
}

#[test]
fn labels_of_volumes_are_counted() {
    let with = |change: &dyn Fn(&mut Scene)| {
        let mut scene = labelled();
        change(&mut scene);
        scene
    };
    let modes = |modes: &[&str]| {
        let modes = json!(modes);
        move |s: &mut Scene| s.volume["spec"]["accessModes"] = modes.clone()
    };
    let containers = |first: &str, second: &str, policy: &'static str| {
        let containers = [json!({"level": first}), json!({"level": second})];
        move |s: &mut Scene| s.pod = labelled_pod(Value::Null, containers.clone(), policy)
    };
    let check = |scenes: &[&Scene], expect: &[&str]| assert_eq!(counted(scenes), expect);
    let one = labelled();
    check(&[&one], &["Admitted kubernetes.io/csi/d.example RWOP 1"]);
    // It is one volume, which several pods use.
    check(&[&one, &one], &["Admitted kubernetes.io/csi/d.example RWOP 1"]);
    check(&[&with(&|s| s.selinux = false)], &[]);
    check(&[&with(&|s| s.driver = Some(json!({"seLinuxMount": false})))], &[]);
    // With access modes that are not mounted with a label it would be one.
    let shared = with(&modes(&["ReadOnlyMany", "ReadWriteMany"]));
    check(&[&shared], &["Admitted kubernetes.io/csi/d.example RWX 1"]);

    let two = with(&containers("s0:c1", "s0:c2", "MountOption"));
    check(&[&two], &["PodMismatchError  RWOP 1"]);
    let two_shared = with(&|s| {
        containers("s0:c1", "s0:c2", "MountOption")(s);
        modes(&["ReadWriteOnce"])(s);
    });
    check(&[&two_shared, &two_shared], &["PodMismatchWarning  RWO 2"]);
    let two_with_gate = with(&|s| {
        containers("s0:c1", "s0:c2", "MountOption")(s);
        modes(&["ReadWriteOnce"])(s);
        s.gate = true;
    });
    check(&[&two_with_gate], &["PodMismatchError  RWO 1"]);
    // The pod can start, so it is no error.
    let other_driver = with(&|s| {
        containers("s0:c1", "s0:c2", "MountOption")(s);
        s.driver = Some(json!({"attachRequired": true}));
    });
    check(&[&other_driver], &["PodMismatchWarning  RWOP 1"]);

    let other = with(&containers("s0:c7", "s0:c7", "MountOption"));
    check(
        &[&one, &other],
        &[
            "Admitted kubernetes.io/csi/d.example RWOP 1",
            "VolumeMismatchError kubernetes.io/csi/d.example RWOP 1",
        ],
    );
    let by_files = with(&|s| {
        containers("s0:c7", "s0:c7", "Recursive")(s);
        modes(&["ReadWriteMany"])(s);
    });
    check(
        &[&shared, &by_files, &by_files],
        &[
            "Admitted kubernetes.io/csi/d.example RWX 1",
            "VolumeMismatchWarning kubernetes.io/csi/d.example RWX 2",
        ],
    );
    check(&[&by_files], &[]);

    let mut inline = two;
    inline.pod = {
        let mut pod = (*inline.pod.pod).clone();
        let volumes = json!([{"name": "data", "emptyDir": {}}]);
        pod.spec.as_mut().unwrap().volumes = serde_json::from_value(volumes).unwrap();
        PodView::new(Arc::new(pod), model::pod::Source::Api)
    };
    check(&[&inline], &["PodMismatchWarning  inline 1"]);
}
