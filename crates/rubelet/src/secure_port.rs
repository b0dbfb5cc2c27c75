//! The HTTPS API: how it authenticates, what it serves, where it listens.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use host::clock::SystemClock;
use host::feed::without_secrets;
use host::logs::HostLogs;
use host::profile::SignalProfiler;
use ports::{AccessReviews, Runtime, Tracing, WallClock};
use server::{
    Access, ApiSettings, Authentication, Authorization, ClientAuthority, Endpoints, SecureApi, ServerHandle,
    ServingCertificate, StreamingTls, Tls, TlsSettings,
};
use tokio_util::sync::CancellationToken;

use crate::config::{FeatureGates, KubeletConfiguration};
use crate::flags::Flags;
use crate::logging::LogHandle;

/// What `/logs/` shows. Not configurable upstream either.
const NODE_LOG_DIR: &str = "/var/log";
const JOURNAL_PROGRAM: &str = "journalctl";
/// Shown in place of secrets for the server of static pods.
const MASKED: &str = "<masked>";

/// Defaults of a standalone node. It has no API server for token and access reviews, so webhooks are off unless
/// configured. Anonymous access and the read-only port, which are on by default on the command line, are off unless
/// configured.
pub fn apply_standalone_defaults(
    config: &mut KubeletConfiguration,
    set: &BTreeSet<&'static str>,
    standalone: bool,
) {
    if !standalone {
        return;
    }
    if !set.contains("authentication.anonymous.enabled") {
        config.authentication.anonymous.enabled = false;
    }
    if !set.contains("authentication.webhook.enabled") {
        config.authentication.webhook.enabled = false;
    }
    if !set.contains("authorization.mode") {
        config.authorization.mode = "AlwaysAllow".to_owned();
    }
    if !set.contains("readOnlyPort") {
        config.read_only_port = 0;
    }
}

/// The warning at the start when every client that reaches the port may do everything.
fn open_access_warning(config: &KubeletConfiguration) -> Option<String> {
    let open = config.authentication.anonymous.enabled && config.authorization.mode == "AlwaysAllow";
    open.then(|| {
        format!(
            "EVERYBODY who can reach {}:{} may run commands in every container of this node: \
             authentication.anonymous.enabled is true and authorization.mode is AlwaysAllow; turn the first off or \
             set the second to Webhook",
            config.address, config.port
        )
    })
}

/// What the API is made from.
pub struct SecurePort<'a> {
    pub flags: &'a Flags,
    pub config: &'a KubeletConfiguration,
    pub gates: &'a FeatureGates,
    pub node_name: &'a str,
    pub root_dir: &'a Path,
    pub endpoints: Endpoints,
    pub runtime: Arc<dyn Runtime>,
    /// `None`: there is no API server to ask.
    pub reviews: Option<Arc<dyn AccessReviews>>,
    pub tracing: Tracing,
    pub log: LogHandle,
}

