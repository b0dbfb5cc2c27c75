//! Certificates of pods: one for each `podCertificate` source of their projected volumes.
//!
//! ```text
//!                 ┌──────────── refused, away, deleted: after a back-off ───────────┐
//!                 v                                                                 │
//!   claim ──> RequestCertificate ──> CertificateRequested ──> pending ──> CertificateRequests
//!                 ^                                                          │      └──> denied, failed: for good
//!                 └────────────── its time to refresh has come ──────── issued
//! ```
//! While a certificate is refreshed, its files stay. Nothing of this is kept beyond the agent's life: one that is
//! restarted makes new keys and asks for everything anew, and until it has the answers the files stay as well.
//!
//! Failures: the API server does not take a request, or somebody deletes it: another one is made, ever later. A signer
//! that denies or fails a request has said so for good, and the pod's volume can't be set up any more.

use model::volume_source::ProjectedSource;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use model::k8s::{
    Condition, PodCertificateProjection, PodCertificateRequest, PodCertificateRequestStatus, Time,
};
use model::pod::PodView;
use model::pod_certificate::{CertificateRequested, CertificateSource, CertificateWanted, PrivateKey};
use model::{ApiEvent, FullName, Mono, Now, PodUid, Wall};

use crate::back_off::volume_delay;
use crate::effect::{Effect, TimerKey};
use crate::pem;
use crate::pod_volumes::mounted_names;
use model::hash::fnv1a_64;

pub const GATE: &str = "PodCertificateRequest";

/// A request that was never seen after so long was deleted before the watch could show it.
const ABANDONED: Duration = Duration::from_secs(600);
/// So that certificates that were issued together are not refreshed together.
const JITTER: Duration = Duration::from_secs(300);
/// How long a timer about a certificate waits at most before the wall clock is looked at again.
const LONGEST_WAIT: Duration = Duration::from_secs(30 * 60);
/// When an Event reports that a refresh takes too long.
const OVERDUE: Duration = Duration::from_secs(600);
/// Whatever the clocks of node and server say: not a storm of requests.
const SHORTEST_USE: Duration = Duration::from_secs(60);
/// The node authorizer learns of a pod later than the kubelet, so the first few Forbidden answers are retried.
const DOUBTED_REFUSALS: u32 = 3;

#[derive(Clone, Debug, Default)]
pub struct PodCertificates {
    sources: BTreeMap<CertificateSource, Entry>,
    /// The node's requests as they were read last, by namespace and name.
    requests: BTreeMap<(String, String), Arc<PodCertificateRequest>>,
    followed: bool,
    /// Counts all calls.
    calls: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    full_name: FullName,
    wanted: CertificateWanted,
    issued: Option<Issued>,
    request: Request,
    refusal: Option<Refusal>,
    failures: u32,
    /// How the last try ended, if not well.
    trouble: String,
    retry_at: Option<Mono>,
    timer: Option<Mono>,
}

/// The signer's final answer.
#[derive(Clone, PartialEq, Debug)]
struct Refusal {
    /// In upstream's words, which its metric has.
    state: &'static str,
    message: String,
}

#[derive(Clone, PartialEq, Debug)]
enum Request {
    None,
    /// The number of the call.
    Asking(u64),
    Pending(Pending),
}

#[derive(Clone, PartialEq, Debug)]
struct Pending {
    name: String,
    key: PrivateKey,
    /// The watch has shown it.
    seen: bool,
    abandon_at: Mono,
}

#[derive(Clone, Debug)]
struct Issued {
    key: PrivateKey,
    chain: String,
    refresh_at: Wall,
    not_after: Wall,
    told_overdue: bool,
    told_expired: bool,
}

/// What is known of a certificate.
#[derive(Clone, PartialEq, Debug)]
pub enum KnownCertificate<'a> {
    Issued {
        key: &'a PrivateKey,
        chain: &'a str,
    },
    /// A request is on its way to the API server.
    Asking,
    /// `trouble`: why not, where that is known.
    NotIssued {
        trouble: &'a str,
    },
    Refused(&'a str),
}

