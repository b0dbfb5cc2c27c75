//! Exec plugins: a program that prints a credential, which may have an expiry.

use std::io::IsTerminal;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use model::Wall;
use model::text_limits::{TextLimit, truncate_output};
use serde::Deserialize;
use serde_json::json;
use tokio::process::Command;
use tokio::sync::Mutex;

use super::{CredentialError, RequestCredentials, bearer};
use crate::kubeconfig::{ExecPlugin, InteractiveMode, KeyPair};

/// A plugin may do network calls, but all requests wait for it, so its time is limited.
const PLUGIN_TIMEOUT: Duration = Duration::from_secs(60);

pub struct Exec {
    plugin: ExecPlugin,
    /// Held while the plugin runs: it runs once, however many requests wait for it.
    last: Mutex<Last>,
}

#[derive(Default)]
struct Last {
    serial: u64,
    answer: Option<Answer>,
}

struct Answer {
    authorization: Option<HeaderValue>,
    pair: Option<Arc<KeyPair>>,
    expires: Option<Wall>,
}

impl Exec {
    pub fn new(plugin: ExecPlugin) -> Self {
        Self { plugin, last: Mutex::default() }
    }

    pub async fn forget(&self, serial: u64) {
        let mut last = self.last.lock().await;
        // Another request may have fetched a newer credential meanwhile.
        if last.serial == serial {
            last.answer = None;
        }
    }
}

/// The plugin keeps running if the caller gives up, so a plugin slower than one deadline still serves the next call.
pub async fn current(exec: Arc<Exec>, now: Wall) -> Result<RequestCredentials, CredentialError> {
    let command = exec.plugin.command.clone();
    let asking = tokio::spawn(async move {
        let mut last = exec.last.lock().await;
        let current = last.answer.as_ref().filter(|answer| answer.expires.is_none_or(|at| now < at));
        if current.is_none() {
            let answer = ask(&exec.plugin).await?;
            last.answer = Some(answer);
            last.serial += 1;
        }
        Ok(last.answer.as_ref().map(|answer| RequestCredentials {
            authorization: answer.authorization.clone(),
            pair: answer.pair.clone(),
            serial: last.serial,
        }))
    });
    match asking.await {
        Ok(Ok(Some(shown))) => Ok(shown),
        Ok(Err(error)) => Err(error),
        Ok(Ok(None)) | Err(_) => Err(CredentialError::Answer { command, problem: "gave no answer".into() }),
    }
}

async fn ask(plugin: &ExecPlugin) -> Result<Answer, CredentialError> {
    let named = || plugin.command.clone();
    let terminal = std::io::stdin().is_terminal();
    let interactive = match plugin.interactive_mode {
        InteractiveMode::Never => false,
        InteractiveMode::IfAvailable => terminal,
        InteractiveMode::Always if terminal => true,
        InteractiveMode::Always => return Err(CredentialError::NoTerminal { command: named() }),
    };
    let child = Command::new(&plugin.command)
        .args(&plugin.args)
        .envs(&plugin.env)
        .env("KUBERNETES_EXEC_INFO", request(plugin, interactive).to_string())
        .stdin(if interactive { Stdio::inherit() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|source| CredentialError::Start { command: named(), hint: hint(plugin), source })?;
    let output = tokio::time::timeout(PLUGIN_TIMEOUT, child.wait_with_output())
        .await
        .map_err(|_| CredentialError::TimedOut { command: named(), after: PLUGIN_TIMEOUT })?
        .map_err(|source| CredentialError::Start { command: named(), hint: String::new(), source })?;
    if !output.status.success() {
        let stderr = truncate_output(output.stderr.trim_ascii(), TextLimit::PluginMessage);
        return Err(CredentialError::Failed { command: named(), status: output.status, stderr });
    }
    answer(plugin, &output.stdout)
}

/// The install hint is only shown if the program is missing.
fn hint(plugin: &ExecPlugin) -> String {
    plugin.install_hint.as_ref().map(|hint| format!(" ({})", hint.trim())).unwrap_or_default()
}

fn request(plugin: &ExecPlugin, interactive: bool) -> serde_json::Value {
    let mut spec = json!({ "interactive": interactive });
    if let Some(cluster) = &plugin.cluster_info {
        spec["cluster"] = cluster.clone();
    }
    json!({ "kind": "ExecCredential", "apiVersion": plugin.api_version, "spec": spec })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredential {
    api_version: String,
    kind: String,
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    #[serde(default)]
    token: String,
    #[serde(default)]
    client_certificate_data: String,
    #[serde(default)]
    client_key_data: String,
    expiration_timestamp: Option<jiff::Timestamp>,
}

fn answer(plugin: &ExecPlugin, stdout: &[u8]) -> Result<Answer, CredentialError> {
    let refuse = |problem: String| CredentialError::Answer { command: plugin.command.clone(), problem };
    let credential: ExecCredential = serde_json::from_slice(stdout)
        .map_err(|error| refuse(format!("its answer is no ExecCredential: {error}")))?;
    if credential.kind != "ExecCredential" {
        return Err(refuse(format!("its answer is a {:?}", credential.kind)));
    }
    if credential.api_version != plugin.api_version {
        let (want, got) = (&plugin.api_version, &credential.api_version);
        return Err(refuse(format!("is configured to use API version {want}, but answered with {got}")));
    }
    let status = credential.status.ok_or_else(|| refuse("its answer has no status".into()))?;
    let pair = match (status.client_certificate_data.as_str(), status.client_key_data.as_str()) {
        ("", "") if status.token.is_empty() => {
            return Err(refuse("its answer has neither a token nor a certificate".into()));
        }
        ("", "") => None,
        ("", _) | (_, "") => {
            return Err(refuse("its answer has only one of certificate and key".into()));
        }
        (certificate, key) => {
            let pair = KeyPair::from_pem(certificate.as_bytes(), key.as_bytes())
                .map_err(|problem| CredentialError::AnswerPem { command: plugin.command.clone(), problem })?;
            Some(Arc::new(pair))
        }
    };
    let authorization = if status.token.is_empty() { None } else { Some(bearer(&status.token)?) };
    Ok(Answer { authorization, pair, expires: status.expiration_timestamp.map(Wall::from_timestamp) })
}
