//! Where credentials of registries are found, and the records of what was pulled.

use std::process::ExitStatus;
use std::time::Duration;

use async_trait::async_trait;
use model::credentials::{CredentialPlugin, DockerConfigFile, PulledRecord};

/// Why a plugin gave no answer. Each names the plugin and the image that it was asked about.
#[derive(thiserror::Error, Debug)]
pub enum PluginError {
    #[error("error execing credential provider plugin {plugin} for image {image}")]
    Start {
        plugin: String,
        image: String,
        #[source]
        source: std::io::Error,
    },
    #[error(
        "error execing credential provider plugin {plugin} for image {image}: no answer within {after:?}"
    )]
    TimedOut { plugin: String, image: String, after: Duration },
    /// `stderr`: the end of what it said there.
    #[error("error execing credential provider plugin {plugin} for image {image}: {status}: {stderr}")]
    Failed { plugin: String, image: String, status: ExitStatus, stderr: String },
    #[error("credential provider plugin {plugin} for image {image} wrote more than {limit} bytes")]
    TooMuch { plugin: String, image: String, limit: u64 },
}

impl PluginError {
    /// The error and its causes in one line.
    pub fn user_message(&self) -> String {
        match std::error::Error::source(self) {
            Some(cause) => format!("{self}: {cause}"),
            None => self.to_string(),
        }
    }
}

/// The node's own credentials. Secrets of pods come from elsewhere.
#[async_trait]
pub trait RegistryCredentials: Send + Sync {
    /// Docker's files that are there now, in the order in which they count.
    async fn docker_configs(&self) -> Vec<DockerConfigFile>;
    /// In the order of the configuration.
    fn plugins(&self) -> &[CredentialPlugin];
    /// Runs a plugin with the request on its stdin, and gives what it wrote to stdout.
    async fn ask(
        &self,
        plugin: &CredentialPlugin,
        image: &str,
        request: &str,
    ) -> Result<Vec<u8>, PluginError>;
}

#[derive(thiserror::Error, Debug)]
pub enum RecordError {
    #[error("{operation} {path}")]
    Io {
        operation: &'static str,
        path: String,
        #[source]
        source: std::io::Error,
    },
    #[error("{path} is no record of a pull")]
    Malformed {
        path: String,
        #[source]
        source: serde_json::Error,
    },
}

impl RecordError {
    /// The error and its causes in one line.
    pub fn user_message(&self) -> String {
        match std::error::Error::source(self) {
            Some(cause) => format!("{self}: {cause}"),
            None => self.to_string(),
        }
    }
}

/// What the agent must still know after a crash: the pulls that it began, and how those that ended were done.
#[async_trait]
pub trait PullRecords: Send + Sync {
    async fn write_intent(&self, image: &str) -> Result<(), RecordError>;
    /// One that is not there is no error.
    async fn remove_intent(&self, image: &str) -> Result<(), RecordError>;
    async fn has_intent(&self, image: &str) -> Result<bool, RecordError>;
    /// Images of all intents, sorted. Files that can't be read are left out.
    async fn intents(&self) -> Result<Vec<String>, RecordError>;
    /// All records of pulled images. Files that can't be read are left out.
    async fn pulled(&self) -> Result<Vec<PulledRecord>, RecordError>;
    async fn read_pulled(&self, image_ref: &str) -> Result<Option<PulledRecord>, RecordError>;
    async fn write_pulled(&self, record: &PulledRecord) -> Result<(), RecordError>;
    /// One that is not there is no error.
    async fn remove_pulled(&self, image_ref: &str) -> Result<(), RecordError>;
}
