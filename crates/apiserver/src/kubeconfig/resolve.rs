//! Resolves the file's content to a [`super::ResolvedKubeconfig`].

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use model::codec::parse_documents;

use super::document::{Cluster, Document, Exec, User};
use super::{
    Credential, ExecPlugin, Impersonation, InteractiveMode, KeyPair, KubeconfigError, PemProblem,
    ResolvedKubeconfig, Trust, certificates, private_key,
};

/// The extension of a cluster that is passed to an exec plugin.
const EXEC_EXTENSION: &str = "client.authentication.k8s.io/exec";
const EXEC_VERSIONS: [&str; 2] = ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];

/// The position in the file, with which every error message starts.
struct FieldPosition<'a> {
    file: &'a Path,
    /// `clusters[0].cluster`
    at: String,
}

impl FieldPosition<'_> {
    fn refuse(&self, field: &str, problem: impl ToString) -> KubeconfigError {
        let field = if self.at.is_empty() { field.to_owned() } else { format!("{}.{field}", self.at) };
        KubeconfigError::Field { file: self.file.to_owned(), field, problem: problem.to_string() }
    }

    /// Resolves a path relative to the kubeconfig.
    fn path(&self, named: &str) -> PathBuf {
        self.file.parent().unwrap_or(Path::new("")).join(named)
    }

    /// Inline data has priority over the file of the same meaning. Also returns the field that was used.
    fn content(
        &self,
        field: &'static str,
        data: Option<&str>,
        named: Option<&str>,
        files: &mut Vec<PathBuf>,
    ) -> Result<Option<Content>, KubeconfigError> {
        if let Some(data) = non_empty(data) {
            let field = format!("{field}-data");
            let packed: String = data.split_whitespace().collect();
            let bytes = STANDARD
                .decode(packed)
                .map_err(|error| self.refuse(&field, format!("is not base64: {error}")))?;
            return Ok(Some(Content { field, bytes, file: None }));
        }
        let Some(named) = non_empty(named) else { return Ok(None) };
        let path = self.path(named);
        let bytes = std::fs::read(&path).map_err(|source| KubeconfigError::ReadNamed {
            file: self.file.to_owned(),
            field: format!("{}.{field}", self.at),
            names: path.clone(),
            source,
        })?;
        files.push(path.clone());
        Ok(Some(Content { field: field.to_owned(), bytes, file: Some(path) }))
    }
}

struct Content {
    field: String,
    bytes: Vec<u8>,
    file: Option<PathBuf>,
}

/// Absent and empty mean the same everywhere in this format.
fn non_empty(text: Option<&str>) -> Option<&str> {
    text.filter(|text| !text.is_empty())
}

