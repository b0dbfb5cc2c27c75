//! The credentials that are sent in request headers: bearer token, basic auth, or the output of an exec plugin.

mod exec;
mod token_file;

use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use ports::WallClock;

use crate::kubeconfig::{Credential, KeyPair, PemProblem};

#[derive(thiserror::Error, Debug)]
pub enum CredentialError {
    #[error("token file {}: can't be read", file.display())]
    TokenFile {
        file: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("token file {}: is empty", file.display())]
    EmptyTokenFile { file: PathBuf },
    #[error("the token or password can't be sent in a header")]
    NotAHeader,
    #[error("exec plugin {}: can't be started{hint}", command.display())]
    Start {
        command: PathBuf,
        hint: String,
        #[source]
        source: std::io::Error,
    },
    #[error("exec plugin {}: {status}: {stderr}", command.display())]
    Failed { command: PathBuf, status: ExitStatus, stderr: String },
    #[error("exec plugin {}: no answer within {after:?}", command.display())]
    TimedOut { command: PathBuf, after: Duration },
    #[error("exec plugin {}: can't be interactive: standard input is not a terminal", command.display())]
    NoTerminal { command: PathBuf },
    #[error("exec plugin {}: {problem}", command.display())]
    Answer { command: PathBuf, problem: String },
    #[error("exec plugin {}: its certificate or key: {problem}", command.display())]
    AnswerPem { command: PathBuf, problem: PemProblem },
}

/// The credentials of one request.
#[derive(Clone, Default)]
pub struct RequestCredentials {
    pub authorization: Option<HeaderValue>,
    /// A client certificate for the connection, which replaces the kubeconfig's.
    pub pair: Option<Arc<KeyPair>>,
    /// The number of the reading that it comes from, for [`ApiCredentials::invalidate`].
    serial: u64,
}

/// Holds the current credential and renews it.
pub struct ApiCredentials {
    kind: Kind,
    wall: Arc<dyn WallClock>,
}

enum Kind {
    Fixed(Option<HeaderValue>),
    TokenFile(token_file::TokenFile),
    Exec(Arc<exec::Exec>),
}

impl ApiCredentials {
    pub fn new(credential: &Credential, wall: Arc<dyn WallClock>) -> Result<ApiCredentials, CredentialError> {
        let kind = match credential {
            Credential::None => Kind::Fixed(None),
            Credential::Token(token) => Kind::Fixed(Some(bearer(token)?)),
            Credential::Basic { username, password } => {
                let packed = STANDARD.encode(format!("{username}:{password}"));
                Kind::Fixed(Some(secret(&format!("Basic {packed}"))?))
            }
            Credential::TokenFile { file, first } => {
                let first = first.as_deref().map(bearer).transpose()?;
                Kind::TokenFile(token_file::TokenFile::new(file.clone(), first))
            }
            Credential::Exec(plugin) => Kind::Exec(Arc::new(exec::Exec::new((**plugin).clone()))),
        };
        Ok(ApiCredentials { kind, wall })
    }

    pub async fn current(&self) -> Result<RequestCredentials, CredentialError> {
        match &self.kind {
            Kind::Fixed(authorization) => Ok(RequestCredentials {
                authorization: authorization.clone(),
                ..RequestCredentials::default()
            }),
            Kind::TokenFile(file) => file.current().await,
            Kind::Exec(plugin) => exec::current(plugin.clone(), self.wall.wall()).await,
        }
    }

    /// Called when the server did not accept the credential: the next request gets a new one, if there is one.
    pub async fn invalidate(&self, shown: &RequestCredentials) {
        match &self.kind {
            Kind::Fixed(_) => {}
            Kind::TokenFile(file) => file.forget(),
            Kind::Exec(plugin) => plugin.forget(shown.serial).await,
        }
    }

    /// The token file that has to be read again when it changes.
    pub fn file(&self) -> Option<PathBuf> {
        match &self.kind {
            Kind::TokenFile(file) => Some(file.path().to_owned()),
            _ => None,
        }
    }

    /// Reads the token file again for the next request.
    pub fn reread_token_file(&self) {
        if let Kind::TokenFile(file) = &self.kind {
            file.forget();
        }
    }
}

fn bearer(token: &str) -> Result<HeaderValue, CredentialError> {
    secret(&format!("Bearer {token}"))
}

fn secret(text: &str) -> Result<HeaderValue, CredentialError> {
    let mut value = HeaderValue::from_str(text).map_err(|_| CredentialError::NotAHeader)?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests;