/// The node that requests are made for.
#[derive(Clone, Copy, Debug)]
pub struct RequestingNode<'a> {
    pub name: &'a str,
    /// `None`: its object was not seen yet.
    pub uid: Option<&'a str>,
}

/// Sources of volumes that some container mounts.
fn sources_of(pod: &PodView) -> impl Iterator<Item = (CertificateSource, &PodCertificateProjection)> {
    let volumes = pod.spec().volumes.iter().flatten();
    volumes.flat_map(move |volume| {
        ProjectedSource::entries(volume).enumerate().filter_map(move |(index, entry)| {
            let Some(ProjectedSource::PodCertificate(source)) = ProjectedSource::of(entry) else {
                return None;
            };
            let volume = volume.name.clone();
            Some((CertificateSource { pod: pod.uid.clone(), volume, index }, source))
        })
    })
}

/// Whether files of the pod are made of certificates.
pub fn needs_certificates(pod: &PodView) -> bool {
    sources_of(pod).next().is_some()
}

impl PodCertificates {
    /// Marks certificates as needed. Returns whether none were needed before.
    pub fn follow(&mut self) -> bool {
        !std::mem::replace(&mut self.followed, true)
    }

    /// The pod needs what its definition names, and no others any more.
    pub fn claim(&mut self, pod: &PodView, node: RequestingNode<'_>, now: Now) -> Vec<Effect> {
        let mounted = mounted_names(pod);
        let wanted: BTreeMap<_, _> = sources_of(pod)
            .filter(|(source, _)| mounted.contains(source.volume.as_str()))
            .map(|(key, source)| (key, wanted(pod, source, node)))
            .collect();
        let mut effects = self.drop_sources(&pod.uid, |source| !wanted.contains_key(source));
        for (source, wanted) in wanted {
            let entry = self.sources.entry(source.clone()).or_insert_with(|| Entry::new(pod, wanted.clone()));
            entry.wanted = wanted;
            entry.advance(&source, &mut self.calls, now, &mut effects);
        }
        effects
    }

    /// The pod needs nothing any more.
    pub fn release(&mut self, uid: &PodUid) -> Vec<Effect> {
        self.drop_sources(uid, |_| true)
    }

    fn drop_sources(&mut self, uid: &PodUid, which: impl Fn(&CertificateSource) -> bool) -> Vec<Effect> {
        let gone: Vec<_> =
            self.sources.keys().filter(|source| source.pod == *uid && which(source)).cloned().collect();
        gone.into_iter()
            .map(|source| {
                self.sources.remove(&source);
                Effect::SetTimer { key: TimerKey::Certificate(source), at: None }
            })
            .collect()
    }

    /// Its next moment has come.
    pub fn due(&mut self, source: &CertificateSource, now: Now) -> Vec<Effect> {
        let mut effects = Vec::new();
        if let Some(entry) = self.sources.get_mut(source) {
            entry.timer = None;
            entry.advance(source, &mut self.calls, now, &mut effects);
        }
        effects
    }

    /// A request was made, or could not be. `None`: nobody waits for that any more.
    pub fn requested(
        &mut self,
        source: &CertificateSource,
        call: u64,
        result: Result<CertificateRequested, String>,
        now: Now,
    ) -> Option<Vec<Effect>> {
        let entry = self.sources.get_mut(source).filter(|entry| entry.request == Request::Asking(call))?;
        let mut effects = Vec::new();
        match result {
            Ok(CertificateRequested { name, key }) => {
                let wait = ABANDONED + JITTER.mul_f64(fraction(&name));
                let abandon_at = now.mono.plus(wait);
                entry.request = Request::Pending(Pending { name, key, seen: false, abandon_at });
                // The watch may have been faster than the answer.
                entry.read(&self.requests, now, &mut effects);
            }
            Err(message) => entry.failed(message, now),
        }
        entry.advance(source, &mut self.calls, now, &mut effects);
        Some(effects)
    }

