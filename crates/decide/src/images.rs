//! Image inspections and pulls. One inspection and one pull serve all containers that wait for the same image. Limits
//! how many pulls run at once and how often one may begin.
//!
//! ```text
//!   need ──(Always)─────────────────> asking plugins ──> queued ──> pulling ──> Ready | back-off
//!        └─(IfNotPresent, Never)──> inspecting ──> Ready | asking plugins (IfNotPresent) | failed (Never)
//! ```
//! Credential plugins are asked before the pull is queued, and only for images that match one. A plugin that hangs
//! therefore delays only its own pull.
//!
//! An image that is present counts as absent until the pod has shown that it has access to it.
//!
//! The same image name for runtime handlers with their own image storage is a different image here.
//!
//! All pods that share a pull use the same credentials: those of the node, and equal ones of their own. They have the
//! same namespace and annotations and, if a plugin takes tokens, the same service account. So it does not matter which
//! of them the runtime sees in the pull request.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use model::credentials::PullHistory;
use model::cri::Image;
use model::node::NodeConfig;
use model::{Mono, PodUid};

use crate::credentials::CredentialCandidate;
use crate::effect::Effect;
use crate::image_pull::PullKey;
use crate::pull_rate::PullRate;

pub use crate::render::ResolvedImage;

/// An image that the runtime has: what a container is made from.
pub(crate) fn resolve_image(image: &Image) -> ResolvedImage {
    ResolvedImage {
        reference: image.id.clone(),
        user_uid: image.uid.as_ref().map(|u| u.value),
        username: image.username.clone(),
    }
}

/// The state of one image of a pod.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ImageState {
    Inspecting,
    Pulling { since: Mono },
    Ready(ResolvedImage),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

impl PullPolicy {
    /// API defaulting has filled the field. An absent one is treated as IfNotPresent.
    pub fn parse(word: Option<&str>) -> Self {
        match word {
            Some("Always") => PullPolicy::Always,
            Some("Never") => PullPolicy::Never,
            _ => PullPolicy::IfNotPresent,
        }
    }

    /// The policy as metric labels name it.
    pub fn word(self) -> &'static str {
        match self {
            PullPolicy::Always => "always",
            PullPolicy::IfNotPresent => "ifnotpresent",
            PullPolicy::Never => "never",
        }
    }
}

/// A container (by its name) or an image volume (by its key) that waits for an image.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Waiter {
    pub uid: PodUid,
    pub container: String,
}

/// The key of an image: its name, and after a space the runtime handler whose image storage it is for, unless that is
/// the default one. Neither names nor handlers can contain a space.
pub(crate) fn image_key(image: &str, handler: &str) -> String {
    if handler.is_empty() { image.to_owned() } else { format!("{image} {handler}") }
}

/// The image and the handler.
pub fn split_key(key: &str) -> (&str, &str) {
    key.split_once(' ').unwrap_or((key, ""))
}

const VOLUME_PREFIX: &str = "volume/";

/// How an image volume is named among the pod's containers, whose names have no slash.
pub(crate) fn volume_key(volume: &str) -> String {
    format!("{VOLUME_PREFIX}{volume}")
}

/// The volume, if the key is one of a volume.
pub(crate) fn volume_of_key(key: &str) -> Option<&str> {
    key.strip_prefix(VOLUME_PREFIX)
}

/// A pull that a pod asks for.
#[derive(Clone, Debug)]
pub struct PullRequest {
    pub key: PullKey,
    /// The pod's own credentials.
    pub pod_credentials: Vec<CredentialCandidate>,
    /// The image matches a credential plugin.
    pub asks_plugins: bool,
}

/// What is to be done for a pull now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PullDecision {
    /// On behalf of this pod.
    AskPlugins(PullKey, PodUid),
    /// On behalf of this pod, only to learn whether its service account may use an image that is there.
    CheckAccess(PullKey, PodUid),
    /// With these credentials before those of the node, on behalf of this pod.
    StartPull(PullKey, Vec<CredentialCandidate>, PodUid),
    /// Fail the pull: too many pulls began lately.
    RateLimited(PullKey),
}

impl PullDecision {
    /// The error of a pull that exceeds the rate limit.
    pub const RATE_LIMITED_MESSAGE: &'static str = "pull QPS exceeded";
}

/// An image that is present, and the containers that wait for the decision whether they may use it.
#[derive(Clone, Debug)]
pub struct AccessCheck {
    pub waiters: BTreeSet<Waiter>,
    pub found: Image,
    pub history: PullHistory,
}

