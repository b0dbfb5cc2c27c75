//! Hints from a real containerd. The point of each: who looks when the hint comes sees the change.

mod private_runtime;

use std::time::Duration;

use cri::{CriClient, RuntimeHints};
use futures::StreamExt;
use model::observed::ContainerState;
use model::{ContainerId, SandboxId};
use ports::{Hint, HintStream, Images, Runtime, RuntimeEvents};
use private_runtime::{PrivateRuntime, container, pod, start};

/// Far longer than any hint takes; a lost one shows by it.
const PATIENCE: Duration = Duration::from_secs(60);

fn listen(runtime: &PrivateRuntime) -> HintStream {
    RuntimeHints::new(&runtime.endpoint()).expect("endpoint").hints()
}

async fn next(hints: &mut HintStream) -> Hint {
    tokio::time::timeout(PATIENCE, hints.next())
        .await
        .expect("a hint in time")
        .expect("the stream never ends")
}

/// Waits for a hint of this id or pod at whose arrival `is_so` holds. Nothing but hints makes us look.
async fn hinted<F: Future<Output = bool>>(
    hints: &mut HintStream,
    id: &str,
    uid: &str,
    is_so: impl Fn() -> F,
) {
    loop {
        match next(hints).await {
            Hint::ContainerOrSandbox(hinted) if hinted == id => {}
            Hint::Pod(hinted) if hinted.as_str() == uid => {}
            _ => continue,
        }
        if is_so().await {
            return;
        }
    }
}

async fn has_ended(client: &CriClient, id: &ContainerId) -> bool {
    client.container_status(id).await.expect("status").state == ContainerState::Exited
}

async fn is_down(client: &CriClient, id: &SandboxId) -> bool {
    !client.pod_sandbox_status(id).await.expect("status").info.ready
}

async fn is_gone(client: &CriClient, id: &ContainerId) -> bool {
    client.container_status(id).await.is_err_and(|e| e.disposition() == ports::Disposition::Absent)
}

#[tokio::test]
async fn changes_are_hinted_when_they_can_be_seen() {
    let runtime = PrivateRuntime::shared();
    let client = runtime.client();
    let mut hints = listen(&runtime);
    assert_eq!(next(&mut hints).await, Hint::Everything);

    let config = pod(&runtime, "hinted");
    let uid = config.metadata.uid.as_str();
    let sandbox = client.run_pod_sandbox(&config, "").await.expect("run");
    for round in 0..5 {
        let main = container(&config, &format!("main-{round}"), "sleep 0.1; exit 3");
        let id = start(&client, &sandbox, &main, &config).await;
        hinted(&mut hints, id.as_str(), uid, || has_ended(&client, &id)).await;
        client.remove_container(&id).await.expect("remove");
        hinted(&mut hints, id.as_str(), uid, || is_gone(&client, &id)).await;
    }

    // Somebody kills the container that holds the sandbox together.
    runtime.ctr(&["tasks", "kill", "--signal", "SIGKILL", sandbox.as_str()]);
    hinted(&mut hints, sandbox.as_str(), uid, || is_down(&client, &sandbox)).await;
}

#[tokio::test]
async fn a_start_by_somebody_else_is_hinted() {
    let runtime = PrivateRuntime::shared();
    let client = runtime.client();
    let config = pod(&runtime, "started");
    let sandbox = client.run_pod_sandbox(&config, "").await.expect("run");
    let main = container(&config, "main", "sleep 600");
    let id = client.create_container(&sandbox, &main, &config).await.expect("create");

    let mut hints = listen(&runtime);
    assert_eq!(next(&mut hints).await, Hint::Everything);
    let starter = runtime.client();
    starter.start_container(&id).await.expect("start");
    let is_running =
        || async { client.container_status(&id).await.expect("status").state == ContainerState::Running };
    hinted(&mut hints, id.as_str(), &config.metadata.uid, is_running).await;
}

