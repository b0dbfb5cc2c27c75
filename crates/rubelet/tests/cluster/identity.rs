//! How a node comes to its identity in a real cluster, and keeps it: bootstrap tokens, rotation, what kubeadm leaves.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::cluster::Cluster;
use crate::support::harness::{self, Agent, Runtime, SLOW, wait, wait_until};
use serde_json::{Value, json};

const BUSYBOX: &str = "rubelet.test/busybox:1";
const CURRENT: &str = "kubelet-client-current.pem";

/// So long a certificate is good after it was signed. The signer lets it begin five minutes earlier, so that each is
/// due for renewal as soon as it is there: a node goes through many while a test looks on.
const LIFE: Duration = Duration::from_secs(20);

fn cluster() -> &'static Cluster {
    static SHARED: OnceLock<Cluster> = OnceLock::new();
    SHARED.get_or_init(|| Cluster::start_with(&["--signing-duration", "20s"]))
}

/// One token for all: the rules that come with it can't be made twice at once.
fn bootstrap() -> &'static Path {
    static TOKEN: OnceLock<PathBuf> = OnceLock::new();
    TOKEN.get_or_init(|| cluster().bootstrap_kubeconfig())
}

fn pod(name: &str, node: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
            "containers": [{
                "name": "main", "image": BUSYBOX, "imagePullPolicy": "Never",
                "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 3600 & wait"],
            }],
        },
    })
    .to_string()
}

