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
mod trust_bundles;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::cluster::{ObjectContent, ObjectKey, ObjectKind, ObjectState, PodTokenRequest, Token};
use model::k8s::{Container, Pod};
use model::local::LocalObjects;
use model::pod::PodView;
use model::why::Cause;
use model::{Now, PodUid};

pub use names::{ReferencedObjects, pull_secrets, referenced_objects, token_request_of_projection};
pub use pod_certificates::{
    GATE as CERTIFICATES_GATE, KnownCertificate, PodCertificates, RequestingNode, needs_certificates,
};
pub use storage::{StorageCache, StorageLookupError};
pub(crate) use tokens::refresh_at;
pub use tokens::{TokenCache, TokenLookup};
pub use trust_bundles::{TrustBundleCache, uses_trust_bundles};

use crate::csi::CsiVolumesInUse;
use crate::effect::Effect;
use crate::render::{EnvObjects, ObjectError, ServiceView, Services};

/// One for the whole node.
#[derive(Clone, Debug, Default)]
pub struct ObjectCache {
    objects: BTreeMap<ObjectKey, Object>,
    by_pod: BTreeMap<PodUid, PodReferences>,
    pub tokens: TokenCache,
    pub storage: StorageCache,
    pub csi: CsiVolumesInUse,
    pub trust: TrustBundleCache,
    pub certificates: PodCertificates,
    /// What pods use beside what their definitions name: what their claims led to.
    claimed_by_pod: BTreeMap<PodUid, ReferencedObjects>,
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
    read_error: String,
    watched: bool,
}

#[derive(Clone, Debug)]
struct PodReferences {
    /// What the names were read from: the same definition names the same.
    pod: Arc<Pod>,
    named: ReferencedObjects,
}

