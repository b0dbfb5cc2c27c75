//! Lists of pods as the kubelet writes them: the list says what it is, its items do not.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use model::k8s::{ObjectMeta, Pod, PodList, PodSpec, PodStatus};
use serde::{Serialize, Serializer};

pub(crate) fn to_json(list: &PodList) -> serde_json::Result<Vec<u8>> {
    let body = Body { kind: "PodList", api_version: "v1", metadata: &list.metadata, items: &list.items };
    let mut bytes = serde_json::to_vec(&body)?;
    bytes.push(b'\n');
    Ok(bytes)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    kind: &'static str,
    api_version: &'static str,
    metadata: &'a ListMeta,
    #[serde(serialize_with = "bare")]
    items: &'a [Pod],
}

/// One pod, with this status or with its own.
pub(crate) fn to_json_item(pod: &Pod, status: Option<&PodStatus>) -> serde_json::Result<Vec<u8>> {
    let empty = (PodSpec::default(), PodStatus::default());
    serde_json::to_vec(&Item {
        metadata: &pod.metadata,
        spec: pod.spec.as_ref().unwrap_or(&empty.0),
        status: status.or(pod.status.as_ref()).unwrap_or(&empty.1),
    })
}

fn bare<S: Serializer>(pods: &&[Pod], to: S) -> Result<S::Ok, S::Error> {
    let empty = (PodSpec::default(), PodStatus::default());
    to.collect_seq(pods.iter().map(|pod| Item {
        metadata: &pod.metadata,
        spec: pod.spec.as_ref().unwrap_or(&empty.0),
        status: pod.status.as_ref().unwrap_or(&empty.1),
    }))
}

#[derive(Serialize)]
struct Item<'a> {
    metadata: &'a ObjectMeta,
    spec: &'a PodSpec,
    status: &'a PodStatus,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_look_like_the_kubelets() {
        let check = |list: &PodList, expect: &str| {
            assert_eq!(String::from_utf8(to_json(list).unwrap()).unwrap(), format!("{expect}\n"));
        };
        check(&PodList::default(), r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[]}"#);
        let mut pod = Pod::default();
        pod.metadata.name = Some("web-vm".into());
        pod.status = Some(PodStatus { phase: Some("Running".into()), ..Default::default() });
        check(
            &PodList { items: vec![pod, Pod::default()], ..Default::default() },
            concat!(
                r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":["#,
                r#"{"metadata":{"name":"web-vm"},"spec":{"containers":[]},"status":{"phase":"Running"}},"#,
                r#"{"metadata":{},"spec":{"containers":[]},"status":{}}]}"#
            ),
        );
    }
}
