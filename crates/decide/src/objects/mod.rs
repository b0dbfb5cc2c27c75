//! What the cluster tells about the objects that pods name: config maps, secrets, tokens, certificates, services.
//!
//! ```text
//!   a pod comes ──> claim ──> WatchObject, RequestToken ──> ObjectSeen, TokenIssued ──> exactly its users are woken
//!   the last one goes ──> release ──> UnwatchObject
//! ```
//! An object is watched for as long as a pod uses it. One that says that it never changes is read once.
//!
//! Failures: what can't be read now is as it was; who needs something that was never read waits, and says for what.

mod names;
mod pod_certificates;
mod storage;
mod tokens;
mod trust;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::cluster::{ObjectContent, ObjectKey, ObjectKind, ObjectState, Token, TokenWanted};
use model::k8s::{Container, Pod};
use model::local::LocalObjects;
use model::pod::PodView;
use model::why::Cause;
use model::{Now, PodUid};

pub use names::{Named, named, pull_secrets, token_wanted};
pub use pod_certificates::{
    GATE as CERTIFICATES_GATE, KnownCertificate, PodCertificates, RequestingNode, needs_certificates,
};
pub use storage::{Lack, StorageDesk};
pub(crate) use tokens::refresh_at;
pub use tokens::{KnownToken, TokenDesk};
pub use trust::{TrustDesk, needs_trust};

use crate::csi::CsiDesk;
use crate::effect::Effect;
use crate::render::{EnvObjects, ObjectError, ServiceView, Services};

/// One for the whole node.
#[derive(Clone, Debug, Default)]
pub struct ObjectDesk {
    objects: BTreeMap<ObjectKey, Object>,
    claims: BTreeMap<PodUid, Claim>,
    pub tokens: TokenDesk,
    pub storage: StorageDesk,
    pub csi: CsiDesk,
    pub trust: TrustDesk,
    pub certificates: PodCertificates,
    /// What pods use beside what their definitions name: what their claims led to.
    more: BTreeMap<PodUid, Named>,
    services: Option<Vec<ServiceView>>,
    /// What files beside the pods tell. `None`: a cluster tells.
    local: Option<BTreeMap<ObjectKey, Arc<ObjectContent>>>,
}

#[derive(Clone, Debug, Default)]
struct Object {
    users: BTreeSet<PodUid>,
    /// What it was when it was last read.
    state: Option<ObjectState>,
    /// Why it can't be read now.
    trouble: String,
    watched: bool,
}

#[derive(Clone, Debug)]
struct Claim {
    /// What the names were read from: the same definition names the same.
    pod: Arc<Pod>,
    named: Named,
}

