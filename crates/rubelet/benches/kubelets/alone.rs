//! One kubelet without a cluster, from its cold start to its restart under load.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use cri::CriClient;
use model::PodUid;
use ports::{ContainerFilter, Runtime as _, SandboxFilter};
use serde_json::{Value, json};

use crate::figures::{CpuClock, Samples, between, memory, peak_memory, soon, whole_cpu_seconds};
use crate::marks::{Marks, PATIENCE, any_alive, processes_of};
use crate::support::harness::{Agent, Node, Runtime, cgroups_below};
use crate::{Out, Sizes};

/// What a start, or a burst, leaves to do is over then.
const SETTLE: Duration = Duration::from_secs(10);
/// For so long we look closely whether anything is left of a pod; then now and then.
const LOOK_CLOSELY: Duration = Duration::from_millis(1500);
const COLD_STARTS: usize = 3;

struct Alone {
    node: Node,
    marks: Marks,
    client: CriClient,
    tokio: tokio::runtime::Runtime,
    containerd: u32,
}

pub fn measure(sizes: Sizes, out: &mut Out<'_>) {
    let runtime = Runtime::start();
    let agent = Agent::prepare(&runtime, &[], |config| configure(config, sizes));
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("an async runtime");
    let client = {
        let _inside = tokio.enter();
        CriClient::connect(&runtime.endpoint(), None, PATIENCE).expect("the runtime's socket")
    };
    let mut alone = Alone {
        marks: Marks::new(&runtime.dir),
        client,
        tokio,
        containerd: runtime.containerd_pid(),
        node: Node { agent, runtime },
    };
    alone.cold_starts(out);
    alone.at_rest(0, sizes, out);
    alone.singles(sizes, out);
    alone.burst(sizes, out);
    alone.at_rest(sizes.burst, sizes, out);
    alone.restart(sizes, out);
    alone.halve(sizes);
    alone.at_rest(sizes.burst / 2, sizes, out);
}

/// As installers set it up, but for the number of pods.
pub fn configure(config: &mut Value, sizes: Sizes) {
    config["maxPods"] = json!(sizes.burst + sizes.single + 10);
}

impl Alone {
    fn pid(&self) -> u32 {
        self.node.agent.pid().expect("an agent that runs")
    }

    /// From the start of the process to its first "ok".
    fn launch(&mut self) -> f64 {
        let begun = Instant::now();
        self.node.agent.launch();
        soon("the agent to be healthy", PATIENCE, || self.node.agent.is_healthy().then_some(()));
        begun.elapsed().as_secs_f64()
    }

    fn cold_starts(&mut self, out: &mut Out<'_>) {
        let mut samples = Samples::default();
        for _ in 0..COLD_STARTS {
            self.node.agent.kill9();
            samples.add(self.launch());
        }
        out.put("cold start", samples.quantile(0.5));
    }

    /// CPU and memory while nothing happens, with so many pods.
    fn at_rest(&self, pods: usize, sizes: Sizes, out: &mut Out<'_>) {
        sleep(SETTLE);
        let agent = CpuClock::start(self.pid());
        let containerd = CpuClock::start(self.containerd);
        sleep(Duration::from_secs(sizes.rest as u64));
        out.put(&format!("rest cpu {pods}"), agent.read().millicores());
        out.put(&format!("rest containerd cpu {pods}"), containerd.read().millicores());
        let memory = memory(self.pid());
        out.put(&format!("memory {pods}"), memory.resident);
        out.put(&format!("anonymous memory {pods}"), memory.anonymous);
    }

    // ---- one pod at a time --------------------------------------------------------------------------------------

    fn singles(&self, sizes: Sizes, out: &mut Out<'_>) {
        let names = ["running", "restarted", "exit reported", "sigterm", "processes gone", "nothing left"];
        let mut samples: BTreeMap<&str, Samples> = names.map(|name| (name, Samples::default())).into();
        let mut add = |what: &str, seconds: f64| samples.get_mut(what).expect("a name").add(seconds);
        // Of those that were deleted and left something: when they were.
        let mut lingering: BTreeMap<PodUid, SystemTime> = BTreeMap::new();
        for number in 0..sizes.single {
            let name = format!("single-{number}");
            let begun = SystemTime::now();
            self.node.agent.write_manifest(&name, &self.marks.pod(&name).to_string());
            add("running", between(begun, self.marks.wait(&name, "run")));
            let uid = self.wait_shown_running(&name);

            self.marks.ask_to_exit(&name);
            let exited = self.marks.wait(&name, "exit");
            add("exit reported", between(exited, self.wait_exit_shown(&name)));
            add("restarted", between(exited, self.marks.wait(&name, "again")));
            self.wait_shown_running(&name);

            let processes = processes_of(&self.node.runtime.cgroup_root, uid.as_str());
            assert!(!processes.is_empty(), "no processes in the cgroup of {name}");
            let begun = SystemTime::now();
            self.node.agent.remove_manifest(&name);
            add("sigterm", between(begun, self.marks.wait(&name, "term")));
            soon("the pod's processes to go", PATIENCE, || (!any_alive(&processes)).then_some(()));
            add("processes gone", between(begun, SystemTime::now()));
            let closely = Instant::now();
            while self.is_left(&uid) && closely.elapsed() < LOOK_CLOSELY {
                sleep(Duration::from_millis(5));
            }
            lingering.insert(uid, begun);
            self.count_gone(&mut lingering, &mut |seconds| add("nothing left", seconds));
        }
        soon("nothing to be left of the pods", PATIENCE, || {
            self.count_gone(&mut lingering, &mut |seconds| add("nothing left", seconds));
            sleep(Duration::from_millis(100));
            lingering.is_empty().then_some(())
        });
        for (name, samples) in &samples {
            out.put_samples(name, samples);
        }
    }

