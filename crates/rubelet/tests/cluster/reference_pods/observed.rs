//! What the API server tells of the pods and of their Events, from a watch on each, as it happens.

use std::collections::BTreeMap;
use std::io::BufReader;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use serde_json::{Deserializer, Value};

use crate::support::cluster::Cluster;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Pods,
    Events,
}

pub struct Observed {
    /// By pod, in the order of the watch.
    stories: BTreeMap<(Kind, String), Vec<Value>>,
    news: Receiver<(Kind, Value)>,
    watches: Vec<Child>,
}

impl Observed {
    pub fn begin(cluster: &Cluster, namespace: &str) -> Observed {
        let (sender, news) = channel();
        let watches = [Kind::Pods, Kind::Events].map(|kind| watch(cluster, namespace, kind, sender.clone()));
        Observed { stories: BTreeMap::new(), news, watches: watches.into() }
    }

    /// Takes in what was told since.
    pub fn update(&mut self) {
        for (kind, event) in self.news.try_iter() {
            let name = match kind {
                Kind::Pods => &event["object"]["metadata"]["name"],
                Kind::Events => &event["object"]["involvedObject"]["name"],
            };
            let name = name.as_str().unwrap_or_default().to_owned();
            self.stories.entry((kind, name)).or_default().push(event);
        }
    }

    /// Each state of the pod, with the watch's word for it: `ADDED`, `MODIFIED`, `DELETED`.
    pub fn pod(&self, name: &str) -> &[Value] {
        self.story(Kind::Pods, name)
    }

    /// The Events about the pod.
    pub fn events(&self, name: &str) -> impl Iterator<Item = &Value> {
        self.story(Kind::Events, name).iter().map(|event| &event["object"])
    }

    fn story(&self, kind: Kind, name: &str) -> &[Value] {
        self.stories.get(&(kind, name.to_owned())).map(Vec::as_slice).unwrap_or_default()
    }
}

fn watch(cluster: &Cluster, namespace: &str, kind: Kind, news: Sender<(Kind, Value)>) -> Child {
    let objects = match kind {
        Kind::Pods => "pods",
        Kind::Events => "events",
    };
    let args = ["get", objects, "--namespace", namespace, "--watch", "--output-watch-events", "-o", "json"];
    let mut child = cluster
        .kubectl_command(&cluster.admin_kubeconfig(), &args)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("start kubectl");
    let output = BufReader::new(child.stdout.take().expect("its output"));
    thread::spawn(move || {
        for event in Deserializer::from_reader(output).into_iter::<Value>().map_while(Result::ok) {
            if news.send((kind, event)).is_err() {
                return;
            }
        }
    });
    child
}

impl Drop for Observed {
    fn drop(&mut self) {
        for watch in &mut self.watches {
            let _ = watch.kill();
            let _ = watch.wait();
        }
    }
}
