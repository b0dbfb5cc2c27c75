//! The pod's own fields and resources as text, for variables that refer to them.

use std::collections::BTreeMap;

use model::k8s;
use model::pod::{ContainerKind, PodView};
use model::quantity::Quantity;

use super::{ContainerRef, RenderContext, RenderError};
use crate::resources::{
    Amounts, CPU, EPHEMERAL_STORAGE, HUGE_PAGES_PREFIX, MEMORY, container_limits, container_requests,
    node_allocatable, pod_level_limits,
};

/// The value of a `fieldRef`.
pub fn field(
    ctx: &RenderContext<'_>,
    pod: &PodView,
    pod_ips: &[String],
    selector: &k8s::ObjectFieldSelector,
) -> Result<String, RenderError> {
    let version = selector.api_version.as_deref().unwrap_or_default();
    if version != "v1" && !version.is_empty() {
        return Err(RenderError::FieldVersion { version: version.to_owned() });
    }
    let path = selector.field_path.as_str();
    if let Some((map, key)) = subscript(path) {
        return subscripted(pod, path, map, key);
    }
    let metadata = &pod.pod.metadata;
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    match path {
        "metadata.name" => Ok(pod.name().to_owned()),
        "metadata.namespace" => Ok(pod.namespace().to_owned()),
        "metadata.uid" => Ok(pod.uid.to_string()),
        "metadata.labels" => Ok(map_text(metadata.labels.as_ref())),
        "metadata.annotations" => Ok(map_text(metadata.annotations.as_ref())),
        "spec.nodeName" | "spec.host" => Ok(text(&pod.spec().node_name)),
        "spec.serviceAccountName" => Ok(text(&pod.spec().service_account_name)),
        "status.podIP" => Ok(pod_ips.first().cloned().unwrap_or_default()),
        "status.podIPs" => Ok(pod_ips.join(",")),
        "status.hostIP" => host_ips(ctx).map(|ips| ips[0].clone()),
        "status.hostIPs" => host_ips(ctx).map(|ips| ips.join(",")),
        // fields that pass API validation but are not supported by the kubelet
        "spec.restartPolicy" | "spec.schedulerName" | "status.phase" => {
            Err(RenderError::FieldUnsupported { path: path.to_owned() })
        }
        _ => Err(RenderError::FieldUnknown { path: path.to_owned() }),
    }
}

fn host_ips<'a>(ctx: &RenderContext<'a>) -> Result<&'a [String], RenderError> {
    let ips = ctx.facts.node_ips.as_slice();
    if ips.is_empty() { Err(RenderError::HostIpUnknown) } else { Ok(ips) }
}

/// `metadata.labels['app']` as its map and key.
fn subscript(path: &str) -> Option<(&str, &str)> {
    let (map, key) = path.strip_suffix("']")?.split_once("['")?;
    (!map.is_empty()).then_some((map, key))
}

fn subscripted(pod: &PodView, path: &str, map: &str, key: &str) -> Result<String, RenderError> {
    let entries = match map {
        "metadata.labels" => &pod.pod.metadata.labels,
        "metadata.annotations" => &pod.pod.metadata.annotations,
        _ => return Err(RenderError::FieldSubscript { path: path.to_owned() }),
    };
    Ok(entries.as_ref().and_then(|entries| entries.get(key)).cloned().unwrap_or_default())
}

/// One `key="value"` per line, sorted.
fn map_text(map: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<String> =
        map.into_iter().flatten().map(|(key, value)| format!("{key}={}", quoted(value))).collect();
    lines.join("\n")
}

/// In double quotes, with escapes for what can't be printed.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            c if c.is_ascii_control() => quoted.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// The value of a `resourceFieldRef`: the amount counted in the divisor, rounded up.
pub fn resource(
    ctx: &RenderContext<'_>,
    pod: &PodView,
    container: &ContainerRef<'_>,
    selector: &k8s::ResourceFieldSelector,
) -> Result<String, RenderError> {
    let named = selector.container_name.as_deref().filter(|name| !name.is_empty());
    let found;
    // A limit that was not set is what the container could use at most. Upstream leaves that out for an init
    // container which another one asks about, and so do we.
    let (container, bounded) = match named {
        Some(name) => {
            let (kind, container) = pod
                .container(name)
                .ok_or_else(|| RenderError::ContainerNotFound { name: name.to_owned() })?;
            found = container;
            (found, kind == ContainerKind::Regular)
        }
        None => (container.container, true),
    };
    let unsupported = || RenderError::ResourceUnsupported { resource: selector.resource.clone() };
    let (list, name) = selector.resource.split_once('.').ok_or_else(unsupported)?;
    let amounts = match list {
        "limits" if bounded => limits_or_node(ctx, pod, container),
        "limits" => container_limits(container),
        "requests" => container_requests(container),
        _ => return Err(unsupported()),
    };
    if name != CPU && name != MEMORY && name != EPHEMERAL_STORAGE && !name.starts_with(HUGE_PAGES_PREFIX) {
        return Err(unsupported());
    }
    Ok(divided(name, amounts.amount(name), selector.divisor.as_ref()))
}

fn limits_or_node(ctx: &RenderContext<'_>, pod: &PodView, container: &k8s::Container) -> Amounts {
    let mut bounds = node_allocatable(ctx.config, ctx.facts);
    for (name, limit) in pod_level_limits(pod).iter() {
        if !limit.is_zero() && bounds.get(name).is_some() {
            bounds.set(name, limit);
        }
    }
    let mut limits = container_limits(container);
    for name in [CPU, MEMORY, EPHEMERAL_STORAGE] {
        if let Some(bound) = bounds.get(name).filter(|_| limits.amount(name).is_zero()) {
            limits.set(name, bound);
        }
    }
    limits
}

fn divided(name: &str, amount: Quantity, divisor: Option<&k8s::Quantity>) -> String {
    let divisor = divisor.and_then(|text| Quantity::try_from(text).ok()).filter(|divisor| !divisor.is_zero());
    let divisor = divisor.unwrap_or(Quantity::from_millis(1000));
    let (amount, divisor) = if name == CPU {
        (amount.milli_value(), divisor.milli_value())
    } else {
        (amount.value(), divisor.value())
    };
    (i128::from(amount) + i128::from(divisor) - 1).div_euclid(i128::from(divisor)).to_string()
}

#[cfg(test)]
mod tests;