    fn wait_shown_running(&self, name: &str) -> PodUid {
        let what = format!("{name} to be shown as running");
        soon(&what, PATIENCE, || {
            let pod = self.node.agent.pod(name).ok()?;
            let running = !pod["status"]["containerStatuses"][0]["state"]["running"].is_null();
            running.then(|| PodUid::from(pod["metadata"]["uid"].as_str().unwrap_or_default()))
        })
    }

    /// The first time that somebody who asks is told of the exit.
    fn wait_exit_shown(&self, name: &str) -> SystemTime {
        soon(&format!("the exit of {name} to be shown"), PATIENCE, || {
            let pod = self.node.agent.pod(name).ok()?;
            let status = &pod["status"]["containerStatuses"][0];
            let told = !status["state"]["terminated"].is_null()
                || !status["lastState"]["terminated"].is_null()
                || status["restartCount"].as_u64() > Some(0);
            told.then(SystemTime::now)
        })
    }

    /// Whether anything of the pod is left: in the runtime, on disk or in the cgroup tree.
    fn is_left(&self, uid: &PodUid) -> bool {
        let directory = self.node.agent.root_dir().join("pods").join(uid.as_str());
        if directory.exists() || !processes_and_cgroups(&self.node.runtime.cgroup_root, uid).is_empty() {
            return true;
        }
        let containers = ContainerFilter { pod_uid: Some(uid.clone()), id: None };
        let sandboxes = SandboxFilter { pod_uid: Some(uid.clone()), id: None };
        self.tokio.block_on(async {
            !self.client.list_containers(&containers).await.expect("ListContainers").is_empty()
                || !self.client.list_pod_sandboxes(&sandboxes).await.expect("ListPodSandbox").is_empty()
        })
    }

    fn count_gone(&self, lingering: &mut BTreeMap<PodUid, SystemTime>, add: &mut dyn FnMut(f64)) {
        lingering.retain(|uid, deleted| {
            let left = self.is_left(uid);
            if !left {
                add(between(*deleted, SystemTime::now()));
            }
            left
        });
    }

    // ---- many pods ----------------------------------------------------------------------------------------------

    fn burst(&self, sizes: Sizes, out: &mut Out<'_>) {
        let pods: Vec<_> = (0..sizes.burst).map(|number| format!("burst-{number}")).collect();
        let manifests: Vec<String> = pods.iter().map(|name| self.marks.pod(name).to_string()).collect();
        let (agent, containerd) = (whole_cpu_seconds(self.pid()), whole_cpu_seconds(self.containerd));
        let begun = SystemTime::now();
        for (name, manifest) in pods.iter().zip(&manifests) {
            self.node.agent.write_manifest(name, manifest);
        }
        let last = pods.iter().map(|name| self.marks.wait(name, "run")).max().expect("a pod");
        out.put("burst", between(begun, last));
        self.wait_all_shown(sizes.burst);
        out.put("burst cpu", whole_cpu_seconds(self.pid()) - agent);
        out.put("burst containerd cpu", whole_cpu_seconds(self.containerd) - containerd);
        out.put("burst memory peak", peak_memory(self.pid()));
    }

    fn wait_all_shown(&self, count: usize) {
        let running = |pod: &&Value| !pod["status"]["containerStatuses"][0]["state"]["running"].is_null();
        soon(&format!("{count} pods to be shown as running"), PATIENCE, || {
            let shown = self.node.agent.pods().ok()?.iter().filter(running).count();
            sleep(Duration::from_millis(50));
            (shown >= count).then_some(())
        });
    }

    /// The agent is killed under all its pods, containerd is left alone for a while, and the agent comes back.
    fn restart(&mut self, sizes: Sizes, out: &mut Out<'_>) {
        self.node.agent.kill9();
        sleep(Duration::from_secs(2));
        let containerd = CpuClock::start(self.containerd);
        sleep(Duration::from_secs(sizes.rest as u64));
        out.put("rest containerd cpu alone", containerd.read().millicores());
        let begun = Instant::now();
        out.put("restart healthy", self.launch());
        self.wait_all_shown(sizes.burst);
        out.put("restart all known", begun.elapsed().as_secs_f64());
        out.put("restart cpu", whole_cpu_seconds(self.pid()));
        let disturbed =
            (0..sizes.burst).filter(|n| self.marks.seen(&format!("burst-{n}"), "again").is_some());
        out.put("restart disturbed", disturbed.count() as f64);
    }

    /// Half of the pods go.
    fn halve(&self, sizes: Sizes) {
        let going: Vec<_> = (sizes.burst / 2..sizes.burst).map(|number| format!("burst-{number}")).collect();
        for name in &going {
            self.node.agent.remove_manifest(name);
        }
        for name in &going {
            self.marks.wait(name, "term");
        }
        soon("half of the pods to go", PATIENCE, || {
            let left = self.node.agent.pods().ok()?.len();
            sleep(Duration::from_millis(50));
            (left <= sizes.burst / 2).then_some(())
        });
    }
}

fn processes_and_cgroups(root: &str, uid: &PodUid) -> Vec<std::path::PathBuf> {
    let mut found = cgroups_below(root);
    found.retain(|path| path.to_string_lossy().contains(uid.as_str()));
    found
}
