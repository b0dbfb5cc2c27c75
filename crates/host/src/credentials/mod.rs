//! Registry credentials on this node: Docker config files, credential plugins, and pull records.

mod docker_files;
mod plugins;
mod records;

use std::path::PathBuf;

use async_trait::async_trait;
use model::credentials::{CredentialPlugin, DockerConfigFile};
use ports::{PluginError, RegistryCredentials};

pub use docker_files::DockerConfigDirs;
pub use plugins::{PluginPathError, read_plugin_config};
pub use records::HostPullRecords;

/// [`RegistryCredentials`] of the real node.
#[derive(Clone, Debug)]
pub struct HostCredentials {
    places: DockerConfigDirs,
    bin_dir: PathBuf,
    plugins: Vec<CredentialPlugin>,
}

impl HostCredentials {
    /// Without plugins.
    pub fn new(places: DockerConfigDirs) -> Self {
        Self { places, bin_dir: PathBuf::new(), plugins: Vec::new() }
    }

    /// With plugins whose programs are in `bin_dir`. Each program must exist.
    pub fn with_plugins(
        self,
        bin_dir: impl Into<PathBuf>,
        plugins: Vec<CredentialPlugin>,
    ) -> Result<Self, PluginPathError> {
        let bin_dir = bin_dir.into();
        plugins::check_programs(&bin_dir, &plugins)?;
        Ok(Self { bin_dir, plugins, ..self })
    }
}

#[async_trait]
impl RegistryCredentials for HostCredentials {
    async fn docker_configs(&self) -> Vec<DockerConfigFile> {
        docker_files::read(&self.places).await
    }

    fn plugins(&self) -> &[CredentialPlugin] {
        &self.plugins
    }

    async fn ask(
        &self,
        plugin: &CredentialPlugin,
        image: &str,
        request: &str,
    ) -> Result<Vec<u8>, PluginError> {
        plugins::run_plugin(&self.bin_dir.join(&plugin.name), plugin, image, request, plugins::PLUGIN_TIMEOUT)
            .await
    }
}

#[cfg(test)]
mod plugin_tests;
