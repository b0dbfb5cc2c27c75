//! From a probe's definition to a call that can be carried out as it is.

use model::k8s::{Container, ExecAction, HTTPGetAction, IntOrString, Probe};
use model::pod::PodView;
use model::probe::{HttpCheck, NetworkCheck, ProbeCall, ProbeCheck};

use super::timing::Timing;
use crate::render::expansion::expand;

/// The call, or why it can't be made.
pub fn call(pod: &PodView, container: &Container, probe: &Probe, pod_ip: &str) -> Result<ProbeCall, String> {
    let check = if let Some(exec) = &probe.exec {
        ProbeCheck::Exec { command: command(container, exec) }
    } else if let Some(http) = &probe.http_get {
        ProbeCheck::Network(NetworkCheck::Http(http_check(container, http, pod_ip)?))
    } else if let Some(tcp) = &probe.tcp_socket {
        let port = port(&tcp.port, container)?;
        ProbeCheck::Network(NetworkCheck::Tcp { host: host(tcp.host.as_deref(), pod_ip), port })
    } else if let Some(grpc) = &probe.grpc {
        let port = valid_port(i64::from(grpc.port))?;
        let service = grpc.service.clone().unwrap_or_default();
        ProbeCheck::Network(NetworkCheck::Grpc { host: pod_ip.to_owned(), port, service })
    } else {
        return Err(format!("missing probe handler for {}:{}", pod.display_name(), container.name));
    };
    Ok(ProbeCall { timeout: Timing::of(probe).timeout, check })
}

fn host(given: Option<&str>, pod_ip: &str) -> String {
    given.filter(|host| !host.is_empty()).unwrap_or(pod_ip).to_owned()
}

/// Variables come from the literal values of `env` alone: nothing is looked up for a probe. One that takes its value
/// from elsewhere is there, and empty.
fn command(container: &Container, exec: &ExecAction) -> Vec<String> {
    let value = |name: &str| {
        let mut named = container.env.iter().flatten().rev().filter(|e| e.name == name);
        named.next().map(|e| e.value.clone().unwrap_or_default())
    };
    exec.command.iter().flatten().map(|word| expand(word, value)).collect()
}

fn http_check(container: &Container, http: &HTTPGetAction, pod_ip: &str) -> Result<HttpCheck, String> {
    let header = |h: &model::k8s::HTTPHeader| (h.name.clone(), h.value.clone());
    Ok(HttpCheck {
        https: http.scheme.as_deref().is_some_and(|s| s.eq_ignore_ascii_case("https")),
        host: host(http.host.as_deref(), pod_ip),
        port: port(&http.port, container)?,
        target: target(http.path.as_deref().unwrap_or("/")),
        headers: http.http_headers.iter().flatten().map(header).collect(),
    })
}

/// A name is looked up among this container's ports alone.
pub(super) fn port(given: &IntOrString, container: &Container) -> Result<u16, String> {
    match given {
        IntOrString::Int(number) => valid_port(i64::from(*number)),
        IntOrString::String(name) => {
            let mut ports = container.ports.iter().flatten();
            let named = ports.find(|p| p.name.as_deref() == Some(name)).map(|p| i64::from(p.container_port));
            let number = named.or_else(|| name.parse().ok());
            valid_port(number.ok_or_else(|| format!("port {name} not found"))?)
        }
    }
}

fn valid_port(number: i64) -> Result<u16, String> {
    let port = u16::try_from(number).ok().filter(|port| *port > 0);
    port.ok_or_else(|| format!("invalid port number: {number}"))
}

/// Path and query as they are sent. The path may be a whole URL, of which only these parts count; one that makes no
/// sense as a URL is taken for a path letter by letter.
pub(super) fn target(path: &str) -> String {
    let sound = is_sound(path);
    let (path, query) = if sound { split(path) } else { (path, None) };
    let mut out = String::new();
    if !path.starts_with('/') {
        out.push('/');
    }
    escape(&mut out, path, |b| sound && b == b'%');
    if let Some(query) = query {
        out.push('?');
        // A query goes as it is, but for what no request line can hold.
        for b in query.bytes() {
            push(&mut out, b, (0x21..0x7f).contains(&b));
        }
    }
    out
}

/// Every percent sign begins a code, and there is nothing that can't be printed.
fn is_sound(path: &str) -> bool {
    let bytes = path.as_bytes();
    let codes = |part: &[u8]| {
        part.iter()
            .enumerate()
            .filter(|(_, b)| **b == b'%')
            .all(|(at, _)| part.get(at + 1..at + 3).is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit)))
    };
    let before_query = bytes.split(|b| *b == b'?').next().unwrap_or_default();
    let colon_first = !path.starts_with('/')
        && path.split('/').next().is_some_and(|first| first.contains(':') && scheme(path).is_none());
    !bytes.iter().any(u8::is_ascii_control) && codes(before_query) && !colon_first
}

/// What stands before the colon of a URL.
fn scheme(path: &str) -> Option<&str> {
    let (scheme, _) = path.split_once(':')?;
    let mut letters = scheme.bytes();
    let first = letters.next()?.is_ascii_alphabetic();
    let rest = letters.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'));
    (first && rest).then_some(scheme)
}

/// Without scheme, authority and fragment.
fn split(path: &str) -> (&str, Option<&str>) {
    let path = path.split('#').next().unwrap_or_default();
    let path = scheme(path).map_or(path, |scheme| &path[scheme.len() + 1..]);
    let path = match path.strip_prefix("//") {
        Some(rest) => &rest[rest.find(['/', '?']).unwrap_or(rest.len())..],
        None => path,
    };
    match path.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (path, None),
    }
}

fn escape(out: &mut String, path: &str, keep: impl Fn(u8) -> bool) {
    for b in path.bytes() {
        let plain = b.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@!'()*[]".contains(&b);
        push(out, b, plain || keep(b));
    }
}

fn push(out: &mut String, byte: u8, plain: bool) {
    if plain {
        out.push(char::from(byte));
    } else {
        out.push_str(&format!("%{byte:02X}"));
    }
}
