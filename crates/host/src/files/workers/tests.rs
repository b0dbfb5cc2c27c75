use super::*;
use std::sync::mpsc::{Receiver, channel};

fn uid(name: &str) -> PodUid {
    PodUid::new(name)
}

fn lanes() -> VolumeWorkers {
    VolumeWorkers::with_stall_timeout(Duration::from_secs(3))
}

/// Work that does not end before the sender is dropped.
fn stuck(gate: Receiver<()>) -> impl FnOnce(&WorkProgress) -> Result<(), FilesError> + Send + 'static {
    move |_| {
        let _ = gate.recv();
        Ok(())
    }
}

async fn quick(lanes: &VolumeWorkers, pod: &str, lane: WorkScope<'_>) -> Result<u32, FilesError> {
    lanes.run(&uid(pod), lane, "quick work".into(), |_| Ok(7)).await
}

#[tokio::test]
async fn what_hangs_keeps_its_volume_and_nothing_else() {
    let lanes = lanes();
    let (hold, gate) = channel();
    let first = lanes.run(&uid("a"), WorkScope::Volume("v"), "setting up v".into(), stuck(gate)).await;
    let error = first.unwrap_err();
    assert!(matches!(error, FilesError::Hung { .. }), "{error:?}");
    assert!(error.to_string().starts_with("setting up v made no progress for"), "{error}");
    assert_eq!(quick(&lanes, "a", WorkScope::Volume("other")).await.unwrap(), 7);
    assert_eq!(quick(&lanes, "b", WorkScope::Volume("v")).await.unwrap(), 7);
    assert_eq!(quick(&lanes, "b", WorkScope::Pod).await.unwrap(), 7);
    let (volume, pod) =
        tokio::join!(quick(&lanes, "a", WorkScope::Volume("v")), quick(&lanes, "a", WorkScope::Pod));
    for result in [volume, pod] {
        assert!(matches!(result, Err(FilesError::Hung { .. })), "not while the first is at it: {result:?}");
    }
    drop(hold);
    // The waiting caller runs as soon as the work has ended.
    assert_eq!(quick(&lanes, "a", WorkScope::Volume("v")).await.unwrap(), 7);
    assert_eq!(quick(&lanes, "a", WorkScope::Pod).await.unwrap(), 7);
    assert_eq!(quick(&lanes, "c", WorkScope::Pod).await.unwrap(), 7);
    assert_eq!(lanes.owners.lock().await.len(), 1, "the others are forgotten");
}

#[tokio::test]
async fn a_pod_that_hangs_everywhere_takes_its_own_places_only() {
    let lanes = lanes();
    let mut held = Vec::new();
    let names: Vec<String> = (0..THREADS_PER_OWNER).map(|n| format!("v{n}")).collect();
    let bad = uid("bad");
    let stuck = names.iter().map(|name| {
        let (hold, gate) = channel();
        held.push(hold);
        lanes.run(&bad, WorkScope::Volume(name), "a dead server".into(), stuck(gate))
    });
    for result in futures::future::join_all(stuck.collect::<Vec<_>>()).await {
        assert!(matches!(result, Err(FilesError::Hung { .. })));
    }
    assert!(matches!(
        quick(&lanes, "bad", WorkScope::Volume("one more")).await,
        Err(FilesError::Hung { .. })
    ));
    let others = (0..100).map(|n| {
        let (lanes, pod) = (lanes.clone(), format!("good-{n}"));
        async move { quick(&lanes, &pod, WorkScope::Volume("v")).await }
    });
    assert!(futures::future::join_all(others).await.into_iter().all(|result| result.is_ok()));
}

#[tokio::test]
async fn slow_work_that_goes_on_is_waited_for() {
    let lanes = VolumeWorkers::with_stall_timeout(Duration::from_secs(2));
    let (hold, gate) = channel::<()>();
    let work = move |pulse: &WorkProgress| {
        for _ in 0..10 {
            pulse.record_step();
            let _ = gate.recv_timeout(Duration::from_millis(400));
        }
        Ok(pulse.steps_taken())
    };
    let done = lanes.run(&uid("a"), WorkScope::Volume("v"), "a long walk".into(), work).await;
    assert_eq!(done.unwrap(), 10);
    drop(hold);
}