#[derive(Clone, Debug, Default)]
pub struct ImagePulls {
    inspecting: BTreeMap<String, BTreeSet<Waiter>>,
    asking_plugins: BTreeMap<PullKey, BTreeSet<Waiter>>,
    pulling: BTreeMap<PullKey, BTreeSet<Waiter>>,
    /// Images that are present, while plugins are asked whether the pod's service account has access.
    checking: BTreeMap<PullKey, AccessCheck>,
    /// Pulls that wait for a slot, in order.
    queue: VecDeque<PullKey>,
    queued: BTreeMap<PullKey, BTreeSet<Waiter>>,
    /// The pods' own credentials for pulls that have not begun.
    pod_credentials: BTreeMap<PullKey, Vec<CredentialCandidate>>,
    rate: PullRate,
    /// Pods with a container without an image: their images are inspected again when any image arrives.
    pub pods_without_image: BTreeSet<PodUid>,
}

impl ImagePulls {
    pub fn inspect(&mut self, image: &str, waiter: Waiter) -> Option<Effect> {
        let waiters = self.inspecting.entry(image.to_owned()).or_default();
        let first = waiters.is_empty();
        waiters.insert(waiter);
        first.then(|| Effect::InspectImage { image: image.to_owned() })
    }

    /// Asks the plugins whether the waiter's service account may use the image that was found.
    pub fn check_access(
        &mut self,
        key: PullKey,
        waiter: Waiter,
        found: &Image,
        history: &PullHistory,
    ) -> Option<PullDecision> {
        if let Some(check) = self.checking.get_mut(&key) {
            check.waiters.insert(waiter);
            return None;
        }
        let asker = waiter.uid.clone();
        let waiters = BTreeSet::from([waiter]);
        let check = AccessCheck { waiters, found: found.clone(), history: history.clone() };
        self.checking.insert(key.clone(), check);
        Some(PullDecision::CheckAccess(key, asker))
    }

    pub fn access_checked(&mut self, key: &PullKey) -> Option<AccessCheck> {
        self.checking.remove(key)
    }

    pub fn pull(
        &mut self,
        request: PullRequest,
        waiter: Waiter,
        config: &NodeConfig,
        now: Mono,
    ) -> Option<PullDecision> {
        let PullRequest { key, pod_credentials: own, asks_plugins } = request;
        for waiters in [&mut self.asking_plugins, &mut self.pulling, &mut self.queued] {
            if let Some(waiters) = waiters.get_mut(&key) {
                waiters.insert(waiter);
                return None;
            }
        }
        let asker = waiter.uid.clone();
        let waiters = BTreeSet::from([waiter]);
        if !own.is_empty() {
            self.pod_credentials.insert(key.clone(), own);
        }
        if asks_plugins {
            self.asking_plugins.insert(key.clone(), waiters);
            return Some(PullDecision::AskPlugins(key, asker));
        }
        self.enqueue_or_begin(key, waiters, config, now)
    }

    /// The plugins have answered, or failed: the pull is queued or begins.
    pub fn plugins_answered(
        &mut self,
        key: &PullKey,
        config: &NodeConfig,
        now: Mono,
    ) -> Option<PullDecision> {
        let waiters = self.asking_plugins.remove(key)?;
        if waiters.is_empty() {
            self.pod_credentials.remove(key);
            return None;
        }
        self.enqueue_or_begin(key.clone(), waiters, config, now)
    }

    fn enqueue_or_begin(
        &mut self,
        key: PullKey,
        waiters: BTreeSet<Waiter>,
        config: &NodeConfig,
        now: Mono,
    ) -> Option<PullDecision> {
        if self.pulling.len() < pull_slots(config) {
            return Some(self.begin(key, waiters, config, now));
        }
        self.queue.push_back(key.clone());
        self.queued.insert(key, waiters);
        None
    }

    /// The pull request names one of the pods that wait now, because the pod that asked first may be gone.
    fn begin(
        &mut self,
        key: PullKey,
        waiters: BTreeSet<Waiter>,
        config: &NodeConfig,
        now: Mono,
    ) -> PullDecision {
        let pod = waiters.first().map_or_else(|| "".into(), |waiter| waiter.uid.clone());
        self.pulling.insert(key.clone(), waiters);
        let own = self.pod_credentials.remove(&key).unwrap_or_default();
        match self.rate.take(config.registry_pull_qps, config.registry_burst, now) {
            true => PullDecision::StartPull(key, own, pod),
            false => PullDecision::RateLimited(key),
        }
    }

