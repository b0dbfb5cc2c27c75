//! Image calls: look, pull. One task each; the desk in `decide` sees to it that there is only one per image.
//!
//! ```text
//!   inspect:     runtime ──> records ──> ImageInspected
//!   pull:        note that it begins ──> read files ──> try each credential ──> note how it went ──> ImagePulled
//! ```
//! A credential source that fails is told of in the log, and the pull goes on with the others.

use std::collections::BTreeMap;

use decide::credentials::{
    self, Candidate, CredentialSource, Keyring, PluginCache, PluginTokens, candidates, node_logins, records,
};
use decide::effect::PullContext;
use decide::event::{CallFailure, Event, PulledImage};
use decide::images::{PullKey, split_key};
use model::credentials::{PullCredentials, PullHistory, PullSecret};
use model::cri::{Image, ImageSpec, RegistryAuth};
use ports::{Disposition, PullRecords, RecordError};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::dispatcher::Shop;
use crate::executor::call_failure;

/// What image calls share. What plugins say stays here: events carry no secrets.
#[derive(Default)]
pub(crate) struct ImageRoom {
    pub(crate) answers: Mutex<PluginCache>,
    /// Tokens of service accounts that plugins were shown.
    pub(crate) tokens: Mutex<PluginTokens>,
    /// What plugins said about images whose pulls are about to begin.
    pub(crate) gathered: Mutex<BTreeMap<PullKey, Keyring>>,
    /// Held while records are read and written back, so that no writer loses another's entry.
    records: Mutex<()>,
}

fn spec(key: &str) -> ImageSpec {
    let (image, handler) = split_key(key);
    ImageSpec { image: image.to_owned(), runtime_handler: handler.to_owned(), ..Default::default() }
}

pub(crate) async fn inspect(shop: Shop, image: String) {
    let result = shop.ports.images.image_status(&spec(&image)).await.map_err(|e| call_failure(&e));
    let history = match (&result, &shop.ports.pull_records) {
        (Ok(Some(found)), Some(records)) => history(&shop, &**records, split_key(&image).0, &found.id).await,
        _ => PullHistory::default(),
    };
    shop.outbox.send(Event::ImageInspected { image, result, history });
}

async fn history(shop: &Shop, records: &dyn PullRecords, image: &str, image_ref: &str) -> PullHistory {
    let _quiet = shop.image_room.records.lock().await;
    read_history(records, image, image_ref).await.unwrap_or_else(|error| {
        let message = error.user_message();
        tracing::warn!(image, "records of pulls: {message}");
        PullHistory::Unreadable { message }
    })
}

async fn read_history(
    records: &dyn PullRecords,
    image: &str,
    image_ref: &str,
) -> Result<PullHistory, RecordError> {
    if let Some(record) = records.read_pulled(image_ref).await? {
        return Ok(PullHistory::Pulled(record));
    }
    for name in records::intent_names(image) {
        if records.has_intent(&name).await? {
            return Ok(PullHistory::Begun);
        }
    }
    Ok(PullHistory::Foreign)
}

pub(crate) async fn pull(shop: Shop, pull: PullKey, own: Vec<Candidate>, context: Box<PullContext>) {
    let image = &pull.image;
    let result = match note_begin(&shop, split_key(image).0).await {
        Ok(()) => pull_noted(&shop, &pull, own, &context).await,
        Err(error) => {
            let (image, cause) = (split_key(image).0, error.user_message());
            let message = format!(
                "Failed to record image pull intent for container image \"{image}\": failed to record image pull intent: {cause}"
            );
            Err(CallFailure { unreachable: false, message })
        }
    };
    shop.outbox.send(Event::ImagePulled { pull, result });
}

async fn pull_noted(
    shop: &Shop,
    pull: &PullKey,
    own: Vec<Candidate>,
    context: &PullContext,
) -> Result<PulledImage, CallFailure> {
    let image = pull.image.as_str();
    let began = Instant::now();
    let result = pull_somehow(shop, pull, own, context).await;
    // At once: whatever fails after this, the image is there and was pulled by us.
    note_end(shop, split_key(image).0, &result).await;
    let (reference, _) = result?;
    // The user of the image is needed to make a container; without it the pull is of no use yet.
    let found = shop.ports.images.image_status(&spec(image)).await.map_err(|e| call_failure(&e))?;
    Ok(PulledImage { reference, image: found, took: began.elapsed() })
}