/// Deleting a pod does not wait for the end of a walk over a million files.
#[tokio::test]
async fn measuring_gives_way_to_work_on_the_whole_pod() {
    let lanes = lanes();
    let (begun, begins) = tokio::sync::oneshot::channel();
    let endless = move |pulse: &WorkProgress| {
        let _ = begun.send(());
        while !pulse.is_cancelled() {
            pulse.record_step();
            std::thread::yield_now();
        }
        Ok(())
    };
    let pod = uid("a");
    let measuring = lanes.run(&pod, WorkScope::Measuring, "measuring".into(), endless);
    let removing = async {
        begins.await.unwrap();
        quick(&lanes, "a", WorkScope::Volume("v")).await.unwrap();
        quick(&lanes, "a", WorkScope::Pod).await
    };
    let both = async { tokio::join!(measuring, removing) };
    let (measured, removed) = tokio::time::timeout(Duration::from_secs(60), both).await.expect("no end");
    assert_eq!((measured.unwrap(), removed.unwrap()), ((), 7));
    assert_eq!(quick(&lanes, "a", WorkScope::Measuring).await.unwrap(), 7, "a later one is not told to end");
}

/// However often a pod is to be measured, no more than one of its threads walks.
#[tokio::test]
async fn a_pod_is_measured_by_one_thread_at_a_time() {
    let lanes = lanes();
    let (hold, gate) = channel();
    let first = lanes.run(&uid("a"), WorkScope::Measuring, "measuring".into(), stuck(gate)).await;
    assert!(matches!(first, Err(FilesError::Hung { .. })), "{first:?}");
    let second = quick(&lanes, "a", WorkScope::Measuring).await;
    assert!(matches!(second, Err(FilesError::Hung { .. })), "not while the first is at it: {second:?}");
    assert_eq!(quick(&lanes, "a", WorkScope::Volume("v")).await.unwrap(), 7);
    assert_eq!(quick(&lanes, "b", WorkScope::Measuring).await.unwrap(), 7);
    drop(hold);
    assert_eq!(quick(&lanes, "a", WorkScope::Measuring).await.unwrap(), 7);
}

/// Waiting for slow work is not a hang: while one pod's disk is formatted, another pod that waits for it gets no
/// error.
#[tokio::test]
async fn those_behind_slow_work_wait_for_it() {
    let lanes = VolumeWorkers::with_stall_timeout(Duration::from_secs(2));
    let disk = ["the disk".to_owned()];
    let (hold, gate) = channel::<()>();
    let slow = move |pulse: &WorkProgress| {
        for _ in 0..10 {
            pulse.record_step();
            let _ = gate.recv_timeout(Duration::from_millis(400));
        }
        Ok(1)
    };
    let (first, second) = (uid("first"), uid("second"));
    let slow = lanes.run_on(&first, WorkScope::Volume("v"), &disk, "formatting".into(), slow);
    let quick = lanes.run_on(&second, WorkScope::Volume("v"), &disk, "mounting".into(), |_| Ok(2));
    let (slow, quick) = tokio::join!(slow, quick);
    assert_eq!((slow.unwrap(), quick.unwrap()), (1, 2));
    drop(hold);
}

#[tokio::test]
async fn what_pods_share_is_worked_on_by_one_at_a_time() {
    let lanes = lanes();
    let (disk, other) = (["disk 7:0".to_owned()], ["disk 7:1".to_owned()]);
    let (hold, gate) = channel();
    let hung = lanes.run_on(&uid("a"), WorkScope::Volume("v"), &disk, "mounting v".into(), stuck(gate)).await;
    assert!(matches!(hung, Err(FilesError::Hung { .. })), "{hung:?}");
    let b = uid("b");
    let quick = |disks: &'static str| {
        let disks = if disks == "same" { &disk } else { &other };
        lanes.run_on(&b, WorkScope::Volume("v"), disks, "mounting v".into(), |_| Ok(7))
    };
    let error = quick("same").await.unwrap_err().to_string();
    assert!(
        error.starts_with("other work on disk 7:0, for which mounting v waits, made no progress"),
        "{error}"
    );
    assert_eq!(quick("another").await.unwrap(), 7);
    drop(hold);
    assert_eq!(quick("same").await.unwrap(), 7);
}