    /// The inspection ended. Returns all containers that waited for it.
    pub fn inspected(&mut self, image: &str) -> BTreeSet<Waiter> {
        self.inspecting.remove(image).unwrap_or_default()
    }

    /// The pull ended. Returns all containers that waited for it, and the next pull of the queue.
    pub fn pulled(
        &mut self,
        key: &PullKey,
        config: &NodeConfig,
        now: Mono,
    ) -> (BTreeSet<Waiter>, Option<PullDecision>) {
        let waiters = self.pulling.remove(key).unwrap_or_default();
        (waiters, self.next_pull(config, now))
    }

    fn next_pull(&mut self, config: &NodeConfig, now: Mono) -> Option<PullDecision> {
        while self.pulling.len() < pull_slots(config) {
            let key = self.queue.pop_front()?;
            let waiters = self.queued.remove(&key).unwrap_or_default();
            if !waiters.is_empty() {
                return Some(self.begin(key, waiters, config, now));
            }
        }
        None
    }

    /// Images that are being inspected.
    pub fn inspecting(&self) -> impl Iterator<Item = &String> {
        self.inspecting.keys()
    }

    /// Pulls that have begun.
    pub fn pulling(&self) -> impl Iterator<Item = &PullKey> {
        self.pulling.keys()
    }

    /// The names of images that are inspected or pulled or wait for that, and ids of images that pods wait to use.
    pub fn awaited_images(&self) -> impl Iterator<Item = &str> {
        let pulls = self.pulling.keys().chain(self.asking_plugins.keys()).chain(self.queued.keys());
        let names = self.inspecting.keys().chain(pulls.map(|pull| &pull.image));
        let found = self.checking.values().map(|check| check.found.id.as_str());
        names.map(|name| split_key(name).0).chain(found)
    }

    pub fn is_queued(&self, image: &str) -> bool {
        self.queued.keys().any(|key| key.image == image)
    }

    /// Removes all waiters of this pod. A pull that runs goes on, because its layers are of use to the next one.
    pub fn remove_pod(&mut self, uid: &PodUid) {
        self.pods_without_image.remove(uid);
        self.inspecting.values_mut().for_each(|waiters| waiters.retain(|w| w.uid != *uid));
        self.checking.values_mut().for_each(|check| check.waiters.retain(|w| w.uid != *uid));
        for waiting in [&mut self.asking_plugins, &mut self.pulling, &mut self.queued] {
            waiting.values_mut().for_each(|waiters| waiters.retain(|w| w.uid != *uid));
        }
        let abandoned: Vec<PullKey> =
            self.queued.iter().filter(|(_, w)| w.is_empty()).map(|(key, _)| key.clone()).collect();
        for key in abandoned {
            self.pod_credentials.remove(&key);
            self.queued.remove(&key);
            self.queue.retain(|queued| *queued != key);
        }
    }
}

fn pull_slots(config: &NodeConfig) -> usize {
    match (config.serialize_image_pulls, config.max_parallel_image_pulls) {
        (true, _) => 1,
        (false, Some(limit)) => limit.max(1) as usize,
        (false, None) => usize::MAX,
    }
}

/// The image with its default tag. Fails if the name is invalid.
pub(crate) fn normalise_image_name(image: &str) -> Result<String, String> {
    let (name, digest) = match image.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (image, None),
    };
    let last_slash = name.rfind('/').map_or(0, |at| at + 1);
    let (path, tag) = match name[last_slash..].rfind(':') {
        Some(at) => (&name[..last_slash + at], Some(&name[last_slash + at + 1..])),
        None => (name, None),
    };
    check_path(path).and_then(|()| check_tag(tag)).and_then(|()| check_digest(digest)).map_err(|()| {
        let repository = shown_repository(image);
        let upper = repository.chars().any(char::is_uppercase);
        let hint =
            if upper { format!(": repository name ({repository}) must be lowercase") } else { String::new() };
        format!("couldn't parse image name \"{image}\": invalid reference format{hint}")
    })?;
    Ok(if tag.is_none() && digest.is_none() { format!("{image}:latest") } else { image.to_owned() })
}

/// The repository as error messages show it, of a name that may be invalid: everything after the registry and up to a
/// colon. The message then equals that of other tools.
fn shown_repository(image: &str) -> String {
    let path = match image.split_once('/') {
        Some((host, path)) if is_host(host) => path.to_owned(),
        Some(_) => image.to_owned(),
        None => format!("library/{image}"),
    };
    path.split(':').next().unwrap_or_default().to_owned()
}

