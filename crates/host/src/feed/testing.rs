//! A toy manifest format and readable notices, for tests of feeds.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use model::k8s::Pod;
use model::runtime_class::RuntimeClass;
use ports::FeedNotice;

use super::{DecodedManifest, ManifestDecoder};

pub fn pod(namespace: &str, name: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.namespace = Some(namespace.into());
    pod.metadata.name = Some(name.into());
    pod
}

/// Lines `pod <name> [<label>]` and `class <name> <handler>`; anything else is a problem.
pub fn toy_decoder() -> ManifestDecoder {
    Arc::new(|origin, content| {
        let mut decoded = DecodedManifest::default();
        let Ok(text) = std::str::from_utf8(content) else {
            decoded.problems.push(format!("{origin}: not text"));
            return decoded;
        };
        if text.trim().is_empty() {
            decoded.problems.push(format!("{origin}: empty"));
        }
        for line in text.lines() {
            match line.split_whitespace().collect::<Vec<_>>().as_slice() {
                ["pod", "panic"] => panic!("asked to"),
                ["class", name, handler] => {
                    let class = RuntimeClass { handler: (*handler).to_owned(), ..Default::default() };
                    decoded.runtime_classes.insert((*name).to_owned(), class);
                }
                ["pod", name] => decoded.pods.push(pod("ns", name)),
                ["pod", name, label] => {
                    let mut pod = pod("ns", name);
                    pod.metadata.labels = Some([("l".to_owned(), (*label).to_owned())].into());
                    decoded.pods.push(pod);
                }
                _ => decoded.problems.push(format!("{origin}: can't read {line:?}")),
            }
        }
        decoded
    })
}

/// `set ns/a=label ns/b`, `problem <origin>: <message>`, `resolved <origin>`
pub fn show(notice: &FeedNotice) -> String {
    match notice {
        FeedNotice::Set(set) => {
            let mut text = "set".to_owned();
            for pod in &set.pods {
                let (namespace, name) = super::key(pod);
                text += &format!(" {namespace}/{name}");
                if let Some(labels) = &pod.metadata.labels {
                    text += &format!("={}", labels["l"]);
                }
            }
            text
        }
        FeedNotice::Changed { pod, .. } => {
            let (namespace, name) = super::key(pod);
            format!("changed {namespace}/{name}")
        }
        FeedNotice::Gone { uid, .. } => format!("gone {uid}"),
        FeedNotice::Unreadable { pods, .. } => format!("unreadable {}", pods.len()),
        FeedNotice::RuntimeClasses { classes, .. } => {
            let classes: Vec<_> = classes.iter().map(|(name, c)| format!(" {name}={}", c.handler)).collect();
            format!("classes{}", classes.concat())
        }
        FeedNotice::Objects { objects, .. } => {
            let names: Vec<_> = objects.contents.iter().map(|(key, _)| format!(" {}", key.name)).collect();
            format!("objects{}", names.concat())
        }
        FeedNotice::Problem { origin, message, .. } => format!("problem {origin}: {message}"),
        FeedNotice::Resolved { origin, .. } => format!("resolved {origin}"),
    }
}

/// The feed's next notice; a feed that stays silent fails the test.
pub async fn next(stream: &mut BoxStream<'static, FeedNotice>) -> String {
    let wait = tokio::time::timeout(Duration::from_secs(20), stream.next());
    show(&wait.await.expect("a notice was due").expect("feeds do not end"))
}