    /// The node's requests were read. Gives the pods for whom there is news.
    pub fn read(
        &mut self,
        requests: &[Arc<PodCertificateRequest>],
        now: Now,
    ) -> (BTreeSet<PodUid>, Vec<Effect>) {
        let name = |request: &PodCertificateRequest| {
            let meta = &request.metadata;
            (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
        };
        self.requests = requests.iter().map(|request| (name(request), request.clone())).collect();
        let (mut concerned, mut effects) = (BTreeSet::new(), Vec::new());
        for (source, entry) in &mut self.sources {
            if entry.read(&self.requests, now, &mut effects) {
                concerned.insert(source.pod.clone());
                entry.advance(source, &mut self.calls, now, &mut effects);
            }
        }
        (concerned, effects)
    }

    pub fn look(&self, source: &CertificateSource) -> KnownCertificate<'_> {
        let Some(entry) = self.sources.get(source) else { return KnownCertificate::Asking };
        match (&entry.refusal, &entry.issued) {
            (Some(refusal), _) => KnownCertificate::Refused(&refusal.message),
            (None, Some(issued)) => KnownCertificate::Issued { key: &issued.key, chain: &issued.chain },
            (None, None) => match entry.request {
                // A request that was accepted says more than the failures before it.
                Request::Pending(_) => KnownCertificate::NotIssued { trouble: "" },
                Request::None | Request::Asking(_) if entry.failures >= DOUBTED_REFUSALS => {
                    KnownCertificate::NotIssued { trouble: &entry.trouble }
                }
                Request::None | Request::Asking(_) => KnownCertificate::Asking,
            },
        }
    }

    /// How many sources are in which state, by signer and upstream's word for the state.
    pub fn states(&self, now: Wall) -> BTreeMap<(String, &'static str), usize> {
        let mut counted = BTreeMap::new();
        for entry in self.sources.values() {
            let key = (entry.wanted.signer_name.clone(), entry.state(now));
            *counted.entry(key).or_default() += 1;
        }
        counted
    }

    /// How many sources there are, for checks in tests.
    pub fn len(&self) -> usize {
        self.sources.len()
    }

    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }
}

fn wanted(pod: &PodView, source: &PodCertificateProjection, node: RequestingNode<'_>) -> CertificateWanted {
    CertificateWanted {
        namespace: pod.namespace().to_owned(),
        pod_name: pod.name().to_owned(),
        pod_uid: pod.uid.clone(),
        service_account: pod.spec().service_account_name.clone().unwrap_or_default(),
        node_name: node.name.to_owned(),
        node_uid: node.uid.unwrap_or_default().to_owned(),
        signer_name: source.signer_name.clone(),
        key_type: source.key_type.clone(),
        max_expiration_secs: source.max_expiration_seconds,
        user_annotations: source.user_annotations.clone().unwrap_or_default(),
    }
}

/// From zero to below one; the same for the same text.
fn fraction(text: &str) -> f64 {
    (fnv1a_64(text.as_bytes()) % 1000) as f64 / 1000.0
}

impl Entry {
    fn new(pod: &PodView, wanted: CertificateWanted) -> Self {
        Entry {
            full_name: pod.full_name.clone(),
            wanted,
            issued: None,
            request: Request::None,
            refusal: None,
            failures: 0,
            trouble: String::new(),
            retry_at: None,
            timer: None,
        }
    }

    /// Does what is due, and sets the timer for what is due next.
    fn advance(&mut self, source: &CertificateSource, calls: &mut u64, now: Now, effects: &mut Vec<Effect>) {
        self.give_up(now);
        self.tell_late(now.wall, effects);
        if self.may_ask(now) {
            *calls += 1;
            self.request = Request::Asking(*calls);
            self.retry_at = None;
            effects.push(Effect::RequestCertificate {
                source: source.clone(),
                call: *calls,
                wanted: Box::new(self.wanted.clone()),
            });
        }
        let at = self.next_moment(now);
        if is_moved(self.timer, at) {
            self.timer = at;
            effects.push(Effect::SetTimer { key: TimerKey::Certificate(source.clone()), at });
        }
    }

