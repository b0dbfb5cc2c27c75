//! Scripts: one event per line, and what it leads to.
//!
//! ```text
//! pod a = restart Never; run c     what `a` means from here on
//! up                               started, runtime ready, nothing in it
//! file a                           => run a: dirs + cgroup > sandbox#0 | look img-c:1
//! done a                           => read a
//! read a: s0 ready                 => ..
//! ```
//!
//! What follows `=>` is compared (`-`: nothing happens; a line that begins with `=>` goes on with the one before);
//! a line without it is only carried out. Of the effects, those that do something are always shown; `show` adds
//! `events`, `timers` (of pods), `clocks` (of the node), `status`, `sweeps`, `cgroups`, `probes` and
//! `logs`. Times are seconds since the agent came up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use model::cgroup::{CgroupDriver, CgroupName};
use model::cluster::{ObjectContent, ObjectKey, ObjectKind, ObjectState, PodTokenRequest, Token};
use model::cri::{Image, RuntimeCondition, RuntimeHandler, RuntimeStatus};
use model::disk_usage::PodDiskUsage;
use model::node::{HostFacts, NodeConfig};
use model::observed::{Observation, Scope};
use model::pod::{Source, UnreadablePod};
use model::runtime_class::RuntimeClass;
use model::{FullName, Mono, Now, PodUid, k8s};
use serde_json::json;

use super::show;
use crate::action::{Action, ActionResult, CallFailure, Epoch, Stage, StartFailurePoint};
use crate::effect::{ApiCall, Effect, TimerKey};
use crate::event::{Event, Hint, PodArtifacts, PulledImage, RuntimeCheck};
use crate::image_pull::PullKey;
use crate::plan::tests::words::{EPOCH, api_pod, at, observed, show_action, show_time, show_why};
use crate::state::NodeState;
use crate::step::step;

pub struct Script {
    pub state: NodeState,
    now: f64,
    /// What each name means.
    pods: BTreeMap<String, Arc<k8s::Pod>>,
    plans: BTreeMap<PodUid, (Epoch, Arc<Vec<Stage>>)>,
    timers: BTreeMap<TimerKey, Mono>,
    /// The last token that each pod asked for.
    wanted: BTreeMap<PodUid, PodTokenRequest>,
    /// With which credentials each image was pulled last.
    pulls: BTreeMap<String, PullKey>,
    /// Calls that the API server has not answered yet.
    pub calls: Vec<ApiCall>,
    /// Objects as the API server has them.
    pub objects: BTreeMap<PodUid, k8s::Pod>,
    shown: BTreeSet<String>,
    /// Of the last line.
    effects: Vec<Effect>,
}

/// Carries out a script on a node that takes its pods from files.
#[track_caller]
pub fn check(script: &str) -> Script {
    check_on(NodeConfig::default(), script)
}

#[track_caller]
pub fn check_on(config: NodeConfig, script: &str) -> Script {
    let mut run = Script::new(config);
    for (number, (line, expect)) in lines(script).iter().enumerate() {
        let effects = run.line(line);
        let Some(expect) = expect else { continue };
        let expect: Vec<&str> = expect.iter().map(String::as_str).filter(|item| *item != "-").collect();
        assert!(
            effects == expect,
            "line {} at {}s: {line}\n  expected {}\n  but got  {}",
            number + 1,
            run.now,
            expect.join(" | "),
            effects.join(" | "),
        );
    }
    run
}

/// Lines with what they should lead to; continuations are joined.
fn lines(script: &str) -> Vec<(String, Option<Vec<String>>)> {
    let mut lines: Vec<(String, Option<Vec<String>>)> = Vec::new();
    for line in
        script.lines().map(|l| l.split("# ").next().unwrap_or_default().trim()).filter(|l| !l.is_empty())
    {
        let (command, expect) = match line.split_once("=>") {
            Some((command, expect)) => (command.trim(), Some(expect)),
            None => (line, None),
        };
        let items = expect.map(|e| e.split(" | ").map(|item| item.trim().to_owned()).collect::<Vec<_>>());
        match (command.is_empty(), lines.last_mut()) {
            (true, Some((_, Some(so_far)))) => so_far.extend(items.into_iter().flatten()),
            (true, Some((_, so_far))) => *so_far = items,
            _ => lines.push((command.to_owned(), items)),
        }
    }
    lines
}

