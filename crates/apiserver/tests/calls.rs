//! The typed calls against a real API server, with the rights that a node has.

#![allow(clippy::disallowed_methods)] // Real processes live in real time.

mod real_cluster;

use std::time::Duration;

use apiserver::{
    Api, ApiError, DeletePodOptions, Freshness, Lease, SubjectAccessReview, TokenRequest, TokenReview, Watch,
    WatchEvent, WatchStart,
};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequestSpec, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReviewSpec};
use k8s_openapi::api::coordination::v1::LeaseSpec;
use model::PodUid;
use model::k8s::{Event, Node, ObjectMeta, ObjectReference, Pod};
use real_cluster::{Cluster, SLOW};
use serde_json::json;

fn meta(namespace: &str, name: &str) -> ObjectMeta {
    let namespace = (!namespace.is_empty()).then(|| namespace.to_owned());
    ObjectMeta { namespace, name: Some(name.to_owned()), ..ObjectMeta::default() }
}

fn node(name: &str) -> Node {
    Node { metadata: meta("", name), ..Node::default() }
}

fn pod(name: &str, node: &str, more: serde_json::Value) -> Pod {
    let mut spec = json!({ "nodeName": node, "containers": [{ "name": "c", "image": "i" }] });
    spec.as_object_mut().expect("a spec").extend(more.as_object().cloned().unwrap_or_default());
    let object = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "default" }, "spec": spec });
    serde_json::from_value(object).expect("a pod")
}

fn uid(pod: &Pod) -> PodUid {
    PodUid::new(pod.metadata.uid.as_deref().expect("a uid"))
}

