//! How long a token of a service account is used before another one is requested.

use std::time::Duration;

use model::cluster::{PodTokenRequest, Token};
use model::{Mono, Now};

use model::hash::fnv1a_64;

/// Older ones are replaced, however long they would last.
const LONGEST_USE: Duration = Duration::from_secs(24 * 3600);
/// So that the tokens of a node are not all asked for at the same moment.
const JITTER: Duration = Duration::from_secs(10);
/// Whatever the clocks of node and server say: not a storm of requests.
const SHORTEST_USE: Duration = Duration::from_secs(60);

/// When the token is to be requested again.
pub(crate) fn refresh_at(wanted: &PodTokenRequest, token: &Token, now: Now) -> Mono {
    let asked = Duration::from_secs(u64::try_from(wanted.expiration_secs).unwrap_or(0));
    let lasts = match token.expires.since(now.wall) {
        // The clocks differ: what was asked for is the better guess.
        Duration::ZERO => asked,
        lasts => lasts,
    };
    let text = format!("{}/{}/{:?}", described(wanted), wanted.pod_uid, token.expires);
    let jitter = JITTER.mul_f64((fnv1a_64(text.as_bytes()) % 1000) as f64 / 1000.0);
    let wait = (lasts.saturating_mul(4) / 5).min(LONGEST_USE).saturating_sub(jitter).max(SHORTEST_USE);
    now.mono.plus(wait)
}

/// Names a token in messages.
pub(crate) fn described(wanted: &PodTokenRequest) -> String {
    format!("{:?}/{:?}/{:?}", wanted.namespace, wanted.service_account, wanted.audiences)
}