/// Every credential that fits, one after the other until one does it; none at all without any.
async fn pull_somehow(
    shop: &Shop,
    pull: &PullKey,
    own: Vec<Candidate>,
    context: &PullContext,
) -> Result<(String, PullCredentials), CallFailure> {
    let image = pull.image.as_str();
    let spec = ImageSpec { annotations: context.annotations.clone(), ..spec(image) };
    let sandbox = context.sandbox.as_ref();
    let of_plugins = shop.image_room.gathered.lock().await.remove(pull).unwrap_or_default();
    let of_node = candidates(split_key(image).0, &Keyring::default(), &from_files(shop).await, &of_plugins);
    let candidates: Vec<Candidate> = own.into_iter().chain(of_node).collect();
    if candidates.is_empty() {
        let pulled = shop.ports.images.pull_image(&spec, None, sandbox).await;
        let anyone = PullCredentials { node_pods_accessible: true, ..PullCredentials::default() };
        return Ok((pulled.map_err(|e| call_failure(&e))?, anyone));
    }
    let mut messages = Vec::new();
    for candidate in &candidates {
        match shop.ports.images.pull_image(&spec, Some(&auth(candidate)), sandbox).await {
            Ok(reference) => return Ok((reference, candidate.recorded())),
            Err(error) => {
                let failure = call_failure(&error);
                if failure.unreachable {
                    // It is not the registry that speaks, and no other credential changes it.
                    return Err(failure);
                }
                messages.push(failure.message);
            }
        }
    }
    Err(CallFailure { unreachable: false, message: credentials::aggregate(&messages) })
}

fn auth(candidate: &Candidate) -> RegistryAuth {
    RegistryAuth {
        username: candidate.login.username.clone(),
        password: candidate.login.password.clone(),
        identity_token: candidate.login.identity_token.clone(),
        ..RegistryAuth::default()
    }
}

// ---- credentials ------------------------------------------------------------------------------------------------

async fn from_files(shop: &Shop) -> Keyring {
    let found = node_logins(&shop.ports.credentials.docker_configs().await);
    for (path, problem) in &found.problems {
        tracing::warn!(path, "no credentials from this file: {problem}");
    }
    let mut keyring = Keyring::default();
    keyring.add(CredentialSource::Node, &found.logins);
    keyring
}

// ---- records ----------------------------------------------------------------------------------------------------

/// Before the runtime is asked: an image whose pull was begun here is never taken for one that anybody may use.
async fn note_begin(shop: &Shop, image: &str) -> Result<(), RecordError> {
    let Some(records) = &shop.ports.pull_records else { return Ok(()) };
    let _quiet = shop.image_room.records.lock().await;
    for name in records::intent_names(image) {
        records.write_intent(&name).await?;
    }
    Ok(())
}

async fn note_end(shop: &Shop, image: &str, result: &Result<(String, PullCredentials), CallFailure>) {
    let Some(records) = &shop.ports.pull_records else { return };
    let _quiet = shop.image_room.records.lock().await;
    if let Ok((reference, used)) = result
        && let Err(error) = note_pulled(shop, image, reference, Some(used)).await
    {
        // The intent stays: whoever wants the image next has to pull it.
        return tracing::error!(image, "record of a pulled image: {}", error.user_message());
    }
    drop_intents(&**records, image).await;
}

/// A pod has shown that its secret opens an image that is there.
pub(crate) async fn note_access(shop: Shop, image: String, image_ref: String, secret: PullSecret) {
    let with = PullCredentials { kubernetes_secrets: vec![secret], ..PullCredentials::default() };
    let _quiet = shop.image_room.records.lock().await;
    if let Err(error) = note_pulled(&shop, &image, &image_ref, Some(&with)).await {
        tracing::error!(image, "record of a pulled image: {}", error.user_message());
    }
}

async fn drop_intents(records: &dyn PullRecords, image: &str) {
    for name in records::intent_names(image) {
        if let Err(error) = records.remove_intent(&name).await {
            tracing::error!(image, "record of a pull that ended: {}", error.user_message());
        }
    }
}

async fn note_pulled(
    shop: &Shop,
    image: &str,
    reference: &str,
    used: Option<&PullCredentials>,
) -> Result<(), RecordError> {
    let Some(records) = &shop.ports.pull_records else { return Ok(()) };
    let known = records.read_pulled(reference).await.unwrap_or_else(|error| {
        tracing::warn!(image, "a record is written anew: {}", error.user_message());
        None
    });
    let now = shop.clock.now().wall;
    match records::merged(known.as_ref(), image, reference, used, now) {
        Some(record) => records.write_pulled(&record).await,
        None => Ok(()),
    }
}

/// After a start: pulls that an earlier agent began and whose image is there have ended. With what credentials is not
/// known, so the record grants nothing.
pub(crate) async fn settle_intents(shop: Shop) {
    let Some(records) = &shop.ports.pull_records else { return };
    let _quiet = shop.image_room.records.lock().await;
    let intents = match records.intents().await {
        Ok(intents) if intents.is_empty() => return,
        Ok(intents) => intents,
        Err(error) => return tracing::error!("records of begun pulls: {}", error.user_message()),
    };
    let present = match shop.ports.images.list_images().await {
        Ok(images) => images,
        // They are settled when the image is pulled again, or at the next start.
        Err(error) if error.disposition() == Disposition::Retry => return,
        Err(error) => return tracing::error!("images of begun pulls: {error}"),
    };
    for image in intents {
        let is_it = |found: &&Image| found.repo_tags.contains(&image) || found.repo_digests.contains(&image);
        let Some(found) = present.iter().find(is_it) else { continue };
        match note_pulled(&shop, &image, &found.id, None).await {
            Ok(()) => drop_intents(&**records, &image).await,
            Err(error) => {
                tracing::error!(image, "record of a pulled image: {}", error.user_message());
            }
        }
    }
}