    fn may_ask(&self, now: Now) -> bool {
        let is_due = self.issued.as_ref().is_none_or(|issued| issued.refresh_at <= now.wall);
        let may_retry = self.retry_at.is_none_or(|at| at <= now.mono);
        self.request == Request::None
            && self.refusal.is_none()
            && !self.wanted.node_uid.is_empty()
            && is_due
            && may_retry
    }

    fn next_moment(&self, now: Now) -> Option<Mono> {
        if self.refusal.is_some() {
            return None;
        }
        let mut moments: Vec<Mono> = match &self.request {
            Request::None => self.retry_at.into_iter().filter(|at| *at > now.mono).collect(),
            Request::Asking(_) => Vec::new(),
            Request::Pending(pending) if pending.seen => Vec::new(),
            Request::Pending(pending) => vec![pending.abandon_at],
        };
        if let Some(issued) = &self.issued {
            // The wall clock goes on while the machine sleeps, and the clock of timers does not.
            let moment = |at: Wall| now.mono.plus(at.since(now.wall).min(LONGEST_WAIT));
            moments.extend((issued.refresh_at > now.wall).then(|| moment(issued.refresh_at)));
            moments.extend((!issued.told_overdue).then(|| moment(issued.overdue_at())));
            moments.extend((!issued.told_expired).then(|| moment(issued.not_after)));
        }
        moments.into_iter().min()
    }

    /// The request was deleted before the watch could show it.
    fn give_up(&mut self, now: Now) {
        if let Request::Pending(pending) = &self.request
            && !pending.seen
            && pending.abandon_at <= now.mono
        {
            self.deleted(now);
        }
    }

    fn deleted(&mut self, now: Now) {
        let Request::Pending(pending) = &self.request else { return };
        let (namespace, name) = (&self.wanted.namespace, &pending.name);
        self.failed(
            format!("PodCertificateRequest \"{namespace}/{name}\" appears to have been deleted"),
            now,
        );
    }

    fn failed(&mut self, message: String, now: Now) {
        self.failures = self.failures.saturating_add(1);
        self.trouble = message;
        self.request = Request::None;
        self.retry_at = Some(now.mono.plus(volume_delay(self.failures)));
    }

    /// Records the Events about a late refresh, once per certificate.
    fn tell_late(&mut self, now: Wall, effects: &mut Vec<Effect>) {
        let Some(issued) = self.issued.as_mut().filter(|_| self.refusal.is_none()) else { return };
        let uid = &self.wanted.pod_uid;
        let mut tell = |reason: &str, message: &str| {
            let event = ApiEvent::warning(reason, message);
            let (uid, full_name) = (uid.clone(), self.full_name.clone());
            effects.push(Effect::RecordEvent { uid, full_name, event });
        };
        if issued.overdue_at() <= now && !std::mem::replace(&mut issued.told_overdue, true) {
            tell("CertificateOverdueForRefresh", "PodCertificate refresh overdue");
        }
        if issued.not_after <= now && !std::mem::replace(&mut issued.told_expired, true) {
            tell("CertificateExpired", "PodCertificate expired");
        }
    }

    /// What has become of the request. True if that is news.
    fn read(
        &mut self,
        requests: &BTreeMap<(String, String), Arc<PodCertificateRequest>>,
        now: Now,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let Request::Pending(pending) = &mut self.request else { return false };
        let Some(request) = requests.get(&(self.wanted.namespace.clone(), pending.name.clone())) else {
            let was_seen = pending.seen;
            if was_seen {
                self.deleted(now);
            }
            return was_seen;
        };
        let news = !std::mem::replace(&mut pending.seen, true);
        let Some(status) = &request.status else { return news };
        for condition in status.conditions.iter().flatten() {
            match condition.type_.as_str() {
                "Denied" => return self.refused(("denied", "was denied"), condition, effects),
                "Failed" => return self.refused(("failed", "failed"), condition, effects),
                "Issued" => {
                    match Issued::new(status, pending, now) {
                        Ok(issued) => self.accept(issued),
                        Err(problem) => self.failed(problem, now),
                    }
                    return true;
                }
                _ => {}
            }
        }
        news
    }