impl Script {
    pub fn new(mut config: NodeConfig) -> Self {
        if config.sources.is_empty() {
            config.sources = vec![Source::File];
        }
        config.cluster_dns = vec!["10.0.0.10".into()];
        Self {
            state: NodeState::new(config, HostFacts { cpus: 64, ..HostFacts::default() }, EPOCH),
            now: 0.0,
            pods: BTreeMap::new(),
            plans: BTreeMap::new(),
            timers: BTreeMap::new(),
            wanted: BTreeMap::new(),
            pulls: BTreeMap::new(),
            calls: Vec::new(),
            objects: BTreeMap::new(),
            shown: BTreeSet::new(),
            effects: Vec::new(),
        }
    }

    fn now(&self) -> Now {
        at(self.now)
    }

    /// Steps, keeps the books that an engine would keep, and shows the effects that are to be seen.
    pub fn event(&mut self, event: Event) -> Vec<String> {
        let now = self.now();
        let effects = step(&mut self.state, now, event);
        for effect in &effects {
            match effect {
                Effect::RunPlan { uid, epoch, stages } => {
                    assert!(!stages.is_empty() && stages.iter().all(|s| !s.actions.is_empty()));
                    let old = self.plans.insert(uid.clone(), (*epoch, stages.clone()));
                    assert!(old.is_none(), "{uid} has two plans");
                }
                Effect::PullImage { pull, .. } => {
                    self.pulls.insert(pull.image.clone(), pull.clone());
                }
                Effect::RequestToken { wanted } => {
                    self.wanted.insert(wanted.pod_uid.clone(), wanted.clone());
                }
                Effect::CallApi(call) => self.calls.push(call.clone()),
                Effect::SetTimer { key, at: Some(at) } => {
                    self.timers.insert(key.clone(), *at);
                }
                Effect::SetTimer { key, at: None } => {
                    self.timers.remove(key);
                }
                _ => {}
            }
        }
        let shown = effects.iter().filter_map(|effect| show::effect(effect, &self.shown)).collect();
        self.effects = effects;
        shown
    }

    /// What the last event led to.
    pub fn effects(&self) -> &[Effect] {
        &self.effects
    }

    /// The line, unless it answers what was not asked: ends a plan that is not there, or a sweep.
    pub fn try_line(&mut self, line: &str) -> Vec<String> {
        self.effects.clear();
        let (word, uid) = line.split_once(' ').unwrap_or((line, ""));
        let has_plan = self.plans.get(&uid.into());
        match (word, has_plan) {
            ("done" | "cut" | "skip" | "fail-first", None) => Vec::new(),
            ("leftovers", _) if !self.state.sweep_running || !self.state.pods_being_swept.is_empty() => {
                Vec::new()
            }
            ("swept", _) if !self.state.sweep_running => Vec::new(),
            ("fail-first", Some((_, stages))) => {
                let first = show_action(&stages[0].actions[0]).replace(&format!(" {uid}."), " ");
                let at =
                    if matches!(stages[0].actions[0], Action::StartContainer(_)) { "create: " } else { "" };
                self.line(&format!("fail {uid}: {first} = {at}no"))
            }
            _ => self.line(line),
        }
    }