#[tokio::test]
async fn every_listener_hears_everything() {
    let runtime = PrivateRuntime::shared();
    let client = runtime.client();
    let config = pod(&runtime, "listeners");
    let sandbox = client.run_pod_sandbox(&config, "").await.expect("run");
    let uid = config.metadata.uid.as_str();
    // Listeners that have gone must not take anything away from those that stay: agents restart.
    for _ in 0..3 {
        let mut left = listen(&runtime);
        assert_eq!(next(&mut left).await, Hint::Everything);
    }
    let mut one = listen(&runtime);
    let mut other = listen(&runtime);
    assert_eq!(next(&mut one).await, Hint::Everything);
    assert_eq!(next(&mut other).await, Hint::Everything);
    let id = start(&client, &sandbox, &container(&config, "main", "sleep 0.2"), &config).await;
    hinted(&mut one, id.as_str(), uid, || has_ended(&client, &id)).await;
    hinted(&mut other, id.as_str(), uid, || has_ended(&client, &id)).await;
}

#[tokio::test]
async fn the_end_of_the_runtime_and_its_return_say_look_at_everything() {
    let runtime = PrivateRuntime::start();
    let client = runtime.client();
    let config = pod(&runtime, "survivor");
    let uid = config.metadata.uid.as_str();
    let sandbox = client.run_pod_sandbox(&config, "").await.expect("run");
    let gate = runtime.directory().join("gate");
    std::fs::create_dir_all(&gate).expect("directory");
    let mut main = container(&config, "main", "until [ -e /gate/open ]; do sleep 0.05; done");
    main.mounts = vec![model::cri::Mount {
        container_path: "/gate".into(),
        host_path: gate.display().to_string(),
        ..Default::default()
    }];
    let id = start(&client, &sandbox, &main, &config).await;
    let mut hints = listen(&runtime);
    assert_eq!(next(&mut hints).await, Hint::Everything);

    let binary = runtime.kill();
    while next(&mut hints).await != Hint::Everything {}
    runtime.start_again(&binary);
    while next(&mut hints).await != Hint::Everything {}
    // A container of before the restart is heard after it.
    while client.container_status(&id).await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    std::fs::write(gate.join("open"), "").expect("open");
    hinted(&mut hints, id.as_str(), uid, || has_ended(&client, &id)).await;
}

#[tokio::test]
async fn a_listener_may_come_before_its_runtime() {
    let directory = tempfile::tempdir().expect("directory");
    let socket = directory.path().join("s");
    let mut hints = RuntimeHints::new(&format!("unix://{}", socket.display())).expect("endpoint").hints();
    let quiet = tokio::time::timeout(Duration::from_millis(500), hints.next()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    let runtime = PrivateRuntime::shared();
    std::os::unix::fs::symlink(runtime.socket(), &socket).expect("link");
    assert_eq!(next(&mut hints).await, Hint::Everything);
}

/// Who waits for an image must hear of it, however it came.
#[tokio::test]
async fn an_image_that_arrives_is_hinted_when_it_can_be_seen() {
    let runtime = PrivateRuntime::start();
    let client = runtime.client();
    let mut hints = listen(&runtime);
    assert_eq!(next(&mut hints).await, Hint::Everything);
    for round in 0..3 {
        let name = format!("rubelet.test/arrived:{round}");
        runtime.ctr(&["-n", "k8s.io", "images", "tag", private_runtime::BUSYBOX, &name]);
        while next(&mut hints).await != Hint::Images {}
        let spec = model::cri::ImageSpec { image: name.clone(), ..Default::default() };
        assert!(
            client.image_status(&spec).await.expect("image status").is_some(),
            "{name} can't be seen yet"
        );
    }
}

/// The end may come before the start was answered. The hint must wait until the end can be seen.
#[tokio::test]
async fn a_container_that_ends_at_once_is_hinted_when_its_end_can_be_seen() {
    let runtime = PrivateRuntime::shared();
    let client = runtime.client();
    let mut hints = listen(&runtime);
    assert_eq!(next(&mut hints).await, Hint::Everything);
    let config = pod(&runtime, "brief");
    let uid = config.metadata.uid.as_str();
    let sandbox = client.run_pod_sandbox(&config, "").await.expect("run");
    for round in 0..15 {
        let brief = container(&config, &format!("brief-{round}"), "exit 0");
        let id = start(&client, &sandbox, &brief, &config).await;
        hinted(&mut hints, id.as_str(), uid, || has_ended(&client, &id)).await;
    }
    client.stop_pod_sandbox(&sandbox).await.expect("stop");
    client.remove_pod_sandbox(&sandbox).await.expect("remove");
}
