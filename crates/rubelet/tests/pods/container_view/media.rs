//! What emptyDirs stand on: memory, as much of it as the pod may have, and huge pages.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{clear, facts, looks, seen, spec};
use crate::support::harness::Node;
use crate::support::harness::SLOW;
use crate::support::pods::{is_running, manifest};

fn mounts(names: &[&str]) -> Value {
    let mount = |name: &&str| json!({ "name": name, "mountPath": format!("/{name}") });
    json!({ "volumeMounts": names.iter().map(mount).collect::<Vec<_>>() })
}

/// The smallest of what the volume, the pod and the node allow.
#[test]
fn memory_as_much_as_the_pod_may_have() {
    let node = Node::start();
    let sizes = "for dir in free small large; do echo $dir=$(df -k /$dir | awk 'END {print $2}'); done
                 dd if=/dev/zero of=/small/x bs=1M count=8 2>/dev/null && echo written=all || echo written=part";
    let mut limited = mounts(&["free", "small", "large"]);
    limited["resources"] = json!({ "limits": { "memory": "64Mi" } });
    let more = json!({ "volumes": [
        { "name": "free", "emptyDir": { "medium": "Memory" } },
        { "name": "small", "emptyDir": { "medium": "Memory", "sizeLimit": "4Mi" } },
        { "name": "large", "emptyDir": { "medium": "Memory", "sizeLimit": "1Gi" } },
    ]});
    let containers = json!([looks("c", sizes, limited)]);
    node.agent.write_manifest("m", &manifest("m", spec(containers, more)));
    let pod = node.wait_pod("m", SLOW, is_running);
    let found = facts(&node, &pod, "c");
    let of = |name: &str| found.get(name).map(String::as_str);
    assert_eq!((of("free"), of("small"), of("large")), (Some("65536"), Some("4096"), Some("65536")));
    assert_eq!(of("written"), Some("part"), "{found:?}");
    clear(&node, &["m"]);
}

/// Pages of the kernel, as many more as are asked for; given back at the end.
struct HugePages {
    file: PathBuf,
    before: u64,
}

impl HugePages {
    /// `None`: this kernel has none to give.
    fn reserve(pages: u64) -> Option<HugePages> {
        let file = Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages").to_owned();
        let read = || fs::read_to_string(&file).ok()?.trim().parse::<u64>().ok();
        let before = read()?;
        fs::write(&file, (before + pages).to_string()).ok()?;
        let given = read()?;
        let reserved = HugePages { file, before };
        (given >= before + pages).then_some(reserved)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = fs::write(&self.file, self.before.to_string());
    }
}

/// A container takes pages of the volume, sees them and can't take more than the pod asked for. Where the kernel gives no
/// pages the pod is refused for want of them, which is what is looked at then.
#[test]
fn huge_pages() {
    let reserved = HugePages::reserve(4);
    let node = Node::start();
    let script = "echo type=$(awk '$2 == \"/huge\" {print $3}' /proc/mounts)
                  fallocate -l 4M /huge/file && echo taken=$(du -k /huge/file | cut -f1)
                  fallocate -l 8M /huge/more 2>/dev/null && echo more=yes || echo more=no";
    let mut container = looks("c", script, mounts(&["huge"]));
    let pages = json!({ "hugepages-2Mi": "4Mi", "memory": "64Mi", "cpu": "100m" });
    container["resources"] = json!({ "requests": pages, "limits": pages });
    let volumes = json!({ "volumes": [{ "name": "huge", "emptyDir": { "medium": "HugePages-2Mi" } }] });
    node.agent.write_manifest("g", &manifest("g", spec(json!([container]), volumes)));
    if reserved.is_none() {
        let refused = |pod: &Value| pod["status"]["reason"] == "OutOfhugepages-2Mi";
        node.wait_pod("g", SLOW, refused);
        return;
    }
    let pod = node.wait_pod("g", SLOW, is_running);
    assert_eq!(seen(&node, &pod, "c"), ["type=hugetlbfs", "taken=4096", "more=no"]);
    clear(&node, &["g"]);
}