    pub fn line(&mut self, line: &str) -> Vec<String> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let rest = rest.trim();
        if let Some(seconds) = word.strip_prefix('+') {
            self.now += seconds.trim_end_matches('s').parse::<f64>().expect("seconds");
            return Vec::new();
        }
        match word {
            "pod" => {
                let (name, text) = rest.split_once('=').expect("pod <name> = <text>");
                self.pods.insert(name.trim().into(), api_pod(name.trim(), text.trim()));
                Vec::new()
            }
            "show" => {
                self.shown.extend(rest.split_whitespace().map(str::to_owned));
                Vec::new()
            }
            "up" => {
                let services = self.state.has_cluster().then_some("services");
                let lines = ["started", "ready", "read all:"].into_iter().chain(services);
                lines.flat_map(|line| self.line(line)).collect()
            }
            "why" => {
                let entry = self.state.pods.get(&rest.into());
                let why: Vec<_> = entry.iter().flat_map(|e| &e.why).map(|w| w.why.clone()).collect();
                vec![show_why(&why)]
            }
            "state" => vec![show::state(&self.state, rest)],
            "counted" => {
                Some(show::counts(&self.state)).filter(|shown| !shown.is_empty()).into_iter().collect()
            }
            "classes" => self.event(classes(Source::File, rest)),
            "api-classes" => self.event(classes(Source::Api, rest)),
            "ids" => vec![show::user_ids(&self.state)],
            "file" => self.deliver(Source::File, rest),
            "http" => self.deliver(Source::Http, rest),
            "api" => self.deliver(Source::Api, rest),
            "read" => self.read(rest),
            "done" => self.end_plan(rest, &|_, action| success(rest, action)),
            "skip" => self.end_plan(rest, &|_, _| ActionResult::Skipped),
            "cut" => self.cut(rest),
            "fail" => self.fail(rest),
            "due" => self.due(rest),
            "token" => self.token(rest),
            "token-due" => {
                let wanted = self.wanted.get(&PodUid::from(rest)).expect("a token that was asked for");
                self.event(Event::Timer(TimerKey::Token(wanted.clone())))
            }
            "answer" => self.answer(rest),
            "memory" | "nodefs" | "imagefs" => {
                self.event(super::eviction::figures(word, rest, self.now().mono))
            }
            "node" => self.event(Event::NodeObserved((!rest.is_empty()).then(|| super::cluster::node(rest)))),
            "node-read" => self.event(Event::NodeRead(super::cluster::node_read(rest))),
            "unreadable" => self.unreadable(rest, false),
            "api-unreadable" => self.unreadable(rest, true),
            "gone" => self.event(Event::PodRemoved { source: Source::Api, uid: rest.into() }),
            _ => {
                let mut event = parse_event(word, rest);
                if let Event::ImagePulled { pull, .. } = &mut event
                    && let Some(begun) = self.pulls.get(&pull.image)
                {
                    *pull = begun.clone();
                }
                self.event(event)
            }
        }
    }

    /// `<pod>: <text> <seconds it lasts>`, or `<pod>: fails <why>`.
    fn token(&mut self, rest: &str) -> Vec<String> {
        let (uid, answer) = rest.split_once(": ").expect("token <pod>: <answer>");
        let wanted = self.wanted.get(&PodUid::from(uid)).expect("a token that was asked for").clone();
        let (word, rest) = answer.split_once(' ').expect("two words");
        let result = match word {
            "fails" => Err(rest.to_owned()),
            token => {
                let lasts = Duration::from_secs(rest.parse().expect("seconds"));
                Ok(Token { token: token.into(), expires: self.now().wall.plus(lasts) })
            }
        };
        self.event(Event::TokenIssued { wanted, result })
    }

    /// Objects of the API that can't be decoded, by the names of their pods.
    fn unreadable(&mut self, names: &str, complete: bool) -> Vec<String> {
        let pod = |name: &str| UnreadablePod {
            uid: name.into(),
            full_name: FullName::new(name, "ns"),
            problem: "spec.x: wrong".into(),
        };
        let pods = names.split_whitespace().map(pod).collect();
        self.event(Event::UnreadablePods { source: Source::Api, pods, complete })
    }

    fn deliver(&mut self, source: Source, names: &str) -> Vec<String> {
        let pods = names.split_whitespace().map(|name| {
            let known = self.pods.entry(name.into());
            known.or_insert_with(|| api_pod(name, "")).clone()
        });
        let pods: Vec<_> = pods.collect();
        let pods = pods.into_iter().map(|pod| self.as_the_server_has_it(source, pod)).collect();
        let event = Event::PodSetDelivered { source, pods };
        self.event(event)
    }

    /// `all [@<began>]: a = .. / b = ..`, or `<pod> [@<began>]: ..`. Began: seconds, or `-<seconds>` before now.
    fn read(&mut self, rest: &str) -> Vec<String> {
        let (head, text) = rest.split_once(':').expect("read <scope>: <what>");
        let (scope, began) = head.split_once('@').unwrap_or((head, ""));
        let began = match began.trim().trim_end_matches('s').parse::<f64>() {
            Ok(ago) if began.starts_with('-') => (self.now + ago).max(0.0),
            Ok(began) => began,
            Err(_) => self.now,
        };
        let one = |uid: &str, text: &str| Arc::new(observed(uid, text, self.now()));
        let (scope, pods) = match scope.trim() {
            "all" => {
                let pods = text.split('/').filter_map(|part| part.split_once('='));
                let pods = pods.map(|(uid, text)| one(uid.trim(), text)).collect();
                (Scope::All, pods)
            }
            uid => (Scope::Pod(uid.into()), vec![one(uid, text)]),
        };
        let pods: Vec<Arc<model::observed::ObservedPod>> = pods;
        let pods = pods.into_iter().map(|pod| self.named(pod)).collect();
        self.event(Event::Observed(Observation { at: at(began).mono, scope, pods }))
    }

    /// The runtime shows a pod under the name that its text gives it.
    fn named(&self, mut pod: Arc<model::observed::ObservedPod>) -> Arc<model::observed::ObservedPod> {
        if let Some(known) = self.pods.get(pod.uid.as_str()) {
            let view = model::pod::PodView::new(known.clone(), Source::File);
            Arc::make_mut(&mut pod).full_name = view.full_name;
        }
        pod
    }

    /// Tells of every action how it ended, then that the plan is over.
    fn end_plan(&mut self, uid: &str, result: &dyn Fn(usize, &Action) -> ActionResult) -> Vec<String> {
        let uid = PodUid::from(uid);
        let (epoch, stages) = self.plans.remove(&uid).unwrap_or_else(|| panic!("{uid} has no plan"));
        let mut seen = Vec::new();
        for (stage, actions) in stages.iter().enumerate() {
            for (action, what) in actions.actions.iter().enumerate() {
                let result = result(stage, what);
                seen.extend(self.event(Event::ActionDone { uid: uid.clone(), epoch, stage, action, result }));
            }
        }
        seen.extend(self.event(Event::PlanEnded { uid, epoch }));
        seen
    }

    /// `<pod> [<stage>]`: the plan was cancelled while this stage ran.
    fn cut(&mut self, rest: &str) -> Vec<String> {
        let (uid, stage) = rest.split_once(' ').unwrap_or((rest, "0"));
        let running: usize = stage.parse().expect("a stage");
        self.end_plan(uid, &|stage, action| match action {
            _ if stage > running => ActionResult::Skipped,
            Action::StopContainer { .. } if stage == running => ActionResult::Interrupted,
            action => success(uid, action),
        })
    }

    /// `<pod>: <action> = <message>`: what must not be done after it is skipped. A message that begins with `!` is of
    /// a runtime that was away; one that begins with `files:`, `create:` or `start:` says how far a start came.
    fn fail(&mut self, rest: &str) -> Vec<String> {
        let (uid, what) = rest.split_once(": ").expect("fail <pod>: <action> = <message>");
        let (wanted, message) = what.split_once(" = ").expect("an action and a message");
        let own = format!(" {uid}.");
        let shown = |action: &Action| show_action(action).replace(&own, " ");
        let stages = self.plans.get(&uid.into()).unwrap_or_else(|| panic!("{uid} has no plan")).1.clone();
        let stage = stages.iter().position(|s| s.actions.iter().any(|a| shown(a) == wanted));
        let failing = stage.unwrap_or_else(|| panic!("no {wanted} in {stages:?}"));
        let ends = stages[failing].stop_on_failure;
        self.end_plan(uid, &|stage, action| match action {
            _ if stage > failing && ends => ActionResult::Skipped,
            action if shown(action) == wanted => failure_of(uid, action, message),
            action => success(uid, action),
        })
    }

    /// `<timer> [@<seconds>s]`: the clock moves to it and it fires.
    fn due(&mut self, rest: &str) -> Vec<String> {
        let (name, when) = rest.split_once(" @").unwrap_or((rest, ""));
        let key = timer(name);
        let at = self.timers.remove(&key).unwrap_or_else(|| panic!("{name} is not set: {:?}", self.timers));
        if !when.is_empty() {
            assert_eq!(show_time(at), format!("@{when}"), "{name}");
        }
        self.now = self.now.max(at.as_duration().as_secs_f64());
        self.event(Event::Timer(key))
    }
}

