//! Image calls: inspect and pull. Each runs in its own task; `decide::images` starts at most one call per image.
//!
//! ```text
//!   inspect:     runtime ──> records ──> ImageInspected
//!   pull:        note that it begins ──> read files ──> try each credential ──> note how it went ──> ImagePulled
//! ```
//! If a credential source fails, that is logged and the pull goes on with the others.

use decide::action::CallFailure;
use decide::credentials::{
    self, CredentialCandidate, CredentialSource, Keyring, candidates, node_logins, records,
};
use decide::event::{Event, PulledImage};
use decide::image_pull::{PullContext, PullKey};
use decide::images::split_key;
use model::credentials::{PullCredentials, PullHistory, PullSecret};
use model::cri::{Image, ImageSpec, RegistryAuth};
use ports::{Disposition, PullRecords, RecordError};
use tokio::time::Instant;

use crate::context::EngineContext;
use crate::executor::call_failure;

pub(crate) fn spec(key: &str) -> ImageSpec {
    let (image, handler) = split_key(key);
    ImageSpec { image: image.to_owned(), runtime_handler: handler.to_owned(), ..Default::default() }
}

pub(crate) async fn inspect(ctx: EngineContext, image: String) {
    let result = ctx.ports.images.image_status(&spec(&image)).await.map_err(|e| call_failure(&e));
    let history = match (&result, &ctx.ports.pull_records) {
        (Ok(Some(found)), Some(records)) => {
            pull_history(&ctx, &**records, split_key(&image).0, &found.id).await
        }
        _ => PullHistory::default(),
    };
    ctx.outbox.send(Event::ImageInspected { image, result, history });
}

async fn pull_history(
    ctx: &EngineContext,
    records: &dyn PullRecords,
    image: &str,
    image_ref: &str,
) -> PullHistory {
    let _records_guard = ctx.image_call_state.records.lock().await;
    read_history(records, image, image_ref).await.unwrap_or_else(|error| {
        let message = error.user_message();
        tracing::warn!(image, "the image's pull record can't be read: {message}");
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
            return Ok(PullHistory::PullIntent);
        }
    }
    Ok(PullHistory::NoRecord)
}

pub(crate) async fn pull(
    ctx: EngineContext,
    pull: PullKey,
    own: Vec<CredentialCandidate>,
    context: Box<PullContext>,
) {
    let image = &pull.image;
    let result = match record_pull_intent(&ctx, split_key(image).0).await {
        Ok(()) => pull_and_record(&ctx, &pull, own, &context).await,
        Err(error) => {
            let (image, cause) = (split_key(image).0, error.user_message());
            let message = format!(
                "Failed to record image pull intent for container image \"{image}\": failed to record image pull intent: {cause}"
            );
            Err(CallFailure { unreachable: false, message })
        }
    };
    ctx.outbox.send(Event::ImagePulled { pull, result });
}

async fn pull_and_record(
    ctx: &EngineContext,
    pull: &PullKey,
    own: Vec<CredentialCandidate>,
    context: &PullContext,
) -> Result<PulledImage, CallFailure> {
    let image = pull.image.as_str();
    let began = Instant::now();
    let result = pull_with_each_credential(ctx, pull, own, context).await;
    // Recorded first: whatever fails after this, the image exists and was pulled by us.
    record_pull_result(ctx, split_key(image).0, &result).await;
    let (reference, _) = result?;
    // A container can't be created without knowing the image's user, so without it the pull failed.
    let found = ctx.ports.images.image_status(&spec(image)).await.map_err(|e| call_failure(&e))?;
    Ok(PulledImage { reference, image: found, took: began.elapsed() })
}

/// Tries each matching credential until a pull succeeds; without credentials, pulls anonymously.
async fn pull_with_each_credential(
    ctx: &EngineContext,
    pull: &PullKey,
    own: Vec<CredentialCandidate>,
    context: &PullContext,
) -> Result<(String, PullCredentials), CallFailure> {
    let image = pull.image.as_str();
    let spec = ImageSpec { annotations: context.annotations.clone(), ..spec(image) };
    let sandbox = context.sandbox.as_ref();
    let of_plugins = ctx.image_call_state.plugin_keyrings.lock().await.remove(pull).unwrap_or_default();
    let of_node = candidates(split_key(image).0, &Keyring::default(), &node_keyring(ctx).await, &of_plugins);
    let candidates: Vec<CredentialCandidate> = own.into_iter().chain(of_node).collect();
    if candidates.is_empty() {
        let pulled = ctx.ports.images.pull_image(&spec, None, sandbox).await;
        let anyone = PullCredentials { node_pods_accessible: true, ..PullCredentials::default() };
        return Ok((pulled.map_err(|e| call_failure(&e))?, anyone));
    }
    let mut messages = Vec::new();
    for candidate in &candidates {
        match ctx.ports.images.pull_image(&spec, Some(&auth(candidate)), sandbox).await {
            Ok(reference) => return Ok((reference, candidate.as_pull_credentials())),
            Err(error) => {
                let failure = call_failure(&error);
                if failure.unreachable {
                    // The failure is not from the registry, so no other credential changes it.
                    return Err(failure);
                }
                messages.push(failure.message);
            }
        }
    }
    Err(CallFailure { unreachable: false, message: credentials::aggregate(&messages) })
}

