//! Caches the answers of credential plugins as long as they are valid.

use std::collections::BTreeMap;

use model::Mono;
use model::credentials::{CredentialPlugin, Logins, PullServiceAccount, TokenCacheType};

use super::matching::registry;
use super::plugin::{CacheKeyType, PluginResponse};
use super::service_account::PluginServiceAccount;

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum CacheScope {
    /// The image name with registry and path.
    Image(String),
    Registry(String),
    Global,
}

/// Part of the cache key: service account, its annotations, and the token hash if the plugin's cacheType is Token.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct CacheAccount {
    account: PullServiceAccount,
    annotations: BTreeMap<String, String>,
    token_hash: Option<String>,
}

fn for_account(
    plugin: &CredentialPlugin,
    on_behalf_of: Option<&PluginServiceAccount>,
) -> Option<CacheAccount> {
    let pod = on_behalf_of?;
    let by_token = plugin.token.as_ref().is_some_and(|token| token.cache == TokenCacheType::Token);
    Some(CacheAccount {
        account: pod.account.clone(),
        annotations: pod.annotations.clone(),
        token_hash: by_token.then(|| pod.token_hash()),
    })
}

#[derive(Clone, Debug)]
struct CachedLogins {
    logins: Logins,
    until: Mono,
}

#[derive(Clone, Debug, Default)]
pub struct PluginCache {
    kept: BTreeMap<(String, CacheScope, Option<CacheAccount>), CachedLogins>,
}

impl PluginCache {
    /// The cached answer of the plugin for an image. The answer with the narrowest scope wins.
    pub fn lookup(
        &self,
        plugin: &CredentialPlugin,
        repository: &str,
        on_behalf_of: Option<&PluginServiceAccount>,
        now: Mono,
    ) -> Option<&Logins> {
        let account = for_account(plugin, on_behalf_of);
        let scopes = [
            CacheScope::Image(repository.to_owned()),
            CacheScope::Registry(registry(repository).to_owned()),
            CacheScope::Global,
        ];
        scopes.into_iter().find_map(|scope| {
            let kept = self.kept.get(&(plugin.name.clone(), scope, account.clone()))?;
            (now <= kept.until).then_some(&kept.logins)
        })
    }