/// Ids are those that readings of the same script show.
fn success(uid: &str, action: &Action) -> ActionResult {
    let prefix = if uid == "p" { String::new() } else { format!("{uid}.") };
    match action {
        Action::MakePodDirs { .. } => ActionResult::Dirs { log_numbers: BTreeMap::new() },
        Action::RunSandbox { config, .. } => {
            ActionResult::SandboxRunning { id: format!("{prefix}s{}", config.metadata.attempt).into() }
        }
        Action::StartContainer(start) => {
            let id = format!("{prefix}{}#{}", start.name, start.config.metadata.attempt);
            ActionResult::ContainerStarted { id: id.into() }
        }
        _ => ActionResult::Ok,
    }
}

fn failure_of(uid: &str, action: &Action, message: &str) -> ActionResult {
    let points = [
        ("files:", StartFailurePoint::Files),
        ("create:", StartFailurePoint::Create),
        ("start:", StartFailurePoint::Start),
    ];
    let at = points.into_iter().find_map(|(word, at)| Some((at, message.strip_prefix(word)?.trim())));
    match at {
        Some((at, message)) => {
            let id = match success(uid, action) {
                ActionResult::ContainerStarted { id } if at == StartFailurePoint::Start => Some(id),
                _ => None,
            };
            ActionResult::StartFailed { at, id, failure: call_failure(message) }
        }
        None => ActionResult::Failed(call_failure(message)),
    }
}