/// `read_certificate`: whether client certificate files are read too.
pub(super) fn resolve(
    file: &Path,
    bytes: &[u8],
    read_certificate: bool,
) -> Result<ResolvedKubeconfig, KubeconfigError> {
    let document = parse(file, bytes)?;
    let top = FieldPosition { file, at: String::new() };
    let context_name = non_empty(document.current_context.as_deref())
        .ok_or_else(|| top.refuse("current-context", "is not set: nothing says which server to use"))?;
    let contexts = document.contexts.unwrap_or_default();
    let (index, context) = find(&contexts, context_name, |entry| &entry.name)
        .ok_or_else(|| top.refuse("current-context", format!("no context is called {context_name:?}")))?;
    let at_context = FieldPosition { file, at: format!("contexts[{index}].context") };
    let context = context.context.as_ref();

    let cluster_name = non_empty(context.and_then(|context| context.cluster.as_deref()))
        .ok_or_else(|| at_context.refuse("cluster", "is not set"))?;
    let clusters = document.clusters.unwrap_or_default();
    let (index, cluster) = find(&clusters, cluster_name, |entry| &entry.name)
        .ok_or_else(|| at_context.refuse("cluster", format!("no cluster is called {cluster_name:?}")))?;
    let at_cluster = FieldPosition { file, at: format!("clusters[{index}].cluster") };
    let no_cluster = Cluster::default();
    let cluster = cluster.cluster.as_ref().unwrap_or(&no_cluster);

    let users = document.users.unwrap_or_default();
    let user_name = non_empty(context.and_then(|context| context.user.as_deref()));
    let no_user = User::default();
    let (at_user, user) = match user_name {
        None => (FieldPosition { file, at: "users".into() }, &no_user),
        Some(name) => {
            let (index, user) = find(&users, name, |entry| &entry.name)
                .ok_or_else(|| at_context.refuse("user", format!("no user is called {name:?}")))?;
            (
                FieldPosition { file, at: format!("users[{index}].user") },
                user.user.as_ref().unwrap_or(&no_user),
            )
        }
    };

    let mut files = vec![file.to_owned()];
    let trust = trust(&at_cluster, cluster, &mut files)?;
    let certificate_files = certificate_files(&at_user, user);
    let certificate = match certificate_files {
        Some(_) if !read_certificate => None,
        _ => certificate(&at_user, user, &mut files)?,
    };
    let has_certificate = certificate.is_some() || certificate_files.is_some();
    let credential = credential(&at_user, user, has_certificate, (&at_cluster, cluster, &trust))?;
    Ok(ResolvedKubeconfig {
        file: file.to_owned(),
        server: server(&at_cluster, cluster, &trust, has_certificate)?,
        tls_server_name: server_name(&at_cluster, cluster)?,
        proxy: proxy(&at_cluster, cluster)?,
        trust,
        certificate,
        certificate_files,
        credential,
        impersonate: impersonation(&at_user, user)?,
        files,
    })
}

fn parse(file: &Path, bytes: &[u8]) -> Result<Document, KubeconfigError> {
    let syntax = |message: String| KubeconfigError::Syntax { file: file.to_owned(), message };
    let documents = parse_documents(bytes).map_err(|error| syntax(error.to_string()))?;
    let first = documents.into_iter().find(|document| !document.is_null());
    let first = first.ok_or_else(|| syntax("is empty".into()))?;
    let place = FieldPosition { file, at: String::new() };
    let document: Document = serde_path_to_error::deserialize(first)
        .map_err(|error| place.refuse(&error.path().to_string(), error.inner()))?;
    if let Some(kind) = non_empty(document.kind.as_deref()).filter(|kind| *kind != "Config") {
        return Err(place.refuse("kind", format!("is {kind:?}, not \"Config\"")));
    }
    if let Some(version) = non_empty(document.api_version.as_deref()).filter(|version| *version != "v1") {
        return Err(place.refuse("apiVersion", format!("is {version:?}, not \"v1\"")));
    }
    Ok(document)
}

/// If two entries have the same name, the last one is used.
fn find<'a, T>(entries: &'a [T], name: &str, name_of: impl Fn(&T) -> &String) -> Option<(usize, &'a T)> {
    entries.iter().enumerate().rev().find(|(_, entry)| name_of(entry) == name)
}

fn trust(
    place: &FieldPosition,
    cluster: &Cluster,
    files: &mut Vec<PathBuf>,
) -> Result<Trust, KubeconfigError> {
    let data = cluster.certificate_authority_data.as_deref();
    let named = cluster.certificate_authority.as_deref();
    if cluster.insecure_skip_tls_verify == Some(true) {
        if non_empty(data).or(non_empty(named)).is_some() {
            let problem = "can't go with a certificate authority: either it is checked or it isn't";
            return Err(place.refuse("insecure-skip-tls-verify", problem));
        }
        return Ok(Trust::SkipVerification);
    }
    match place.content("certificate-authority", data, named, files)? {
        None => Ok(Trust::System),
        Some(content) => {
            let found =
                certificates(&content.bytes).map_err(|problem| place.refuse(&content.field, problem))?;
            Ok(Trust::Authorities { certificates: found, pem: content.bytes, file: content.file })
        }
    }
}

fn certificate_files(place: &FieldPosition, user: &User) -> Option<(PathBuf, PathBuf)> {
    if non_empty(user.client_certificate_data.as_deref())
        .or(non_empty(user.client_key_data.as_deref()))
        .is_some()
    {
        return None;
    }
    let certificate = non_empty(user.client_certificate.as_deref())?;
    let key = non_empty(user.client_key.as_deref())?;
    Some((place.path(certificate), place.path(key)))
}

