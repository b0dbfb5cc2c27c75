//! Caches the API objects that pods refer to (config maps, secrets, tokens, certificates, services) and tracks which
//! pods use each object.
//!
//! ```text
//!   a pod is added ──> set_pod_references ──> WatchObject, RequestToken ──> ObjectObserved, TokenIssued
//!                                                                              ──> the pods that use it are touched
//!   its last pod ends ──> release ──> UnwatchObject
//! ```
//! An object is watched as long as a pod uses it. An immutable one is read once.
//!
//! Failures: if an object cannot be read, its last known state is used. A pod that needs an object that was never read
//! waits, and its status names that object.

mod names;
mod pod_certificates;
mod pull_secrets;
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
pub use pull_secrets::pull_secret_candidates;
pub use storage::{StorageCache, StorageLookupError};
pub use tokens::{TokenCache, TokenLookup};
pub use trust_bundles::{TrustBundleCache, uses_trust_bundles};

use crate::csi::CsiVolumesInUse;
use crate::effect::Effect;
use crate::render::{EnvObjects, ObjectError, ServiceView, Services};

/// There is one value for the whole node.
#[derive(Clone, Debug, Default)]
pub struct ObjectCache {
    objects: BTreeMap<ObjectKey, Object>,
    by_pod: BTreeMap<PodUid, PodReferences>,
    pub tokens: TokenCache,
    pub storage: StorageCache,
    pub csi: CsiVolumesInUse,
    pub trust: TrustBundleCache,
    pub certificates: PodCertificates,
    /// Objects that pods use through their claims, in addition to those in their definitions.
    claimed_by_pod: BTreeMap<PodUid, ReferencedObjects>,
    services: Option<Vec<ServiceView>>,
    /// Objects from files, in standalone mode. `None`: objects come from the API server.
    local: Option<BTreeMap<ObjectKey, Arc<ObjectContent>>>,
}

#[derive(Clone, Debug, Default)]
struct Object {
    users: BTreeSet<PodUid>,
    /// The state when the object was last read.
    state: Option<ObjectState>,
    /// Why the object can't be read now. Empty if it can.
    read_error: String,
    watched: bool,
}

#[derive(Clone, Debug)]
struct PodReferences {
    /// The definition that the references were read from, to skip one that is unchanged.
    pod: Arc<Pod>,
    named: ReferencedObjects,
}

/// What is known of an object.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ObjectLookup<'a> {
    /// The object was not read yet. `read_error` may say why.
    NotRead {
        read_error: &'a str,
    },
    Found(&'a Arc<ObjectContent>),
    Absent,
    /// The object may not be read. Holds the server's message.
    Denied(&'a str),
    /// No pod refers to the object.
    NotReferenced,
}

impl ObjectCache {
    /// The cache of a node in standalone mode: all objects come from files.
    pub fn standalone() -> Self {
        Self { local: Some(BTreeMap::new()), storage: StorageCache::standalone(), ..Self::default() }
    }

    pub fn is_standalone(&self) -> bool {
        self.local.is_some()
    }

    /// Replaces the set of local objects. Returns the pods that a change affects.
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

    /// Sets the objects that a pod's definition refers to.
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

    /// Sets the objects that a pod uses through its claims.
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

    /// Releases all objects of a pod.
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

    /// Records the state of an object. Returns the pods that use it if the state changed.
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

    /// Replaces the set of services. Returns whether it is the first one.
    pub fn set_services(&mut self, services: Vec<ServiceView>) -> bool {
        self.services.replace(services).is_none()
    }

    pub fn services(&self) -> Services<'_> {
        match &self.services {
            Some(list) => Services::Read(list),
            None => Services::NotRead,
        }
    }

    /// The objects that a container's environment variables refer to. Fails with the object that was not read yet.
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

    /// Records the result of a token request. Returns whether its pod has to be planned again.
    pub fn token_issued(
        &mut self,
        wanted: &PodTokenRequest,
        result: Result<Token, String>,
        now: Now,
    ) -> (bool, Vec<Effect>) {
        self.tokens.issued(wanted, result, now)
    }

    /// The objects that are watched now, for checks in tests.
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

/// The entries of `data`. Those of `binaryData` can't be variables.
fn texts(content: &ObjectContent) -> BTreeMap<String, String> {
    let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
    let data = content.data.iter().filter(|(key, _)| !content.binary_keys.contains(*key));
    data.map(|(key, bytes)| (key.clone(), text(bytes))).collect()
}

#[cfg(test)]
mod tests;
