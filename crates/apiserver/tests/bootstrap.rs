//! Certificates from a real cluster: the first one, the next ones, and the serving one.

#![allow(clippy::disallowed_methods)] // Real processes live in real time.

mod real_cluster;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use apiserver::Api;
use apiserver::certificates::{
    CertificateRotator, CertificateTemplate, ClientIdentity, EstablishedIdentity, LoadedCertificate,
    RotationStatus,
};
use model::k8s::{Node, NodeAddress, ObjectMeta};
use real_cluster::{AGENT, Cluster, SLOW, clock};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// With certificates that live so short that they are replaced while a test looks on.
fn cluster() -> &'static Cluster {
    static SHARED: OnceLock<Cluster> = OnceLock::new();
    SHARED.get_or_init(|| Cluster::start(&["--signing-duration", "20s"]))
}

struct Home {
    dir: tempfile::TempDir,
    node: &'static str,
    bootstrap: PathBuf,
}

impl Home {
    fn new(node: &'static str) -> Home {
        let dir = tempfile::tempdir().expect("directory");
        // One for all: the rules that come with a token can't be made twice at once.
        static BOOTSTRAP: OnceLock<PathBuf> = OnceLock::new();
        let bootstrap = BOOTSTRAP.get_or_init(|| cluster().bootstrap_kubeconfig()).clone();
        Home { dir, node, bootstrap }
    }

    fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("kubelet.conf")
    }

    fn pki(&self) -> PathBuf {
        self.dir.path().join("pki")
    }

    async fn establish(&self, rotate: bool, bootstrap: Option<&Path>) -> EstablishedIdentity {
        let (kubeconfig, pki) = (self.kubeconfig(), self.pki());
        let identity = ClientIdentity {
            kubeconfig: &kubeconfig,
            bootstrap_kubeconfig: bootstrap,
            cert_dir: &pki,
            node: self.node,
            rotate,
            agent: AGENT,
            wall: clock(),
        };
        tokio::time::timeout(2 * SLOW, identity.establish()).await.expect("in time").expect("an identity")
    }

    fn files(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .pki()
            .read_dir()
            .expect("list")
            .flatten()
            .map(|entry| {
                entry
                    .file_name()
                    .to_string_lossy()
                    .chars()
                    .map(|c| if c.is_ascii_digit() { '9' } else { c })
                    .collect()
            })
            .collect();
        names.sort();
        names.dedup();
        names
    }
}

