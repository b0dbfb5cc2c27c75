//! The service on its socket, with a client of gRPC.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use hyper_util::rt::TokioIo;
use model::FullName;
use model::k8s::Pod;
use tokio::sync::{Mutex, mpsc};
use tonic::Code;
use tonic::transport::{Channel, Endpoint, Uri};

use super::client::pods_client::PodsClient;
use super::client::{
    EventType, GetPodRequest, ListPodsRequest, WatchPodsEvent as SentEvent, WatchPodsRequest,
};
use super::*;
use crate::testing::metrics;

/// The engine's side: two pods, and changes that the test sends.
#[derive(Default)]
struct FakePods {
    changes: Mutex<Vec<mpsc::Sender<PodWatchEvent>>>,
    asked: AtomicUsize,
}

fn snapshot(name: &str) -> PodSnapshot {
    let mut pod = Pod::default();
    pod.metadata.name = Some(name.into());
    PodSnapshot { pod: Arc::new(pod), status: None }
}

#[tonic::async_trait]
impl PodWatches for FakePods {
    async fn list_pods(&self) -> Option<Vec<PodSnapshot>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        Some(vec![snapshot("a"), snapshot("b")])
    }
    async fn get_pod(&self, uid: PodUid) -> Option<Option<PodSnapshot>> {
        match uid.as_str() {
            "ended" => None,
            name => Some((name == "a").then(|| snapshot(name))),
        }
    }
    async fn watch_pods(&self) -> Option<PodWatch> {
        let (changes, queue) = mpsc::channel(8);
        self.changes.lock().await.push(changes);
        let events = stream::unfold(queue, async |mut queue| queue.recv().await.map(|e| (e, queue)));
        Some(PodWatch { pods: vec![snapshot("a"), snapshot("b")], events: events.boxed() })
    }
}

struct Served {
    root: tempfile::TempDir,
    pods: Arc<FakePods>,
    metrics: Arc<AgentMetrics>,
    stop: CancellationToken,
    handle: ServerHandle,
}

impl Served {
    async fn start() -> Self {
        Self::start_in(tempfile::tempdir().unwrap()).await
    }

    async fn start_in(root: tempfile::TempDir) -> Self {
        let (pods, metrics, stop) = (Arc::new(FakePods::default()), metrics(), CancellationToken::new());
        let handle =
            serve_pods_api(root.path(), pods.clone(), metrics.clone(), stop.clone()).await.expect("served");
        Self { root, pods, metrics, stop, handle }
    }

    fn socket(&self) -> PathBuf {
        self.root.path().join("pods-api/pods-api.sock")
    }

    fn client(&self) -> PodsClient<Channel> {
        let path = self.socket();
        let connector = tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(&path).await.map(TokioIo::new) }
        });
        PodsClient::new(Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector))
    }

    async fn send(&self, event: PodWatchEvent) {
        for changes in &*self.pods.changes.lock().await {
            changes.send(event.clone()).await.expect("a watcher");
        }
    }
}

fn name(pod: &[u8]) -> &str {
    // A Pod with metadata, that has a name: two lengths and the text.
    let name = pod.get(4..).unwrap_or_default();
    std::str::from_utf8(&name[..usize::from(*pod.get(3).unwrap_or(&0))]).expect("a name")
}

async fn next(events: &mut tonic::Streaming<SentEvent>) -> Result<(EventType, String), Status> {
    let event = events.message().await?.expect("an event");
    let kind = event.r#type();
    Ok((kind, name(&event.pod).to_owned()))
}

async fn watch(client: &mut PodsClient<Channel>) -> tonic::Streaming<SentEvent> {
    client.watch_pods(WatchPodsRequest {}).await.expect("a watch").into_inner()
}

#[tokio::test]
async fn pods_are_listed_and_found() {
    let served = Served::start().await;
    let mut client = served.client();
    let listed = client.list_pods(ListPodsRequest {}).await.unwrap().into_inner();
    assert_eq!(listed.pods.iter().map(|pod| name(pod)).collect::<Vec<_>>(), ["a", "b"]);
    let mut get = async |uid: &str| client.get_pod(GetPodRequest { pod_uid: uid.into() }).await;
    assert_eq!(name(&get("a").await.unwrap().into_inner().pod), "a");
    for (uid, code, message) in [
        ("x", Code::NotFound, "pod with UID x not found"),
        ("", Code::NotFound, "pod with UID  not found"),
        ("ü\u{1f600}\n", Code::NotFound, "pod with UID ü\u{1f600}\n not found"),
        ("ended", Code::Unavailable, "the agent is shutting down"),
    ] {
        let status = get(uid).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (code, message), "{uid}");
    }
    let status = get(&"x".repeat(MAX_REQUEST_BYTES + 1)).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
    assert!(get("a").await.is_ok(), "the connection is still good");
}

