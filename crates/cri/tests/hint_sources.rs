//! Which source of hints is listened to, and what is done when a runtime refuses one or both.

mod false_runtime;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cri::RuntimeHints;
use false_runtime::{FalseRuntime, LONG, containerd, pb, socket};
use futures::StreamExt;
use futures::stream::BoxStream;
use pb::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use ports::{Hint, HintStream, RuntimeEvents};
use prost::Message;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

type Events<T> = BoxStream<'static, Result<T, Status>>;

/// A runtime of some name and version, whose CRI events may be missing.
#[derive(Clone, Default)]
struct Speaker {
    name: &'static str,
    version: &'static str,
    /// What GetContainerEvents does.
    cri: Offer,
    subscriptions: Arc<AtomicUsize>,
}

#[derive(Clone, Copy, Default)]
enum Offer {
    /// One event of pod `pod-uid`, then silence.
    OneEvent,
    #[default]
    Unimplemented,
    Broken,
    EndsAtOnce,
}

#[tonic::async_trait]
impl RuntimeService for Speaker {
    async fn version(&self, _: Request<pb::VersionRequest>) -> Result<Response<pb::VersionResponse>, Status> {
        Ok(Response::new(pb::VersionResponse {
            version: "0.1.0".into(),
            runtime_name: self.name.into(),
            runtime_version: self.version.into(),
            runtime_api_version: "v1".into(),
        }))
    }

    async fn get_container_events(
        &self,
        _: Request<pb::GetEventsRequest>,
    ) -> Result<Response<Events<pb::ContainerEventResponse>>, Status> {
        self.subscriptions.fetch_add(1, Ordering::SeqCst);
        let metadata = pb::PodSandboxMetadata { uid: "pod-uid".into(), ..Default::default() };
        let event = pb::ContainerEventResponse {
            container_id: "container".into(),
            pod_sandbox_status: Some(pb::PodSandboxStatus { metadata: Some(metadata), ..Default::default() }),
        };
        match self.cri {
            Offer::OneEvent => Ok(Response::new(one_then_silence(event))),
            Offer::Unimplemented => Err(Status::unimplemented("unknown method")),
            Offer::Broken => Err(Status::internal("out of order")),
            Offer::EndsAtOnce => Ok(Response::new(futures::stream::empty().boxed())),
        }
    }
}

fn one_then_silence<T: Send + 'static>(event: T) -> Events<T> {
    futures::stream::iter([Ok(event)]).chain(futures::stream::pending()).boxed()
}

/// containerd's events: one exit of container `container`.
struct ContainerdEvents;

#[tonic::async_trait]
impl containerd::events_server::Events for ContainerdEvents {
    async fn subscribe(
        &self,
        request: Request<containerd::SubscribeRequest>,
    ) -> Result<Response<Events<containerd::Envelope>>, Status> {
        let filters = request.into_inner().filters;
        if !filters.iter().any(|f| f == r#"namespace=="k8s.io",topic=="/tasks/exit""#) {
            return Err(Status::invalid_argument(format!("{filters:?}")));
        }
        let exit = containerd::TaskExit { container_id: "container".into(), id: "container".into() };
        let event =
            prost_types::Any { type_url: "containerd.events.TaskExit".into(), value: exit.encode_to_vec() };
        Ok(Response::new(one_then_silence(containerd::Envelope {
            namespace: "k8s.io".into(),
            topic: "/tasks/exit".into(),
            event: Some(event),
        })))
    }
}

fn serve(socket: &Path, speaker: &Speaker, has_containerd_events: bool) -> FalseRuntime {
    let routes = Routes::new(RuntimeServiceServer::new(speaker.clone()));
    let routes = match has_containerd_events {
        true => routes.add_service(containerd::events_server::EventsServer::new(ContainerdEvents)),
        false => routes,
    };
    FalseRuntime::serve(socket, routes)
}

fn listen(socket: &Path) -> HintStream {
    RuntimeHints::new(&socket.display().to_string()).expect("endpoint").hints()
}

async fn next(hints: &mut HintStream) -> Hint {
    tokio::time::timeout(LONG, hints.next()).await.expect("a hint in time").expect("the stream never ends")
}

/// The first hint that names something. A refusal may come after the stream was thought to stand, so there may be
/// more than one `Everything` before it.
async fn next_name(hints: &mut HintStream) -> Hint {
    loop {
        match next(hints).await {
            Hint::Everything => {}
            hint => return hint,
        }
    }
}