/// Only the node itself may make its Node.
async fn is_the_node(api: &Api, name: &str) {
    let node =
        Node { metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() }, ..Node::default() };
    match api.create_node(&node).await {
        Ok(_) | Err(apiserver::ApiError::AlreadyExists { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

async fn another(
    held: &mut watch::Receiver<Option<std::sync::Arc<LoadedCertificate>>>,
) -> std::sync::Arc<LoadedCertificate> {
    tokio::time::timeout(2 * SLOW, held.changed()).await.expect("in time").expect("a certificate");
    held.borrow_and_update().clone().expect("a certificate")
}

const LAYOUT: [&str; 2] = ["kubelet-client-9999-99-99-99-99-99.pem", "kubelet-client-current.pem"];

#[tokio::test(flavor = "multi_thread")]
async fn a_bootstrap_gets_a_certificate_and_is_not_repeated() {
    let home = Home::new("boot-once");
    // A start before this one had a key already.
    std::fs::create_dir_all(home.pki()).expect("directory");
    let key = rcgen::KeyPair::generate().expect("a key");
    std::fs::write(home.pki().join("kubelet-client.key.tmp"), key.serialize_pem()).expect("write");
    let identity = home.establish(false, Some(&home.bootstrap)).await;
    assert!(identity.rotation.is_none());
    is_the_node(&Api::new(identity.connection), home.node).await;
    assert_eq!(home.files(), LAYOUT);
    let pem = std::fs::read_to_string(home.pki().join(LAYOUT[1])).expect("a pair");
    let body = |text: &str| text.split_once("KEY-----").map(|(_, rest)| rest.replace(['\n', '\r'], ""));
    assert_eq!(body(&pem), body(&key.serialize_pem()), "the key that was there is the one that was signed");
    // The name of the request says so, too.
    let named = cluster().kubectl(&["get", "csr", "-o", "jsonpath={.items[*].metadata.name}"]);
    assert!(named.split(' ').any(|name| name.starts_with("node-csr-")), "{named}");

    // The next start asks nobody: the bootstrap's kubeconfig isn't even read.
    let gone = home.dir.path().join("gone");
    let before = std::fs::read_link(home.pki().join(LAYOUT[1])).expect("a link");
    let identity = home.establish(false, Some(&gone)).await;
    is_the_node(&Api::new(identity.connection), home.node).await;
    assert_eq!(std::fs::read_link(home.pki().join(LAYOUT[1])).expect("a link"), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotating_bootstrap_goes_on_and_on() {
    let home = Home::new("boot-rotating");
    let identity = home.establish(true, Some(&home.bootstrap)).await;
    let (rotator, rotation): (CertificateRotator, RotationStatus) = identity.rotation.expect("a rotation");
    assert!(home.kubeconfig().exists(), "written before there is a certificate");
    let mut held = rotation.held();
    assert!(held.borrow_and_update().is_none());
    let cancel = CancellationToken::new();
    let running = tokio::spawn(rotator.run(cancel.clone()));
    let first = another(&mut held).await;
    assert_eq!(
        (first.common_name.as_str(), &first.organizations),
        ("system:node:boot-rotating", &vec!["system:nodes".to_owned()])
    );
    let api = Api::new(identity.connection.clone());
    is_the_node(&api, home.node).await;
    let second = another(&mut held).await;
    assert!(second.not_after > first.not_after);
    assert_ne!(second.pair.key, first.pair.key, "each request has a key of its own");
    is_the_node(&api, home.node).await;
    assert_eq!((home.files(), rotation.renew_errors()), (LAYOUT.map(str::to_owned).to_vec(), 0));
    cancel.cancel();
    running.await.expect("the end");

    // A start without the bootstrap goes on with what is there.
    let identity = home.establish(true, None).await;
    let (_, rotation) = identity.rotation.expect("a rotation");
    assert_eq!(rotation.held().borrow().as_ref().map(|held| held.not_after), Some(second.not_after));
    is_the_node(&Api::new(identity.connection), home.node).await;
}

fn serving(
    api: &Api,
    pki: &Path,
    template: &watch::Sender<Option<CertificateTemplate>>,
) -> (CertificateRotator, RotationStatus) {
    CertificateRotator::serving(api.clone(), pki, None, template.subscribe(), clock()).expect("a rotation")
}

fn addresses(ips: &[&str]) -> Option<CertificateTemplate> {
    let address =
        |(type_, address): (&str, &str)| NodeAddress { type_: type_.into(), address: address.into() };
    let mut found = vec![address(("Hostname", "serving"))];
    found.extend(ips.iter().map(|ip| address(("InternalIP", ip))));
    CertificateTemplate::serving("serving", &found, false)
}

/// Approves or denies the request of this node that waits, as an administrator does. Gives its name.
async fn decide(verdict: &str, node: &str) -> String {
    let user = format!("system:node:{node}");
    let waiting = format!(
        "go-template={{{{range .items}}}}{{{{if not .status.conditions}}}}{{{{if eq .spec.username \"{user}\"}}}}{{{{.metadata.name}}}} {{{{end}}}}{{{{end}}}}{{{{end}}}}"
    );
    for _ in 0..300 {
        let names = cluster().kubectl(&["get", "csr", "-o", &waiting]);
        let names: Vec<&str> = names.split_whitespace().collect();
        assert!(names.len() < 2, "one request is enough: {names:?}");
        if let [name] = names[..] {
            cluster().kubectl(&["certificate", verdict, name]);
            return name.to_owned();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("nobody asked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_serving_certificate_waits_for_addresses_and_approval_and_survives_a_crash() {
    let dir = tempfile::tempdir().expect("directory");
    let pki = dir.path().join("pki");
    let api = cluster().node_api("serving");
    let template = watch::Sender::new(None);
    let (rotator, _) = serving(&api, &pki, &template);
    let crashing = tokio::spawn(rotator.run(CancellationToken::new()));
    template.send_replace(addresses(&[]));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!pki.join("kubelet-server-pending.json").exists(), "nothing is asked without an address");
    template.send_replace(addresses(&["10.9.9.1"]));
    tokio::time::timeout(SLOW, async {
        while !pki.join("kubelet-server-pending.json").exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("a request");
    // Killed while it waits: the next one goes on with the same request.
    crashing.abort();
    let _ = crashing.await;
    let (rotator, rotation) = serving(&api, &pki, &template);
    let (told, mut ages) = tokio::sync::mpsc::unbounded_channel();
    let rotator = rotator.on_replaced(Box::new(move |age| told.send(age).expect("a test that listens")));
    let mut held = rotation.held();
    let cancel = CancellationToken::new();
    let running = tokio::spawn(rotator.run(cancel.clone()));
    // A denial is a failure, and not the end.
    let denied = decide("deny", "serving").await;
    let first_request = decide("approve", "serving").await;
    assert_ne!(first_request, denied);
    assert_eq!(rotation.renew_errors(), 1);
    let first = another(&mut held).await;
    assert_eq!(
        (&first.dns_names, &first.addresses),
        (&vec!["serving".to_owned()], &vec!["10.9.9.1".parse().expect("an address")])
    );
    assert!(pki.join("kubelet-server-current.pem").is_symlink());
    assert!(ages.is_empty(), "the first one replaces none");

    // Another address, another certificate.
    template.send_replace(addresses(&["10.9.9.1", "fd00::9"]));
    assert_ne!(decide("approve", "serving").await, first_request);
    let second = another(&mut held).await;
    assert_eq!(second.addresses.len(), 2);
    let age = ages.recv().await.expect("its age");
    let since_first = clock().wall().since(first.not_before);
    assert!(!age.is_zero() && age <= since_first, "{age:?} of {since_first:?}");
    cancel.cancel();
    running.await.expect("the end");
    assert_eq!(ages.recv().await, None, "one was replaced");
    assert!(!pki.join("kubelet-server-pending.json").exists());
}