pub fn call_failure(message: &str) -> CallFailure {
    CallFailure { unreachable: message.starts_with('!'), message: message.trim_start_matches('!').into() }
}

/// `<name>=<handler> ..`
fn classes(source: Source, rest: &str) -> Event {
    let class = |(name, handler): (&str, &str)| {
        (name.to_owned(), RuntimeClass { handler: handler.to_owned(), ..Default::default() })
    };
    let classes = rest.split_whitespace().filter_map(|word| word.split_once('=')).map(class).collect();
    Event::RuntimeClasses { source, classes }
}

fn timer(name: &str) -> TimerKey {
    match name.split_once(' ') {
        Some(("pod", uid)) => TimerKey::PodWakeUp(uid.into()),
        Some(("report", uid)) => TimerKey::RetryStatusPatch(uid.into()),
        Some(("mirror", name)) => TimerKey::Mirror(model::FullName::new(name, "ns")),
        Some(("claim", name)) => TimerKey::Storage(super::claims::key(name)),
        Some(("observe", uid)) => TimerKey::RetryObservation(uid.into()),
        Some(("start", uid)) => TimerKey::ObserveStart(uid.into()),
        Some(("disk", uid)) => TimerKey::MeasureDisk(uid.into()),
        _ => match name {
            "full" => TimerKey::FullRelist,
            "confirm" => TimerKey::ConfirmObservations,
            "check" => TimerKey::RuntimeCheck,
            "sweep" => TimerKey::Sweep,
            "user-ids" => TimerKey::UserIds,
            "pressure" => TimerKey::NodePressure,
            "eviction" => TimerKey::EvictionStep,
            "memory" => TimerKey::NodeFigures(model::eviction::FigureGroup::Memory),
            "nodefs" => TimerKey::NodeFigures(model::eviction::FigureGroup::NodeFilesystem),
            "image-garbage" => TimerKey::ImageGarbage,
            other => panic!("no timer {other}"),
        },
    }
}

