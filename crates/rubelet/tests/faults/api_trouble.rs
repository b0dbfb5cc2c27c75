//! The API server goes, forgets, fails, refuses and lags: pods go on, and the agent asks again with patience.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::api_proxy::{Between, Broken, Proxy, altered};
use crate::support::cluster::Cluster;
use crate::support::harness::{Agent, Runtime, SLOW, wait, wait_until};
use serde_json::{Value, json};

const BUSYBOX: &str = "rubelet.test/busybox:1";
/// The harness's name for its node.
const NODE: &str = "node";
const USER: &str = "system:node:node";
const FOR_EVER: &str = "trap 'exit 0' TERM; sleep 3600 & wait";

/// At least so long the API server is away.
const AWAY: Duration = Duration::from_secs(60);
/// So long requests are counted, after the first few.
const COUNTED: Duration = Duration::from_secs(12);
/// Far more than any good agent asks a server that fails, and far less than one that does not wait.
const PER_MINUTE: usize = 600;

struct Member {
    agent: Agent,
    runtime: Runtime,
}

impl Member {
    fn join(kubeconfig: &Path) -> Member {
        let runtime = Runtime::start();
        let kubeconfig = kubeconfig.to_string_lossy().into_owned();
        let agent = Agent::start_with_flags(&runtime, &["--kubeconfig", &kubeconfig], |_| {});
        Member { agent, runtime }
    }

    fn run_static(&self, name: &str) {
        let pod = pod(name, FOR_EVER, "Always", None);
        self.agent.write_manifest(name, &pod.to_string());
    }

    fn wait_static(&self, name: &str) {
        wait("the static pod", SLOW, || {
            let pod = self.agent.pod(name)?;
            if is_ready(&pod) { Ok(()) } else { Err(pod["status"].to_string()) }
        });
    }

    /// What the agent itself knows of a pod of the API.
    fn own_view(&self, name: &str) -> Result<Value, String> {
        let pods = self.agent.pods()?;
        pods.into_iter().find(|pod| pod["metadata"]["name"] == name).ok_or_else(|| format!("no pod {name}"))
    }

    /// Processes in containers: one per container that runs, sandboxes included.
    fn running(&self) -> usize {
        self.runtime.tasks().iter().filter(|task| task.status == "RUNNING").count()
    }
}

fn pod(name: &str, script: &str, policy: &str, journal: Option<&Path>) -> Value {
    let mut container = json!({"name": "main", "image": BUSYBOX, "command": ["sh", "-c", script], "imagePullPolicy": "Never"});
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"restartPolicy": policy, "terminationGracePeriodSeconds": 2, "automountServiceAccountToken": false},
    });
    if let Some(journal) = journal {
        container["volumeMounts"] = json!([{"name": "journal", "mountPath": "/journal"}]);
        pod["spec"]["volumes"] = json!([{"name": "journal", "hostPath": {"path": journal}}]);
    }
    pod["spec"]["containers"] = json!([container]);
    pod
}

fn bound(mut pod: Value) -> String {
    pod["spec"]["nodeName"] = json!(NODE);
    pod.to_string()
}

fn list(pods: Vec<Value>) -> String {
    let pods = pods.into_iter().map(|mut pod| {
        pod["spec"]["nodeName"] = json!(NODE);
        pod
    });
    json!({"apiVersion": "v1", "kind": "List", "items": pods.collect::<Vec<_>>()}).to_string()
}

fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let conditions = object["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().find(|condition| condition["type"] == kind).unwrap_or(&Value::Null)
}

fn is_ready(object: &Value) -> bool {
    condition(object, "Ready")["status"] == "True"
}

fn restarts(pod: &Value) -> i64 {
    pod["status"]["containerStatuses"][0]["restartCount"].as_i64().unwrap_or(-1)
}

/// What must not change of pods that are left alone: container, restarts, and since when they are ready.
fn standing(cluster: &Cluster, namespace: &str) -> BTreeMap<String, String> {
    let pods = cluster.kubectl_json(&["get", "pods", "--namespace", namespace]);
    let pods = pods["items"].as_array().cloned().unwrap_or_default();
    pods.iter()
        .map(|pod| {
            let container = &pod["status"]["containerStatuses"][0];
            let ready = condition(pod, "Ready");
            let stands = format!(
                "{} restarts {} ready {} since {}",
                container["containerID"],
                container["restartCount"],
                ready["status"],
                ready["lastTransitionTime"]
            );
            (pod["metadata"]["name"].as_str().unwrap_or_default().to_owned(), stands)
        })
        .collect()
}

