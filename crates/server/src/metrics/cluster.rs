//! The node in its cluster: requests to the API server, joining, certificates.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use model::Wall;
use ports::ApiRequest;
use prometheus::{HistogramVec, IntCounterVec, Registry};
use tokio::sync::watch;
use tokio::time::Instant;

use super::{NO_LABELS, Registrar};

/// From a minute to four years.
const CERTIFICATE_AGES: [f64; 10] = [
    60.0,
    3_600.0,
    14_400.0,
    86_400.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
    124_416_000.0,
];

/// When a certificate ends (`None`: there is none), and how often it could not be renewed.
pub type CertificateFigures = Arc<dyn Fn() -> (Option<Wall>, u64) + Send + Sync>;

pub(crate) struct ClusterMetrics {
    requests: IntCounterVec,
    request_duration: HistogramVec,
    request_size: HistogramVec,
    response_size: HistogramVec,
    status_sync: HistogramVec,
    server_certificate_age: HistogramVec,
    startup: watch::Sender<Startup>,
    /// By `client` or `server`.
    certificates: ArcSwap<Vec<(&'static str, CertificateFigures)>>,
}

/// The way of a new node into its cluster.
#[derive(Clone, Copy, Default)]
struct Startup {
    first_attempt: Option<Instant>,
    registered: Option<Instant>,
    ready: Option<Instant>,
}

impl ClusterMetrics {
    pub fn new(registry: &Registry) -> Self {
        let add = Registrar(registry);
        let sizes = || {
            let kilobytes =
                [1024.0, 4096.0, 16_384.0, 65_536.0, 262_144.0, 1_048_576.0, 4_194_304.0, 16_777_216.0];
            [64.0, 256.0, 512.0].into_iter().chain(kilobytes).collect::<Vec<f64>>()
        };
        let times = vec![0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
        let sync = vec![0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];
        Self {
            requests: add.counters(
                "rest_client_requests_total",
                "Requests to the API server, by HTTP status code; <error>: there was no response.",
                &["code", "host", "method"],
            ),
            request_duration: add.histograms(
                "rest_client_request_duration_seconds",
                "Time until the API server began its response.",
                &["host", "verb"],
                times,
            ),
            request_size: add.histograms(
                "rest_client_request_size_bytes",
                "Size of the request bodies that were sent to the API server.",
                &["host", "verb"],
                sizes(),
            ),
            response_size: add.histograms(
                "rest_client_response_size_bytes",
                "Size of the response bodies of the API server, where it declared their length.",
                &["host", "verb"],
                sizes(),
            ),
            status_sync: add.histograms(
                "kubelet_pod_status_sync_duration_seconds",
                "Time from a change of a pod's status until the API server has accepted it.",
                &NO_LABELS,
                sync,
            ),
            server_certificate_age: add.histograms(
                "kubelet_certificate_manager_server_rotation_seconds",
                "Age of serving certificates of the cluster when another one replaced them.",
                &NO_LABELS,
                CERTIFICATE_AGES.into(),
            ),
            startup: watch::Sender::new(Startup::default()),
            certificates: ArcSwap::default(),
        }
    }

    pub fn request(&self, request: &ApiRequest<'_>) {
        let code = request.code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        let verb = [request.host, request.method];
        self.requests.with_label_values(&[&code, request.host, request.method]).inc();
        self.request_duration.with_label_values(&verb).observe(request.took.as_secs_f64());
        self.request_size.with_label_values(&verb).observe(request.sent_bytes as f64);
        if let Some(bytes) = request.received_bytes {
            self.response_size.with_label_values(&verb).observe(bytes as f64);
        }
    }

    pub fn status_synced(&self, took: Duration) {
        self.status_sync.with_label_values(&NO_LABELS).observe(took.as_secs_f64());
    }

    pub fn node_registering(&self) {
        self.startup
            .send_modify(|startup| startup.first_attempt = startup.first_attempt.or(Some(Instant::now())));
    }

    pub fn node_registered(&self) {
        self.startup.send_modify(|startup| startup.registered = startup.registered.or(Some(Instant::now())));
    }

    /// Of a node that was registered by this agent; any other's start was not seen.
    pub fn node_ready(&self) {
        self.startup.send_if_modified(|startup| {
            let first = startup.registered.is_some() && startup.ready.is_none();
            if first {
                startup.ready = Some(Instant::now());
            }
            first
        });
    }

    pub fn server_certificate_replaced(&self, age: Duration) {
        self.server_certificate_age.with_label_values(&NO_LABELS).observe(age.as_secs_f64());
    }

    pub fn register_certificate(&self, kind: &'static str, figures: CertificateFigures) {
        if kind == "server" {
            // Served from the start, with nothing counted yet.
            self.server_certificate_age.with_label_values(&NO_LABELS);
        }
        self.certificates.rcu(|known| {
            let mut known = Vec::clone(known);
            known.push((kind, figures.clone()));
            known
        });
    }

    /// `begun`: since when this process runs.
    pub fn add_per_scrape(&self, registry: &Registry, now: Wall, begun: Option<Wall>, boot: Option<Wall>) {
        let add = Registrar(registry);
        for (kind, figures) in self.certificates.load().iter() {
            let (end, errors) = figures();
            if let Some(end) = end {
                let name = format!("kubelet_certificate_manager_{kind}_ttl_seconds");
                add.gauge(&name, "Seconds until the certificate expires.", now.seconds_until(end));
            }
            let name = match *kind {
                "client" => "kubelet_certificate_manager_client_expiration_renew_errors",
                _ => "kubelet_server_expiration_renew_errors",
            };
            add.counter(name, "Failed attempts to renew the certificate.").inc_by(errors);
        }
        let startup = *self.startup.borrow();
        if let (Some(begun), Some(boot)) = (begun, boot) {
            add_startup(&add, startup, now, (begun, boot));
        }
    }
}

/// The durations of the node's startup, once it is complete.
fn add_startup(add: &Registrar<'_>, startup: Startup, now: Wall, (begun, boot): (Wall, Wall)) {
    let Startup { first_attempt: Some(attempt), registered: Some(registered), ready: Some(ready) } = startup
    else {
        return;
    };
    // Instants have no wall time: seconds ago are counted from now.
    let wall = |at: Instant| now.0 as f64 / 1e9 - at.elapsed().as_secs_f64();
    let (begun, boot) = (begun.0 as f64 / 1e9, boot.0 as f64 / 1e9);
    let parts = [
        (
            "kubelet_node_startup_duration_seconds",
            "Time from the boot of the machine until the node was ready.",
            wall(ready) - boot,
        ),
        (
            "kubelet_node_startup_pre_kubelet_duration_seconds",
            "Time from the boot of the machine to the start of the agent.",
            begun - boot,
        ),
        (
            "kubelet_node_startup_pre_registration_duration_seconds",
            "Time from the start of the agent to its first attempt to register the node.",
            wall(attempt) - begun,
        ),
        (
            "kubelet_node_startup_registration_duration_seconds",
            "Time from the first attempt to register the node until it was registered.",
            wall(registered) - wall(attempt),
        ),
        (
            "kubelet_node_startup_post_registration_duration_seconds",
            "Time from the registration of the node until it was ready.",
            wall(ready) - wall(registered),
        ),
    ];
    for (name, about, seconds) in parts {
        add.gauge(name, about, seconds.max(0.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::TextEncoder;

    fn shown(registry: &Registry) -> String {
        TextEncoder::new().encode_to_string(&registry.gather()).unwrap()
    }

    #[test]
    fn requests_are_counted_by_their_answer() {
        let registry = Registry::new();
        let metrics = ClusterMetrics::new(&registry);
        let took = Duration::from_millis(30);
        let mut request = ApiRequest {
            host: "h:1",
            method: "GET",
            code: Some(200),
            took,
            sent_bytes: 0,
            received_bytes: Some(7),
        };
        metrics.request(&request);
        (request.code, request.received_bytes) = (None, None);
        metrics.request(&request);
        let text = shown(&registry);
        for line in [
            r#"rest_client_requests_total{code="200",host="h:1",method="GET"} 1"#,
            r#"rest_client_requests_total{code="<error>",host="h:1",method="GET"} 1"#,
            r#"rest_client_response_size_bytes_count{host="h:1",verb="GET"} 1"#,
            r#"rest_client_request_duration_seconds_bucket{host="h:1",verb="GET",le="0.1"} 2"#,
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_nodes_way_is_told_when_it_is_over() {
        let metrics = ClusterMetrics::new(&Registry::new());
        let told = |metrics: &ClusterMetrics| {
            let registry = Registry::new();
            metrics.add_per_scrape(
                &registry,
                Wall(100_000_000_000),
                Some(Wall(60_000_000_000)),
                Some(Wall(0)),
            );
            shown(&registry)
        };
        metrics.node_ready();
        metrics.node_registering();
        tokio::time::advance(Duration::from_secs(2)).await;
        metrics.node_registered();
        assert_eq!(told(&metrics), "");
        tokio::time::advance(Duration::from_secs(3)).await;
        metrics.node_ready();
        tokio::time::advance(Duration::from_secs(10)).await;
        metrics.node_ready();
        for line in [
            "kubelet_node_startup_duration_seconds 90",
            "kubelet_node_startup_pre_registration_duration_seconds 25",
            "kubelet_node_startup_registration_duration_seconds 2",
            "kubelet_node_startup_post_registration_duration_seconds 3",
        ] {
            assert!(told(&metrics).contains(line), "{line} in\n{}", told(&metrics));
        }
    }

    #[test]
    fn ages_of_replaced_serving_certificates_are_counted() {
        let registry = Registry::new();
        let metrics = ClusterMetrics::new(&registry);
        let name = "kubelet_certificate_manager_server_rotation_seconds";
        metrics.register_certificate("client", Arc::new(|| (None, 0)));
        assert!(!shown(&registry).contains(name), "the cluster signs no serving certificate");
        metrics.register_certificate("server", Arc::new(|| (None, 0)));
        assert!(shown(&registry).contains(&format!("{name}_count 0\n")), "{}", shown(&registry));
        metrics.server_certificate_replaced(Duration::from_secs(3600));
        metrics.server_certificate_replaced(Duration::from_secs(200_000_000));
        let text = shown(&registry);
        let buckets = [
            ("60", 0),
            ("3600", 1),
            ("14400", 1),
            ("86400", 1),
            ("604800", 1),
            ("2592000", 1),
            ("7776000", 1),
            ("15552000", 1),
            ("31104000", 1),
            ("124416000", 1),
            ("+Inf", 2),
        ];
        let expect: Vec<_> =
            buckets.iter().map(|(le, count)| format!("{name}_bucket{{le=\"{le}\"}} {count}")).collect();
        let found: Vec<_> = text.lines().filter(|line| line.starts_with(&format!("{name}_bucket"))).collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn certificates_are_looked_at_when_somebody_asks() {
        let metrics = ClusterMetrics::new(&Registry::new());
        metrics.register_certificate("client", Arc::new(|| (Some(Wall(50_000_000_000)), 3)));
        metrics.register_certificate("server", Arc::new(|| (None, 0)));
        let registry = Registry::new();
        metrics.add_per_scrape(&registry, Wall(20_000_000_000), None, None);
        let text = shown(&registry);
        assert!(text.contains("kubelet_certificate_manager_client_ttl_seconds 30\n"), "{text}");
        assert!(text.contains("kubelet_certificate_manager_client_expiration_renew_errors 3\n"), "{text}");
        assert!(!text.contains("server_ttl"), "{text}");
    }
}