fn auth(candidate: &CredentialCandidate) -> RegistryAuth {
    RegistryAuth {
        username: candidate.login.username.clone(),
        password: candidate.login.password.clone(),
        identity_token: candidate.login.identity_token.clone(),
        ..RegistryAuth::default()
    }
}

// ---- credentials ------------------------------------------------------------------------------------------------

async fn node_keyring(ctx: &EngineContext) -> Keyring {
    let found = node_logins(&ctx.ports.credentials.docker_configs().await);
    for (path, problem) in &found.problems {
        tracing::warn!(path, "no credentials from this file: {problem}");
    }
    let mut keyring = Keyring::default();
    keyring.add(CredentialSource::Node, &found.logins);
    keyring
}

// ---- records ----------------------------------------------------------------------------------------------------

/// Recorded before the runtime is called: an image whose pull was started here must never count as preloaded and so be
/// open to every pod.
async fn record_pull_intent(ctx: &EngineContext, image: &str) -> Result<(), RecordError> {
    let Some(records) = &ctx.ports.pull_records else { return Ok(()) };
    let _records_guard = ctx.image_call_state.records.lock().await;
    for name in records::intent_names(image) {
        records.write_intent(&name).await?;
    }
    Ok(())
}

async fn record_pull_result(
    ctx: &EngineContext,
    image: &str,
    result: &Result<(String, PullCredentials), CallFailure>,
) {
    let Some(records) = &ctx.ports.pull_records else { return };
    let _records_guard = ctx.image_call_state.records.lock().await;
    if let Ok((reference, used)) = result
        && let Err(error) = record_pulled_image(ctx, image, reference, Some(used)).await
    {
        // The intent stays, so the next pod that wants the image has to pull it.
        return tracing::error!(image, "the pulled image could not be recorded: {}", error.user_message());
    }
    drop_intents(&**records, image).await;
}

/// Records that a pod's secret gives access to an image that exists on the node.
pub(crate) async fn record_image_access(
    ctx: EngineContext,
    image: String,
    image_ref: String,
    secret: PullSecret,
) {
    let with = PullCredentials { kubernetes_secrets: vec![secret], ..PullCredentials::default() };
    let _records_guard = ctx.image_call_state.records.lock().await;
    if let Err(error) = record_pulled_image(&ctx, &image, &image_ref, Some(&with)).await {
        tracing::error!(image, "the pulled image could not be recorded: {}", error.user_message());
    }
}

async fn drop_intents(records: &dyn PullRecords, image: &str) {
    for name in records::intent_names(image) {
        if let Err(error) = records.remove_intent(&name).await {
            tracing::error!(image, "an image pull intent could not be removed: {}", error.user_message());
        }
    }
}

async fn record_pulled_image(
    ctx: &EngineContext,
    image: &str,
    reference: &str,
    used: Option<&PullCredentials>,
) -> Result<(), RecordError> {
    let Some(records) = &ctx.ports.pull_records else { return Ok(()) };
    let known = records.read_pulled(reference).await.unwrap_or_else(|error| {
        tracing::warn!(image, "an unreadable pull record is replaced: {}", error.user_message());
        None
    });
    let now = ctx.clock.now().wall;
    match records::merge_pull_record(known.as_ref(), image, reference, used, now) {
        Some(record) => records.write_pulled(&record).await,
        None => Ok(()),
    }
}

/// After a start: resolves pulls that an earlier agent started and whose image exists. The credentials they used are
/// not known, so the record grants access to nobody.
pub(crate) async fn resolve_pull_intents(ctx: EngineContext) {
    let Some(records) = &ctx.ports.pull_records else { return };
    let _records_guard = ctx.image_call_state.records.lock().await;
    let intents = match records.intents().await {
        Ok(intents) if intents.is_empty() => return,
        Ok(intents) => intents,
        Err(error) => return tracing::error!("image pull intents can't be read: {}", error.user_message()),
    };
    let present = match ctx.ports.images.list_images().await {
        Ok(images) => images,
        // These intents are resolved by the next pull of the image, or at the next start.
        Err(error) if error.disposition() == Disposition::Retry => return,
        Err(error) => return tracing::error!("images can't be listed to resolve pull intents: {error}"),
    };
    for image in intents {
        let is_it = |found: &&Image| found.repo_tags.contains(&image) || found.repo_digests.contains(&image);
        let Some(found) = present.iter().find(is_it) else { continue };
        match record_pulled_image(&ctx, &image, &found.id, None).await {
            Ok(()) => drop_intents(&**records, &image).await,
            Err(error) => {
                tracing::error!(image, "the pulled image could not be recorded: {}", error.user_message());
            }
        }
    }
}