fn wait_all_ready(cluster: &Cluster, namespace: &str, count: usize) {
    wait("all pods to be ready", 2 * SLOW, || {
        let standing = standing(cluster, namespace);
        let ready = standing.values().filter(|pod| pod.contains("ready \"True\"")).count();
        if ready == count { Ok(()) } else { Err(format!("{ready} of {count}")) }
    });
}

#[test]
fn the_api_server_goes_during_churn_comes_back_and_forgets() {
    let cluster = Cluster::start_bare();
    let member = Member::join(&cluster.node_kubeconfig(NODE));
    let (steady, churn) = (cluster.namespace("steady"), cluster.namespace("churn"));
    let journal = member.runtime.dir.join("journal");
    fs::create_dir_all(&journal).expect("a directory");
    let named = |count: usize, name: &str| -> Vec<Value> {
        (0..count).map(|n| pod(&format!("{name}-{n}"), FOR_EVER, "Always", None)).collect()
    };
    let until_told = "until [ -e /journal/end ]; do sleep 0.1; done; exit 3";
    // Only the first attempt can make the directory: it ends once.
    let once = "until [ -e /journal/end ] && mkdir /journal/once; do sleep 0.1; done; exit 4";
    let mut pods = named(3, "old");
    pods.push(pod("ends", until_told, "Never", Some(&journal)));
    pods.push(pod("restarts", once, "Always", Some(&journal)));
    cluster.create(&steady, &list(named(3, "steady")));
    cluster.create(&churn, &list(pods));
    wait_all_ready(&cluster, &steady, 3);
    wait_all_ready(&cluster, &churn, 5);
    let before = standing(&cluster, &steady);

    // In the middle of it: some are on their way in, some on their way out.
    cluster.create(&churn, &list(named(3, "new")));
    cluster.kubectl(&["delete", "pod", "old-0", "old-1", "old-2", "--namespace", &churn, "--wait=false"]);
    cluster.stop_api_server();
    let since = Instant::now();
    fs::write(journal.join("end"), "").expect("tell the pods");
    member.run_static("alone");
    member.wait_static("alone");
    wait("the ends to be seen here", SLOW, || {
        let (ends, restarted) = (member.own_view("ends")?, member.own_view("restarts")?);
        let seen = ends["status"]["phase"] == "Failed" && restarts(&restarted) == 1 && is_ready(&restarted);
        if seen { Ok(()) } else { Err(format!("{} {}", ends["status"], restarted["status"])) }
    });
    thread::sleep(AWAY.saturating_sub(since.elapsed()));
    cluster.start_api_server();

    for name in ["old-0", "old-1", "old-2"] {
        cluster.wait_gone("pod", &churn, name, SLOW);
    }
    for name in ["new-0", "new-1", "new-2"] {
        let pod = cluster.wait_for("pod", &churn, name, SLOW, is_ready);
        assert_eq!(restarts(&pod), 0);
    }
    let ended = cluster.wait_for("pod", &churn, "ends", SLOW, |pod| pod["status"]["phase"] == "Failed");
    assert_eq!(ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], 3);
    let again = cluster.wait_for("pod", &churn, "restarts", SLOW, |pod| restarts(pod) == 1 && is_ready(pod));
    assert_eq!(again["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"], 4);
    cluster.wait_for("pod", "default", "alone-node", SLOW, is_ready);
    assert_eq!(standing(&cluster, &steady), before, "pods that were left alone");
    // 3 steady, 3 new, `restarts` and the static one, each with its sandbox.
    wait_until("nothing twice and nothing left", SLOW, || member.running() == 16);
    println!("away for {:?}: {:?}", since.elapsed(), cluster.api_request_counts(USER));

    forgets(&cluster, &member, &steady, &before);
}