#[tokio::test]
async fn the_complete_source_is_taken_and_the_other_when_it_is_refused() {
    let by_pod = Hint::Pod("pod-uid".into());
    let by_id = Hint::ContainerOrSandbox("container".into());
    let table = [
        ("containerd", "1.6.20", Offer::Unimplemented, true, &by_id),
        ("containerd", "1.7.24", Offer::OneEvent, true, &by_id),
        ("containerd", "1.7.24", Offer::OneEvent, false, &by_pod),
        ("containerd", "2.1.0", Offer::OneEvent, true, &by_pod),
        ("containerd", "2.1.0", Offer::Unimplemented, true, &by_id),
        ("containerd", "2.1.0", Offer::Broken, true, &by_id),
        ("cri-o", "1.33.0", Offer::OneEvent, false, &by_pod),
    ];
    for (name, version, cri, has_containerd_events, expect) in table {
        let (_directory, socket) = socket();
        let speaker = Speaker { name, version, cri, ..Default::default() };
        let _server = serve(&socket, &speaker, has_containerd_events);
        let mut hints = listen(&socket);
        assert_eq!(next(&mut hints).await, Hint::Everything, "{name} {version}");
        assert_eq!(next_name(&mut hints).await, *expect, "{name} {version}");
    }
}

/// An exit that containerd told of before it was listened to may not have been visible at the first look.
#[tokio::test]
async fn who_listens_to_containerd_itself_is_told_to_look_twice() {
    let (_directory, socket) = socket();
    let speaker =
        Speaker { name: "containerd", version: "1.6.20", cri: Offer::Unimplemented, ..Default::default() };
    let _server = serve(&socket, &speaker, true);
    let mut hints = listen(&socket);
    assert_eq!(next(&mut hints).await, Hint::Everything);
    assert_eq!(next_name(&mut hints).await, Hint::ContainerOrSandbox("container".into()));
    assert_eq!(next(&mut hints).await, Hint::Everything);
    assert_eq!(speaker.subscriptions.load(Ordering::SeqCst), 0, "nothing was lost and asked for anew");
}

#[tokio::test]
async fn a_runtime_without_hints_is_asked_seldom_and_heard_when_it_has_some() {
    let (_directory, socket) = socket();
    for cri in [Offer::Unimplemented, Offer::Broken, Offer::EndsAtOnce] {
        let silent = Speaker { name: "cri-o", version: "1", cri, ..Default::default() };
        let server = serve(&socket, &silent, false);
        let mut hints = listen(&socket);
        let named = tokio::time::timeout(Duration::from_millis(1500), next_name(&mut hints)).await;
        assert!(named.is_err(), "{named:?}");
        let asked = silent.subscriptions.load(Ordering::SeqCst);
        assert!((1..=8).contains(&asked), "asked {asked} times");
        drop(server);

        let speaker = Speaker { name: "cri-o", version: "2", cri: Offer::OneEvent, ..Default::default() };
        let _server = serve(&socket, &speaker, false);
        assert_eq!(next_name(&mut hints).await, Hint::Pod("pod-uid".into()));
    }
}

#[tokio::test]
async fn a_lost_connection_is_noticed_and_said() {
    let (_directory, socket) = socket();
    let speaker =
        Speaker { name: "containerd", version: "2.1.0", cri: Offer::OneEvent, ..Default::default() };
    let mut server = serve(&socket, &speaker, true);
    let mut hints = listen(&socket);
    for _ in 0..3 {
        assert_eq!(next(&mut hints).await, Hint::Everything);
        assert_eq!(next(&mut hints).await, Hint::Pod("pod-uid".into()));
        drop(server);
        assert_eq!(next(&mut hints).await, Hint::Everything, "the loss");
        server = serve(&socket, &speaker, true);
    }
}

#[tokio::test]
async fn dropping_the_stream_ends_the_connection() {
    let (_directory, socket) = socket();
    let listener = tokio::net::UnixListener::bind(&socket).expect("bind");
    let mut hints = listen(&socket);
    let accepted = tokio::select! {
        hint = hints.next() => panic!("{hint:?}"),
        accepted = listener.accept() => accepted,
    };
    let (mut stream, _) = accepted.expect("accept");
    drop(hints);
    let read_to_end = async {
        let mut sink = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut sink).await
    };
    tokio::time::timeout(LONG, read_to_end).await.expect("the connection is still open").expect("read");
}