/// What is known of an object.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Known<'a> {
    /// Nothing, yet. `trouble` may say why.
    Unread {
        trouble: &'a str,
    },
    Is(&'a Arc<ObjectContent>),
    Absent,
    /// In the server's words.
    Denied(&'a str),
    /// Nobody asked for it.
    Unclaimed,
}

impl ObjectDesk {
    /// Of a node without a cluster: files beside the pods tell of everything.
    pub fn alone() -> Self {
        Self { local: Some(BTreeMap::new()), storage: StorageDesk::alone(), ..Self::default() }
    }

    pub fn is_alone(&self) -> bool {
        self.local.is_some()
    }

    /// The complete set. Gives those whom a change concerns.
    pub fn local_told(&mut self, told: &LocalObjects, root_dir: &str) -> BTreeSet<PodUid> {
        let Some(local) = &mut self.local else { return BTreeSet::new() };
        *local = told.contents.iter().cloned().collect();
        let mut concerned = self.storage.local_told(&told.claims, root_dir);
        for (key, object) in &mut self.objects {
            let state = Some(local_state(local, key));
            if object.state != state {
                object.state = state;
                concerned.extend(object.users.iter().cloned());
            }
        }
        concerned
    }

    /// A pod uses what its definition names, and nothing else any more.
    pub fn claim(&mut self, view: &PodView) -> Vec<Effect> {
        let old = self.claims.get(&view.uid);
        if old.is_some_and(|claim| Arc::ptr_eq(&claim.pod, &view.pod)) {
            return Vec::new();
        }
        let old = old.map(|claim| claim.named.clone()).unwrap_or_default();
        let new = named(view);
        let mut effects = Vec::new();
        for key in new.objects.difference(&old.objects) {
            self.join(key, &view.uid, &mut effects);
        }
        for key in old.objects.difference(&new.objects) {
            self.leave(key, &view.uid, &mut effects);
        }
        for wanted in new.tokens.difference(&old.tokens).filter(|_| self.local.is_none()) {
            effects.extend(self.tokens.claim(wanted));
        }
        for wanted in old.tokens.difference(&new.tokens) {
            effects.extend(self.tokens.release(wanted));
        }
        self.claims.insert(view.uid.clone(), Claim { pod: view.pod.clone(), named: new });
        effects
    }

    /// A pod uses these beside what its definition names, and no others.
    pub fn claim_more(&mut self, uid: &PodUid, new: Named) -> Vec<Effect> {
        let old = self.more.get(uid).cloned().unwrap_or_default();
        let mut effects = Vec::new();
        if old == new {
            return effects;
        }
        let own = self.claims.get(uid).map(|claim| claim.named.clone()).unwrap_or_default();
        for key in new.objects.difference(&old.objects) {
            self.join(key, uid, &mut effects);
        }
        for key in old.objects.difference(&new.objects).filter(|key| !own.objects.contains(key)) {
            self.leave(key, uid, &mut effects);
        }
        for wanted in new.tokens.difference(&old.tokens).filter(|wanted| !own.tokens.contains(wanted)) {
            effects.extend(self.tokens.claim(wanted));
        }
        for wanted in old.tokens.difference(&new.tokens).filter(|wanted| !own.tokens.contains(wanted)) {
            effects.extend(self.tokens.release(wanted));
        }
        if new == Named::default() {
            self.more.remove(uid);
        } else {
            self.more.insert(uid.clone(), new);
        }
        effects
    }

    fn join(&mut self, key: &ObjectKey, uid: &PodUid, effects: &mut Vec<Effect>) {
        let object = self.objects.entry(key.clone()).or_default();
        object.users.insert(uid.clone());
        if let Some(local) = &self.local {
            object.state = Some(local_state(local, key));
            return;
        }
        if !object.watched && !object.never_changes() {
            object.watched = true;
            effects.push(Effect::WatchObject { key: key.clone() });
        }
    }

    /// A pod uses nothing any more.
    pub fn release(&mut self, uid: &PodUid) -> Vec<Effect> {
        let mut effects = self.claim_more(uid, Named::default());
        let Some(claim) = self.claims.remove(uid) else { return effects };
        for key in &claim.named.objects {
            self.leave(key, uid, &mut effects);
        }
        for wanted in &claim.named.tokens {
            effects.extend(self.tokens.release(wanted));
        }
        effects
    }

    fn leave(&mut self, key: &ObjectKey, uid: &PodUid, effects: &mut Vec<Effect>) {
        let Some(object) = self.objects.get_mut(key) else { return };
        object.users.remove(uid);
        if object.users.is_empty() {
            if object.watched {
                effects.push(Effect::UnwatchObject { key: key.clone() });
            }
            self.objects.remove(key);
        }
    }

    /// An object was read. Gives those whom it concerns, if there is any news in it.
    pub fn seen(&mut self, key: &ObjectKey, state: ObjectState) -> (BTreeSet<PodUid>, Option<Effect>) {
        let Some(object) = self.objects.get_mut(key) else { return Default::default() };
        if let ObjectState::Unreachable { message } = state {
            let news = object.state.is_none() && object.trouble != message;
            object.trouble = message;
            return (if news { object.users.clone() } else { BTreeSet::new() }, None);
        }
        object.trouble.clear();
        let news = object.state.as_ref() != Some(&state);
        object.state = Some(state);
        let mut effect = None;
        if object.watched && object.never_changes() {
            object.watched = false;
            effect = Some(Effect::UnwatchObject { key: key.clone() });
        }
        (if news { object.users.clone() } else { BTreeSet::new() }, effect)
    }

    pub fn look(&self, key: &ObjectKey) -> Known<'_> {
        let Some(object) = self.objects.get(key) else { return Known::Unclaimed };
        match &object.state {
            Some(ObjectState::Is(content)) => Known::Is(content),
            Some(ObjectState::Absent { .. }) => Known::Absent,
            Some(ObjectState::Denied { message }) => Known::Denied(message),
            Some(ObjectState::Unreachable { .. }) | None => Known::Unread { trouble: &object.trouble },
        }
    }

    /// The complete set. True if it is the first.
    pub fn set_services(&mut self, services: Vec<ServiceView>) -> bool {
        self.services.replace(services).is_none()
    }

    pub fn services(&self) -> Services<'_> {
        match &self.services {
            Some(list) => Services::Read(list),
            None => Services::NotRead,
        }
    }

    /// The objects that a container's variables are made of. Fails with what it has to wait for.
    pub fn env_objects(&self, namespace: &str, container: &Container) -> Result<EnvObjects, Cause> {
        let mut found = EnvObjects::default();
        for (kind, name) in names::of_variables(container) {
            let key = ObjectKey { kind, namespace: namespace.to_owned(), name: name.to_owned() };
            let object = match self.look(&key) {
                Known::Unread { trouble } => return Err(waits_for(&key, trouble)),
                Known::Unclaimed => continue,
                Known::Is(content) => Ok(content),
                Known::Absent => Err(ObjectError::NotFound),
                Known::Denied(message) => Err(ObjectError::Failed(message.to_owned())),
            };
            match kind {
                ObjectKind::ConfigMap => drop(found.config_maps.insert(key.name, object.map(|c| texts(c)))),
                ObjectKind::Secret => drop(found.secrets.insert(key.name, object.map(|c| c.data.clone()))),
            }
        }
        Ok(found)
    }

    /// A token was issued, or was not. True if there is news for its pod.
    pub fn token_issued(
        &mut self,
        wanted: &TokenWanted,
        result: Result<Token, String>,
        now: Now,
    ) -> (bool, Vec<Effect>) {
        self.tokens.issued(wanted, result, now)
    }

    /// What is watched now, for those who check.
    pub fn watched(&self) -> impl Iterator<Item = &ObjectKey> {
        self.objects.iter().filter(|(_, object)| object.watched).map(|(key, _)| key)
    }
}

fn local_state(local: &BTreeMap<ObjectKey, Arc<ObjectContent>>, key: &ObjectKey) -> ObjectState {
    let absent = || ObjectState::Absent { message: format!("{} {:?} not found", key.kind.word(), key.name) };
    local.get(key).cloned().map_or_else(absent, ObjectState::Is)
}

impl Object {
    fn never_changes(&self) -> bool {
        matches!(&self.state, Some(ObjectState::Is(content)) if content.immutable)
    }
}

pub(crate) fn waits_for(key: &ObjectKey, trouble: &str) -> Cause {
    Cause::WaitingForObject {
        kind: key.kind.word().to_owned(),
        name: key.name.clone(),
        message: trouble.to_owned(),
    }
}

/// `binaryData` gives no variables.
fn texts(content: &ObjectContent) -> BTreeMap<String, String> {
    let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
    let data = content.data.iter().filter(|(key, _)| !content.binary_keys.contains(*key));
    data.map(|(key, bytes)| (key.clone(), text(bytes))).collect()
}

#[cfg(test)]
mod tests;
