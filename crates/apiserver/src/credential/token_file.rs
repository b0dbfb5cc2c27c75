//! A token in a file that another program renews.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use http::HeaderValue;
use tokio::time::Instant;

use super::{CredentialError, RequestCredentials, bearer};

/// The file is read again after this time, or earlier after a notice of a change.
const TOKEN_MAX_AGE: Duration = Duration::from_secs(10);

pub struct TokenFile {
    file: PathBuf,
    /// The token that is used until the file was read once.
    first: Option<HeaderValue>,
    last: ArcSwapOption<CachedToken>,
}

struct CachedToken {
    at: Instant,
    /// False after the server refused the token, or after a notice of a change.
    good: bool,
    value: HeaderValue,
}

impl TokenFile {
    pub fn new(file: PathBuf, first: Option<HeaderValue>) -> Self {
        Self { file, first, last: ArcSwapOption::empty() }
    }

    pub fn path(&self) -> &Path {
        &self.file
    }

    pub fn forget(&self) {
        self.last.rcu(|last| {
            last.as_ref()
                .map(|last| Arc::new(CachedToken { good: false, at: last.at, value: last.value.clone() }))
        });
    }

    pub async fn current(&self) -> Result<RequestCredentials, CredentialError> {
        let last = self.last.load_full();
        if let Some(last) = &last
            && last.good
            && last.at.elapsed() < TOKEN_MAX_AGE
        {
            return Ok(shown(last.value.clone()));
        }
        match self.read().await {
            Ok(value) => {
                let reading = CachedToken { at: Instant::now(), good: true, value: value.clone() };
                self.last.store(Some(Arc::new(reading)));
                Ok(shown(value))
            }
            // The last token is better than none while the file is being replaced.
            Err(error) => {
                let known = last.map(|last| last.value.clone()).or_else(|| self.first.clone());
                known.map(shown).ok_or(error)
            }
        }
    }

    async fn read(&self) -> Result<HeaderValue, CredentialError> {
        let text = tokio::fs::read_to_string(&self.file)
            .await
            .map_err(|source| CredentialError::TokenFile { file: self.file.clone(), source })?;
        match text.trim() {
            "" => Err(CredentialError::EmptyTokenFile { file: self.file.clone() }),
            token => bearer(token),
        }
    }
}

fn shown(value: HeaderValue) -> RequestCredentials {
    RequestCredentials { authorization: Some(value), ..RequestCredentials::default() }
}