    /// Caches an answer for the time that it specifies, and drops expired ones.
    pub fn keep(
        &mut self,
        plugin: &CredentialPlugin,
        repository: &str,
        on_behalf_of: Option<&PluginServiceAccount>,
        answer: &PluginResponse,
        now: Mono,
    ) {
        self.kept.retain(|_, kept| now <= kept.until);
        let span = answer.cache.unwrap_or(plugin.default_cache);
        if span.is_zero() {
            return;
        }
        let scope = match answer.key {
            CacheKeyType::Image => CacheScope::Image(repository.to_owned()),
            CacheKeyType::Registry => CacheScope::Registry(registry(repository).to_owned()),
            CacheKeyType::Global => CacheScope::Global,
        };
        let kept = CachedLogins { logins: answer.logins.clone(), until: now.plus(span) };
        self.kept.insert((plugin.name.clone(), scope, for_account(plugin, on_behalf_of)), kept);
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.kept.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::plugin::sample;
    use model::credentials::{Login, TokenAttributes};
    use std::time::Duration;

    fn answer(name: &str, key: CacheKeyType, seconds: Option<u64>) -> PluginResponse {
        let login = Login { username: name.into(), ..Login::default() };
        let logins = Logins::from([("*.test".to_owned(), login)]);
        PluginResponse { logins, key, cache: seconds.map(Duration::from_secs) }
    }

    fn at(seconds: u64) -> Mono {
        Mono::from_duration(Duration::from_secs(seconds))
    }

    fn found(cache: &PluginCache, repository: &str, seconds: u64) -> Option<String> {
        let logins = cache.lookup(&sample(), repository, None, at(seconds))?;
        logins.values().next().map(|login| login.username.clone())
    }

    #[test]
    fn an_answer_is_good_for_what_it_says() {
        let check = |key: CacheKeyType, expect: [bool; 3]| {
            let mut cache = PluginCache::default();
            cache.keep(&sample(), "h.test/a", None, &answer("x", key, None), at(0));
            let seen = ["h.test/a", "h.test/b", "i.test/a"].map(|image| found(&cache, image, 1).is_some());
            assert_eq!(seen, expect, "{key:?}");
        };
        check(CacheKeyType::Image, [true, false, false]);
        check(CacheKeyType::Registry, [true, true, false]);
        check(CacheKeyType::Global, [true, true, true]);
    }

    #[test]
    fn an_answer_for_a_service_account_is_kept_for_it() {
        let pod = |uid: &str, annotation: &str, token: &str| PluginServiceAccount {
            account: PullServiceAccount { uid: uid.into(), namespace: "ns".into(), name: "sa".into() },
            annotations: BTreeMap::from([("k".to_owned(), annotation.to_owned())]),
            token: token.into(),
        };
        let check = |cache_type: TokenCacheType, other: Option<PluginServiceAccount>, expect: bool| {
            let token = TokenAttributes {
                audience: "a".into(),
                required: false,
                required_annotations: Vec::new(),
                optional_annotations: Vec::new(),
                cache: cache_type,
            };
            let plugin = CredentialPlugin { token: Some(token), ..sample() };
            let mut cache = PluginCache::default();
            let said = answer("x", CacheKeyType::Global, None);
            cache.keep(&plugin, "h.test/a", Some(&pod("1", "v", "t")), &said, at(0));
            let seen = cache.lookup(&plugin, "h.test/a", other.as_ref(), at(1)).is_some();
            assert_eq!(seen, expect, "{cache_type:?} {other:?}");
        };
        use TokenCacheType::{ServiceAccount, Token};
        for cache_type in [ServiceAccount, Token] {
            check(cache_type, Some(pod("1", "v", "t")), true);
            check(cache_type, Some(pod("2", "v", "t")), false);
            check(cache_type, Some(pod("1", "w", "t")), false);
            check(cache_type, None, false);
        }
        check(ServiceAccount, Some(pod("1", "v", "another")), true);
        check(Token, Some(pod("1", "v", "another")), false);
    }

    #[test]
    fn the_narrowest_answer_wins() {
        let mut cache = PluginCache::default();
        cache.keep(&sample(), "h.test/a", None, &answer("global", CacheKeyType::Global, None), at(0));
        cache.keep(&sample(), "h.test/a", None, &answer("registry", CacheKeyType::Registry, None), at(0));
        cache.keep(&sample(), "h.test/a", None, &answer("image", CacheKeyType::Image, None), at(0));
        let seen = ["h.test/a", "h.test/b", "i.test/a"].map(|image| found(&cache, image, 1).unwrap());
        assert_eq!(seen, ["image", "registry", "global"]);
    }

    #[test]
    fn an_answer_is_good_as_long_as_it_says() {
        let check = |seconds: Option<u64>, then: u64, expect: bool| {
            let mut cache = PluginCache::default();
            cache.keep(&sample(), "h.test/a", None, &answer("x", CacheKeyType::Image, seconds), at(100));
            assert_eq!(found(&cache, "h.test/a", 100 + then).is_some(), expect, "{seconds:?} {then}");
        };
        // its own span
        check(Some(10), 10, true);
        check(Some(10), 11, false);
        check(Some(0), 0, false);
        // the configured one, which is a minute
        check(None, 60, true);
        check(None, 61, false);
        let never = CredentialPlugin { default_cache: Duration::ZERO, ..sample() };
        let mut cache = PluginCache::default();
        cache.keep(&never, "h.test/a", None, &answer("x", CacheKeyType::Image, None), at(0));
        assert_eq!(cache.len(), 0);
    }

    #[test]
    fn plugins_do_not_see_each_others_answers() {
        let mut cache = PluginCache::default();
        let other = CredentialPlugin { name: "other".into(), ..sample() };
        cache.keep(&other, "h.test/a", None, &answer("x", CacheKeyType::Global, None), at(0));
        assert_eq!(found(&cache, "h.test/a", 1), None);
    }

    #[test]
    fn old_answers_do_not_pile_up() {
        let mut cache = PluginCache::default();
        for image in 0..100 {
            let repository = format!("h.test/{image}");
            cache.keep(
                &sample(),
                &repository,
                None,
                &answer("x", CacheKeyType::Image, Some(1)),
                at(2 * image),
            );
        }
        assert_eq!(cache.len(), 1);
    }
}