fn check_path(path: &str) -> Result<(), ()> {
    let mut parts: Vec<&str> = path.split('/').collect();
    if parts.len() > 1 && is_host(parts[0]) {
        parts.remove(0);
    }
    let good = !parts.is_empty() && path.len() <= 255 && parts.iter().all(|part| is_path_component(part));
    if good { Ok(()) } else { Err(()) }
}

/// The first part is a registry when it looks like one, as the reference grammar has it.
fn is_host(part: &str) -> bool {
    let (host, port) = part.split_once(':').map_or((part, None), |(h, p)| (h, Some(p)));
    let looks = part.contains('.')
        || port.is_some()
        || part == "localhost"
        || part.chars().any(|c| c.is_ascii_uppercase());
    let labels = host.split('.').all(|label| {
        !label.is_empty()
            && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    });
    looks && labels && port.is_none_or(|p| !p.is_empty() && p.chars().all(|c| c.is_ascii_digit()))
}

/// Lower-case letters and digits, joined by one dot, one or two underscores, or dashes.
fn is_path_component(part: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if !part.starts_with(alphanumeric) || !part.ends_with(alphanumeric) {
        return false;
    }
    part.split(alphanumeric).all(|joint| {
        joint.is_empty() || joint == "." || joint == "_" || joint == "__" || joint.chars().all(|c| c == '-')
    })
}

fn check_tag(tag: Option<&str>) -> Result<(), ()> {
    let Some(tag) = tag else { return Ok(()) };
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let good =
        tag.starts_with(word) && tag.len() <= 128 && tag.chars().all(|c| word(c) || c == '.' || c == '-');
    if good { Ok(()) } else { Err(()) }
}