async fn next<T: std::fmt::Debug>(watch: &mut Watch<T>) -> WatchEvent<T> {
    loop {
        let event = tokio::time::timeout(SLOW, watch.next()).await.expect("an event in time");
        match event.expect("the watch goes on").expect("no error") {
            WatchEvent::Bookmark { ends_initial_events: false, .. } => continue,
            event => return event,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_keeps_its_own_objects() {
    let cluster = Cluster::shared();
    let api = cluster.node_api("own");
    assert!(matches!(api.get_node("own").await, Err(ApiError::NotFound { .. })));
    let created = api.create_node(&node("own")).await.expect("created");
    assert!(matches!(api.create_node(&node("own")).await, Err(ApiError::AlreadyExists { .. })));
    assert!(matches!(api.create_node(&node("other")).await, Err(ApiError::Forbidden { .. })));

    let listed = api.list_node("own", Freshness::Latest).await.expect("listed");
    assert_eq!(listed.items.len(), 1);
    let mut watch =
        api.watch_node("own", WatchStart::Version(&listed.resource_version)).await.expect("a watch");
    let patch = json!({ "status": { "capacity": { "cpu": "2" }, "addresses": [{ "type": "InternalIP", "address": "10.0.0.9" }] } });
    let patched = api.patch_node_status("own", &patch).await.expect("patched");
    assert_eq!(patched.status.and_then(|status| status.capacity).expect("capacity")["cpu"].0, "2");
    match next(&mut watch).await {
        WatchEvent::Modified(node) => assert_eq!(node.metadata.uid, created.metadata.uid),
        other => panic!("{other:?}"),
    }
    api.patch_node("own", &json!({ "metadata": { "annotations": { "a": "b" } } })).await.expect("patched");
    let refused = api.patch_node_status("own", &json!({ "status": { "capacity": { "cpu": "lots" } } })).await;
    assert!(matches!(refused, Err(ApiError::Invalid { .. })), "{refused:?}");
    assert!(created.metadata.managed_fields.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_are_renewed_with_optimism() {
    let cluster = Cluster::shared();
    let api = cluster.node_api("leased");
    cluster.kubectl(&["wait", "--for=create", "namespace/kube-node-lease", "--timeout=60s"]);
    assert!(matches!(api.get_lease("kube-node-lease", "leased").await, Err(ApiError::NotFound { .. })));
    let spec = LeaseSpec {
        holder_identity: Some("leased".into()),
        lease_duration_seconds: Some(40),
        ..LeaseSpec::default()
    };
    let lease = Lease { metadata: meta("kube-node-lease", "leased"), spec: Some(spec) };
    let created = api.create_lease(&lease).await.expect("created");
    let renewed = api.update_lease(&created).await.expect("renewed");
    assert_eq!(renewed.metadata.uid, created.metadata.uid);
    api.update_lease(&Lease {
        spec: created.spec.clone().map(|spec| LeaseSpec { lease_duration_seconds: Some(41), ..spec }),
        ..renewed.clone()
    })
    .await
    .expect("renewed again");
    let stale = api.update_lease(&renewed).await;
    assert!(matches!(stale, Err(ApiError::Conflict { .. })), "{stale:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_listed_watched_patched_and_deleted() {
    let cluster = Cluster::shared();
    let (api, admin) = (cluster.node_api("podded"), cluster.admin_api());
    api.create_node(&node("podded")).await.expect("a node");
    admin.create_pod(&pod("early", "podded", json!({}))).await.expect("a pod");
    admin.create_pod(&pod("elsewhere", "far", json!({}))).await.expect("a pod");
    let listed = api.list_pods("podded", Freshness::Latest).await.expect("listed");
    let names: Vec<_> = listed.items.iter().filter_map(|pod| pod.metadata.name.as_deref()).collect();
    assert_eq!((names, listed.continue_token.as_str()), (vec!["early"], ""));
    let mut watch =
        api.watch_pods("podded", WatchStart::Version(&listed.resource_version)).await.expect("a watch");
    let late = admin.create_pod(&pod("late", "podded", json!({}))).await.expect("a pod");
    match next(&mut watch).await {
        WatchEvent::Added(found) => assert_eq!(found.metadata.uid, late.metadata.uid),
        other => panic!("{other:?}"),
    }

    streamed_list(&api).await;

    let patch =
        |uid: &str| json!({ "metadata": { "uid": uid }, "status": { "phase": "Running", "message": "m" } });
    let running =
        api.patch_pod_status("default", "late", &patch(&uid(&late).to_string())).await.expect("patched");
    assert_eq!(running.status.and_then(|status| status.phase).as_deref(), Some("Running"));
    let wrong = api.patch_pod_status("default", "late", &patch("another")).await;
    assert!(matches!(wrong, Err(ApiError::Invalid { .. })), "{wrong:?}");
    assert!(matches!(next(&mut watch).await, WatchEvent::Modified(_)));

    let wrong = api.delete_pod("default", "late", &DeletePodOptions::now(Some(PodUid::new("another")))).await;
    assert!(matches!(wrong, Err(ApiError::Conflict { .. })), "{wrong:?}");
    admin
        .delete_pod("default", "late", &DeletePodOptions { grace_seconds: Some(7), uid: None })
        .await
        .expect("asked");
    match next(&mut watch).await {
        WatchEvent::Modified(pod) => assert_eq!(pod.metadata.deletion_grace_period_seconds, Some(7)),
        other => panic!("{other:?}"),
    }
    api.delete_pod("default", "late", &DeletePodOptions::now(Some(uid(&late)))).await.expect("deleted");
    loop {
        match next(&mut watch).await {
            // First it has no grace any more.
            WatchEvent::Modified(pod) => assert_eq!(pod.metadata.deletion_grace_period_seconds, Some(0)),
            WatchEvent::Deleted(pod) => break assert_eq!(Some(pod.uid), late.metadata.uid),
            other => panic!("{other:?}"),
        }
    }
    let gone = admin.get_pod("default", "late").await;
    assert!(matches!(gone, Err(ApiError::NotFound { .. })), "{gone:?}");
    // A pod that is gone is no longer of this node, once its authorizer knows.
    let gone = api.get_pod("default", "late").await;
    assert!(matches!(gone, Err(ApiError::NotFound { .. } | ApiError::Forbidden { .. })), "{gone:?}");
}

/// A list as a stream ends with a bookmark. A server whose etcd is too old for that says so, in the watch.
async fn streamed_list(api: &Api) {
    let mut streamed = api.watch_pods("podded", WatchStart::InitialEvents).await.expect("a watch");
    let mut names = Vec::new();
    loop {
        let event = tokio::time::timeout(SLOW, streamed.next()).await.expect("an event in time");
        match event.expect("the watch goes on") {
            Ok(WatchEvent::Added(pod)) => names.extend(pod.metadata.name),
            Ok(WatchEvent::Bookmark { resource_version, ends_initial_events: true }) => {
                assert_ne!(resource_version, "");
                break;
            }
            Err(ApiError::ServerFault { code: 500, message, .. })
                if message.contains("RequestWatchProgress") =>
            {
                return;
            }
            other => panic!("{other:?}"),
        }
    }
    names.sort();
    assert_eq!(names, ["early", "late"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_version_is_gone() {
    let cluster = Cluster::start(&["--bare"]);
    let api = cluster.admin_api();
    let listed = api.list_pods("n", Freshness::Latest).await.expect("listed");
    for number in 0..5 {
        let name = format!("p{number}");
        api.create_pod(&pod(&name, "n", json!({}))).await.expect("a pod");
        api.delete_pod("default", &name, &DeletePodOptions::now(None)).await.expect("deleted");
    }
    cluster.compact();
    // Its memory of recent versions is not etcd's: only a new one has forgotten.
    cluster.apiserver("stop");
    let away = api.with_deadline(Duration::from_secs(5)).list_pods("n", Freshness::Cached).await;
    assert!(matches!(away, Err(ApiError::Unavailable { .. })), "{away:?}");
    cluster.apiserver("start");
    let error = match api.watch_pods("n", WatchStart::Version(&listed.resource_version)).await {
        Err(error) => error,
        Ok(mut watch) => loop {
            match tokio::time::timeout(SLOW, watch.next()).await.expect("an end in time") {
                Some(Ok(_)) => continue,
                Some(Err(error)) => break error,
                None => panic!("the watch ended without a word"),
            }
        },
    };
    assert!(matches!(error, ApiError::Gone { .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hung_server_holds_up_nobody() {
    let cluster = Cluster::start(&["--bare"]);
    let api = cluster.admin_api().with_deadline(Duration::from_secs(1));
    api.get_raw("/readyz").await.expect("ready");
    cluster.apiserver("hang");
    let hung = api.get_node("n").await;
    cluster.apiserver("resume");
    assert!(matches!(hung, Err(ApiError::TimedOut { .. })), "{hung:?}");
    let api = api.with_deadline(SLOW);
    assert!(matches!(api.get_node("n").await, Err(ApiError::NotFound { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_pods_are_seen_by_their_node_only() {
    let cluster = Cluster::shared();
    let (api, admin) = (cluster.node_api("objects"), cluster.admin_api());
    api.create_node(&node("objects")).await.expect("a node");
    cluster.apply(
        "apiVersion: v1\nkind: List\nitems:\n\
         - {apiVersion: v1, kind: ConfigMap, metadata: {name: settings, namespace: default}, data: {a: '1'}}\n\
         - {apiVersion: v1, kind: Secret, metadata: {name: key, namespace: default}, stringData: {a: '1'}}\n\
         - {apiVersion: v1, kind: Service, metadata: {name: web, namespace: default}, spec: {ports: [{port: 80}]}}\n\
         - {apiVersion: v1, kind: Service, metadata: {name: headless, namespace: default}, spec: {clusterIP: None}}\n\
         - {apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: special}, handler: h}\n",
    );
    let early = api.get_config_map("default", "settings").await;
    assert!(matches!(early, Err(ApiError::Forbidden { .. })), "{early:?}");
    let volumes = json!({ "volumes": [
        { "name": "c", "configMap": { "name": "settings" } }, { "name": "s", "secret": { "secretName": "key" } },
    ] });
    admin.create_pod(&pod("reader", "objects", volumes)).await.expect("a pod");
    let found = tokio::time::timeout(SLOW, async {
        loop {
            match api.get_config_map("default", "settings").await {
                // The authorizer learns of the pod by a watch of its own.
                Err(ApiError::Forbidden { .. }) => tokio::time::sleep(Duration::from_millis(50)).await,
                other => break other,
            }
        }
    });
    let found = found.await.expect("in time").expect("found");
    assert_eq!(found.data.expect("data")["a"], "1");
    assert_eq!(api.get_secret("default", "key").await.expect("found").data.expect("data")["a"].0, b"1");

    let listed = api.list_config_map("default", "settings", Freshness::Latest).await.expect("listed");
    let since = WatchStart::Version(&listed.resource_version);
    let mut watch = api.watch_config_map("default", "settings", since).await.expect("a watch");
    cluster.kubectl(&["patch", "configmap", "settings", "-p", "{\"data\":{\"a\":\"2\"}}"]);
    match next(&mut watch).await {
        WatchEvent::Modified(found) => assert_eq!(found.data.expect("data")["a"], "2"),
        other => panic!("{other:?}"),
    }
    let listed = api.list_secret("default", "key", Freshness::Latest).await.expect("listed");
    assert_eq!(listed.items.len(), 1);
    api.watch_secret("default", "key", WatchStart::Version(&listed.resource_version)).await.expect("a watch");

    let services = api.list_services(Freshness::Latest).await.expect("listed");
    let names: Vec<_> = services.items.iter().filter_map(|found| found.metadata.name.as_deref()).collect();
    assert!(names.contains(&"web") && !names.contains(&"headless"), "{names:?}");
    api.watch_services(WatchStart::Version(&services.resource_version)).await.expect("a watch");
    let classes = api.list_runtime_classes(Freshness::Cached).await.expect("listed");
    assert_eq!(classes.items[0].handler, "h");
    api.watch_runtime_classes(WatchStart::InitialEvents).await.expect("a watch");
    let drivers = api.list_csi_drivers(Freshness::Latest).await.expect("listed");
    api.watch_csi_drivers(WatchStart::Version(&drivers.resource_version)).await.expect("a watch");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_made_and_counted_up() {
    let cluster = Cluster::shared();
    let api = cluster.node_api("eventful");
    let involved_object = ObjectReference {
        kind: Some("Node".into()),
        name: Some("eventful".into()),
        ..ObjectReference::default()
    };
    let event = Event {
        metadata: meta("default", "eventful.1"),
        involved_object,
        reason: Some("Starting".into()),
        count: Some(1),
        ..Event::default()
    };
    api.create_event(&event).await.expect("created");
    let patched = api.patch_event("default", "eventful.1", &json!({ "count": 2 })).await.expect("patched");
    assert_eq!(patched.count, Some(2));
}

async fn token(api: &Api, pod: &Pod) -> Result<TokenRequest, ApiError> {
    let bound = BoundObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
    };
    let spec = TokenRequestSpec {
        expiration_seconds: Some(600),
        bound_object_ref: Some(bound),
        ..TokenRequestSpec::default()
    };
    api.create_token("default", "worker", &TokenRequest { spec: Some(spec), ..TokenRequest::default() }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_made_and_reviewed() {
    let cluster = Cluster::shared();
    let (api, admin) = (cluster.node_api("tokens"), cluster.admin_api());
    api.create_node(&node("tokens")).await.expect("a node");
    cluster.kubectl(&["create", "serviceaccount", "worker"]);
    // A node gets tokens only for audiences that a pod of its names.
    let projected = json!({ "sources": [{ "serviceAccountToken": { "path": "token" } }] });
    let more =
        json!({ "serviceAccountName": "worker", "volumes": [{ "name": "t", "projected": projected }] });
    let worker = admin.create_pod(&pod("worker", "tokens", more)).await.expect("a pod");
    let mut made = token(&api, &worker).await;
    for _ in 0..200 {
        // The authorizer learns of the pod by a watch of its own.
        if !matches!(made, Err(ApiError::Forbidden { .. })) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        made = token(&api, &worker).await;
    }
    let made = made.expect("a token").status.expect("a status");
    let review = |token: &str| {
        let spec = TokenReviewSpec { token: token.to_owned(), audiences: None };
        TokenReview { spec, ..TokenReview::default() }
    };
    let reviewed = api
        .review_token(&review(made.token.as_deref().expect("a token")))
        .await
        .expect("reviewed")
        .status
        .expect("a status");
    assert_eq!(reviewed.authenticated, Some(true));
    let user = reviewed.user.expect("a user");
    assert_eq!(user.username.as_deref(), Some("system:serviceaccount:default:worker"));
    let unknown = api.review_token(&review("nonsense")).await.expect("reviewed").status.expect("a status");
    assert_ne!(unknown.authenticated, Some(true));

    let access = |user: &str| SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.to_owned()),
            groups: Some(vec!["system:masters".into()]).filter(|_| user == "admin"),
            resource_attributes: Some(ResourceAttributes {
                verb: Some("get".into()),
                resource: Some("nodes".into()),
                subresource: Some("proxy".into()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    assert!(api.review_access(&access("admin")).await.expect("reviewed").status.expect("a status").allowed);
    assert!(!api.review_access(&access("guest")).await.expect("reviewed").status.expect("a status").allowed);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_credentials_nothing_is_seen() {
    let cluster = Cluster::shared();
    let dir = tempfile::tempdir().expect("directory");
    let text = std::fs::read_to_string(cluster.dir.join("admin.kubeconfig")).expect("a kubeconfig");
    let users = text.lines().find(|line| line.starts_with("users:")).expect("users");
    let with = |user: &str| {
        let file = dir.path().join("kubeconfig");
        std::fs::write(&file, text.replace(users, &format!("users: [{{name: test, user: {user}}}]")))
            .expect("write");
        real_cluster::api(&file)
    };
    let anonymous = with("{}").get_node("n").await;
    assert!(matches!(anonymous, Err(ApiError::Forbidden { .. })), "{anonymous:?}");
    let unknown = with("{token: nonsense}").get_node("n").await;
    assert!(matches!(unknown, Err(ApiError::Unauthorized { .. })), "{unknown:?}");
    // The administrator as somebody else is somebody else.
    let own = users.trim_end_matches("}}]").split_once("\"user\":{").expect("a user").1;
    let acting = with(&format!("{{{own}, as: jane, as-groups: [staff]}}")).get_node("n").await;
    assert!(
        matches!(&acting, Err(ApiError::Forbidden { message, .. }) if message.contains("\"jane\"")),
        "{acting:?}"
    );
}