/// A pod whose every thread hangs does not hold the lock of a disk.
#[tokio::test]
async fn who_waits_for_a_place_keeps_no_turn_at_what_pods_share() {
    let lanes = VolumeWorkers::with_stall_timeout(Duration::from_secs(600));
    let mut held = Vec::new();
    let mut bad: Vec<_> = (0..THREADS_PER_OWNER)
        .map(|n| {
            let (hold, gate) = channel();
            held.push(hold);
            let lanes = lanes.clone();
            tokio::spawn(async move {
                lanes
                    .run(
                        &uid("bad"),
                        WorkScope::Volume(&format!("v{n}")),
                        "a dead server".into(),
                        stuck(gate),
                    )
                    .await
            })
        })
        .collect();
    settle().await;
    let other = lanes.clone();
    bad.push(tokio::spawn(async move {
        let disk = ["disk 7:0".to_owned()];
        other.run_on(&uid("bad"), WorkScope::Volume("disk"), &disk, "mounting".into(), |_| Ok(())).await
    }));
    settle().await;
    let disk = ["disk 7:0".to_owned()];
    let good = lanes.run_on(&uid("good"), WorkScope::Volume("v"), &disk, "mounting".into(), |_| Ok(7)).await;
    assert_eq!(good.unwrap(), 7);
    assert!(bad.iter().all(|work| !work.is_finished()));
    drop(held);
    for work in bad {
        work.await.unwrap().unwrap();
    }
}

/// If a shared disk hangs, a pod that waits for it can still use its other volumes.
#[tokio::test]
async fn who_waits_for_a_shared_turn_keeps_no_place() {
    let lanes = VolumeWorkers::with_stall_timeout(Duration::from_secs(600));
    let (hold, gate) = channel();
    let disk = || ["disk 7:0".to_owned()];
    let other = lanes.clone();
    let first = tokio::spawn(async move {
        other.run_on(&uid("a"), WorkScope::Volume("v"), &disk(), "mounting".into(), stuck(gate)).await
    });
    settle().await;
    let waiting: Vec<_> = (0..2 * THREADS_PER_OWNER)
        .map(|n| {
            let lanes = lanes.clone();
            tokio::spawn(async move {
                let name = format!("v{n}");
                lanes
                    .run_on(&uid("b"), WorkScope::Volume(&name), &disk(), "mounting".into(), |_| Ok(()))
                    .await
            })
        })
        .collect();
    settle().await;
    assert_eq!(quick(&lanes, "b", WorkScope::Volume("other")).await.unwrap(), 7);
    assert!(waiting.iter().all(|work| !work.is_finished()));
    drop(hold);
    first.await.unwrap().unwrap();
    for work in waiting {
        work.await.unwrap().unwrap();
    }
}

/// Runs until every task waits. All of them are on this thread.
async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn work_learns_that_nobody_waits_for_it() {
    let lanes = lanes();
    let (hold, gate) = channel::<()>();
    let (ended, end) = oneshot::channel();
    let work = move |pulse: &WorkProgress| {
        while !pulse.is_cancelled() {
            pulse.record_step();
            let _ = gate.recv_timeout(Duration::from_millis(5));
        }
        let _ = ended.send(());
        Ok(())
    };
    let pod = uid("a");
    let walk = lanes.run(&pod, WorkScope::Volume("v"), "a walk".into(), work);
    assert!(tokio::time::timeout(Duration::from_millis(200), walk).await.is_err(), "it goes on");
    lanes.wait_until_idle(&pod, WorkScope::Volume("v"), "the walk").await.unwrap();
    end.await.unwrap();
    drop(hold);
}

#[tokio::test]
async fn rest_comes_when_what_hangs_has_ended() {
    let lanes = lanes();
    let (hold, gate) = channel();
    let pod = uid("a");
    let hung = lanes.run(&pod, WorkScope::Volume("v"), "a walk".into(), stuck(gate)).await;
    assert!(matches!(hung, Err(FilesError::Hung { .. })), "{hung:?}");
    let error =
        lanes.wait_until_idle(&pod, WorkScope::Volume("v"), "earlier work").await.unwrap_err().to_string();
    assert!(error.starts_with("earlier work made no progress for"), "{error}");
    lanes.wait_until_idle(&pod, WorkScope::Volume("other"), "earlier work").await.unwrap();
    drop(hold);
    lanes.wait_until_idle(&pod, WorkScope::Volume("v"), "earlier work").await.unwrap();
}

#[tokio::test]
async fn a_panic_is_told_and_frees_the_place() {
    let lanes = lanes();
    let work = |_: &WorkProgress| -> Result<(), FilesError> { std::panic::resume_unwind(Box::new("a bug")) };
    let error = lanes.run(&uid("a"), WorkScope::Pod, "work".into(), work).await.unwrap_err();
    assert!(matches!(error, FilesError::Panicked { .. }), "{error:?}");
    assert_eq!(quick(&lanes, "a", WorkScope::Pod).await.unwrap(), 7);
}
