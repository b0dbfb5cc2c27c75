//! The node's requests for certificates of pods, as they are listed and watched on a local server.

mod tls_server;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use apiserver::{Api, Connection, cluster_ports};
use bytes::Bytes;
use futures::StreamExt;
use http::Response;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use tls_server::{Authority, Body, Handler, Server, Setup, clock, kubeconfig, packed, serve};

fn list(version: u32, names: &[&str]) -> Response<Body> {
    let item = |name: &&str| {
        format!(r#"{{"metadata":{{"name":"{name}","namespace":"ns","resourceVersion":"4"}},"spec":{{}}}}"#)
    };
    let items = names.iter().map(item).collect::<Vec<_>>().join(",");
    let text = format!(r#"{{"metadata":{{"resourceVersion":"{version}"}},"items":[{items}]}}"#);
    Response::new(Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed())
}

/// The first watch finds that its version is gone, so that the client lists again. Later ones show nothing.
fn watch(number: usize) -> Response<Body> {
    let expired = r#"{"type":"ERROR","object":{"kind":"Status","reason":"Expired","code":410}}"#;
    let lines = if number == 0 { format!("{expired}\n") } else { String::new() };
    let said = futures::stream::iter([Ok(Frame::data(Bytes::from(lines)))]);
    Response::new(BodyExt::boxed(StreamBody::new(said.chain(futures::stream::pending()))))
}

/// Its watch cache is old: it does not know the requests that were made last.
async fn server_with_an_old_cache() -> (Server, Api) {
    let authority = Authority::new("ours");
    let watches = Arc::new(AtomicUsize::new(0));
    let handler: Handler = Arc::new(move |request, _| {
        let watches = watches.clone();
        Box::pin(async move {
            let query = request.uri().query().unwrap_or_default().to_owned();
            if query.contains("watch=true") {
                return watch(watches.fetch_add(1, Ordering::SeqCst));
            }
            let from_cache = query.contains("resourceVersion=0");
            if from_cache && watches.load(Ordering::SeqCst) > 0 { list(3, &[]) } else { list(5, &["req-1"]) }
        })
    });
    let server = serve(Setup::new(authority.sign(&["localhost", "127.0.0.1"], |_| {})), handler).await;
    let cluster = format!(
        "server: 'https://{}', certificate-authority-data: {}",
        server.address,
        packed(&authority.pem)
    );
    let dir = tempfile::tempdir().expect("directory");
    let file = kubeconfig(dir.path(), &cluster, "token: t");
    let api = Api::new(Connection::open(&file, "kubelet/test", clock()).expect("a connection"));
    (server, api.with_deadline(Duration::from_secs(60)))
}

/// A request that is not in a list counts as deleted, and another one is made.
#[tokio::test]
async fn a_list_never_lacks_a_request_that_was_there_before() {
    let (_server, api) = server_with_an_old_cache().await;
    let mut sets = cluster_ports(&api).certificates.requests("n");
    for number in 0..2 {
        let set = tokio::time::timeout(Duration::from_secs(60), sets.next()).await;
        let set = set.ok().flatten().expect("a set");
        let names: Vec<_> = set.iter().filter_map(|request| request.metadata.name.as_deref()).collect();
        assert_eq!(names, ["req-1"], "list {number}");
    }
}