fn certificate(
    place: &FieldPosition,
    user: &User,
    files: &mut Vec<PathBuf>,
) -> Result<Option<KeyPair>, KubeconfigError> {
    let (data, named) = (user.client_certificate_data.as_deref(), user.client_certificate.as_deref());
    let certificate = place.content("client-certificate", data, named, files)?;
    let key =
        place.content("client-key", user.client_key_data.as_deref(), user.client_key.as_deref(), files)?;
    let refuse = |content: &Content, problem: PemProblem| place.refuse(&content.field, problem);
    match (certificate, key) {
        (None, None) => Ok(None),
        (Some(certificate), Some(key)) => Ok(Some(KeyPair {
            chain: certificates(&certificate.bytes).map_err(|problem| refuse(&certificate, problem))?,
            key: private_key(&key.bytes).map_err(|problem| refuse(&key, problem))?,
        })),
        (Some(_), None) => Err(place.refuse("client-key", "is not set, but client-certificate is")),
        (None, Some(_)) => Err(place.refuse("client-certificate", "is not set, but client-key is")),
    }
}

fn credential(
    place: &FieldPosition,
    user: &User,
    has_certificate: bool,
    cluster: (&FieldPosition, &Cluster, &Trust),
) -> Result<Credential, KubeconfigError> {
    if user.auth_provider.as_ref().is_some_and(|provider| !provider.is_null()) {
        return Err(place.refuse("auth-provider", "is no longer supported: use an exec plugin"));
    }
    let token = non_empty(user.token.as_deref());
    let username = non_empty(user.username.as_deref());
    if token.is_some() && username.is_some() {
        return Err(place.refuse("token", "and username are both set: more than one way to authenticate"));
    }
    if let Some(exec) = &user.exec {
        let plugin = exec_plugin(place, exec, cluster)?;
        // An exec plugin is only used if the file contains no other credential.
        let said = token.is_some() || username.is_some() || has_certificate;
        if !said && non_empty(user.token_file.as_deref()).is_none() {
            return Ok(Credential::Exec(Box::new(plugin)));
        }
    }
    if let Some(named) = non_empty(user.token_file.as_deref()) {
        return Ok(Credential::TokenFile { file: place.path(named), first: token.map(str::to_owned) });
    }
    if let Some(token) = token {
        return Ok(Credential::Token(token.to_owned()));
    }
    Ok(match username {
        Some(username) => Credential::Basic {
            username: username.to_owned(),
            password: user.password.clone().unwrap_or_default(),
        },
        None => Credential::None,
    })
}

fn exec_plugin(
    place: &FieldPosition,
    exec: &Exec,
    cluster: (&FieldPosition, &Cluster, &Trust),
) -> Result<ExecPlugin, KubeconfigError> {
    let command =
        non_empty(exec.command.as_deref()).ok_or_else(|| place.refuse("exec.command", "is not set"))?;
    let version = non_empty(exec.api_version.as_deref())
        .ok_or_else(|| place.refuse("exec.apiVersion", "is not set"))?;
    if !EXEC_VERSIONS.contains(&version) {
        let problem = format!("is {version:?}: known are {}", EXEC_VERSIONS.join(" and "));
        return Err(place.refuse("exec.apiVersion", problem));
    }
    let interactive_mode = match non_empty(exec.interactive_mode.as_deref()) {
        Some("Never") => InteractiveMode::Never,
        Some("IfAvailable") => InteractiveMode::IfAvailable,
        Some("Always") => InteractiveMode::Always,
        Some(other) => {
            let problem = format!("is {other:?}: known are Never, IfAvailable and Always");
            return Err(place.refuse("exec.interactiveMode", problem));
        }
        None if version == EXEC_VERSIONS[0] => {
            return Err(place.refuse("exec.interactiveMode", format!("must be set with {version}")));
        }
        None => InteractiveMode::IfAvailable,
    };
    let env = exec.env.iter().flatten().map(|entry| (entry.name.clone(), entry.value.clone())).collect();
    let cluster_info = match exec.provide_cluster_info {
        Some(true) => Some(cluster_info(cluster)),
        _ => None,
    };
    Ok(ExecPlugin {
        // A bare name is looked up in PATH.
        command: if command.contains('/') { place.path(command) } else { command.into() },
        args: exec.args.clone().unwrap_or_default(),
        env,
        api_version: version.to_owned(),
        install_hint: non_empty(exec.install_hint.as_deref()).map(str::to_owned),
        interactive_mode,
        cluster_info,
    })
}