fn check_digest(digest: Option<&str>) -> Result<(), ()> {
    let Some(digest) = digest else { return Ok(()) };
    let Some((algorithm, hex)) = digest.split_once(':') else { return Err(()) };
    let good = algorithm.starts_with(|c: char| c.is_ascii_alphabetic())
        && algorithm.chars().all(|c| c.is_ascii_alphanumeric() || "+.-_".contains(c))
        && hex.len() >= 32
        && hex.chars().all(|c| c.is_ascii_hexdigit());
    if good { Ok(()) } else { Err(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiter(pod: &str) -> Waiter {
        Waiter { uid: pod.into(), container: "c".into() }
    }
    fn pull(image: &str, pod: &str) -> Option<PullDecision> {
        Some(PullDecision::StartPull(key(image), Vec::new(), pod.into()))
    }
    fn key(image: &str) -> PullKey {
        PullKey { image: image.into(), ..PullKey::default() }
    }
    fn request(image: &str) -> PullRequest {
        PullRequest {
            key: key(image),
            pod_credentials: Vec::new(),
            asks_plugins: image.starts_with("h.test/"),
        }
    }
    const NOW: Mono = Mono::ZERO;

    #[test]
    fn names_get_their_default_tag() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (given, expect) in [
            ("busybox", "busybox:latest"),
            ("busybox:1", "busybox:1"),
            ("host:5000/a/b", "host:5000/a/b:latest"),
            ("host.test/a_b/c--d:v1.0-x", "host.test/a_b/c--d:v1.0-x"),
            (&format!("a@{digest}"), &format!("a@{digest}")),
            (&format!("a:1@{digest}"), &format!("a:1@{digest}")),
        ] {
            assert_eq!(normalise_image_name(given).as_deref(), Ok(expect), "{given}");
        }
    }

    #[test]
    fn what_is_no_image_name_is_refused() {
        for bad in [
            "",
            "UPPER",
            "a b",
            "a:",
            "a:b:c",
            "a//b",
            "a@sha256:12",
            "-a",
            "a/-b",
            "a:t@",
            "a...b",
            "a:/x",
            "x/",
            "invalid image",
        ] {
            let error = normalise_image_name(bad).expect_err(bad);
            assert!(error.contains("invalid reference format"), "{bad}: {error}");
        }
        for (bad, repository) in [
            ("UPPER", "library/UPPER"),
            ("Bad@@Image", "library/Bad@@Image"),
            ("host.test/a/B:1", "a/B"),
            ("a/B", "a/B"),
        ] {
            let hint = format!("repository name ({repository}) must be lowercase");
            assert!(normalise_image_name(bad).unwrap_err().ends_with(&hint), "{bad}");
        }
    }

    #[test]
    fn one_inspection_serves_all_who_wait() {
        let mut desk = ImagePulls::default();
        assert_eq!(desk.inspect("a", waiter("1")), Some(Effect::InspectImage { image: "a".into() }));
        assert_eq!(desk.inspect("a", waiter("2")), None);
        assert_eq!(desk.inspected("a").len(), 2);
        assert!(desk.inspect("a", waiter("1")).is_some(), "a later one looks again");
    }

    #[test]
    fn serial_pulls_wait_in_line_and_share() {
        let config = NodeConfig::default();
        let mut desk = ImagePulls::default();
        assert_eq!(desk.pull(request("a"), waiter("1"), &config, NOW), pull("a", "1"));
        assert_eq!(desk.pull(request("a"), waiter("2"), &config, NOW), None);
        assert_eq!(desk.pull(request("b"), waiter("3"), &config, NOW), None);
        assert!(desk.is_queued("b"));
        let (served, next) = desk.pulled(&key("a"), &config, NOW);
        assert_eq!((served.len(), next), (2, pull("b", "3")));
        assert_eq!(desk.pulled(&key("b"), &config, NOW).1, None);
    }

    #[test]
    fn parallel_pulls_have_their_limit() {
        let config = NodeConfig {
            serialize_image_pulls: false,
            max_parallel_image_pulls: Some(2),
            ..Default::default()
        };
        let mut desk = ImagePulls::default();
        assert!(desk.pull(request("a"), waiter("1"), &config, NOW).is_some());
        assert!(desk.pull(request("b"), waiter("2"), &config, NOW).is_some());
        assert!(desk.pull(request("c"), waiter("3"), &config, NOW).is_none());
        let unlimited = NodeConfig { max_parallel_image_pulls: None, ..config };
        assert!(desk.pull(request("d"), waiter("4"), &unlimited, NOW).is_some());
    }

    #[test]
    fn a_pod_that_leaves_frees_its_place_in_the_line() {
        let config = NodeConfig::default();
        let mut desk = ImagePulls::default();
        desk.pull(request("a"), waiter("1"), &config, NOW);
        desk.pull(request("b"), waiter("2"), &config, NOW);
        desk.pull(request("c"), waiter("3"), &config, NOW);
        desk.remove_pod(&"2".into());
        assert!(!desk.is_queued("b"));
        assert_eq!(desk.pulled(&key("a"), &config, NOW).1, pull("c", "3"));
    }

    #[test]
    fn a_pull_that_comes_too_often_is_not_granted() {
        let config = NodeConfig {
            serialize_image_pulls: false,
            registry_pull_qps: 1,
            registry_burst: 2,
            ..Default::default()
        };
        let mut desk = ImagePulls::default();
        let granted = |desk: &mut ImagePulls, image: &str, seconds: u64| {
            let now = Mono::from_duration(std::time::Duration::from_secs(seconds));
            desk.pull(request(image), waiter("1"), &config, now)
                .map(|turn| matches!(turn, PullDecision::StartPull { .. }))
        };
        assert_eq!(granted(&mut desk, "a", 0), Some(true));
        assert_eq!(granted(&mut desk, "b", 0), Some(true));
        assert_eq!(granted(&mut desk, "a", 0), None, "one that joins a pull costs nothing");
        assert_eq!(granted(&mut desk, "c", 0), Some(false));
        assert_eq!(granted(&mut desk, "d", 1), Some(true));
    }

    #[test]
    fn plugins_are_asked_before_the_pull_stands_in_line() {
        let config = NodeConfig::default();
        let mut desk = ImagePulls::default();
        let image = "h.test/a:1";
        let ask = Some(PullDecision::AskPlugins(key(image), "1".into()));
        assert_eq!(desk.pull(request(image), waiter("1"), &config, NOW), ask);
        assert_eq!(desk.pull(request(image), waiter("2"), &config, NOW), None);
        // An image that matches no plugin does not wait for one, although pulls are serial.
        assert_eq!(desk.pull(request("other"), waiter("3"), &config, NOW), pull("other", "3"));
        assert_eq!(desk.plugins_answered(&key(image), &config, NOW), None);
        assert!(desk.is_queued(image));
        assert_eq!(desk.pulled(&key("other"), &config, NOW).1, pull(image, "1"));
        assert_eq!(desk.pulled(&key(image), &config, NOW).0.len(), 2);
    }

    #[test]
    fn an_answer_that_nobody_waits_for_begins_nothing() {
        let config = NodeConfig::default();
        let mut desk = ImagePulls::default();
        desk.pull(request("h.test/a:1"), waiter("1"), &config, NOW);
        desk.remove_pod(&"1".into());
        assert_eq!(desk.plugins_answered(&key("h.test/a:1"), &config, NOW), None);
        assert!(desk.pull(request("h.test/a:1"), waiter("1"), &config, NOW).is_some());
    }
}
