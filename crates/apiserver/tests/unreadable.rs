//! Objects that can't be decoded, in lists and watches of a local server: each costs itself only. Watches that bring
//! nothing, or what is no event: they say so, and the agent lists.

mod tls_server;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use apiserver::{Api, ApiPodFeed, Connection, cluster_ports};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use http::Response;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use model::k8s::Service;
use model::report::WatchReport;
use ports::{ClusterPorts, FeedNotice, PodFeed};
use tls_server::{Authority, Body, Handler, Server, Setup, clock, kubeconfig, packed, serve};
use tokio::time::Instant;

/// Answers of a server, by how often it was asked: lists, and watches with the version that they begin after.
struct Script {
    lists: Vec<String>,
    watches: Vec<(&'static str, Vec<String>)>,
    /// So long the server waits before it opens a watch.
    opens_after: Duration,
}

impl Script {
    fn new(lists: Vec<String>, watches: Vec<(&'static str, Vec<String>)>) -> Self {
        Self { lists, watches, opens_after: Duration::ZERO }
    }
}

async fn server(script: Script) -> (Server, Api) {
    let ours = Authority::new("ours");
    let (script, lists, watches) = (Arc::new(script), Arc::new(AtomicUsize::new(0)), AtomicUsize::new(0));
    let watches = Arc::new(watches);
    let handler: Handler = Arc::new(move |request, _| {
        let (script, lists, watches) = (script.clone(), lists.clone(), watches.clone());
        Box::pin(async move {
            let query = request.uri().query().unwrap_or_default().to_owned();
            if !query.contains("watch=true") {
                let list =
                    script.lists[lists.fetch_add(1, Ordering::SeqCst).min(script.lists.len() - 1)].clone();
                return Response::new(Full::new(Bytes::from(list)).map_err(|never| match never {}).boxed());
            }
            tokio::time::sleep(script.opens_after).await;
            let number = watches.fetch_add(1, Ordering::SeqCst);
            let Some((since, lines)) = script.watches.get(number) else { return lasting(Vec::new()) };
            assert!(query.contains(&format!("resourceVersion={since}")), "watch {number}: {query}");
            let last = number + 1 >= script.watches.len();
            if last { lasting(lines.clone()) } else { ending(lines.clone()) }
        })
    });
    let server = serve(Setup::new(ours.sign(&["localhost", "127.0.0.1"], |_| {})), handler).await;
    let cluster =
        format!("server: 'https://{}', certificate-authority-data: {}", server.address, packed(&ours.pem));
    let dir = tempfile::tempdir().expect("directory");
    let file = kubeconfig(dir.path(), &cluster, "token: t");
    let api = Api::new(Connection::open(&file, "kubelet/test", clock()).expect("a connection"));
    (server, api.with_deadline(Duration::from_secs(60)))
}

fn ending(lines: Vec<String>) -> Response<Body> {
    let said = futures::stream::iter(lines.into_iter().map(|line| Ok(Frame::data(Bytes::from(line + "\n")))));
    Response::new(BodyExt::boxed(StreamBody::new(said)))
}

fn lasting(lines: Vec<String>) -> Response<Body> {
    let said = futures::stream::iter(lines.into_iter().map(|line| Ok(Frame::data(Bytes::from(line + "\n")))));
    Response::new(BodyExt::boxed(StreamBody::new(said.chain(futures::stream::pending()))))
}

fn object(name: &str, uid: &str, version: u32, rest: &str) -> String {
    format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"ns","uid":"{uid}","resourceVersion":"{version}"}}{rest}}}"#
    )
}