fn cluster_info((_, cluster, trust): (&FieldPosition, &Cluster, &Trust)) -> serde_json::Value {
    let mut info = serde_json::Map::new();
    let mut put = |name: &str, value: serde_json::Value| info.insert(name.to_owned(), value);
    put("server", cluster.server.clone().unwrap_or_default().into());
    if let Some(name) = non_empty(cluster.tls_server_name.as_deref()) {
        put("tls-server-name", name.into());
    }
    match trust {
        Trust::SkipVerification => {
            put("insecure-skip-tls-verify", true.into());
        }
        Trust::Authorities { pem, .. } => {
            put("certificate-authority-data", STANDARD.encode(pem).into());
        }
        Trust::System => {}
    }
    if let Some(proxy) = non_empty(cluster.proxy_url.as_deref()) {
        put("proxy-url", proxy.into());
    }
    let extension = cluster.extensions.iter().flatten().find(|entry| entry.name == EXEC_EXTENSION);
    if let Some(extension) = extension {
        put("config", extension.extension.clone());
    }
    info.into()
}

fn server(
    place: &FieldPosition,
    cluster: &Cluster,
    trust: &Trust,
    has_certificate: bool,
) -> Result<Uri, KubeconfigError> {
    let written = non_empty(cluster.server.as_deref()).ok_or_else(|| place.refuse("server", "is not set"))?;
    let refuse = |problem: String| place.refuse("server", format!("{written:?} {problem}"));
    // Without a scheme https is used as soon as anything about TLS is configured.
    let secured = has_certificate || *trust != Trust::System;
    let whole = match (written.contains("://"), secured) {
        (true, _) => written.to_owned(),
        (false, true) => format!("https://{written}"),
        (false, false) => format!("http://{written}"),
    };
    let uri: Uri = whole.parse().map_err(|error| refuse(format!("is not a URL: {error}")))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(refuse("must begin with https:// or http://".into()));
    }
    if uri.query().is_some() {
        return Err(refuse("must have no query".into()));
    }
    if uri.host().is_none_or(str::is_empty) {
        return Err(refuse("names no host".into()));
    }
    Ok(uri)
}

fn server_name(place: &FieldPosition, cluster: &Cluster) -> Result<Option<String>, KubeconfigError> {
    let Some(name) = non_empty(cluster.tls_server_name.as_deref()) else { return Ok(None) };
    rustls::pki_types::ServerName::try_from(name)
        .map_err(|_| place.refuse("tls-server-name", format!("{name:?} is no host name or address")))?;
    Ok(Some(name.to_owned()))
}

fn proxy(place: &FieldPosition, cluster: &Cluster) -> Result<Option<Uri>, KubeconfigError> {
    let Some(written) = non_empty(cluster.proxy_url.as_deref()) else { return Ok(None) };
    let refuse = |problem: String| place.refuse("proxy-url", problem);
    let uri: Uri = written.parse().map_err(|error| refuse(format!("is not a URL: {error}")))?;
    if !matches!(uri.scheme_str(), Some("http" | "https" | "socks5")) {
        return Err(refuse("must begin with http://, https:// or socks5://".into()));
    }
    Ok(Some(uri))
}

fn impersonation(place: &FieldPosition, user: &User) -> Result<Impersonation, KubeconfigError> {
    let found = Impersonation {
        user: non_empty(user.act_as.as_deref()).map(str::to_owned),
        uid: non_empty(user.as_uid.as_deref()).map(str::to_owned),
        groups: user.as_groups.clone().unwrap_or_default(),
    };
    if found.user.is_none() && found != Impersonation::default() {
        return Err(place.refuse("as", "is not set, but as-uid or as-groups is"));
    }
    Ok(found)
}
