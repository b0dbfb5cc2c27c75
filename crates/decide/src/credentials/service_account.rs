//! Service account tokens for credential provider plugins: how a plugin is invoked for a pod, which annotations it
//! gets, and how long a token is cached.

use std::collections::BTreeMap;
use std::fmt;

use model::cluster::{PodTokenRequest, Token};
use model::credentials::{CredentialPlugin, PullServiceAccount, ServiceAccountFacts, TokenAttributes};
use model::{Mono, Now};
use sha2::{Digest, Sha256};

use crate::image_pull::PullingPod;
use crate::token_lifetime::refresh_at;

/// Lifetime of requested tokens: the API server's default.
const TOKEN_SECS: i64 = 3600;

/// The service account for which a plugin is invoked. The `Debug` form does not show the token.
#[derive(Clone, PartialEq, Eq)]
pub struct PluginServiceAccount {
    pub account: PullServiceAccount,
    /// Service account annotations that the plugin configuration asks for.
    pub annotations: BTreeMap<String, String>,
    pub token: String,
}

impl fmt::Debug for PluginServiceAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnBehalfOf").field("account", &self.account).finish_non_exhaustive()
    }
}

impl PluginServiceAccount {
    pub fn token_hash(&self) -> String {
        Sha256::digest(&self.token).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// How a plugin that matches the image is invoked for a pod.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PluginInvocation<'a> {
    /// Without a service account.
    WithoutToken,
    /// With a token of the pod's service account.
    WithToken(&'a TokenAttributes),
    Skip,
}

pub fn plugin_invocation<'a>(plugin: &'a CredentialPlugin, pod: &PullingPod) -> PluginInvocation<'a> {
    match &plugin.token {
        None => PluginInvocation::WithoutToken,
        Some(token) if !pod.service_account.is_empty() => PluginInvocation::WithToken(token),
        // A plugin that does not require a token is invoked without one for pods that can't have any, such as static
        // pods.
        Some(token) if !token.required => PluginInvocation::WithoutToken,
        Some(_) => PluginInvocation::Skip,
    }
}

/// The annotations that the plugin gets. Fails with the name of a required annotation that is missing.
pub fn annotations_for_plugin(
    token: &TokenAttributes,
    account: &ServiceAccountFacts,
) -> Result<BTreeMap<String, String>, String> {
    let known = |key: &String| account.annotations.get(key).map(|value| (key.clone(), value.clone()));
    let required = token.required_annotations.iter().map(|key| known(key).ok_or_else(|| key.clone()));
    let mut told: BTreeMap<String, String> = required.collect::<Result<_, _>>()?;
    told.extend(token.optional_annotations.iter().filter_map(known));
    Ok(told)
}

pub fn token_request_of_plugin(
    token: &TokenAttributes,
    pod: &PullingPod,
    account_uid: &str,
) -> PodTokenRequest {
    PodTokenRequest {
        namespace: pod.namespace.clone(),
        service_account: pod.service_account.clone(),
        account_uid: Some(account_uid.to_owned()),
        audiences: vec![token.audience.clone()],
        expiration_secs: TOKEN_SECS,
        pod_name: pod.name.clone(),
        pod_uid: pod.uid.clone(),
    }
}

/// Cached tokens for plugins, until they have to be requested again.
#[derive(Clone, Debug, Default)]
pub struct PluginTokens {
    kept: BTreeMap<PodTokenRequest, (Token, Mono)>,
}

impl PluginTokens {
    pub fn lookup(&self, wanted: &PodTokenRequest, now: Mono) -> Option<&Token> {
        self.kept.get(wanted).filter(|(_, until)| now < *until).map(|(token, _)| token)
    }

    /// Caches a token, and drops expired ones.
    pub fn keep(&mut self, wanted: &PodTokenRequest, token: &Token, now: Now) {
        self.kept.retain(|_, (_, until)| now.mono < *until);
        let until = refresh_at(wanted, token, now);
        self.kept.insert(wanted.clone(), (token.clone(), until));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::plugin::sample;
    use model::Wall;
    use model::credentials::TokenCacheType;
    use std::time::Duration;

    fn attributes(required: bool) -> TokenAttributes {
        TokenAttributes {
            audience: "registry".into(),
            required,
            required_annotations: vec!["must".into()],
            optional_annotations: vec!["may".into()],
            cache: TokenCacheType::Token,
        }
    }

    fn pod(service_account: &str) -> PullingPod {
        PullingPod {
            namespace: "ns".into(),
            name: "p".into(),
            uid: "uid-p".into(),
            service_account: service_account.into(),
        }
    }

    #[test]
    fn who_is_asked_how() {
        let plain = sample();
        let takes = CredentialPlugin { token: Some(attributes(false)), ..sample() };
        let needs = CredentialPlugin { token: Some(attributes(true)), ..sample() };
        assert_eq!(plugin_invocation(&plain, &pod("sa")), PluginInvocation::WithoutToken);
        assert_eq!(plugin_invocation(&takes, &pod("sa")), PluginInvocation::WithToken(&attributes(false)));
        assert_eq!(plugin_invocation(&takes, &pod("")), PluginInvocation::WithoutToken);
        assert_eq!(plugin_invocation(&needs, &pod("sa")), PluginInvocation::WithToken(&attributes(true)));
        assert_eq!(plugin_invocation(&needs, &pod("")), PluginInvocation::Skip);
    }

    #[test]
    fn only_configured_annotations_are_told() {
        let check = |annotations: &[(&str, &str)], expect: Result<&[(&str, &str)], &str>| {
            let map = |pairs: &[(&str, &str)]| {
                pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<BTreeMap<_, _>>()
            };
            let account = ServiceAccountFacts { uid: "u".into(), annotations: map(annotations) };
            let seen = annotations_for_plugin(&attributes(true), &account);
            assert_eq!(seen, expect.map(map).map_err(str::to_owned));
        };
        check(&[("must", "1"), ("may", "2"), ("other", "3")], Ok(&[("must", "1"), ("may", "2")]));
        check(&[("must", "1")], Ok(&[("must", "1")]));
        check(&[("may", "2")], Err("must"));
    }

    #[test]
    fn a_token_is_used_for_most_of_its_time() {
        let wanted = token_request_of_plugin(&attributes(true), &pod("sa"), "uid-sa");
        assert_eq!(
            (wanted.audiences.as_slice(), wanted.expiration_secs),
            (&["registry".to_owned()][..], 3600)
        );
        let mut tokens = PluginTokens::default();
        let at = |secs: u64| Mono::from_duration(Duration::from_secs(secs));
        let token = Token { token: "t".into(), expires: Wall(0).plus(Duration::from_secs(3600)) };
        tokens.keep(&wanted, &token, Now { mono: at(0), wall: Wall(0) });
        assert_eq!(tokens.lookup(&wanted, at(2800)), Some(&token));
        assert_eq!(tokens.lookup(&wanted, at(2900)), None);
        let renewed = token_request_of_plugin(&attributes(true), &pod("sa"), "another uid");
        assert_eq!(tokens.lookup(&renewed, at(1)), None);
        tokens.keep(&renewed, &token, Now { mono: at(3000), wall: Wall(0) });
        assert_eq!(tokens.kept.len(), 1);
    }
}
