//! Objects of several files: if two have the same name, the one in the later file is used, as with pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::cluster::{ObjectContent, ObjectKey};
use model::k8s::PersistentVolumeClaim;
use model::local::LocalObjects;

#[derive(Default)]
pub struct MergedObjects {
    contents: BTreeMap<ObjectKey, (String, Arc<ObjectContent>)>,
    claims: BTreeMap<(String, String), (String, Arc<PersistentVolumeClaim>)>,
}

impl MergedObjects {
    /// Returns the origins whose objects are replaced, each with a message.
    pub fn add(&mut self, origin: &str, objects: &LocalObjects) -> Vec<(String, String)> {
        let mut replaced = Vec::new();
        let mut tell = |earlier: Option<String>, kind: &str, namespace: &str, name: &str| {
            replaced.extend(earlier.map(|earlier| {
                let text = format!("{earlier}: {kind} {namespace}/{name} is also in {origin}, which is used");
                (earlier, text)
            }));
        };
        for (key, content) in &objects.contents {
            let earlier = self.contents.insert(key.clone(), (origin.to_owned(), content.clone()));
            tell(earlier.map(|(origin, _)| origin), key.kind.word(), &key.namespace, &key.name);
        }
        for claim in &objects.claims {
            let key = claim_key(claim);
            let earlier = self.claims.insert(key.clone(), (origin.to_owned(), claim.clone()));
            tell(earlier.map(|(origin, _)| origin), "persistentvolumeclaim", &key.0, &key.1);
        }
        replaced
    }

    pub fn into_objects(self) -> LocalObjects {
        LocalObjects {
            contents: self.contents.into_iter().map(|(key, (_, content))| (key, content)).collect(),
            claims: self.claims.into_values().map(|(_, claim)| claim).collect(),
        }
    }
}

/// If a part of a file can't be decoded, objects of its last good content may still be wanted.
pub fn keep_missing(now: &mut LocalObjects, before: LocalObjects) {
    let mut all = MergedObjects::default();
    all.add("", &before);
    all.add("", now);
    *now = all.into_objects();
}

fn claim_key(claim: &PersistentVolumeClaim) -> (String, String) {
    let meta = &claim.metadata;
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::cluster::ObjectKind;

    fn map(name: &str, version: &str) -> LocalObjects {
        let key = ObjectKey { kind: ObjectKind::ConfigMap, namespace: "ns".into(), name: name.into() };
        let content = ObjectContent { resource_version: version.into(), ..Default::default() };
        LocalObjects { contents: vec![(key, Arc::new(content))], claims: Vec::new() }
    }

    #[test]
    fn the_later_file_counts_and_the_earlier_is_named() {
        let mut all = MergedObjects::default();
        assert_eq!(all.add("/m/a", &map("x", "1")), []);
        assert_eq!(all.add("/m/b", &map("y", "2")), []);
        let text = "/m/a: configmap ns/x is also in /m/c, which is used".to_owned();
        assert_eq!(all.add("/m/c", &map("x", "3")), [("/m/a".to_owned(), text)]);
        let versions: Vec<_> =
            all.into_objects().contents.iter().map(|(_, c)| c.resource_version.clone()).collect();
        assert_eq!(versions, ["3", "2"]);
    }

    #[test]
    fn a_file_that_became_broken_keeps_its_objects() {
        let mut now = map("x", "2");
        keep_missing(
            &mut now,
            LocalObjects {
                contents: [map("x", "1").contents, map("y", "1").contents].concat(),
                claims: vec![],
            },
        );
        let versions: Vec<_> = now.contents.iter().map(|(_, c)| c.resource_version.clone()).collect();
        assert_eq!(versions, ["2", "1"]);
    }
}