/// What is known of an object.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ObjectLookup<'a> {
    /// Nothing, yet. `trouble` may say why.
    NotRead {
        read_error: &'a str,
    },
    Found(&'a Arc<ObjectContent>),
    Absent,
    /// In the server's words.
    Denied(&'a str),
    /// Nobody asked for it.
    NotReferenced,
}

impl ObjectCache {
    /// Of a node without a cluster: files beside the pods tell of everything.
    pub fn standalone() -> Self {
        Self { local: Some(BTreeMap::new()), storage: StorageCache::standalone(), ..Self::default() }
    }

    pub fn is_standalone(&self) -> bool {
        self.local.is_some()
    }

    /// The complete set. Gives those whom a change concerns.
    pub fn set_local_objects(&mut self, told: &LocalObjects, root_dir: &str) -> BTreeSet<PodUid> {
        let Some(local) = &mut self.local else { return BTreeSet::new() };
        *local = told.contents.iter().cloned().collect();
        let mut concerned = self.storage.set_local_objects(&told.claims, root_dir);
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
    pub fn set_pod_references(&mut self, view: &PodView) -> Vec<Effect> {
        let old = self.by_pod.get(&view.uid);
        if old.is_some_and(|claim| Arc::ptr_eq(&claim.pod, &view.pod)) {
            return Vec::new();
        }
        let old = old.map(|claim| claim.named.clone()).unwrap_or_default();
        let new = referenced_objects(view);
        let mut effects = Vec::new();
        for key in new.objects.difference(&old.objects) {
            self.add_user(key, &view.uid, &mut effects);
        }
        for key in old.objects.difference(&new.objects) {
            self.remove_user(key, &view.uid, &mut effects);
        }
        for wanted in new.tokens.difference(&old.tokens).filter(|_| self.local.is_none()) {
            effects.extend(self.tokens.add_token(wanted));
        }
        for wanted in old.tokens.difference(&new.tokens) {
            effects.extend(self.tokens.release(wanted));
        }
        self.by_pod.insert(view.uid.clone(), PodReferences { pod: view.pod.clone(), named: new });
        effects
    }

    /// A pod uses these beside what its definition names, and no others.
    pub fn set_claimed_references(&mut self, uid: &PodUid, new: ReferencedObjects) -> Vec<Effect> {
        let old = self.claimed_by_pod.get(uid).cloned().unwrap_or_default();
        let mut effects = Vec::new();
        if old == new {
            return effects;
        }
        let own = self.by_pod.get(uid).map(|claim| claim.named.clone()).unwrap_or_default();
        for key in new.objects.difference(&old.objects) {
            self.add_user(key, uid, &mut effects);
        }
        for key in old.objects.difference(&new.objects).filter(|key| !own.objects.contains(key)) {
            self.remove_user(key, uid, &mut effects);
        }
        for wanted in new.tokens.difference(&old.tokens).filter(|wanted| !own.tokens.contains(wanted)) {
            effects.extend(self.tokens.add_token(wanted));
        }
        for wanted in old.tokens.difference(&new.tokens).filter(|wanted| !own.tokens.contains(wanted)) {
            effects.extend(self.tokens.release(wanted));
        }
        if new == ReferencedObjects::default() {
            self.claimed_by_pod.remove(uid);
        } else {
            self.claimed_by_pod.insert(uid.clone(), new);
        }
        effects
    }

    fn add_user(&mut self, key: &ObjectKey, uid: &PodUid, effects: &mut Vec<Effect>) {
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
        let mut effects = self.set_claimed_references(uid, ReferencedObjects::default());
        let Some(claim) = self.by_pod.remove(uid) else { return effects };
        for key in &claim.named.objects {
            self.remove_user(key, uid, &mut effects);
        }
        for wanted in &claim.named.tokens {
            effects.extend(self.tokens.release(wanted));
        }
        effects
    }

    fn remove_user(&mut self, key: &ObjectKey, uid: &PodUid, effects: &mut Vec<Effect>) {
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
    pub fn record_state(
        &mut self,
        key: &ObjectKey,
        state: ObjectState,
    ) -> (BTreeSet<PodUid>, Option<Effect>) {
        let Some(object) = self.objects.get_mut(key) else { return Default::default() };
        if let ObjectState::Unreachable { message } = state {
            let news = object.state.is_none() && object.read_error != message;
            object.read_error = message;
            return (if news { object.users.clone() } else { BTreeSet::new() }, None);
        }
        object.read_error.clear();
        let news = object.state.as_ref() != Some(&state);
        object.state = Some(state);
        let mut effect = None;
        if object.watched && object.never_changes() {
            object.watched = false;
            effect = Some(Effect::UnwatchObject { key: key.clone() });
        }
        (if news { object.users.clone() } else { BTreeSet::new() }, effect)
    }

    pub fn lookup(&self, key: &ObjectKey) -> ObjectLookup<'_> {
        let Some(object) = self.objects.get(key) else { return ObjectLookup::NotReferenced };
        match &object.state {
            Some(ObjectState::Present(content)) => ObjectLookup::Found(content),
            Some(ObjectState::Absent { .. }) => ObjectLookup::Absent,
            Some(ObjectState::Denied { message }) => ObjectLookup::Denied(message),
            Some(ObjectState::Unreachable { .. }) | None => {
                ObjectLookup::NotRead { read_error: &object.read_error }
            }
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
        for (kind, name) in names::objects_of_env(container) {
            let key = ObjectKey { kind, namespace: namespace.to_owned(), name: name.to_owned() };
            let object = match self.lookup(&key) {
                ObjectLookup::NotRead { read_error: trouble } => return Err(waits_for(&key, trouble)),
                ObjectLookup::NotReferenced => continue,
                ObjectLookup::Found(content) => Ok(content),
                ObjectLookup::Absent => Err(ObjectError::NotFound),
                ObjectLookup::Denied(message) => Err(ObjectError::Failed(message.to_owned())),
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
        wanted: &PodTokenRequest,
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
    local.get(key).cloned().map_or_else(absent, ObjectState::Present)
}

impl Object {
    fn never_changes(&self) -> bool {
        matches!(&self.state, Some(ObjectState::Present(content)) if content.immutable)
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
