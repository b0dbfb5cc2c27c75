//! The format of the file. Unknown fields are ignored, as in every client.

use serde::Deserialize;

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default)]
pub(super) struct Document {
    #[serde(rename = "apiVersion")]
    pub api_version: Option<String>,
    pub kind: Option<String>,
    pub current_context: Option<String>,
    pub clusters: Option<Vec<NamedCluster>>,
    pub users: Option<Vec<NamedUser>>,
    pub contexts: Option<Vec<NamedContext>>,
}

#[derive(Deserialize)]
pub(super) struct NamedCluster {
    pub name: String,
    #[serde(default)]
    pub cluster: Option<Cluster>,
}

#[derive(Deserialize)]
pub(super) struct NamedUser {
    pub name: String,
    #[serde(default)]
    pub user: Option<User>,
}

#[derive(Deserialize)]
pub(super) struct NamedContext {
    pub name: String,
    #[serde(default)]
    pub context: Option<Context>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Context {
    pub cluster: Option<String>,
    pub user: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default)]
pub(super) struct Cluster {
    pub server: Option<String>,
    pub tls_server_name: Option<String>,
    pub insecure_skip_tls_verify: Option<bool>,
    pub certificate_authority: Option<String>,
    pub certificate_authority_data: Option<String>,
    pub proxy_url: Option<String>,
    pub extensions: Option<Vec<Extension>>,
}

#[derive(Deserialize)]
pub(super) struct Extension {
    pub name: String,
    #[serde(default)]
    pub extension: serde_json::Value,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default)]
pub(super) struct User {
    pub client_certificate: Option<String>,
    pub client_certificate_data: Option<String>,
    pub client_key: Option<String>,
    pub client_key_data: Option<String>,
    pub token: Option<String>,
    #[serde(rename = "tokenFile")]
    pub token_file: Option<String>,
    pub username: Option<String>,
    pub password: Option<String>,
    #[serde(rename = "as")]
    pub act_as: Option<String>,
    pub as_uid: Option<String>,
    pub as_groups: Option<Vec<String>>,
    pub auth_provider: Option<serde_json::Value>,
    pub exec: Option<Exec>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Exec {
    pub command: Option<String>,
    pub args: Option<Vec<String>>,
    pub env: Option<Vec<ExecEnv>>,
    pub api_version: Option<String>,
    pub install_hint: Option<String>,
    pub provide_cluster_info: Option<bool>,
    pub interactive_mode: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct ExecEnv {
    pub name: String,
    pub value: String,
}
