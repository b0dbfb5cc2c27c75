//! Calls credential plugins about an image, for a pod.
//!
//! ```text
//!   which plugins fit ──> ServiceAccount, if one takes tokens ──> each at the same time:
//!       annotations ──> token (kept or asked for) ──> answer (kept or asked for) ──> logins, and whose they are
//! ```
//! If a plugin fails, that is logged and the answers of the others are used. Secrets stay here: events carry none.

use decide::credentials::{
    CredentialSource, Keyring, PluginInvocation, PluginServiceAccount, annotations_for_plugin, plugin,
    plugin_invocation, repository, token_request_of_plugin,
};
use decide::event::Event;
use decide::image_pull::{PullKey, PullingPod};
use decide::images::split_key;
use futures::future::join_all;
use model::cluster::{PodTokenRequest, Token};
use model::credentials::{
    CredentialPlugin, Logins, PullServiceAccount, ServiceAccountFacts, TokenAttributes,
};

use crate::context::EngineContext;

/// Calls all plugins that match the image, concurrently.
pub(crate) async fn ask_plugins(ctx: EngineContext, pull: PullKey, pod: PullingPod, for_access: bool) {
    let repository = repository(split_key(&pull.image).0);
    let has_account = !pod.service_account.is_empty();
    let plugins = ctx.ports.credentials.plugins().iter();
    let fitting: Vec<_> =
        plugins.filter(|plugin| plugin::matches_image(plugin, &repository, has_account)).collect();
    let account = match fitting
        .iter()
        .any(|plugin| matches!(plugin_invocation(plugin, &pod), PluginInvocation::WithToken(_)))
    {
        true => service_account(&ctx, &pod).await,
        false => Err("it was not asked for".to_owned()),
    };
    let answers = fitting.iter().map(|plugin| ask_one(&ctx, plugin, &repository, &pod, &account));
    let mut keyring = Keyring::default();
    for (source, logins) in join_all(answers).await.into_iter().flatten() {
        keyring.add(source, &logins);
    }
    let account = keyring.lookup(&repository).into_iter().find_map(|candidate| match candidate.source {
        CredentialSource::ServiceAccount(account) => Some(account),
        _ => None,
    });
    if !for_access {
        ctx.image_call_state.plugin_keyrings.lock().await.insert(pull.clone(), keyring);
    }
    ctx.outbox.send(Event::CredentialPluginsAnswered { pull, for_access, account });
}

async fn service_account(ctx: &EngineContext, pod: &PullingPod) -> Result<ServiceAccountFacts, String> {
    let Some(cluster) = &ctx.ports.cluster else {
        return Err("this node has no API server to read ServiceAccounts from".to_owned());
    };
    let found = cluster.tokens.service_account(&pod.namespace, &pod.service_account).await;
    found.map_err(|error| error.to_string())
}

/// What one plugin returns, and which pods may use it.
async fn ask_one(
    ctx: &EngineContext,
    plugin: &CredentialPlugin,
    repository: &str,
    pod: &PullingPod,
    account: &Result<ServiceAccountFacts, String>,
) -> Option<(CredentialSource, Logins)> {
    let token = match plugin_invocation(plugin, pod) {
        PluginInvocation::Skip => return None,
        PluginInvocation::WithoutToken => {
            return Some((CredentialSource::Node, plugin_logins(ctx, plugin, repository, None).await));
        }
        PluginInvocation::WithToken(token) => token,
    };
    let failed = |what: &str, message: &str| {
        tracing::error!(
            plugin = plugin.name,
            image = repository,
            namespace = pod.namespace,
            pod = pod.name,
            service_account = pod.service_account,
            "{what}: {message}"
        );
    };
    let account = match account {
        Ok(account) => account,
        Err(message) => {
            failed("failed to get service account", message);
            return None;
        }
    };
    let annotations = match annotations_for_plugin(token, account) {
        Ok(annotations) => annotations,
        Err(missing) => {
            // An annotation may be how a workload requests the plugin, so a missing one is not an error.
            tracing::debug!(plugin = plugin.name, "not asked: required annotation {missing} not found");
            return None;
        }
    };
    match token_for(ctx, token, pod, &account.uid).await {
        Ok(issued) => {
            let account = PullServiceAccount {
                uid: account.uid.clone(),
                namespace: pod.namespace.clone(),
                name: pod.service_account.clone(),
            };
            let pod = PluginServiceAccount { account: account.clone(), annotations, token: issued.token };
            let logins = plugin_logins(ctx, plugin, repository, Some(&pod)).await;
            Some((CredentialSource::ServiceAccount(account), logins))
        }
        Err(message) => {
            failed("failed to get service account token", &message);
            None
        }
    }
}

async fn token_for(
    ctx: &EngineContext,
    token: &TokenAttributes,
    pod: &PullingPod,
    account_uid: &str,
) -> Result<Token, String> {
    let wanted: PodTokenRequest = token_request_of_plugin(token, pod, account_uid);
    if let Some(known) = ctx.image_call_state.plugin_tokens.lock().await.lookup(&wanted, ctx.clock.now().mono)
    {
        return Ok(known.clone());
    }
    let cluster = ctx.ports.cluster.as_ref().ok_or_else(|| "this node has no API server".to_owned())?;
    let issued = cluster.tokens.request(&wanted).await.map_err(|error| error.to_string())?;
    let issued = Token { token: issued.token, expires: issued.expires };
    ctx.image_call_state.plugin_tokens.lock().await.keep(&wanted, &issued, ctx.clock.now());
    Ok(issued)
}

/// The plugin's answer about an image, from a call or from the cache.
async fn plugin_logins(
    ctx: &EngineContext,
    plugin: &CredentialPlugin,
    repository: &str,
    pod: Option<&PluginServiceAccount>,
) -> Logins {
    let now = ctx.clock.now().mono;
    if let Some(known) =
        ctx.image_call_state.plugin_responses.lock().await.lookup(plugin, repository, pod, now)
    {
        return known.clone();
    }
    let request = plugin::request(plugin, repository, pod);
    let answer = match ctx.ports.credentials.ask(plugin, repository, &request).await {
        Ok(stdout) => plugin::parse_plugin_response(plugin, &stdout, pod).map_err(|error| error.to_string()),
        Err(error) => Err(error.user_message()),
    };
    match answer {
        Ok(answer) => {
            let now = ctx.clock.now().mono;
            ctx.image_call_state.plugin_responses.lock().await.keep(plugin, repository, pod, &answer, now);
            answer.logins
        }
        Err(message) => {
            let plugin = &plugin.name;
            tracing::error!(plugin, image = repository, "no credentials from this plugin: {message}");
            Logins::new()
        }
    }
}
