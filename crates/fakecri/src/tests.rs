use std::collections::BTreeMap;

use crate::pb;
use crate::table::RuntimeTable;

fn world_with_a_pod() -> (RuntimeTable, String, String) {
    let mut world = RuntimeTable::default();
    let metadata =
        pb::PodSandboxMetadata { name: "a".into(), uid: "u".into(), namespace: "default".into(), attempt: 0 };
    let config = pb::PodSandboxConfig { metadata: Some(metadata), ..Default::default() };
    let sandbox = world.run_sandbox(config, String::new());
    let container = world.create_container(&sandbox, pb::ContainerConfig::default()).expect("a sandbox");
    (world, sandbox, container)
}

fn of_pod(uid: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("io.kubernetes.pod.uid".to_owned(), uid.to_owned())])
}

#[test]
fn a_container_runs_exits_and_is_told_of() {
    let (mut world, sandbox, container) = world_with_a_pod();
    let mut events = world.events.subscribe();
    assert_eq!(world.running(), 0);
    world.start_container(&container).expect("a container");
    assert_eq!((world.running(), world.starts["a"].len()), (1, 1));
    assert!(world.exit_container_of_pod("b", 1).is_none(), "nobody has that name");
    assert!(world.exit_container_of_pod("a", 1).is_some());
    assert!(world.exit_container_of_pod("a", 1).is_none(), "it does not run any more");
    assert_eq!(world.containers[&container].exit_code, 1);
    for _ in ["started", "exited"] {
        let event = events.try_recv().expect("an event");
        assert_eq!(event.container_id, container);
        assert_eq!(event.pod_sandbox_status.expect("its sandbox").id, sandbox);
    }
    assert!(events.try_recv().is_err());
}

#[test]
fn lists_are_filtered_by_pod_and_id() {
    let (world, sandbox, container) = world_with_a_pod();
    let containers = |id: &str, labels| world.selected(&world.containers, id, &labels).len();
    assert_eq!(containers("", BTreeMap::new()), 1);
    assert_eq!(containers("", of_pod("u")), 1);
    assert_eq!(containers("", of_pod("other")), 0);
    assert_eq!(containers(&container, BTreeMap::new()), 1);
    assert_eq!(containers(&sandbox, BTreeMap::new()), 0);
    assert_eq!(containers("other", of_pod("u")), 0);
}

#[test]
fn a_sandbox_takes_its_containers_with_it() {
    let (mut world, sandbox, container) = world_with_a_pod();
    world.start_container(&container).expect("a container");
    world.stop_sandbox(&sandbox);
    assert!(!world.sandboxes[&sandbox].ready);
    assert_eq!(world.containers[&container].state, pb::ContainerState::ContainerExited);
    world.remove_sandbox(&sandbox);
    assert!(world.sandboxes.is_empty() && world.containers.is_empty());
    assert!(world.selected(&world.containers, "", &of_pod("u")).is_empty());
    assert!(world.start_container(&container).is_err());
}