fn parse_event(word: &str, rest: &str) -> Event {
    match word {
        "started" => Event::Started,
        "ready" | "not-ready" | "no-network" | "away" => Event::RuntimeChecked(runtime_check(word, rest)),
        "read-failed" => {
            let scope = if rest == "all" { Scope::All } else { Scope::Pod(rest.into()) };
            Event::ObserveFailed { scope, message: "no answer".into() }
        }
        "hint" => Event::Hint(Hint::Pod(rest.into())),
        "hint-id" => Event::Hint(Hint::ContainerOrSandbox(rest.into())),
        "hint-images" => Event::Hint(Hint::Images),
        "hint-all" => Event::Hint(Hint::Everything),
        "timer" => Event::Timer(timer(rest)),
        "evict" => {
            let (uid, grace) = rest.split_once(' ').unwrap_or((rest, ""));
            let (reason, message) = ("Evicted".to_owned(), "no memory".to_owned());
            Event::Evict { uid: uid.into(), reason, message, grace_secs: grace.parse().ok() }
        }
        "used" => {
            let mut words = rest.split_whitespace();
            let uid = words.next().expect("used <pod> <volume>=<bytes>").into();
            let sizes = words.filter_map(|word| word.split_once('='));
            let volumes = sizes.map(|(name, bytes)| (name.to_owned(), bytes.parse().unwrap())).collect();
            Event::DiskMeasured { uid, result: Ok(PodDiskUsage { volumes, ..Default::default() }) }
        }
        "notice" => Event::MemoryRunsShort { result: Ok(()) },
        "pods-use" => super::eviction::pods_use(rest),
        "looked" => {
            let (image, answer) = rest.split_once(": ").expect("looked <image>: <answer>");
            let result = match answer {
                "yes" => Ok(Some(found())),
                "no" => Ok(None),
                message => Err(call_failure(message)),
            };
            Event::ImageInspected { image: image.into(), result, history: Default::default() }
        }
        "pulled" => {
            let (image, answer) = rest.split_once(": ").expect("pulled <image>: <answer>");
            let result = match answer {
                "ok" => Ok(PulledImage {
                    reference: format!("sha256:{image}"),
                    image: Some(found()),
                    took: Duration::from_millis(1500),
                }),
                message => Err(call_failure(message)),
            };
            let pull = PullKey { image: image.into(), ..PullKey::default() };
            Event::ImagePulled { pull, result }
        }
        "images" | "removed" => super::image_garbage::event(word, rest),
        "services" => Event::Services(Vec::new()),
        "configmap" => object(ObjectKind::ConfigMap, rest),
        "secret" => object(ObjectKind::Secret, rest),
        "claim" => super::claims::claim(rest),
        "pv" => super::claims::volume(rest),
        "driver" => super::attaching::driver(rest),
        "attachment" => super::attaching::attachment(rest),
        "ids-read" => super::placing::user_ids_read(rest),
        "leftovers" => Event::PodArtifactsListed(leftovers(rest)),
        "swept" => Event::SweepEnded { problems: if rest.is_empty() { vec![] } else { vec![rest.into()] } },
        other => panic!("nobody knows {other}"),
    }
}

