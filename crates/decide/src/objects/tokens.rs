//! Tokens of service accounts: asked for when their pod comes, and again in time.
//!
//! ```text
//!   claim ──> asked ──> issued: asked again at 80% of its time, or after a day
//!                └────> failed: asked again after a back-off; one that is still good is used until then
//! ```

use std::collections::BTreeMap;

use model::cluster::{PodTokenRequest, Token};
use model::{Now, Wall};

use crate::back_off::volume_delay;
use crate::effect::{Effect, TimerKey};
use crate::token_lifetime::{described, refresh_at};

#[derive(Clone, Debug, Default)]
pub struct TokenCache {
    tokens: BTreeMap<PodTokenRequest, Entry>,
    /// Counts all that were ever issued.
    serial: u64,
}

#[derive(Clone, Debug, Default)]
struct Entry {
    token: Option<Token>,
    /// Which one it is.
    serial: u64,
    /// How the last try ended, if not well.
    failure: Option<String>,
    attempts: u32,
    asking: bool,
}

/// What is known of a token.
#[derive(Clone, PartialEq, Debug)]
pub enum TokenLookup<'a> {
    NotIssued,
    Valid { token: &'a Token, serial: u64 },
    Failed { message: String },
}

impl TokenCache {
    pub(super) fn add_token(&mut self, wanted: &PodTokenRequest) -> Option<Effect> {
        let entry = self.tokens.entry(wanted.clone()).or_default();
        ask(wanted, entry)
    }

    pub(super) fn release(&mut self, wanted: &PodTokenRequest) -> Option<Effect> {
        let entry = self.tokens.remove(wanted)?;
        // One that is being asked for has no timer.
        (!entry.asking).then(|| Effect::SetTimer { key: TimerKey::Token(wanted.clone()), at: None })
    }

    /// Its time has come.
    pub fn refresh(&mut self, wanted: &PodTokenRequest) -> Option<Effect> {
        ask(wanted, self.tokens.get_mut(wanted)?)
    }

    pub(super) fn issued(
        &mut self,
        wanted: &PodTokenRequest,
        result: Result<Token, String>,
        now: Now,
    ) -> (bool, Vec<Effect>) {
        let Some(entry) = self.tokens.get_mut(wanted) else { return (false, Vec::new()) };
        entry.asking = false;
        let at = match result {
            Ok(token) => {
                self.serial += 1;
                let at = refresh_at(wanted, &token, now);
                *entry = Entry { token: Some(token), serial: self.serial, ..Entry::default() };
                at
            }
            Err(message) => {
                entry.failure = Some(message);
                entry.attempts += 1;
                now.mono.plus(volume_delay(entry.attempts))
            }
        };
        (true, vec![Effect::SetTimer { key: TimerKey::Token(wanted.clone()), at: Some(at) }])
    }

    pub fn lookup(&self, wanted: &PodTokenRequest, now: Wall) -> TokenLookup<'_> {
        let Some(entry) = self.tokens.get(wanted) else { return TokenLookup::NotIssued };
        match (&entry.token, &entry.failure) {
            (Some(token), None) => TokenLookup::Valid { token, serial: entry.serial },
            (Some(token), Some(_)) if token.expires > now => {
                TokenLookup::Valid { token, serial: entry.serial }
            }
            (Some(_), Some(failure)) => TokenLookup::Failed {
                message: format!("token {} expired and refresh failed: {failure}", described(wanted)),
            },
            (None, Some(failure)) => {
                TokenLookup::Failed { message: format!("failed to fetch token: {failure}") }
            }
            (None, None) => TokenLookup::NotIssued,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

fn ask(wanted: &PodTokenRequest, entry: &mut Entry) -> Option<Effect> {
    if entry.asking {
        return None;
    }
    entry.asking = true;
    Some(Effect::RequestToken { wanted: wanted.clone() })
}
