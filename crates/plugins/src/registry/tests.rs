use super::*;
use crate::DriverClients;
use crate::test_server::csi::node_server::{Node, NodeServer};
use crate::test_server::csi::{NodeGetInfoRequest, NodeGetInfoResponse};
use crate::test_server::registration as served;
use model::GrpcCode;
use ports::CsiDrivers;
use served::registration_server::{Registration, RegistrationServer};
use std::sync::Arc;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tonic::{Request, Response, Status};

/// Tells who it is, and passes on what it is told.
struct Plugin {
    info: served::PluginInfo,
    told: mpsc::UnboundedSender<(bool, String)>,
}

#[tonic::async_trait]
impl Registration for Plugin {
    async fn get_info(
        &self,
        _: Request<served::InfoRequest>,
    ) -> Result<Response<served::PluginInfo>, Status> {
        Ok(Response::new(self.info.clone()))
    }

    async fn notify_registration_status(
        &self,
        status: Request<served::RegistrationStatus>,
    ) -> Result<Response<served::RegistrationStatusResponse>, Status> {
        let status = status.into_inner();
        let _ = self.told.send((status.plugin_registered, status.error));
        Ok(Response::new(served::RegistrationStatusResponse {}))
    }
}

struct Driver;

#[tonic::async_trait]
impl Node for Driver {
    async fn node_get_info(
        &self,
        _: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        let topology = crate::test_server::csi::Topology { segments: [("zone".into(), "a".into())].into() };
        Ok(Response::new(NodeGetInfoResponse {
            node_id: "me".into(),
            max_volumes_per_node: 7,
            accessible_topology: Some(topology),
        }))
    }
}

fn serve(socket: &Path, told: mpsc::UnboundedSender<(bool, String)>) -> tokio::task::JoinHandle<()> {
    let info = served::PluginInfo {
        r#type: "CSIPlugin".into(),
        name: "disk.example".into(),
        endpoint: String::new(),
        supported_versions: vec!["1.0.0".into()],
    };
    serve_plugin(socket, Plugin { info, told })
}

fn serve_plugin(socket: &Path, plugin: Plugin) -> tokio::task::JoinHandle<()> {
    let listener = UnixListener::bind(socket).unwrap();
    let incoming = tokio_stream::wrappers::UnixListenerStream::new(listener);
    let server = tonic::transport::Server::builder()
        .add_service(RegistrationServer::new(plugin))
        .add_service(NodeServer::new(Driver));
    tokio::spawn(async move { server.serve_with_incoming(incoming).await.unwrap() })
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn sockets_come_go_and_are_made_anew() {
    let temp = tempfile::tempdir().unwrap();
    let early = temp.path().join("early.sock");
    let bind = |path: &Path| std::os::unix::net::UnixListener::bind(path).unwrap();
    bind(&early);
    std::fs::write(temp.path().join("file.sock"), "no socket").unwrap();
    bind(&temp.path().join(".hidden.sock"));
    let mut notices = PluginRegistry::new(temp.path()).watch();
    assert_eq!(notices.next().await, Some(PluginSocketEvent::Added { path: text(&early) }));

    let deep = temp.path().join("a/b/deep.sock");
    std::fs::create_dir_all(deep.parent().unwrap()).unwrap();
    bind(&deep);
    assert_eq!(notices.next().await, Some(PluginSocketEvent::Added { path: text(&deep) }));

    std::fs::remove_file(&early).unwrap();
    bind(&early);
    assert_eq!(notices.next().await, Some(PluginSocketEvent::Gone { path: text(&early) }));
    assert_eq!(notices.next().await, Some(PluginSocketEvent::Added { path: text(&early) }));

    std::fs::remove_dir_all(temp.path().join("a")).unwrap();
    assert_eq!(notices.next().await, Some(PluginSocketEvent::Gone { path: text(&deep) }));
}

#[tokio::test]
async fn a_plugin_is_asked_and_told() {
    let temp = tempfile::tempdir().unwrap();
    let socket = temp.path().join("p.sock");
    let (told, mut heard) = mpsc::unbounded_channel();
    let running = serve(&socket, told);
    let registry = PluginRegistry::new(temp.path());
    let info = registry.get_info(&text(&socket)).await.unwrap();
    assert_eq!((info.kind.as_str(), info.name.as_str()), ("CSIPlugin", "disk.example"));
    registry.notify_registration_status(&text(&socket), Some("no")).await.unwrap();
    registry.notify_registration_status(&text(&socket), None).await.unwrap();
    assert_eq!(heard.recv().await, Some((false, "no".to_owned())));
    assert_eq!(heard.recv().await, Some((true, String::new())));

    let drivers = Arc::new(DriverClients::default());
    let unknown = drivers.node_get_info("disk.example").await.unwrap_err();
    assert_eq!(
        unknown.to_string(),
        "driver name disk.example not found in the list of registered CSI drivers"
    );
    drivers.set_endpoint("disk.example", Some(&format!("unix://{}", text(&socket))));
    let node = drivers.node_get_info("disk.example").await.unwrap();
    assert_eq!((node.node_id.as_str(), node.max_volumes), ("me", 7));
    assert_eq!(node.topology.get("zone").map(String::as_str), Some("a"));
    // What it does not know is told as gRPC tells it, and so is that nobody listens any more.
    let missing = drivers.node_unpublish_volume("disk.example", "h", "/t").await.unwrap_err();
    assert!(matches!(missing, CsiError::Rpc { code: GrpcCode::Unimplemented, .. }), "{missing}");
    running.abort();
    let _ = running.await;
    std::fs::remove_file(&socket).unwrap();
    drivers.set_endpoint("disk.example", Some(&text(&socket)));
    let away = drivers.node_unpublish_volume("disk.example", "h", "/t").await.unwrap_err();
    assert!(
        matches!(&away, CsiError::Rpc { code: GrpcCode::Unavailable, message } if message.contains("p.sock"))
    );
    drivers.set_endpoint("disk.example", None);
    assert!(matches!(
        drivers.node_get_capabilities("disk.example").await,
        Err(CsiError::NotRegistered { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_never_answers_is_given_up() {
    let temp = tempfile::tempdir().unwrap();
    let socket = temp.path().join("p.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let error = PluginRegistry::new(temp.path()).get_info(&text(&socket)).await.unwrap_err();
    assert_eq!(error, CsiError::timed_out());
    assert!(!error.is_final());
}

#[tokio::test]
async fn long_texts_of_a_plugin_are_cut_and_refused() {
    let temp = tempfile::tempdir().unwrap();
    let get_info = async |length: usize| {
        let socket = temp.path().join(format!("{length}.sock"));
        let long = || "x".repeat(length);
        let info = served::PluginInfo {
            r#type: long(),
            name: long(),
            endpoint: long(),
            supported_versions: std::iter::repeat_with(long).take(20).collect(),
        };
        let running = serve_plugin(&socket, Plugin { info, told: mpsc::unbounded_channel().0 });
        let info = PluginRegistry::new(temp.path()).get_info(&text(&socket)).await;
        running.abort();
        info
    };
    let info = get_info(100 << 10).await.unwrap();
    let texts = [&info.kind, &info.name, &info.endpoint];
    let longest = texts.into_iter().chain(&info.versions).map(String::len).max();
    assert!(longest <= Some(TextLimit::QuotedValue.bytes()), "{longest:?}");
    assert_eq!(info.versions.len(), MAX_VERSIONS);
    let error = get_info(MAX_ANSWER_BYTES).await.unwrap_err().to_string();
    assert!(error.contains("too large"), "{error}");
}