impl SecurePort<'_> {
    /// Listens. `None` when the configuration wants no server. The certificate is the slot that one issued by the
    /// cluster goes into, with `serverTLSBootstrap`.
    pub async fn open(
        self,
        stop: &CancellationToken,
    ) -> anyhow::Result<Option<(Arc<ServingCertificate>, ServerHandle)>> {
        let config = self.config;
        let port = u16::try_from(config.port).ok().filter(|port| *port != 0 && config.enable_server);
        let Some(port) = port else { return Ok(None) };
        let certificate = self.certificate(stop)?;
        let ca_file = &config.authentication.x509.client_ca_file;
        let authority = (!ca_file.is_empty())
            .then(|| {
                let follow = self.reload_token(stop, "ReloadKubeletClientCAFile");
                ClientAuthority::from_file(Path::new(ca_file), follow)
            })
            .transpose()?;
        let settings = TlsSettings {
            min_version: config.tls_min_version.clone(),
            cipher_suites: config.tls_cipher_suites.clone(),
            curve_preferences: config.tls_curve_preferences.clone(),
        };
        let tls = server::server_config(&settings, certificate.clone(), authority.clone())?;
        let tls = Tls { config: tls, authority: authority.clone() };
        let access = Arc::new(self.access(authority)?);
        if let Some(warning) = open_access_warning(config) {
            tracing::warn!("{warning}");
        }
        let address = config.address.clone();
        let router = self.api(stop).routes(access);
        let serving = server::serve_tls("secure port", &address, port, tls, router, stop.clone()).await?;
        Ok(Some((certificate, serving)))
    }

    /// How long a file is followed: to the end, or not at all without this gate.
    fn reload_token(&self, stop: &CancellationToken, gate: &str) -> CancellationToken {
        let until = stop.child_token();
        if !self.gates.enabled(gate) {
            until.cancel();
        }
        until
    }

    fn certificate(&self, stop: &CancellationToken) -> anyhow::Result<Arc<ServingCertificate>> {
        let (file, key) = (&self.config.tls_cert_file, &self.config.tls_private_key_file);
        if !file.is_empty() && !key.is_empty() {
            let follow = self.reload_token(stop, "ReloadKubeletServerCertificateFile");
            return ServingCertificate::from_files(Path::new(file), Path::new(key), follow)
                .context("tlsCertFile and tlsPrivateKeyFile");
        }
        if self.config.server_tls_bootstrap {
            return Ok(Arc::default());
        }
        ServingCertificate::self_signed(&self.flags.cert_dir, self.node_name, SystemClock.wall())
            .context("creating the self-signed serving certificate")
    }

    fn access(&self, authority: Option<Arc<ClientAuthority>>) -> anyhow::Result<Access> {
        let wanted = &self.config.authentication;
        if authority.is_none() && !wanted.webhook.enabled && !wanted.anonymous.enabled {
            tracing::warn!(
                "no request to the secure port can be authorized: no client CA, no tokens and no anonymous access"
            );
        }
        let mut authentication = Authentication::new(authority);
        if wanted.webhook.enabled {
            let holds = wanted.webhook.cache_ttl.to_std();
            authentication = authentication.with_tokens(self.reviews.clone(), holds)?;
        }
        if wanted.anonymous.enabled {
            authentication = authentication.with_anonymous();
        }
        let wanted = &self.config.authorization;
        let authorization = Authorization::for_mode(
            &wanted.mode,
            self.node_name,
            self.reviews.clone(),
            wanted.webhook.cache_authorized_ttl.to_std(),
            wanted.webhook.cache_unauthorized_ttl.to_std(),
        )?;
        Ok(Access { authentication, authorization })
    }

    fn api(self, stop: &CancellationToken) -> SecureApi {
        let config = self.config;
        let log = self.log;
        SecureApi {
            endpoints: self.endpoints,
            runtime: self.runtime,
            logs: Arc::new(HostLogs::new(&config.pod_logs_dir)),
            wall: Arc::new(SystemClock),
            settings: ApiSettings {
                debugging: config.enable_debugging_handlers,
                node_logs: config.enable_system_log_handler,
                node_log_query: config.enable_system_log_query,
                debug_flags: config.enable_debug_flags_handler,
                profiling: config.enable_profiling_handler,
                split_log_streams: self.gates.enabled("PodLogsQuerySplitStreams"),
                checkpoint: self.gates.enabled("ContainerCheckpoint"),
                flagz: self.gates.enabled("ComponentFlagz"),
                statusz: self.gates.enabled("ComponentStatusz"),
                extended_websockets: self.gates.enabled("ExtendWebSocketsToKubelet"),
                stream_idle: config.streaming_connection_idle_timeout.to_std(),
                root_dir: self.root_dir.to_owned(),
                node_log_dir: NODE_LOG_DIR.into(),
                journal_program: JOURNAL_PROGRAM.into(),
                configz: configz_document(config),
                flags: flagz_entries(self.flags),
            },
            set_verbosity: Arc::new(move |level| log.set_verbosity(level)),
            profiler: Arc::new(SignalProfiler),
            tracing: self.tracing,
            streaming_tls: StreamingTls {
                for_local_runtime: Arc::new(tls::trusting_everybody().with_no_client_auth()),
                for_remote_runtime: Arc::new(|| {
                    Ok(Arc::new(tls::trusting_the_system()?.with_no_client_auth()))
                }),
            },
            stop: stop.clone(),
        }
    }
}

/// The configuration without secrets: clients that may read `/configz` may see little else.
fn configz_document(config: &KubeletConfiguration) -> serde_json::Value {
    let mut config = config.clone();
    config.static_pod_url = without_secrets(&config.static_pod_url);
    for values in config.static_pod_url_header.values_mut() {
        *values = vec![MASKED.to_owned()];
    }
    serde_json::to_value(config).unwrap_or_default()
}