/// `<name>: k=v ..`, `<name>: immutable k=v ..`, `<name>: login <place> <user>`, `<name>: gone`, `<name>: denied <why>`, `<name>: away <why>`
fn object(kind: ObjectKind, rest: &str) -> Event {
    let (name, text) = rest.split_once(':').expect("<name>: <what>");
    let key = ObjectKey { kind, namespace: "ns".into(), name: name.into() };
    let text = text.trim();
    let (word, message) = text.split_once(' ').unwrap_or((text, ""));
    let state = match word {
        "gone" => ObjectState::Absent { message: format!("{}s {name:?} not found", kind.word()) },
        "denied" => ObjectState::Denied { message: message.into() },
        "away" => ObjectState::Unreachable { message: message.into() },
        "login" => {
            let (place, user) = message.split_once(' ').expect("login <place> <user>");
            let auths = json!({"auths": {place: {"username": user, "password": "p"}}});
            ObjectState::Present(Arc::new(ObjectContent {
                uid: format!("uid-{name}"),
                resource_version: text.into(),
                data: [(".dockerconfigjson".to_owned(), auths.to_string().into_bytes())].into(),
                secret_type: Some("kubernetes.io/dockerconfigjson".into()),
                ..ObjectContent::default()
            }))
        }
        _ => {
            let pairs = text.split_whitespace().filter_map(|pair| pair.split_once('='));
            ObjectState::Present(Arc::new(ObjectContent {
                uid: format!("uid-{name}"),
                resource_version: text.into(),
                data: pairs.map(|(key, value)| (key.to_owned(), value.into())).collect(),
                immutable: word == "immutable",
                ..ObjectContent::default()
            }))
        }
    };
    Event::ObjectObserved { key, state }
}

fn runtime_check(word: &str, rest: &str) -> RuntimeCheck {
    if word == "away" {
        return RuntimeCheck::Failed { message: "connection refused".into() };
    }
    let condition = |kind: &str, status: bool| RuntimeCondition {
        r#type: kind.into(),
        status,
        reason: if status { "" } else { "Bad" }.into(),
        message: rest.into(),
    };
    let cgroup_driver = match rest {
        "systemd" => Some(CgroupDriver::Systemd),
        "cgroupfs" => Some(CgroupDriver::Cgroupfs),
        _ => None,
    };
    // `handlers=a,b` can give pods users of their own
    let named = rest.strip_prefix("handlers=").into_iter().flat_map(|names| names.split(','));
    let handlers = named.map(|name| RuntimeHandler {
        name: name.replace("default", ""),
        user_namespaces: true,
        recursive_read_only_mounts: false,
    });
    let handlers = handlers.collect();
    let conditions =
        vec![condition("RuntimeReady", word != "not-ready"), condition("NetworkReady", word != "no-network")];
    RuntimeCheck::Answered {
        runtime_name: "rt".into(),
        status: RuntimeStatus { conditions, handlers, ..Default::default() },
        cgroup_driver,
    }
}

fn found() -> Image {
    Image { id: "sha256:found".into(), size: 42, ..Default::default() }
}

fn leftovers(rest: &str) -> PodArtifacts {
    let mut seen = PodArtifacts { pod_dirs_complete: true, ..PodArtifacts::default() };
    for part in rest.split_whitespace() {
        if part == "incomplete" {
            seen.pod_dirs_complete = false;
            continue;
        }
        let (what, names) = part.split_once('=').expect("<what>=<names>");
        for name in names.split(',') {
            match what {
                "dirs" => seen.pod_dirs.push(name.into()),
                "logs" => seen.log_dirs.push(name.into()),
                "links" => seen.dead_links.push(name.into()),
                "cgroups" => seen.pod_cgroups.push(CgroupName(name.split('/').map(str::to_owned).collect())),
                other => panic!("no leftovers of the kind {other}"),
            }
        }
    }
    seen
}