/// etcd is compacted: the watch can't go on where it was.
fn forgets(cluster: &Cluster, member: &Member, steady: &str, before: &BTreeMap<String, String>) {
    let lists = || cluster.api_request_counts(USER).get("list pods").copied().unwrap_or_default();
    let listed = lists();
    let running = member.running();
    for n in 0..5 {
        cluster.kubectl(&["create", "configmap", &format!("noise-{n}"), "--namespace", steady]);
    }
    cluster.compact();
    cluster.stop_api_server();
    cluster.start_api_server();
    wait_until("another list", SLOW, || lists() > listed);
    cluster.create_pod(steady, &bound(pod("later", FOR_EVER, "Always", None)));
    cluster.wait_for("pod", steady, "later", SLOW, is_ready);
    let mut after = standing(cluster, steady);
    after.remove("later");
    assert_eq!(&after, before, "pods that were left alone");
    assert_eq!(member.running(), running + 2);
    let requests = cluster.api_requests(USER);
    let gone = requests.iter().filter(|request| request.code == 410).count();
    println!("after compaction: {gone} answers of 410, {} lists of pods more", lists() - listed);
    assert!(lists() - listed <= 3, "a list for each 410, not more: {}", lists() - listed);
}

#[test]
fn fifty_pods_do_not_notice_that_the_agent_was_killed() {
    const PODS: usize = 50;
    let cluster = Cluster::start_bare();
    let mut member = Member::join(&cluster.node_kubeconfig(NODE));
    let namespace = cluster.namespace("fifty");
    let start = Instant::now();
    for batch in 0..5 {
        let pods = (0..PODS / 5).map(|n| pod(&format!("p-{batch}-{n}"), "exec sleep 3600", "Always", None));
        cluster.create(&namespace, &list(pods.collect()));
    }
    wait_all_ready(&cluster, &namespace, PODS);
    println!("{PODS} pods ready after {:?}", start.elapsed());
    let (before, running) = (standing(&cluster, &namespace), member.running());
    let patched = || cluster.api_request_counts(USER).get("patch pods/status").copied().unwrap_or_default();
    let seen = cluster.kubectl(&["get", "--raw", &format!("/api/v1/namespaces/{namespace}/pods")]);
    let seen: Value = serde_json::from_str(&seen).expect("a list of pods");
    let version = seen["metadata"]["resourceVersion"].as_str().expect("its version").to_owned();
    let patches = patched();
    for _ in 0..2 {
        member.agent.kill9();
        member.agent.restart();
        thread::sleep(Duration::from_secs(5));
    }
    // A new pod shows that the agent is at work again.
    cluster.create_pod(&namespace, &bound(pod("later", FOR_EVER, "Always", None)));
    cluster.wait_for("pod", &namespace, "later", SLOW, is_ready);
    let mut after = standing(&cluster, &namespace);
    after.remove("later");
    assert_eq!(after, before);
    assert_eq!(member.running(), running + 2);
    let flips = changes(&cluster, &namespace, &version);
    println!("changes of old pods: {}; patches: {}", flips.len(), patched() - patches);
    if let Some(now) = flips.first() {
        let was = seen["items"].as_array().into_iter().flatten();
        let was = was.clone().find(|pod| pod["metadata"]["name"] == now["metadata"]["name"]);
        panic!("a pod was changed, from {}\nto {}", was.unwrap_or(&Value::Null)["status"], now["status"]);
    }
}

/// Every state of the old pods since that version.
fn changes(cluster: &Cluster, namespace: &str, version: &str) -> Vec<Value> {
    let path =
        format!("/api/v1/namespaces/{namespace}/pods?watch=1&timeoutSeconds=2&resourceVersion={version}");
    let text = cluster.kubectl(&["get", "--raw", &path]);
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("an event"));
    let pods = events.map(|event| event["object"].clone());
    pods.filter(|pod| pod["metadata"]["name"] != "later").collect()
}

/// A lasting failure of the API server: what the log has to say, and how many requests were made.
struct Lasting {
    name: &'static str,
    kubeconfig: PathBuf,
    /// Each has to be in one line of the log.
    says: &'static [&'static str],
    counted: Box<dyn Fn() -> usize + Send + Sync>,
}

