//! Files of certificates that the cluster vouches for: those of one bundle, or of all bundles of a signer that a selector
//! picks. Each certificate is in the file once, whichever bundles have it, and in the same order each time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::k8s::{ClusterTrustBundle, ClusterTrustBundleProjection, LabelSelector};

use crate::pem;

pub const GATE: &str = "ClusterTrustBundleProjection";

type Bundles = BTreeMap<String, Arc<ClusterTrustBundle>>;

/// What is in the file.
pub(super) fn certificates_of_source(
    source: &ClusterTrustBundleProjection,
    bundles: &Bundles,
) -> Result<Vec<u8>, String> {
    let optional = source.optional == Some(true);
    let chosen: Vec<&ClusterTrustBundle> = match (&source.name, &source.signer_name) {
        (Some(name), _) => match bundles.get(name) {
            Some(bundle) => vec![bundle],
            None if optional => Vec::new(),
            None => {
                let missing = format!("clustertrustbundle.certificates.k8s.io {name:?} not found");
                return Err(format!("while getting ClusterTrustBundle: {missing}"));
            }
        },
        (None, Some(signer)) => {
            let chosen = of_signer(signer, source.label_selector.as_ref(), bundles)?;
            if chosen.is_empty() && !optional {
                return Err(NOTHING_MATCHES.to_owned());
            }
            chosen
        }
        (None, None) => return Err(NEITHER.to_owned()),
    };
    Ok(written(&chosen))
}

const NOTHING_MATCHES: &str = "combination of signerName and labelSelector matched zero ClusterTrustBundles";
const NEITHER: &str = "ClusterTrustBundle projection requires either name or signerName to be set";

fn of_signer<'a>(
    signer: &str,
    selector: Option<&LabelSelector>,
    bundles: &'a Bundles,
) -> Result<Vec<&'a ClusterTrustBundle>, String> {
    let mut chosen = Vec::new();
    for bundle in bundles.values() {
        let labels = bundle.metadata.labels.clone().unwrap_or_default();
        let picked =
            selects(selector, &labels).map_err(|cause| format!("while parsing label selector: {cause}"))?;
        if picked && bundle.spec.signer_name.as_deref() == Some(signer) {
            chosen.push(&**bundle);
        }
    }
    Ok(chosen)
}

/// No selector picks nothing; an empty one everything.
fn selects(selector: Option<&LabelSelector>, labels: &BTreeMap<String, String>) -> Result<bool, String> {
    let Some(selector) = selector else { return Ok(false) };
    let mut pairs = selector.match_labels.iter().flatten();
    let mut all = pairs.all(|(key, value)| labels.get(key) == Some(value));
    for wanted in selector.match_expressions.iter().flatten() {
        let found = labels.get(&wanted.key);
        let listed = |value: &String| wanted.values.iter().flatten().any(|one| one == value);
        all &= match wanted.operator.as_str() {
            "In" => found.is_some_and(listed),
            "NotIn" => !found.is_some_and(listed),
            "Exists" => found.is_some(),
            "DoesNotExist" => found.is_none(),
            other => return Err(format!("{other:?} is not a valid label selector operator")),
        };
    }
    Ok(all)
}

fn written(bundles: &[&ClusterTrustBundle]) -> Vec<u8> {
    let all: BTreeSet<String> =
        bundles.iter().flat_map(|bundle| pem::bodies(&bundle.spec.trust_bundle)).collect();
    pem::written(all).into_bytes()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pem(bodies: &[&str]) -> String {
        pem::written(bodies.iter().map(|body| (*body).to_owned()))
    }

    fn bundles() -> Bundles {
        let one = |name: &str, signer: Value, label: &str, pem: String| {
            let object = json!({
                "metadata": {"name": name, "labels": {"stage": label}},
                "spec": {"signerName": signer, "trustBundle": pem},
            });
            (name.to_owned(), Arc::new(serde_json::from_value(object).unwrap()))
        };
        let with_words = format!("a remark\n{}another\n", pem(&["BBBB", "AAAA"]));
        [
            one("plain", Value::Null, "x", with_words),
            one("s:a:live", json!("a"), "live", pem(&["CCCC", "BBBB"])),
            one("s:a:test", json!("a"), "test", pem(&["DDDD", "BBBB"])),
            one("s:b:live", json!("b"), "live", pem(&["EEEE"])),
        ]
        .into()
    }

    #[test]
    fn which_certificates_are_in_the_file() {
        let check = |source: Value, expect: Result<&[&str], &str>| {
            let mut source = source;
            source["path"] = json!("ca.pem");
            let wanted: ClusterTrustBundleProjection = serde_json::from_value(source.clone()).unwrap();
            let found =
                certificates_of_source(&wanted, &bundles()).map(|bytes| String::from_utf8(bytes).unwrap());
            assert_eq!(found, expect.map(pem).map_err(str::to_owned), "{source}");
        };
        check(json!({"name": "plain"}), Ok(&["AAAA", "BBBB"]));
        check(
            json!({"name": "none"}),
            Err(
                "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io \"none\" not found",
            ),
        );
        check(json!({"name": "none", "optional": true}), Ok(&[]));
        check(json!({}), Err(NEITHER));
        check(json!({"signerName": "a", "labelSelector": {}}), Ok(&["BBBB", "CCCC", "DDDD"]));
        check(json!({"signerName": "a"}), Err(NOTHING_MATCHES));
        check(json!({"signerName": "a", "optional": true}), Ok(&[]));
        check(json!({"signerName": "c", "labelSelector": {}}), Err(NOTHING_MATCHES));
        let by = |operator: &str, values: Value| {
            let wanted = json!([{"key": "stage", "operator": operator, "values": values}]);
            json!({"signerName": "a", "labelSelector": {"matchExpressions": wanted}})
        };
        let live = json!({"signerName": "a", "labelSelector": {"matchLabels": {"stage": "live"}}});
        check(live, Ok(&["BBBB", "CCCC"]));
        check(by("In", json!(["test", "other"])), Ok(&["BBBB", "DDDD"]));
        check(by("NotIn", json!(["test"])), Ok(&["BBBB", "CCCC"]));
        check(by("Exists", Value::Null), Ok(&["BBBB", "CCCC", "DDDD"]));
        check(by("DoesNotExist", Value::Null), Err(NOTHING_MATCHES));
        check(
            by("Like", Value::Null),
            Err("while parsing label selector: \"Like\" is not a valid label selector operator"),
        );
    }
}