#[tokio::test]
async fn a_watch_begins_with_every_pod_and_goes_on_with_changes() {
    let served = Served::start().await;
    let mut events = watch(&mut served.client()).await;
    let expect = [(EventType::Added, "a"), (EventType::Added, "b"), (EventType::InitialSyncComplete, "")];
    for (kind, name) in expect {
        assert_eq!(next(&mut events).await.unwrap(), (kind, name.to_owned()));
    }
    served.send(PodWatchEvent::Added(snapshot("c"))).await;
    served.send(PodWatchEvent::Modified(snapshot("c"))).await;
    served.send(PodWatchEvent::Deleted { uid: "u".into(), full_name: FullName::new("c", "ns") }).await;
    for kind in [EventType::Added, EventType::Modified, EventType::Deleted] {
        assert_eq!(next(&mut events).await.unwrap(), (kind, "c".to_owned()));
    }
    served.send(PodWatchEvent::FellBehind).await;
    let status = next(&mut events).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(events.message().await.unwrap().is_none());
}

#[tokio::test]
async fn the_end_of_the_agent_ends_watches_and_the_socket() {
    let served = Served::start().await;
    let mut events = watch(&mut served.client()).await;
    // This one takes nothing.
    let _stuck = watch(&mut served.client()).await;
    for _ in 0..3 {
        next(&mut events).await.unwrap();
    }
    served.stop.cancel();
    assert_eq!(next(&mut events).await.unwrap_err().code(), Code::Unavailable);
    let socket = served.socket();
    served.handle.ended().await;
    assert!(!socket.exists());
}

#[tokio::test]
async fn only_root_gets_there_and_a_socket_left_behind_is_replaced() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("pods-api");
    std::fs::create_dir(&directory).unwrap();
    drop(std::os::unix::net::UnixListener::bind(directory.join("pods-api.sock")).unwrap());
    let served = Served::start_in(root).await;
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&served.socket()), 0o600);
    assert!(served.client().list_pods(ListPodsRequest {}).await.is_ok());
    let fresh = Served::start().await;
    assert_eq!(mode(fresh.socket().parent().unwrap()), 0o750);

    let second = serve_pods_api(served.root.path(), served.pods.clone(), metrics(), CancellationToken::new());
    assert!(matches!(second.await.map(|_| ()), Err(ServeError::InUse { .. })));
    assert!(served.client().list_pods(ListPodsRequest {}).await.is_ok(), "the first one still serves");
}

#[tokio::test]
async fn a_flood_of_calls_is_refused_before_the_agent_hears_of_it() {
    let served = Served::start().await;
    let mut client = served.client();
    let mut refused = 0;
    for _ in 0..200 {
        match client.list_pods(ListPodsRequest {}).await {
            Ok(_) => {}
            Err(status) => {
                assert_eq!(
                    (status.code(), status.message()),
                    (Code::ResourceExhausted, "rejected by rate limit")
                );
                refused += 1;
            }
        }
    }
    assert_eq!(served.pods.asked.load(Ordering::SeqCst) + refused, 200);
    let mut watching = watch(&mut client).await;
    assert!(next(&mut watching).await.is_ok(), "watches are not counted");
}

#[tokio::test]
async fn watches_are_limited_and_one_that_ends_makes_room() {
    let served = Served::start().await;
    let mut client = served.client();
    let mut watches = Vec::new();
    for _ in 0..MAX_WATCHES {
        watches.push(watch(&mut client).await);
    }
    let status = client.watch_pods(WatchPodsRequest {}).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(client.get_pod(GetPodRequest { pod_uid: "a".into() }).await.is_ok());
    watches.pop();
    tokio::time::timeout(crate::AGENT_TIMEOUT, async {
        while client.watch_pods(WatchPodsRequest {}).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("room for one more");
    assert!(next(&mut watches[0]).await.is_ok());
}

/// Bytes that are not HTTP/2, and a method that is not there.
#[tokio::test]
async fn nonsense_hurts_nobody() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let served = Served::start().await;
    for nonsense in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\xff"]
    {
        let mut connection = UnixStream::connect(served.socket()).await.unwrap();
        // It may be closed before everything was sent.
        let _ = connection.write_all(nonsense).await;
        let _ = connection.shutdown().await;
        let _ = connection.read_to_end(&mut Vec::new()).await;
    }
    assert!(served.client().list_pods(ListPodsRequest {}).await.is_ok());
    let text = served.metrics.text(&crate::metrics::ScrapeInputs::default()).expect("metrics");
    assert!(text.contains("kubelet_pod_watch_events_dropped_total 0"), "{text}");
    served.metrics.pod_watch_event_dropped();
    let text = served.metrics.text(&crate::metrics::ScrapeInputs::default()).expect("metrics");
    assert!(text.contains("kubelet_pod_watch_events_dropped_total 1"), "{text}");
}