fn ready(object: &Value) -> &Value {
    let conditions = object["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().find(|condition| condition["type"] == "Ready").unwrap_or(&Value::Null)
}

fn is_ready(object: &Value) -> bool {
    ready(object)["status"] == "True"
}

/// Who asked for certificates of nodes, by the requests that there are.
fn requests_of(user: &str) -> usize {
    let all = cluster().kubectl_json(&["get", "csr"]);
    let all = all["items"].as_array().cloned().unwrap_or_default();
    all.iter()
        .filter(|request| request["spec"]["username"].as_str().is_some_and(|u| u.starts_with(user)))
        .count()
}

fn current(pki: &Path) -> Result<PathBuf, String> {
    fs::read_link(pki.join(CURRENT)).map_err(|error| error.to_string())
}

#[test]
fn a_bootstrap_token_becomes_a_certificate_that_is_renewed_again_and_again() {
    let cluster = cluster();
    let runtime = Runtime::start();
    let (kubeconfig, pki) = (runtime.dir.join("kubelet.conf"), runtime.dir.join("pki"));
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let flags = ["--bootstrap-kubeconfig", &text(bootstrap()), "--kubeconfig", &text(&kubeconfig)];
    let mut agent =
        Agent::start_with_flags(&runtime, &flags, |config| config["rotateCertificates"] = json!(true));
    let namespace = cluster.namespace("rotation");
    cluster.create_pod(&namespace, &pod("kept", "node"));
    let before = cluster.wait_for("pod", &namespace, "kept", SLOW, is_ready);
    let node = cluster.wait_for("node", "", "node", SLOW, is_ready);

    // As upstream lays it out: dated pairs, a link to the last, and a kubeconfig that names the link.
    let mut seen = BTreeSet::from([wait("a certificate", SLOW, || current(&pki))]);
    let written = fs::read_to_string(&kubeconfig).expect("the kubeconfig that was written");
    assert!(written.contains(&text(&pki.join(CURRENT))), "{written}");
    assert!(!written.contains("token"), "the token is not kept: {written}");
    let (since, log) = (Instant::now(), agent.log().len());
    while seen.len() < 3 || since.elapsed() < LIFE + Duration::from_secs(3) {
        assert!(since.elapsed() < 2 * SLOW, "only {seen:?}");
        seen.insert(current(&pki).expect("always a certificate"));
        thread::sleep(Duration::from_millis(100));
    }
    println!("{} certificates in {:?}, each good for {LIFE:?}", seen.len(), since.elapsed());
    let pem = fs::read_to_string(pki.join(CURRENT)).expect("the pair");
    assert!(pem.contains("CERTIFICATE") && pem.contains("PRIVATE KEY"));
    assert!(requests_of("system:node:node") >= 2, "a node asks for its own renewals");

    // The first certificates are over by now: only a new one can do this.
    cluster.create_pod(&namespace, &pod("later", "node"));
    cluster.wait_for("pod", &namespace, "later", SLOW, is_ready);
    let after = cluster.pod(&namespace, "kept");
    assert_eq!(after["status"]["containerStatuses"], before["status"]["containerStatuses"]);
    assert_eq!(ready(&after), ready(&before));
    let now = cluster.get("node", "", "node").expect("the node");
    assert_eq!(ready(&now)["lastTransitionTime"], ready(&node)["lastTransitionTime"], "always Ready");
    let log = &agent.log()[log..];
    let refused: Vec<&str> = log.lines().filter(|line| line.contains("nauthorized")).collect();
    assert!(refused.is_empty(), "{refused:#?}");

    // The next start needs no token.
    let asked = requests_of("system:bootstrap:");
    agent.restart();
    cluster.create_pod(&namespace, &pod("last", "node"));
    cluster.wait_for("pod", &namespace, "last", SLOW, is_ready);
    assert_eq!(requests_of("system:bootstrap:"), asked);
    let at_end = cluster.pod(&namespace, "kept");
    assert_eq!(at_end["status"]["containerStatuses"], before["status"]["containerStatuses"]);
}

/// What `kubeadm join` of v1.36 leaves on a node, below a directory instead of the root, and its agent.
struct Joined {
    runtime: Runtime,
    child: Option<Child>,
    healthz: u16,
}

impl Joined {
    fn new(node: &str) -> Joined {
        let runtime = Runtime::start();
        let healthz = runtime.free_port();
        let (etc, lib) = (runtime.dir.join("etc/kubernetes"), runtime.dir.join("var/lib/kubelet"));
        for dir in [etc.join("pki"), etc.join("manifests"), lib.clone(), runtime.dir.join("logs")] {
            fs::create_dir_all(dir).expect("a directory");
        }
        fs::copy(cluster().ca(), etc.join("pki/ca.crt")).expect("the authority");
        fs::copy(bootstrap(), etc.join("bootstrap-kubelet.conf")).expect("the token");
        let config = CONFIG
            .replace("/etc/kubernetes", &etc.to_string_lossy())
            .replace("unix:///run/containerd/containerd.sock", &runtime.endpoint())
            .replace("10248", &healthz.to_string())
            // No systemd runs where tests do.
            .replace("cgroupDriver: systemd", "cgroupDriver: cgroupfs");
        // As `kubeadm --patches` would: agents of one machine must not meet, and it may have cgroup v1.
        let patch = json!({
            "cgroupRoot": runtime.cgroup_root, "failCgroupV1": false, "port": runtime.free_port(),
            "podLogsDir": runtime.dir.join("logs"),
            // The rules of this machine are not the tests'.
            "makeIPTablesUtilChains": false,
        });
        let patch = patch.as_object().expect("fields").iter();
        let patch: String = patch.map(|(key, value)| format!("{key}: {value}\n")).collect();
        fs::write(lib.join("config.yaml"), config + &patch).expect("the configuration");
        let instance = format!("containerRuntimeEndpoint: {:?}\n", runtime.endpoint());
        fs::write(lib.join("instance-config.yaml"), instance).expect("what is the node's own");
        let flags = format!("KUBELET_KUBEADM_ARGS=\"--hostname-override={node} --node-labels=disk=ssd\"\n");
        fs::write(lib.join("kubeadm-flags.env"), flags).expect("the flags");
        Joined { runtime, child: None, healthz }
    }

    /// With the words that the unit's ExecStart becomes.
    fn start(&mut self) {
        let dir = self.runtime.dir.to_string_lossy().into_owned();
        let lib = self.runtime.dir.join("var/lib/kubelet");
        let unit = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../hack/systemd/kubelet.service.d/20-rubelet.conf");
        let unit = fs::read_to_string(unit).expect("the unit");
        let environment = unit.lines().filter_map(|line| line.strip_prefix("Environment="));
        let mut variables: Vec<String> = environment.map(|line| line.trim_matches('"').to_owned()).collect();
        let file = fs::read_to_string(lib.join("kubeadm-flags.env")).expect("the flags");
        variables.extend(file.lines().map(|line| line.replace('"', "")));
        // The directories that are below the root elsewhere. A machine that runs tests may have a nearly full disk, which is
        // none of this test's business.
        let own = format!(
            "KUBELET_EXTRA_ARGS=--root-dir={dir}/var/lib/kubelet --cert-dir={dir}/var/lib/kubelet/pki \
             --eviction-hard=memory.available<1Mi --image-gc-high-threshold=100"
        );
        variables.push(own);
        let mut lines = unit.lines().rev();
        let start = lines.find_map(|line| line.strip_prefix("ExecStart=")).expect("what it starts");
        let value = |word: &str| {
            let name = word.trim_start_matches('$');
            let found = variables.iter().find_map(|set| set.strip_prefix(&format!("{name}=")));
            found.unwrap_or_else(|| panic!("no {name} in {variables:?}")).to_owned()
        };
        let words: Vec<String> = start.split(' ').skip(1).map(value).collect();
        let words = words.join(" ").replace("=/etc/", &format!("={dir}/etc/"));
        let words = words.replace("=/var/lib/", &format!("={dir}/var/lib/"));
        println!("rubelet {words}");
        let log = || File::options().create(true).append(true).open(self.log_path()).expect("the log");
        let child = Command::new(env!("CARGO_BIN_EXE_rubelet"))
            .args(words.split_whitespace())
            .env("HOME", self.runtime.dir.join("home"))
            .stdin(Stdio::null())
            .stdout(log())
            .stderr(log())
            .spawn()
            .expect("start the agent");
        self.child = Some(child);
        let address = format!("127.0.0.1:{}", self.healthz);
        wait("a healthy agent", SLOW, || match harness::get(&address, "/healthz") {
            Ok(answer) if answer.status == 200 => Ok(()),
            Ok(answer) => Err(answer.text()),
            Err(error) => Err(format!("{error}\n{}", self.log())),
        });
    }

    fn log_path(&self) -> PathBuf {
        self.runtime.dir.join("agent.log")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("end the agent");
            child.wait().expect("its end");
        }
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- the agent's log:\n{}\n--- (end)", self.log());
        }
        self.stop();
    }
}

