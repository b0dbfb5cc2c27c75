//! How calls to the Kubernetes API fail.

use std::time::Duration;

use crate::Disposition;

/// A failed call to the API server. `call` says what was asked of which object (`get pod default/web`); `message` is
/// the server's own, or that of the part that failed.
#[derive(thiserror::Error, Clone, Debug, PartialEq)]
pub enum ApiError {
    /// The object is not there.
    #[error("{call}: {message}")]
    NotFound { call: String, message: String },
    /// The server has no such resource at all: an API that is off, or older than the question.
    #[error("{call}: the server does not know this resource: {message}")]
    Unsupported { call: String, message: String },
    #[error("{call}: {message}")]
    AlreadyExists { call: String, message: String },
    /// Somebody else was faster, or a precondition (such as the UID) does not hold: read again, decide again.
    #[error("{call}: {message}")]
    Conflict { call: String, message: String },
    /// The resource version is too old: list again.
    #[error("{call}: {message}")]
    Gone { call: String, message: String },
    #[error("{call}: {message}")]
    TooManyRequests { call: String, message: String, retry_after: Option<Duration> },
    #[error("{call}: {message}")]
    Forbidden { call: String, message: String },
    #[error("{call}: {message}")]
    Unauthorized { call: String, message: String },
    /// The server understood, and refuses the object or the request as it is.
    #[error("{call}: {message}")]
    Invalid { call: String, message: String },
    /// The server gave up, and may not have done it.
    #[error("{call}: {message}")]
    ServerTimeout { call: String, message: String, retry_after: Option<Duration> },
    /// The server has a fault of its own, or something before it answers in its place.
    #[error("{call}: the server answered {code}: {message}")]
    ServerFault { call: String, code: u16, message: String },
    /// No connection, or it broke before the answer was complete.
    #[error("{call}: the API server is not reachable: {message}")]
    Unavailable { call: String, message: String },
    #[error("{call}: TLS with the API server failed: {message}")]
    Tls { call: String, fault: TlsFault, message: String },
    /// The answer can't be read.
    #[error("{call}: the answer can't be read: {message}")]
    Decode { call: String, message: String },
    /// No answer within the caller's deadline. It may have been done or not.
    #[error("{call}: no answer within {after:?}")]
    TimedOut { call: String, after: Duration },
    /// Our own credentials could not be had: a token file, or a plugin.
    #[error("{call}: no credentials: {message}")]
    Credentials { call: String, message: String },
}

/// What is wrong between the two ends of a TLS connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TlsFault {
    /// Nobody that we trust signed the server's certificate.
    UntrustedServer,
    /// The server's certificate is out of date, or not yet valid: or this machine's clock is wrong.
    ServerCertificateNotInForce,
    /// The server's certificate is for another name or address.
    NameMismatch,
    /// The server refuses our certificate.
    ClientRefused,
    /// What listens there speaks no TLS.
    NotTls,
    Other,
}

impl ApiError {
    pub fn disposition(&self) -> Disposition {
        match self {
            ApiError::NotFound { .. } => Disposition::Absent,
            ApiError::Unsupported { .. } => Disposition::Unsupported,
            ApiError::Conflict { .. }
            | ApiError::Gone { .. }
            | ApiError::TooManyRequests { .. }
            | ApiError::ServerTimeout { .. }
            | ApiError::ServerFault { .. }
            | ApiError::Unavailable { .. }
            | ApiError::TimedOut { .. }
            | ApiError::Credentials { .. } => Disposition::Retry,
            ApiError::AlreadyExists { .. }
            | ApiError::Forbidden { .. }
            | ApiError::Unauthorized { .. }
            | ApiError::Invalid { .. }
            | ApiError::Tls { .. }
            | ApiError::Decode { .. } => Disposition::Refused,
        }
    }

    /// How long the server asked us to wait before the next try.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            ApiError::TooManyRequests { retry_after, .. } | ApiError::ServerTimeout { retry_after, .. } => {
                *retry_after
            }
            _ => None,
        }
    }

    /// The server was reached and answered, whatever it said.
    pub fn server_answered(&self) -> bool {
        !matches!(
            self,
            ApiError::Unavailable { .. }
                | ApiError::Tls { .. }
                | ApiError::TimedOut { .. }
                | ApiError::Credentials { .. }
        )
    }
}