/// The flags that are no fields of the configuration, as `/flagz` shows them.
fn flagz_entries(flags: &Flags) -> BTreeMap<String, String> {
    let path =
        |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let labels: Vec<String> = flags.node_labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let addresses: Vec<String> = flags.node_ips.iter().map(ToString::to_string).collect();
    let all = [
        ("bootstrap-kubeconfig", path(&flags.bootstrap_kubeconfig)),
        ("cert-dir", flags.cert_dir.display().to_string()),
        ("config", path(&flags.config)),
        ("config-dir", path(&flags.config_dir)),
        ("hostname-override", flags.hostname_override.clone().unwrap_or_default()),
        ("kubeconfig", path(&flags.kubeconfig)),
        ("node-ip", addresses.join(",")),
        ("node-labels", labels.join(",")),
        ("root-dir", flags.root_dir.display().to_string()),
    ];
    let fields = flags.overrides.iter().map(|given| {
        let value = match given.field {
            "staticPodURL" | "staticPodURLHeader" => MASKED.to_owned(),
            _ => given.value.to_string(),
        };
        (given.field.to_owned(), value)
    });
    all.into_iter().map(|(name, value)| (name.to_owned(), value)).chain(fields).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alone_nothing_is_open_unless_somebody_wrote_it_down() {
        let check = |file: bool, set: &[&'static str], alone: bool, expect: (bool, bool, &str, i32)| {
            let mut config = match file {
                true => KubeletConfiguration::default(),
                false => KubeletConfiguration::without_file(),
            };
            apply_standalone_defaults(&mut config, &set.iter().copied().collect(), alone);
            let (who, may) = (&config.authentication, &config.authorization);
            let found =
                (who.anonymous.enabled, who.webhook.enabled, may.mode.as_str(), config.read_only_port);
            assert_eq!(found, expect, "{file} {set:?} {alone}");
        };
        check(false, &[], false, (true, false, "AlwaysAllow", 10255));
        check(true, &[], false, (false, true, "Webhook", 0));
        check(false, &[], true, (false, false, "AlwaysAllow", 0));
        check(true, &[], true, (false, false, "AlwaysAllow", 0));
        check(false, &["authentication.anonymous.enabled"], true, (true, false, "AlwaysAllow", 0));
        check(false, &["readOnlyPort"], true, (false, false, "AlwaysAllow", 10255));
        let webhooks = ["authentication.webhook.enabled", "authorization.mode"];
        check(true, &webhooks, true, (false, true, "Webhook", 0));
    }

    /// Clients that may read the configuration must not get the credentials for the server of static pods.
    #[test]
    fn what_is_a_secret_is_not_shown() {
        let header = ("Authorization".to_owned(), vec!["hidden2".to_owned(), "hidden3".to_owned()]);
        let config = KubeletConfiguration {
            static_pod_url: "https://me:hidden1@host/pods?node=a".into(),
            static_pod_url_header: [header].into(),
            ..KubeletConfiguration::default()
        };
        let shown = configz_document(&config);
        assert_eq!(shown["staticPodURL"], "https://xxxxx@host/pods?node=a");
        assert_eq!(shown["staticPodURLHeader"], serde_json::json!({ "Authorization": ["<masked>"] }));
        assert!(!shown.to_string().contains("hidden"));

        let words =
            ["--manifest-url=https://me:hidden1@host/", "--manifest-url-header=Authorization:hidden2"];
        let asked = crate::flags::parse(&words.map(str::to_owned)).unwrap();
        let crate::flags::Invocation::Agent(flags) = asked else { panic!("{asked:?}") };
        let listed = flagz_entries(&flags);
        assert_eq!(listed["staticPodURL"], "<masked>", "{listed:?}");
        assert!(!format!("{listed:?}").contains("hidden"), "{listed:?}");
    }

    #[test]
    fn an_open_node_says_so() {
        let warning = open_access_warning(&KubeletConfiguration::without_file()).unwrap();
        assert!(warning.starts_with("EVERYBODY who can reach 0.0.0.0:10250 may run commands"), "{warning}");
        assert_eq!(open_access_warning(&KubeletConfiguration::default()), None);
        let mut config = KubeletConfiguration::without_file();
        config.authentication.anonymous.enabled = false;
        assert_eq!(open_access_warning(&config), None);
    }
}