#[test]
fn what_kubeadm_leaves_starts_a_node() {
    let cluster = cluster();
    let mut joined = Joined::new("joined");
    joined.start();
    let node = cluster.wait_for("node", "", "joined", SLOW, is_ready);
    assert_eq!(node["metadata"]["labels"]["disk"], "ssd");
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/hostname"], "joined");
    let namespace = cluster.namespace("joined");
    cluster.create_pod(&namespace, &pod("first", "joined"));
    let first = cluster.wait_for("pod", &namespace, "first", SLOW, is_ready);

    // kubeadm removes the token when the node has its identity; what comes after stands on kubelet.conf.
    let etc = joined.runtime.dir.join("etc/kubernetes");
    assert!(etc.join("kubelet.conf").exists());
    fs::remove_file(etc.join("bootstrap-kubelet.conf")).expect("the token");
    joined.stop();
    thread::sleep(Duration::from_millis(500));
    joined.start();
    cluster.create_pod(&namespace, &pod("second", "joined"));
    cluster.wait_for("pod", &namespace, "second", SLOW, is_ready);
    let again = cluster.pod(&namespace, "first");
    assert_eq!(again["status"]["containerStatuses"], first["status"]["containerStatuses"]);
    let log = joined.log();
    let unheeded: Vec<&str> = log.lines().filter(|line| line.contains("no effect yet")).collect();
    println!("{unheeded:#?}");
    wait_until("its lease", SLOW, || cluster.get("lease", "kube-node-lease", "joined").is_some());
}

/// Word for word what `kubeadm init phase kubelet-start` of v1.36.4 writes.
const CONFIG: &str = "\
apiVersion: kubelet.config.k8s.io/v1beta1
authentication:
  anonymous:
    enabled: false
  webhook:
    cacheTTL: 0s
    enabled: true
  x509:
    clientCAFile: /etc/kubernetes/pki/ca.crt
authorization:
  mode: Webhook
  webhook:
    cacheAuthorizedTTL: 0s
    cacheUnauthorizedTTL: 0s
cgroupDriver: systemd
clusterDNS:
- 10.96.0.10
clusterDomain: cluster.local
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cpuManagerReconcilePeriod: 0s
crashLoopBackOff: {}
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
healthzBindAddress: 127.0.0.1
healthzPort: 10248
httpCheckFrequency: 0s
imageMaximumGCAge: 0s
imageMinimumGCAge: 0s
kind: KubeletConfiguration
logging:
  flushFrequency: 0
  options:
    json:
      infoBufferSize: \"0\"
    text:
      infoBufferSize: \"0\"
  verbosity: 0
memorySwap: {}
nodeStatusReportFrequency: 0s
nodeStatusUpdateFrequency: 0s
rotateCertificates: true
runtimeRequestTimeout: 0s
shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
staticPodPath: /etc/kubernetes/manifests
streamingConnectionIdleTimeout: 0s
syncFrequency: 0s
volumeStatsAggPeriod: 0s
";
