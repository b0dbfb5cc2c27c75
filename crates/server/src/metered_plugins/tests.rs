//! What is counted of drivers, plugins and sockets that answer as a test says.

use std::time::Duration;

use super::*;
use crate::metrics::ScrapeInputs;
use crate::testing::{FakeAgentState, endpoints};

struct Plugins(Vec<CredentialPlugin>);

#[async_trait]
impl CsiDrivers for Plugins {
    fn set_endpoint(&self, _: &str, _: Option<&str>) {}
    async fn node_get_info(&self, driver: &str) -> Result<DriverNodeInfo, CsiError> {
        Err(CsiError::NotRegistered { driver: driver.into() })
    }
    async fn node_get_capabilities(&self, _: &str) -> Result<NodeServiceCapabilities, CsiError> {
        Ok(NodeServiceCapabilities::default())
    }
    async fn node_stage_volume(&self, _: &str, _: &NodeStageCall) -> Result<(), CsiError> {
        Ok(())
    }
    async fn node_publish_volume(&self, _: &str, _: &NodePublishCall) -> Result<(), CsiError> {
        Ok(())
    }
    async fn node_unpublish_volume(&self, _: &str, _: &str, _: &str) -> Result<(), CsiError> {
        tokio::time::sleep(Duration::from_secs(120)).await;
        Err(CsiError::timed_out())
    }
    async fn node_unstage_volume(&self, _: &str, _: &str, _: &str) -> Result<(), CsiError> {
        Ok(())
    }
    async fn node_expand_volume(&self, _: &str, _: &NodeExpandCall) -> Result<(), CsiError> {
        Ok(())
    }
    async fn node_get_volume_stats(&self, _: &str, _: &str, _: &str) -> Result<NodeVolumeStats, CsiError> {
        Ok(NodeVolumeStats::default())
    }
}

#[async_trait]
impl PluginSockets for Plugins {
    fn watch(&self) -> BoxStream<'static, PluginSocketEvent> {
        let came = |path: &str| PluginSocketEvent::Added { path: path.into() };
        futures::stream::iter([came("/a"), came("/b"), PluginSocketEvent::Gone { path: "/b".into() }]).boxed()
    }
    async fn get_info(&self, _: &str) -> Result<PluginInfo, CsiError> {
        Err(CsiError::timed_out())
    }
    async fn notify_registration_status(&self, _: &str, _: Option<&str>) -> Result<(), CsiError> {
        Ok(())
    }
}

#[async_trait]
impl RegistryCredentials for Plugins {
    async fn docker_configs(&self) -> Vec<DockerConfigFile> {
        Vec::new()
    }
    fn plugins(&self) -> &[CredentialPlugin] {
        &self.0
    }
    async fn ask(&self, plugin: &CredentialPlugin, image: &str, _: &str) -> Result<Vec<u8>, PluginError> {
        let (plugin, after) = (plugin.name.clone(), Duration::from_secs(60));
        match image {
            "good" => Ok(Vec::new()),
            image => Err(PluginError::TimedOut { plugin, image: image.into(), after }),
        }
    }
}

fn lines(metrics: &AgentMetrics, begins: &str) -> Vec<String> {
    let text = metrics.text(&ScrapeInputs::default()).unwrap();
    text.lines().filter(|line| line.starts_with(begins)).map(str::to_owned).collect()
}

#[tokio::test(start_paused = true)]
async fn calls_to_drivers_by_method_and_outcome() {
    let metrics = endpoints(FakeAgentState::Well).metrics;
    let drivers = MeteredCsiDrivers::new(Arc::new(Plugins(Vec::new())), metrics.clone());
    drivers.node_get_info("d").await.unwrap_err();
    assert_eq!(lines(&metrics, "csi_operations_seconds"), Vec::<String>::new(), "nobody was called");
    drivers.node_unpublish_volume("d", "v", "/t").await.unwrap_err();
    drivers.node_unstage_volume("d", "v", "/s").await.unwrap();
    drivers.node_unstage_volume("d", "v", "/s").await.unwrap();
    let count = |method: &str, code: &str| {
        format!(
            "csi_operations_seconds_count{{driver_name=\"d\",grpc_status_code=\"{code}\",\
             method_name=\"/csi.v1.Node/{method}\",migrated=\"false\"}}"
        )
    };
    let (late, fine) = (count("NodeUnpublishVolume", "DeadlineExceeded"), count("NodeUnstageVolume", "OK"));
    let mut expect = [format!("{late} 1"), format!("{fine} 2")];
    expect.sort();
    let mut found = lines(&metrics, "csi_operations_seconds_count");
    found.sort();
    assert_eq!(found, expect);
    let sum = lines(&metrics, &late.replace("_count", "_sum"));
    assert!(sum[0].ends_with(" 120"), "{sum:?}");
}

#[tokio::test]
async fn sockets_that_were_seen_and_registered() {
    let metrics = endpoints(FakeAgentState::Well).metrics;
    let sockets = MeteredPluginSockets::new(Arc::new(Plugins(Vec::new())), metrics.clone());
    assert_eq!(sockets.watch().count().await, 3);
    sockets.notify_registration_status("/a", Some("another driver has that name")).await.unwrap();
    let line = |state: &str| {
        format!("plugin_manager_total_plugins{{socket_path=\"/a\",state=\"{state}_state_of_world\"}} 1")
    };
    assert_eq!(lines(&metrics, "plugin_manager"), [line("desired")]);
    sockets.notify_registration_status("/a", None).await.unwrap();
    assert_eq!(lines(&metrics, "plugin_manager"), [line("actual"), line("desired")]);
}

#[tokio::test]
async fn credential_plugins_and_their_configuration() {
    let metrics = endpoints(FakeAgentState::Well).metrics;
    let plugin = CredentialPlugin {
        name: "ecr".into(),
        match_images: Vec::new(),
        default_cache: Duration::ZERO,
        api_version: String::new(),
        args: Vec::new(),
        env: Vec::new(),
        token: None,
    };
    let credentials =
        MeteredRegistryCredentials::new(Arc::new(Plugins(vec![plugin.clone()])), metrics.clone());
    credentials.ask(&plugin, "good", "").await.unwrap();
    credentials.ask(&plugin, "bad", "").await.unwrap_err();
    let name = "kubelet_credential_provider_plugin_duration_count";
    assert_eq!(lines(&metrics, name), [format!("{name}{{plugin_name=\"ecr\"}} 2")]);
    let name = "kubelet_credential_provider_plugin_errors_total";
    assert_eq!(lines(&metrics, name), [format!("{name}{{plugin_name=\"ecr\"}} 1")]);
    metrics.set_credential_config([&b"a"[..], b"bc"].into_iter());
    // The SHA-256 of "abc".
    let expect = "kubelet_credential_provider_config_info{hash=\"sha256:\
                  ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\"} 1";
    assert_eq!(lines(&metrics, "kubelet_credential_provider_config_info"), [expect]);
}