    fn accept(&mut self, issued: Issued) {
        self.issued = Some(issued);
        self.request = Request::None;
        self.failures = 0;
        self.trouble.clear();
        self.retry_at = None;
    }

    /// Final: nothing is requested for this source any more.
    fn refused(
        &mut self,
        (state, became): (&'static str, &str),
        condition: &Condition,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let Condition { type_, reason, message, .. } = condition;
        if let Request::Pending(pending) = &self.request {
            let (namespace, name) = (&self.wanted.namespace, &pending.name);
            let text = format!(
                "PodCertificateRequest {namespace}/{name} {became}, reason={reason:?}, message={message:?}"
            );
            let (uid, full_name) = (self.wanted.pod_uid.clone(), self.full_name.clone());
            effects.push(Effect::RecordEvent { uid, full_name, event: ApiEvent::warning(type_, text) });
        }
        let message =
            format!("PodCertificateRequest was permanently {state}: reason={reason:?} message={message:?}");
        self.refusal = Some(Refusal { state, message });
        self.request = Request::None;
        true
    }

    fn state(&self, now: Wall) -> &'static str {
        match (&self.refusal, &self.issued) {
            (Some(refusal), _) => refusal.state,
            (None, None) => "not_yet_issued",
            (None, Some(issued)) if now > issued.not_after => "expired",
            (None, Some(issued)) if now > issued.overdue_at() => "overdue_for_refresh",
            (None, Some(_)) => "fresh",
        }
    }
}

/// Whether a timer has to be set anew. Moments that come from wall time are a little different each time.
fn is_moved(from: Option<Mono>, to: Option<Mono>) -> bool {
    const SLACK: Duration = Duration::from_millis(1);
    match (from, to) {
        (Some(from), Some(to)) => from.since(to).max(to.since(from)) > SLACK,
        (from, to) => from != to,
    }
}

impl Issued {
    fn new(status: &PodCertificateRequestStatus, pending: &Pending, now: Now) -> Result<Issued, String> {
        let at = |time: &Option<Time>| time.as_ref().map(|time| Wall::from_timestamp(time.0));
        let chain = pem::written(pem::bodies(status.certificate_chain.as_deref().unwrap_or_default()));
        let (Some(begin), Some(not_after), false) =
            (at(&status.begin_refresh_at), at(&status.not_after), chain.is_empty())
        else {
            return Err(format!("PodCertificateRequest {:?} is issued without a certificate", pending.name));
        };
        let not_before = at(&status.not_before).unwrap_or(begin);
        let jitter = JITTER.min(not_after.since(begin) / 2).mul_f64(fraction(&pending.name));
        let mut refresh_at = begin.plus(jitter);
        if refresh_at <= now.wall {
            // The clocks differ, or this comes late: what the signer meant is the better guess. A certificate that seems to
            // have ended is replaced soon, whichever it was.
            let left = not_after.since(now.wall);
            let meant = begin.since(not_before);
            let wait = if left.is_zero() { meant.min(OVERDUE) } else { meant.min(left / 2) };
            refresh_at = now.wall.plus(wait.max(SHORTEST_USE));
        }
        let key = pending.key.clone();
        Ok(Issued { key, chain, refresh_at, not_after, told_overdue: false, told_expired: false })
    }

    fn overdue_at(&self) -> Wall {
        self.refresh_at.plus(OVERDUE)
    }
}

#[cfg(test)]
mod tests;