#[test]
fn lasting_troubles_are_told_and_asked_about_with_patience() {
    let cluster = Cluster::shared_bare();
    let good = cluster.node_kubeconfig(NODE);
    let through = |between| Proxy::start(cluster.server(), between);
    let (foreign, late, cut) = (
        through(Between::Nothing),
        through(Between::Nothing),
        through(Between::Cut(Duration::from_millis(200))),
    );
    let behind =
        |name: &str, from: &Path, proxy: &Proxy| altered(from, name, cluster.server(), &proxy.server());
    let broken = Broken::start();
    let storm = altered(&good, "storm", cluster.server(), &broken.url);
    let stranger = cluster.user_kubeconfig("stranger", &["system:authenticated-strangers"]);
    let troubles = [
        Lasting {
            name: "wrong authority",
            kubeconfig: behind("wrong-ca", &with_foreign_authority(cluster, &good), &foreign),
            says: &["certificate", "UnknownIssuer"],
            counted: Box::new(move || foreign.connections()),
        },
        Lasting {
            name: "expired certificate",
            kubeconfig: behind("expired-at", &with_expired_certificate(cluster, &good), &late),
            says: &["expired-at.kubeconfig", "client certificate expired at 2020-01-02"],
            counted: Box::new(move || late.connections()),
        },
        Lasting {
            name: "no rights",
            kubeconfig: stranger,
            says: &["forbidden", "stranger"],
            counted: Box::new(|| cluster.api_requests("stranger").len()),
        },
        Lasting {
            name: "5xx storm",
            kubeconfig: storm,
            says: &["500"],
            counted: Box::new(move || broken.requests()),
        },
        Lasting {
            name: "cut connections",
            kubeconfig: behind("cut", &good, &cut),
            says: &["watch pods", "not reachable"],
            counted: Box::new(move || cut.connections()),
        },
    ];
    thread::scope(|scope| {
        for trouble in &troubles {
            scope.spawn(|| endure(trouble));
        }
    });
}

fn endure(trouble: &Lasting) {
    let name = trouble.name;
    let mut member = Member::join(&trouble.kubeconfig);
    member.run_static("alone");
    member.wait_static("alone");
    wait(&format!("{name}: clear words"), SLOW, || {
        let log = member.agent.log();
        let told = log.lines().find(|line| trouble.says.iter().all(|word| line.contains(word)));
        told.map(|line| println!("{name}: {line}"))
            .ok_or_else(|| format!("{:?} not in the log", trouble.says))
    });
    let before = (trouble.counted)();
    thread::sleep(COUNTED);
    let asked = (trouble.counted)() - before;
    let per_minute = asked * 60 / usize::try_from(COUNTED.as_secs()).expect("a number");
    let lines = member.agent.log().lines().count();
    println!("{name}: {asked} in {COUNTED:?}, {per_minute} a minute; {lines} lines of log");
    assert!(per_minute < PER_MINUTE, "{name}: a hot loop: {per_minute} requests a minute");
    assert!(asked > 0, "{name}: nobody was asked again");
    assert!(member.agent.is_running(), "{name}: the agent ended");
    assert!(lines < 400, "{name}: {lines} lines of log");
}

fn with_foreign_authority(cluster: &Cluster, good: &Path) -> PathBuf {
    let dir = cluster.dir.join("foreign");
    fs::create_dir_all(&dir).expect("a directory");
    openssl(
        &dir,
        &["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-days", "9"]
            .iter()
            .chain(&["-subj", "/CN=foreign", "-keyout", "ca.key", "-out", "ca.crt"])
            .copied()
            .collect::<Vec<_>>(),
    );
    let encoded = |path: &Path| base64(path);
    altered(good, "foreign", &encoded(&cluster.ca()), &encoded(&dir.join("ca.crt")))
}

