//! The client on a real containerd.

mod private_runtime;

use std::time::Duration;

use model::cri::{
    ContainerSecurityContext, Int64Value, KeyValue, LinuxContainerConfig, LinuxResources, Mount,
};
use model::observed::ContainerState;
use ports::{
    ContainerFilter, ContainerStatus, Disposition, Images, Runtime, RuntimeError, SandboxFilter, StreamFlags,
};
use private_runtime::{BUSYBOX, PrivateRuntime, container, image, pod, start};

/// Waits until a container of the test has ended by itself.
async fn ended(client: &cri::CriClient, id: &model::ContainerId) -> ContainerStatus {
    loop {
        let status = client.container_status(id).await.expect("status");
        if status.state == ContainerState::Exited {
            return status;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn shell(script: &str) -> Vec<String> {
    ["sh", "-c", script].map(String::from).into()
}

/// A script that lives until it is told to end, and ends then at once.
const OBEDIENT: &str = "trap 'exit 7' TERM; while :; do sleep 0.05; done";

#[tokio::test]
async fn it_says_who_and_how_it_is() {
    let runtime = PrivateRuntime::shared();
    let client = runtime.client();
    let version = client.version().await.expect("version");
    assert_eq!((version.version.as_str(), version.runtime_name.as_str()), ("0.1.0", "containerd"));
    assert_eq!(version.runtime_api_version, "v1");
    let status = client.status().await.expect("status");
    for kind in ["RuntimeReady", "NetworkReady"] {
        assert!(status.condition(kind).is_some_and(|c| c.status), "{kind}: {status:?}");
    }
    match client.cgroup_driver().await {
        Ok(driver) => assert_eq!(driver, model::cgroup::CgroupDriver::Cgroupfs),
        Err(error) => assert_eq!(error.disposition(), Disposition::Unsupported, "{error:?}"),
    }
    client.update_runtime_config("10.99.0.0/16").await.expect("the pods' range");
}

#[tokio::test]
async fn a_sandbox_lives_and_dies() {
    let runtime = PrivateRuntime::shared();
    let client = runtime.client();
    let config = pod(&runtime, "sandbox-life");
    let id = client.run_pod_sandbox(&config, "").await.expect("run");

    let status = client.pod_sandbox_status(&id).await.expect("status");
    assert_eq!((&status.info.id, status.info.ready, status.info.attempt), (&id, true, 0));
    assert_eq!((status.info.name.as_str(), status.info.namespace.as_str()), ("sandbox-life", "tests"));
    assert_eq!(status.info.uid.as_str(), config.metadata.uid);
    assert_eq!((&status.info.labels, &status.info.annotations), (&config.labels, &config.annotations));
    assert!(status.info.created_at > 0);
    assert!(status.has_network);
    let [ip] = status.ips.as_slice() else { panic!("{:?}", status.ips) };
    ip.parse::<std::net::Ipv4Addr>().expect("an address");
    assert_eq!(status.namespaces.network, model::cri::NamespaceMode::Pod);

    client.stop_pod_sandbox(&id).await.expect("stop");
    client.stop_pod_sandbox(&id).await.expect("stop again");
    let status = client.pod_sandbox_status(&id).await.expect("status");
    assert!(!status.info.ready);
    client.remove_pod_sandbox(&id).await.expect("remove");
    client.remove_pod_sandbox(&id).await.expect("remove again");
    let error = client.pod_sandbox_status(&id).await.expect_err("gone");
    assert!(matches!(error, RuntimeError::NotFound { call: "PodSandboxStatus", .. }), "{error:?}");
}

#[tokio::test]
async fn lists_are_of_the_pod_or_the_id_asked_for() {
    let runtime = PrivateRuntime::shared();
    let client = runtime.client();
    let mut made = Vec::new();
    for name in ["listed-one", "listed-two"] {
        let config = pod(&runtime, name);
        let sandbox = client.run_pod_sandbox(&config, "").await.expect("run");
        let id = client.create_container(&sandbox, &container(&config, "main", OBEDIENT), &config).await;
        made.push((config.metadata.uid, sandbox, id.expect("create")));
    }
    let all = client.list_pod_sandboxes(&SandboxFilter::default()).await.expect("list");
    assert!(made.iter().all(|(_, sandbox, _)| all.iter().any(|s| s.id == *sandbox)));
    for (uid, sandbox, id) in &made {
        let by_uid = SandboxFilter { pod_uid: Some(uid.as_str().into()), id: None };
        let by_id = SandboxFilter { pod_uid: None, id: Some(sandbox.clone()) };
        for filter in [by_uid, by_id] {
            let listed = client.list_pod_sandboxes(&filter).await.expect("list");
            let [only] = listed.as_slice() else { panic!("{listed:?}") };
            assert_eq!((&only.id, only.uid.as_str(), only.ready), (sandbox, uid.as_str(), true));
        }
        let by_uid = ContainerFilter { pod_uid: Some(uid.as_str().into()), id: None };
        let by_id = ContainerFilter { pod_uid: None, id: Some(id.clone()) };
        for filter in [by_uid, by_id] {
            let listed = client.list_containers(&filter).await.expect("list");
            let [only] = listed.as_slice() else { panic!("{listed:?}") };
            assert_eq!((&only.id, &only.sandbox_id, only.name.as_str()), (id, sandbox, "main"));
            assert_eq!((only.state, only.image.as_str()), (ContainerState::Created, BUSYBOX));
            assert_eq!(only.labels["io.kubernetes.pod.uid"], *uid);
        }
    }
    let nobody = SandboxFilter { pod_uid: Some("nobody".into()), id: None };
    assert_eq!(client.list_pod_sandboxes(&nobody).await, Ok(vec![]));
}

#[tokio::test]
async fn a_container_lives_and_dies() {
    let runtime = PrivateRuntime::shared();
    let client = runtime.client();
    let config = pod(&runtime, "container-life");
    let sandbox = client.run_pod_sandbox(&config, "").await.expect("run");
    let main = container(&config, "main", "echo hello; exit 3");

    let id = client.create_container(&sandbox, &main, &config).await.expect("create");
    let created = client.container_status(&id).await.expect("status");
    assert_eq!((created.state, created.started_at), (ContainerState::Created, 0));
    assert_eq!((created.name.as_str(), created.image.as_str()), ("main", BUSYBOX));
    assert!(created.image_ref.starts_with("sha256:"), "{}", created.image_ref);
    assert_eq!((&created.labels, &created.annotations), (&config.labels, &config.annotations));

    client.start_container(&id).await.expect("start");
    let status = ended(&client, &id).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (3, "Error"));
    // containerd takes the time of the start after the start: a short life may seem to end before it began.
    assert!(created.created_at <= status.started_at && status.finished_at > created.created_at, "{status:?}");
    let log = std::fs::read_to_string(&status.log_path).expect("log");
    assert!(log.trim_end().ends_with(" stdout F hello"), "{log}");

    let again = client.start_container(&id).await.expect_err("it has ended");
    assert!(matches!(again, RuntimeError::Failed { call: "StartContainer", .. }), "{again:?}");
    client.remove_container(&id).await.expect("remove");
    client.remove_container(&id).await.expect("remove again");
    let error = client.container_status(&id).await.expect_err("gone");
    assert_eq!(error.disposition(), Disposition::Absent, "{error:?}");
}

#[tokio::test]
async fn a_grace_period_is_honoured() {
    let runtime = PrivateRuntime::shared();
    let client = runtime.client();
    let config = pod(&runtime, "grace");
    let sandbox = client.run_pod_sandbox(&config, "").await.expect("run");
    // Exit codes tell how it ended: by itself on the signal, or by force after the period.
    let table = [
        ("obedient", "trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done", 60, 7),
        ("stubborn", "trap '' TERM; echo ready; while :; do sleep 0.05; done", 1, 137),
    ];
    for (name, script, grace, expect) in table {
        let main = container(&config, name, script);
        let id = start(&client, &sandbox, &main, &config).await;
        let log = client.container_status(&id).await.expect("status").log_path;
        while !std::fs::read_to_string(&log).is_ok_and(|text| text.contains("ready")) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        client.stop_container(&id, Duration::from_secs(grace)).await.expect("stop");
        let status = client.container_status(&id).await.expect("status");
        assert_eq!((status.state, status.exit_code), (ContainerState::Exited, expect), "{name}");
        client.stop_container(&id, Duration::ZERO).await.expect("stop again");
    }
}

#[tokio::test]
async fn what_a_config_says_is_what_the_container_has() {
    let runtime = PrivateRuntime::shared();
    let client = runtime.client();
    let config = pod(&runtime, "configured");
    let sandbox = client.run_pod_sandbox(&config, "").await.expect("run");
    let shared = runtime.directory().join("shared");
    std::fs::create_dir_all(&shared).expect("directory");
    std::fs::write(shared.join("file"), "from the host").expect("file");

    let mut main = container(&config, "main", OBEDIENT);
    main.working_dir = "/tmp".into();
    main.envs = vec![KeyValue { key: "GREETING".into(), value: "hi there".into() }];
    main.mounts = vec![Mount {
        container_path: "/data".into(),
        host_path: shared.display().to_string(),
        readonly: true,
        ..Default::default()
    }];
    let security = ContainerSecurityContext {
        run_as_user: Some(Int64Value { value: 1000 }),
        run_as_group: Some(Int64Value { value: 1000 }),
        readonly_rootfs: true,
        ..Default::default()
    };
    let limits = LinuxResources { memory_limit_in_bytes: 64 << 20, cpu_shares: 100, ..Default::default() };
    main.linux =
        Some(LinuxContainerConfig { resources: Some(limits.clone()), security_context: Some(security) });
    let id = start(&client, &sandbox, &main, &config).await;

    let seen =
        "id -u; pwd; echo $GREETING; cat /data/file; echo; hostname; touch /x /data/x 2>/dev/null || echo no";
    let result = client.exec_sync(&id, &shell(seen), Duration::from_secs(20)).await.expect("exec");
    let expect = "1000\n/tmp\nhi there\nfrom the host\nconfigured\nno\n";
    assert_eq!(String::from_utf8_lossy(&result.stdout), expect);

    let status = client.container_status(&id).await.expect("status");
    let mount = status.mounts.iter().find(|m| m.container_path == "/data").expect("mount");
    assert!(mount.readonly);
    let larger = LinuxResources { memory_limit_in_bytes: 80 << 20, ..limits };
    client.update_container_resources(&id, &larger).await.expect("update");
    if let Some(resources) = client.container_status(&id).await.expect("status").resources {
        assert_eq!(resources.memory_limit_in_bytes, 80 << 20);
    }
}

#[tokio::test]
async fn commands_run_end_and_time_out() {
    let runtime = PrivateRuntime::shared();
    let client = runtime.client();
    let config = pod(&runtime, "commands");
    let sandbox = client.run_pod_sandbox(&config, "").await.expect("run");
    let id = start(&client, &sandbox, &container(&config, "main", OBEDIENT), &config).await;

    for timeout in [Duration::ZERO, Duration::from_secs(20)] {
        let script = shell("echo out; echo err >&2; exit 4");
        let result = client.exec_sync(&id, &script, timeout).await.expect("exec");
        assert_eq!((result.stdout.as_slice(), result.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
        assert_eq!(result.exit_code, 4);
    }
    let second = Duration::from_secs(1);
    let error = client.exec_sync(&id, &shell("sleep 600"), second).await.expect_err("too long");
    assert_eq!(error, RuntimeError::TimedOut { call: "ExecSync", after: second });
    let error = client.exec_sync(&id, &["/no/such".into()], second).await.expect_err("no such command");
    assert!(matches!(error, RuntimeError::Failed { call: "ExecSync", .. }), "{error:?}");
    assert!(error.user_message().contains("/no/such"), "{error}");
    assert!(!error.user_message().contains("rpc error"), "{error}");

    let streams = StreamFlags { stdout: true, ..Default::default() };
    for url in [
        client.exec(&id, &shell("true"), streams).await.expect("exec"),
        client.attach(&id, streams).await.expect("attach"),
        client.port_forward(&sandbox, &[80]).await.expect("forward"),
    ] {
        assert!(url.starts_with("http://127.0.0.1:"), "{url}");
    }
    client.reopen_container_log(&id).await.expect("reopen");
}

#[tokio::test]
async fn what_is_not_there_is_absent() {
    let runtime = PrivateRuntime::shared();
    let client = runtime.client();
    let (id, sandbox) = (&"none".into(), &"none".into());
    let streams = StreamFlags { stdout: true, ..Default::default() };
    let config = pod(&runtime, "absent");
    let main = container(&config, "main", "true");
    let errors = [
        client.container_status(id).await.err(),
        client.pod_sandbox_status(sandbox).await.err(),
        client.start_container(id).await.err(),
        client.exec_sync(id, &shell("true"), Duration::ZERO).await.err(),
        client.exec(id, &shell("true"), streams).await.err(),
        client.attach(id, streams).await.err(),
        client.port_forward(sandbox, &[80]).await.err(),
        client.container_stats(id).await.err(),
        client.update_container_resources(id, &LinuxResources::default()).await.err(),
        client.reopen_container_log(id).await.err(),
        client.create_container(sandbox, &main, &config).await.err(),
    ];
    for error in errors {
        let error = error.expect("nothing is there");
        assert_eq!(error.disposition(), Disposition::Absent, "{error:?}");
    }
    // Some versions say so, others find nothing wrong.
    for result in [client.stop_container(id, Duration::ZERO).await, client.stop_pod_sandbox(sandbox).await] {
        assert!(result.as_ref().err().is_none_or(|e| e.disposition() == Disposition::Absent), "{result:?}");
    }
    client.remove_container(id).await.expect("remove");
    client.remove_pod_sandbox(sandbox).await.expect("remove");
}

#[tokio::test]
async fn containers_have_numbers() {
    let runtime = PrivateRuntime::shared();
    let client = runtime.client();
    let config = pod(&runtime, "numbers");
    let sandbox = client.run_pod_sandbox(&config, "").await.expect("run");
    let id = start(&client, &sandbox, &container(&config, "main", OBEDIENT), &config).await;
    let stats = client.container_stats(&id).await.expect("stats");
    assert_eq!((stats.id.as_str(), stats.name.as_str()), (id.as_str(), "main"));
    assert_eq!(stats.labels, config.labels);
    assert!(stats.usage.timestamp > 0);
    assert!(stats.usage.cpu_usage_core_nano_seconds.is_some_and(|n| n > 0), "{stats:?}");
    assert!(stats.usage.memory_working_set_bytes.is_some_and(|n| n > 0), "{stats:?}");
    let filter = ContainerFilter { pod_uid: Some(config.metadata.uid.as_str().into()), id: None };
    let listed = client.list_container_stats(&filter).await.expect("list");
    assert_eq!(listed.iter().map(|s| s.id.as_str()).collect::<Vec<_>>(), [id.as_str()]);
}

/// containerd 2.4 is the first that has these calls.
#[tokio::test]
async fn lists_come_as_streams_and_figures_from_a_runtime_that_has_them() {
    let runtime = PrivateRuntime::start_version("2.4");
    let (plain, streaming) = (runtime.client(), runtime.client().with_list_streaming(true));
    let mut config = pod(&runtime, "figures");
    // It has no figures of a sandbox without one.
    config.linux.get_or_insert_default().cgroup_parent = runtime.cgroup_root();
    let sandbox = plain.run_pod_sandbox(&config, "").await.expect("run");
    let id = start(&plain, &sandbox, &container(&config, "main", OBEDIENT), &config).await;

    let (sandboxes, containers) = (SandboxFilter::default(), ContainerFilter::default());
    assert_eq!(streaming.list_pod_sandboxes(&sandboxes).await, plain.list_pod_sandboxes(&sandboxes).await);
    assert_eq!(streaming.list_containers(&containers).await, plain.list_containers(&containers).await);
    let by_id = |images: Result<Vec<model::cri::Image>, RuntimeError>| {
        let mut ids: Vec<String> = images.expect("images").into_iter().map(|image| image.id).collect();
        ids.sort();
        ids
    };
    assert_eq!(by_id(streaming.list_images().await), by_id(plain.list_images().await));
    for client in [&plain, &streaming] {
        let stats = client.list_container_stats(&containers).await.expect("stats");
        assert_eq!(stats.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), [id.as_str()]);

        let stats = client.list_pod_sandbox_stats(&sandboxes).await.expect("stats");
        let [of_pod] = stats.as_slice() else { panic!("{stats:?}") };
        assert_eq!(of_pod.id, sandbox.as_str());
        assert!(of_pod.usage.memory_working_set_bytes.is_some_and(|bytes| bytes > 0), "{of_pod:?}");
        assert!(of_pod.process_count.is_some_and(|count| count > 0), "{of_pod:?}");
        assert_eq!(of_pod.default_interface.as_ref().map(|one| one.name.as_str()), Some("eth0"));
        assert_eq!(of_pod.containers.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), [id.as_str()]);
        assert!(of_pod.containers[0].usage.cpu_usage_core_nano_seconds.is_some_and(|nanos| nanos > 0));

        let described = client.list_metric_descriptors().await.expect("descriptors");
        let metrics = client.list_pod_sandbox_metrics().await.expect("metrics");
        let name = "container_memory_working_set_bytes";
        let descriptor = described.iter().find(|one| one.name == name).expect(name);
        let metric = metrics.iter().find(|one| one.name == name).expect(name);
        assert_eq!(descriptor.label_keys.len(), metric.label_values.len(), "{descriptor:?} {metric:?}");
        assert!(metric.is_gauge && metric.value > 0 && metric.label_values.contains(&"main".to_owned()));
    }
}

#[tokio::test]
async fn images_are_known_with_their_users_or_not_at_all() {
    let runtime = PrivateRuntime::shared();
    let client = runtime.client();
    let check = |name: &'static str, uid: Option<i64>, username: &'static str| {
        let client = client.clone();
        async move {
            let found = client.image_status(&image(name)).await.expect("status").expect(name);
            assert!(found.id.starts_with("sha256:"), "{found:?}");
            assert!(found.size > 0);
            assert_eq!(found.repo_tags, [name]);
            assert_eq!((found.uid.map(|u| u.value), found.username.as_str()), (uid, username), "{name}");
            found.id
        }
    };
    let busybox = check(BUSYBOX, None, "").await;
    check("rubelet.test/user1000:1", Some(1000), "").await;
    check("rubelet.test/nobody:1", None, "nobody").await;
    assert_eq!(client.image_status(&image("rubelet.test/none:1")).await, Ok(None));
    assert!(client.list_images().await.expect("list").iter().any(|i| i.id == busybox));

    // Nobody listens on port 1 of this machine.
    let error = client.pull_image(&image("127.0.0.1:1/none:1"), None, None).await.expect_err("no registry");
    assert!(matches!(error, RuntimeError::Failed { call: "PullImage", .. }), "{error:?}");
    let message = error.user_message();
    assert!(message.starts_with("failed to pull and unpack image \"127.0.0.1:1/none:1\": "), "{message}");
    assert!(message.ends_with("connection refused"), "{message}");
    client.remove_image(&image("rubelet.test/none:1")).await.expect("nothing to remove");

    let (of_images, _) = client.image_fs_info().await.expect("filesystems");
    let inside = runtime.directory().display().to_string();
    assert!(of_images.iter().any(|f| f.mountpoint.starts_with(&inside)), "{of_images:?}");
}

#[tokio::test]
async fn a_restarted_runtime_is_found_again() {
    let runtime = PrivateRuntime::start();
    let client = runtime.client();
    let config = pod(&runtime, "restarted");
    let sandbox = client.run_pod_sandbox(&config, "").await.expect("run");
    let id = start(&client, &sandbox, &container(&config, "main", OBEDIENT), &config).await;

    let binary = runtime.kill();
    for _ in 0..3 {
        let error = client.container_status(&id).await.expect_err("nobody is there");
        assert!(matches!(error, RuntimeError::Unavailable { call: "ContainerStatus", .. }), "{error:?}");
        assert!(error.to_string().contains(&runtime.socket().display().to_string()), "{error}");
    }
    runtime.start_again(&binary);
    let found = async {
        loop {
            match client.container_status(&id).await {
                Ok(status) => return status,
                // Nothing but "not now" may be said while it comes up.
                Err(error) => assert_eq!(error.disposition(), Disposition::Retry, "{error:?}"),
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let status = tokio::time::timeout(Duration::from_secs(60), found).await.expect("it is back");
    assert_eq!(status.state, ContainerState::Running, "a container outlives its runtime");
}
