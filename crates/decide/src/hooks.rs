//! Prepares the lifecycle hooks of the spec: resolves ports and fills in hosts.

use model::hook::{Hook, HookCall, HttpHook};
use model::k8s::{Container, HTTPGetAction, IntOrString, LifecycleHandler};
use model::pod::PodView;

/// The postStart hook.
pub fn post_start(pod: &PodView, container: &Container, ips: &[String]) -> Option<HookCall> {
    let handler = container.lifecycle.as_ref()?.post_start.as_ref()?;
    Some(call(pod, container, handler, ips))
}

/// The preStop hook.
pub fn pre_stop(pod: &PodView, container: &Container, ips: &[String]) -> Option<HookCall> {
    let handler = container.lifecycle.as_ref()?.pre_stop.as_ref()?;
    Some(call(pod, container, handler, ips))
}

/// Whether the hook ends with the grace period, as a sleep does. Any other hook is not interrupted: the container is
/// stopped while the hook runs.
pub fn ends_with_grace(call: &HookCall) -> bool {
    matches!(call.hook, Ok(Hook::Sleep { .. }))
}

/// The preStop hook from the annotation of a container whose spec is not known. A malformed hook is ignored, so that
/// the container can be stopped.
pub(crate) fn pre_stop_of_orphan(
    pod: &PodView,
    name: &str,
    annotation: &str,
    ips: &[String],
) -> Option<HookCall> {
    let handler: LifecycleHandler = serde_json::from_str(annotation).ok()?;
    let container = Container { name: name.to_owned(), ..Default::default() };
    Some(call(pod, &container, &handler, ips))
}

fn call(pod: &PodView, container: &Container, handler: &LifecycleHandler, ips: &[String]) -> HookCall {
    let of = format!("for Container \"{}\" in Pod \"{}\"", container.name, pod.display_name());
    if let Some(exec) = &handler.exec {
        let command = exec.command.clone().unwrap_or_default();
        let describe = format!("Exec lifecycle hook ([{}]) {of}", command.join(" "));
        return HookCall { hook: Ok(Hook::Exec { command }), describe };
    }
    if let Some(http) = &handler.http_get {
        let path = http.path.clone().unwrap_or_default();
        let describe = format!("HTTP lifecycle hook ({path}) {of}");
        return HookCall { hook: http_hook(pod, container, http, ips).map(Hook::Http), describe };
    }
    if let Some(sleep) = &handler.sleep {
        let describe = format!("Sleep lifecycle hook ({}) {of}", sleep.seconds);
        return HookCall { hook: Ok(Hook::Sleep { secs: sleep.seconds }), describe };
    }
    HookCall {
        hook: Err("invalid handler: no exec, httpGet or sleep".into()),
        describe: format!("Lifecycle hook {of}"),
    }
}

fn http_hook(
    pod: &PodView,
    container: &Container,
    http: &HTTPGetAction,
    ips: &[String],
) -> Result<HttpHook, String> {
    let host = match http.host.as_deref().filter(|h| !h.is_empty()) {
        Some(host) => host.to_owned(),
        None if pod.host_network() => return Err("failed to find networking container: the pod is on the host's network and the hook names no host".into()),
        None => ips.first().cloned().ok_or("failed to find networking container: the pod has no address")?,
    };
    let headers = http.http_headers.iter().flatten().map(|h| (h.name.clone(), h.value.clone())).collect();
    Ok(HttpHook {
        https: http.scheme.as_deref().is_some_and(|s| s.eq_ignore_ascii_case("https")),
        host,
        port: port_number(container, &http.port)?,
        path: http.path.clone().unwrap_or_default(),
        headers,
    })
}

/// A number, the name of one of the container's own ports, or a number written as text.
pub fn port_number(container: &Container, port: &IntOrString) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(number) => i64::from(*number),
        IntOrString::String(name) => {
            let named = container.ports.iter().flatten().find(|p| p.name.as_deref() == Some(name));
            match named {
                Some(port) => i64::from(port.container_port),
                None => name.parse().map_err(|_| format!("port {name} not found"))?,
            }
        }
    };
    u16::try_from(number).ok().filter(|n| *n > 0).ok_or_else(|| format!("invalid port number: {number}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::pod::Source;
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn hook(spec: Value, handler: Value, ips: &[&str]) -> HookCall {
        let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec});
        let pod = PodView::new(Arc::new(serde_json::from_value(pod).expect("a pod")), Source::File);
        let container = json!({
            "name": "c",
            "ports": [{"name": "web", "containerPort": 8080}],
            "lifecycle": {"preStop": handler},
        });
        let container: Container = serde_json::from_value(container).expect("a container");
        let ips: Vec<String> = ips.iter().map(|ip| ip.to_string()).collect();
        pre_stop(&pod, &container, &ips).expect("a hook")
    }

    #[test]
    fn each_kind_is_made_ready() {
        let none = json!({"containers": []});
        let exec = hook(none.clone(), json!({"exec": {"command": ["sh", "-c", "x"]}}), &[]);
        assert_eq!(exec.hook, Ok(Hook::Exec { command: vec!["sh".into(), "-c".into(), "x".into()] }));
        assert_eq!(exec.describe, "Exec lifecycle hook ([sh -c x]) for Container \"c\" in Pod \"p_ns(u)\"");
        let sleep = hook(none.clone(), json!({"sleep": {"seconds": 3}}), &[]);
        assert_eq!(sleep.hook, Ok(Hook::Sleep { secs: 3 }));
        assert!(ends_with_grace(&sleep) && !ends_with_grace(&exec));
        let tcp = hook(none, json!({"tcpSocket": {"port": 1}}), &[]);
        assert!(tcp.hook.is_err_and(|e| e.starts_with("invalid handler")));
    }

    #[test]
    fn http_hooks_know_where_to_go() {
        let check = |spec: Value, http: Value, ips: &[&str], expect: Result<(&str, u16), &str>| {
            let got = hook(spec, json!({"httpGet": http.clone()}), ips).hook;
            match (got, expect) {
                (Ok(Hook::Http(h)), Ok((host, port))) => {
                    assert_eq!((h.host.as_str(), h.port), (host, port), "{http}")
                }
                (Err(error), Err(start)) => assert!(error.starts_with(start), "{http}: {error}"),
                (got, expect) => panic!("{http}: {got:?}, not {expect:?}"),
            }
        };
        let pod = json!({"containers": []});
        let host_network = json!({"hostNetwork": true, "containers": []});
        check(pod.clone(), json!({"port": 80}), &["10.0.0.1"], Ok(("10.0.0.1", 80)));
        check(pod.clone(), json!({"port": "web"}), &["10.0.0.1"], Ok(("10.0.0.1", 8080)));
        check(pod.clone(), json!({"port": "81"}), &["10.0.0.1"], Ok(("10.0.0.1", 81)));
        check(pod.clone(), json!({"port": "nope"}), &["10.0.0.1"], Err("port nope not found"));
        check(pod.clone(), json!({"port": 0}), &["10.0.0.1"], Err("invalid port number: 0"));
        check(pod.clone(), json!({"port": 80}), &[], Err("failed to find networking container"));
        check(pod, json!({"port": 80, "host": "h"}), &[], Ok(("h", 80)));
        check(
            host_network.clone(),
            json!({"port": 80}),
            &["10.0.0.1"],
            Err("failed to find networking container"),
        );
        check(host_network, json!({"port": 80, "host": "h"}), &[], Ok(("h", 80)));
    }
}