/// Signed by the right authority, for a day of the past.
fn with_expired_certificate(cluster: &Cluster, good: &Path) -> PathBuf {
    let dir = cluster.dir.join("expired");
    fs::create_dir_all(&dir).expect("a directory");
    let settings = "[ca]\ndefault_ca=d\n[d]\ndatabase=index\nserial=serial\nnew_certs_dir=.\ndefault_md=sha256\npolicy=p\nunique_subject=no\n\
                    x509_extensions=e\n[p]\nO=optional\nCN=supplied\n[e]\nextendedKeyUsage=clientAuth\nkeyUsage=digitalSignature\n\
                    [req]\ndistinguished_name=n\n[n]\n";
    for (name, text) in [("conf", settings), ("index", ""), ("serial", "77\n")] {
        fs::write(dir.join(name), text).expect("write");
    }
    let request =
        ["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-config", "conf"];
    let subject = ["-subj", "/O=system:nodes/CN=system:node:node", "-keyout", "own.key", "-out", "own.csr"];
    openssl(&dir, &[&request[..], &subject].concat());
    let (ca, key) = (cluster.ca(), cluster.dir.join("pki/ca.key"));
    let (ca, key) = (ca.to_string_lossy(), key.to_string_lossy());
    let sign =
        ["ca", "-batch", "-notext", "-config", "conf", "-cert", &ca, "-keyfile", &key, "-in", "own.csr"];
    openssl(
        &dir,
        &[&sign[..], &["-out", "own.crt", "-startdate", "20200101000000Z", "-enddate", "20200102000000Z"]]
            .concat(),
    );
    let old = fs::read_to_string(good).expect("a kubeconfig");
    let user = old.lines().find(|line| line.starts_with("users:")).expect("its user").to_owned();
    let new = format!(
        r#"users: [{{"name":"test","user":{{"client-certificate-data":"{}","client-key-data":"{}"}}}}]"#,
        base64(&dir.join("own.crt")),
        base64(&dir.join("own.key"))
    );
    altered(good, "expired", &user, &new)
}

fn openssl(dir: &Path, args: &[&str]) {
    let output = Command::new("openssl").args(args).current_dir(dir).output().expect("run openssl");
    assert!(output.status.success(), "openssl {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn base64(path: &Path) -> String {
    let output = Command::new("base64").arg("-w0").arg(path).output().expect("run base64");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn a_kubeconfig_that_says_nonsense_ends_the_start() {
    let runtime = Runtime::start();
    let path = runtime.dir.join("nonsense.kubeconfig");
    let check = |text: &str, says: &[&str]| {
        fs::write(&path, text).expect("write a kubeconfig");
        let (agent, status) = Agent::refused(&runtime, &["--kubeconfig", &path.to_string_lossy()]);
        assert!(!status.success());
        let log = agent.log();
        let last = log.lines().last().unwrap_or_default();
        println!("{last}");
        for word in says.iter().chain(&["nonsense.kubeconfig"]) {
            assert!(log.contains(word), "no {word:?} in: {log}");
        }
    };
    check("clusters: [{", &[]);
    check("apiVersion: v1\nkind: Config\ncurrent-context: gone\n", &["gone"]);
    let user = r#"users: [{"name":"a","user":{"client-certificate":"/nowhere/a.crt","client-key":"/nowhere/a.key"}}]"#;
    let rest = r#"clusters: [{"name":"a","cluster":{"server":"https://127.0.0.1:1"}}]
contexts: [{"name":"a","context":{"cluster":"a","user":"a"}}]
current-context: a"#;
    check(&format!("{user}\n{rest}\n"), &["/nowhere/a"]);
}

#[test]
fn a_slow_api_server_is_slow_and_nothing_else() {
    let cluster = Cluster::shared_bare();
    // Each way, and again for every piece.
    let proxy = Proxy::start(cluster.server(), Between::Delay(Duration::from_millis(250)));
    let kubeconfig = cluster.user_kubeconfig("system:node:node", &["system:nodes"]);
    let kubeconfig = altered(&kubeconfig, "slow", cluster.server(), &proxy.server());
    let member = Member::join(&kubeconfig);
    let namespace = cluster.namespace("slow");
    cluster.create(
        &namespace,
        &list((0..5).map(|n| pod(&format!("p-{n}"), FOR_EVER, "Always", None)).collect()),
    );
    wait_all_ready(cluster, &namespace, 5);
    cluster.wait_for("node", "", NODE, SLOW, is_ready);
    for n in 0..5 {
        cluster.delete("pod", &namespace, &format!("p-{n}"));
    }
    for n in 0..5 {
        cluster.wait_gone("pod", &namespace, &format!("p-{n}"), SLOW);
    }
    println!("slow: {} connections, {:?}", proxy.connections(), cluster.api_request_counts(USER));
    // What is asked before the first connection stands makes its own. From then on one serves all.
    assert!(proxy.connections() < 15, "a connection for every call; {}", member.agent.log_tail());
}
