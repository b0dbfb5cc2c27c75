//! Asking credential plugins about an image, on behalf of a pod.
//!
//! ```text
//!   which plugins fit ──> ServiceAccount, if one takes tokens ──> each at the same time:
//!       annotations ──> token (kept or asked for) ──> answer (kept or asked for) ──> logins, and whose they are
//! ```
//! A plugin that fails is told of in the log, and what the others say is used. Secrets stay here: events carry none.

use decide::credentials::{
    Asking, CredentialSource, Keyring, OnBehalfOf, asking, plugin, repository, token_wanted, told_annotations,
};
use decide::effect::PullingPod;
use decide::event::Event;
use decide::images::{PullKey, split_key};
use futures::future::join_all;
use model::cluster::{Token, TokenWanted};
use model::credentials::{
    CredentialPlugin, Logins, PullServiceAccount, ServiceAccountFacts, TokenAttributes,
};

use crate::dispatcher::Shop;

/// All that are for the image, at the same time.
pub(crate) async fn ask_plugins(shop: Shop, pull: PullKey, pod: PullingPod, for_access: bool) {
    let repository = repository(split_key(&pull.image).0);
    let has_account = !pod.service_account.is_empty();
    let plugins = shop.ports.credentials.plugins().iter();
    let fitting: Vec<_> =
        plugins.filter(|plugin| plugin::is_asked(plugin, &repository, has_account)).collect();
    let account = match fitting.iter().any(|plugin| matches!(asking(plugin, &pod), Asking::WithToken(_))) {
        true => service_account(&shop, &pod).await,
        false => Err("it was not asked for".to_owned()),
    };
    let answers = fitting.iter().map(|plugin| ask_one(&shop, plugin, &repository, &pod, &account));
    let mut keyring = Keyring::default();
    for (source, logins) in join_all(answers).await.into_iter().flatten() {
        keyring.add(source, &logins);
    }
    let account = keyring.lookup(&repository).into_iter().find_map(|candidate| match candidate.source {
        CredentialSource::ServiceAccount(account) => Some(account),
        _ => None,
    });
    if !for_access {
        shop.image_room.gathered.lock().await.insert(pull.clone(), keyring);
    }
    shop.outbox.send(Event::PluginsAsked { pull, for_access, account });
}

async fn service_account(shop: &Shop, pod: &PullingPod) -> Result<ServiceAccountFacts, String> {
    let Some(cluster) = &shop.ports.cluster else {
        return Err("the node stands alone and knows no ServiceAccounts".to_owned());
    };
    let found = cluster.tokens.service_account(&pod.namespace, &pod.service_account).await;
    found.map_err(|error| error.to_string())
}

/// What one plugin says, and whose it is.
async fn ask_one(
    shop: &Shop,
    plugin: &CredentialPlugin,
    repository: &str,
    pod: &PullingPod,
    account: &Result<ServiceAccountFacts, String>,
) -> Option<(CredentialSource, Logins)> {
    let token = match asking(plugin, pod) {
        Asking::Not => return None,
        Asking::Plainly => {
            return Some((CredentialSource::Node, answer_of(shop, plugin, repository, None).await));
        }
        Asking::WithToken(token) => token,
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
    let annotations = match told_annotations(token, account) {
        Ok(annotations) => annotations,
        Err(missing) => {
            // An annotation may be how a workload says that it wants the plugin at all.
            tracing::debug!(plugin = plugin.name, "not asked: required annotation {missing} not found");
            return None;
        }
    };
    match token_for(shop, token, pod, &account.uid).await {
        Ok(issued) => {
            let account = PullServiceAccount {
                uid: account.uid.clone(),
                namespace: pod.namespace.clone(),
                name: pod.service_account.clone(),
            };
            let pod = OnBehalfOf { account: account.clone(), annotations, token: issued.token };
            let logins = answer_of(shop, plugin, repository, Some(&pod)).await;
            Some((CredentialSource::ServiceAccount(account), logins))
        }
        Err(message) => {
            failed("failed to get service account token", &message);
            None
        }
    }
}

async fn token_for(
    shop: &Shop,
    token: &TokenAttributes,
    pod: &PullingPod,
    account_uid: &str,
) -> Result<Token, String> {
    let wanted: TokenWanted = token_wanted(token, pod, account_uid);
    if let Some(known) = shop.image_room.tokens.lock().await.lookup(&wanted, shop.clock.now().mono) {
        return Ok(known.clone());
    }
    let cluster = shop.ports.cluster.as_ref().ok_or_else(|| "the node stands alone".to_owned())?;
    let issued = cluster.tokens.request(&wanted).await.map_err(|error| error.to_string())?;
    let issued = Token { token: issued.token, expires: issued.expires };
    shop.image_room.tokens.lock().await.keep(&wanted, &issued, shop.clock.now());
    Ok(issued)
}

/// What the plugin says about an image, now or lately.
async fn answer_of(
    shop: &Shop,
    plugin: &CredentialPlugin,
    repository: &str,
    pod: Option<&OnBehalfOf>,
) -> Logins {
    let now = shop.clock.now().mono;
    if let Some(known) = shop.image_room.answers.lock().await.lookup(plugin, repository, pod, now) {
        return known.clone();
    }
    let request = plugin::request(plugin, repository, pod);
    let answer = match shop.ports.credentials.ask(plugin, repository, &request).await {
        Ok(stdout) => plugin::parse_answer(plugin, &stdout, pod).map_err(|error| error.to_string()),
        Err(error) => Err(error.user_message()),
    };
    match answer {
        Ok(answer) => {
            let now = shop.clock.now().mono;
            shop.image_room.answers.lock().await.keep(plugin, repository, pod, &answer, now);
            answer.logins
        }
        Err(message) => {
            let plugin = &plugin.name;
            tracing::error!(plugin, image = repository, "no credentials from this plugin: {message}");
            Logins::new()
        }
    }
}