fn list(version: u32, items: &[String]) -> String {
    format!(r#"{{"metadata":{{"resourceVersion":"{version}"}},"items":[{}]}}"#, items.join(","))
}

fn event(kind: &str, object: &str) -> String {
    format!(r#"{{"type":"{kind}","object":{object}}}"#)
}

fn service(name: &str, version: u32) -> String {
    object(name, name, version, r#","spec":{"clusterIP":"10.0.0.1"}"#)
}

fn bad_service(name: &str, uid: &str, version: u32) -> String {
    object(name, uid, version, r#","spec":{"ports":"many"}"#)
}

/// The watch of services until it holds these.
async fn services(ports: &ClusterPorts, expect: &[&str]) {
    let mut sets = ports.shared.services();
    let mut seen = Vec::new();
    let found = async {
        while let Some(set) = sets.next().await {
            let version = |service: &model::k8s::Service| {
                let meta = &service.metadata;
                format!(
                    "{}@{}",
                    meta.name.clone().unwrap_or_default(),
                    meta.resource_version.clone().unwrap_or_default()
                )
            };
            let names: Vec<String> = set.iter().map(|service| version(service)).collect();
            if names == expect {
                return;
            }
            seen.push(names);
        }
    };
    let within = tokio::time::timeout(Duration::from_secs(60), found).await;
    assert!(within.is_ok(), "waited for {expect:?}, saw {seen:?}");
    // As long as the watch is there, it says what it could not read.
    let problem = "ns/odd: spec.ports: invalid type: string \"many\", expected a sequence";
    let report = ports.watches.watches().pop().unwrap_or_default();
    assert_eq!((report.name().as_str(), report.unreadable), ("services", vec![problem.to_owned()]));
}

#[tokio::test]
async fn watches_step_past_it() {
    let script = Script::new(
        vec![list(5, &[service("a", 3), service("odd", 4)])],
        vec![
            // The watch ends right after the odd one, and goes on by its bare version.
            ("5", vec![event("MODIFIED", &bad_service("odd", "odd", 6))]),
            ("6", vec![event("ADDED", &service("later", 7))]),
        ],
    );
    let (_server, api) = server(script).await;
    // The last version that could be read stays.
    services(&cluster_ports(&api), &["a@3", "later@7", "odd@4"]).await;
}

#[tokio::test]
async fn lists_step_past_it() {
    let script = Script::new(
        vec![list(5, &[bad_service("odd", "odd", 4), service("a", 3)])],
        vec![("5", vec![event("ADDED", &service("b", 6))])],
    );
    let (_server, api) = server(script).await;
    services(&cluster_ports(&api), &["a@3", "b@6"]).await;
}

#[tokio::test]
async fn a_list_keeps_what_was_known_of_the_same_object_only() {
    for (uid, expect) in [("odd", &["a@8", "odd@4"][..]), ("another", &["a@8"][..])] {
        let script = Script::new(
            vec![list(5, &[service("odd", 4)]), list(9, &[bad_service("odd", uid, 6), service("a", 8)])],
            vec![("5", vec![expired()])],
        );
        let (_server, api) = server(script).await;
        services(&cluster_ports(&api), expect).await;
    }
}

fn shown(notice: &FeedNotice) -> String {
    match notice {
        FeedNotice::Set(set) => format!("set of {}", set.pods.len()),
        FeedNotice::Changed { pod, .. } => {
            format!("changed {}", pod.metadata.name.as_deref().unwrap_or_default())
        }
        FeedNotice::Gone { uid, .. } => format!("gone {uid}"),
        FeedNotice::Unreadable { pods, complete, .. } => {
            let pods: Vec<String> =
                pods.iter().map(|pod| format!("{} {}: {}", pod.uid, pod.full_name, pod.problem)).collect();
            format!("unreadable ({complete}) {}", pods.join(", "))
        }
        other => format!("{other:?}"),
    }
}

#[tokio::test]
async fn pods_are_told_with_their_names() {
    let bad = |uid: &str, version: u32| object("odd", uid, version, r#","spec":{"hostNetwork":"maybe"}"#);
    let script = Script::new(
        vec![list(5, &[bad("u1", 4), object("good", "u2", 3, "")])],
        vec![(
            "5",
            vec![
                event("MODIFIED", &bad("u1", 6)), // nothing new is wrong with it
                event("DELETED", &bad("u1", 7)),
                event("ADDED", &bad("u3", 8)),
                event("ADDED", r#"{"metadata":{"labels":3,"resourceVersion":"9"}}"#),
                event("MODIFIED", &object("odd", "u3", 10, "")),
            ],
        )],
    );
    let (_server, api) = server(script).await;
    let feed: Box<dyn PodFeed> = Box::new(ApiPodFeed::new(&api, "n"));
    let problem = "spec.hostNetwork: invalid type: string \"maybe\", expected a boolean";
    let expect = [
        format!("unreadable (true) u1 odd_ns: {problem}"),
        "set of 1".into(),
        // A second time by itself, because the mistake is new.
        format!("unreadable (false) u1 odd_ns: {problem}"),
        "gone u1".into(),
        format!("unreadable (false) u3 odd_ns: {problem}"),
        "changed odd".into(),
    ];
    let mut notices = feed.stream();
    for expect in expect {
        let notice = tokio::time::timeout(Duration::from_secs(60), notices.next()).await;
        assert_eq!(notice.ok().flatten().map(|notice| shown(&notice)), Some(expect));
    }
    let nameless = "without a name: metadata.labels: invalid type: integer `3`, expected a map";
    let watches: Vec<WatchReport> = cluster_ports(&api).watches.watches();
    assert_eq!(watches[0].unreadable, [nameless]);
}

fn expired() -> String {
    r#"{"type":"ERROR","object":{"kind":"Status","reason":"Expired","code":410,"message":"too old"}}"#
        .to_owned()
}

/// Waits until the watch's report is as wanted.
async fn wait_report(ports: &ClusterPorts, wanted: impl Fn(&WatchReport) -> bool) -> WatchReport {
    let mut last = WatchReport::default();
    for _ in 0..6000 {
        last = ports.watches.watches().pop().unwrap_or_default();
        if wanted(&last) {
            return last;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the watch never got there: {last:?}");
}

/// The names of the objects in the last set that was sent, as soon as they are these.
async fn wait_names(sets: &mut BoxStream<'static, Vec<Arc<Service>>>, expect: &[&str]) {
    let found = async {
        while let Some(set) = sets.next().await {
            let names: Vec<_> = set.iter().filter_map(|service| service.metadata.name.as_deref()).collect();
            if names == expect {
                return;
            }
        }
    };
    let within = tokio::time::timeout(Duration::from_secs(60), found).await;
    assert!(within.is_ok(), "waited for {expect:?}");
}

#[tokio::test]
async fn watches_that_end_at_once_say_so_until_one_lasts() {
    let mut watches = vec![("5", Vec::new()); 4];
    let bookmark = r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7"}}}"#.to_owned();
    watches.push(("5", vec![event("ADDED", &service("b", 6)), bookmark]));
    let (_server, api) = server(Script::new(vec![list(5, &[service("a", 3)])], watches)).await;
    let ports = cluster_ports(&api);
    let mut sets = ports.shared.services();
    wait_names(&mut sets, &["a"]).await;
    wait_report(&ports, |report| report.problem.starts_with("the watch ended within 1s")).await;
    wait_names(&mut sets, &["a", "b"]).await;
    wait_report(&ports, |report| report.problem.is_empty() && report.has_bookmarks).await;
}

#[tokio::test]
async fn versions_that_are_gone_right_after_each_list_are_told() {
    let mut watches = vec![("5", vec![expired()]); 4];
    watches.push(("5", Vec::new()));
    let (_server, api) = server(Script::new(vec![list(5, &[service("a", 3)])], watches)).await;
    let ports = cluster_ports(&api);
    let mut sets = ports.shared.services();
    wait_names(&mut sets, &["a"]).await;
    let report = wait_report(&ports, |report| !report.problem.is_empty()).await;
    assert!(report.problem.ends_with(": too old, right after a list"), "{report:?}");
    wait_report(&ports, |report| report.problem.is_empty()).await;
}

#[tokio::test]
async fn the_opening_of_a_watch_is_no_word_of_the_server() {
    let opens_after = Duration::from_secs(1);
    let lists = vec![list(5, &[service("a", 3)])];
    let (_server, api) = server(Script { opens_after, ..Script::new(lists, vec![("5", Vec::new())]) }).await;
    let ports = cluster_ports(&api);
    let mut sets = ports.shared.services();
    wait_names(&mut sets, &["a"]).await;
    let listed = Instant::now();
    let report = wait_report(&ports, |report| report.last_word_secs > 2.0).await;
    assert_eq!(report.problem, "");
    let since = listed.elapsed().as_secs_f64();
    assert!(report.last_word_secs > since - 1.0, "{report:?}, listed {since} s ago");
}

#[tokio::test]
async fn an_answer_that_is_no_event_leads_to_a_list() {
    let broken =
        r#"{"type":"ERROR","object":{"kind":"Status","reason":"InternalError","code":500,"message":"etcd"}}"#;
    let nameless = r#"{"type":"DELETED","object":{"metadata":["a"]}}"#;
    let bookmark = r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":7}}}"#;
    for line in ["{\"type\":", "[]", nameless, bookmark, r#"{"type":"LATER","object":{}}"#, broken] {
        let script = Script::new(
            vec![list(5, &[service("a", 3)]), list(9, &[service("b", 8)])],
            vec![
                // What comes before it counts.
                ("5", vec![event("ADDED", &service("c", 6)), line.to_owned()]),
                ("6", vec![line.to_owned()]),
                ("6", vec![line.to_owned()]),
                ("9", vec![event("ADDED", &service("d", 10))]),
            ],
        );
        let (_server, api) = server(script).await;
        let ports = cluster_ports(&api);
        let mut sets = ports.shared.services();
        wait_report(&ports, |report| report.problem.starts_with("watch services")).await;
        wait_names(&mut sets, &["b", "d"]).await;
        wait_report(&ports, |report| report.problem.is_empty()).await;
    }
}

#[tokio::test]
async fn an_object_without_a_version_leads_to_a_list() {
    let script = Script::new(
        vec![list(5, &[service("a", 3)]), list(9, &[service("b", 8)])],
        vec![
            // The watch ends after it. Another watch from 5 would bring it again.
            ("5", vec![event("ADDED", r#"{"metadata":["odd"]}"#)]),
            ("9", vec![event("ADDED", &service("c", 10))]),
        ],
    );
    let (_server, api) = server(script).await;
    wait_names(&mut cluster_ports(&api).shared.services(), &["b", "c"]).await;
}
