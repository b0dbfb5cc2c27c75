//! Directories of pods, logs and links, by name only.

use std::collections::{BTreeMap, BTreeSet};

use model::PodUid;
use model::cri::IdMapping;
use model::panic_record::PanicRecord;
use model::probe::ProbeRecord;

use super::WorldError;

#[derive(Clone, Debug, Default)]
pub struct Disk {
    /// Each pod's directory with the volumes set up in it.
    pub pods: BTreeMap<PodUid, BTreeSet<String>>,
    /// Small files in the directories of pods.
    pub probe_records: BTreeMap<PodUid, ProbeRecord>,
    pub user_ids: BTreeMap<PodUid, IdMapping>,
    /// Panic records of earlier agents.
    pub panic_records: Vec<PanicRecord>,
    /// Content of volumes that the agent writes, all files in one text.
    pub content: BTreeMap<(PodUid, String), String>,
    /// `<ns>_<name>_<uid>` to the log numbers of each container.
    pub logs: BTreeMap<String, BTreeMap<String, BTreeSet<u32>>>,
    /// From a link to the log that it points to.
    pub links: BTreeMap<String, String>,
}

/// Splits `…/<pod's directory>/<container>/<number>.log` into its parts.
fn log_parts(path: &str) -> Option<(&str, &str, u32)> {
    let mut parts = path.rsplitn(4, '/');
    let number = parts.next()?.strip_suffix(".log")?.parse().ok()?;
    let container = parts.next()?;
    let pod = parts.next()?;
    Some((pod, container, number))
}

pub fn last_part(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

impl Disk {
    /// Stores the record, if the pod's directory exists.
    pub fn keep_probes(&mut self, uid: &PodUid, record: ProbeRecord) {
        if self.pods.contains_key(uid) {
            self.probe_records.insert(uid.clone(), record);
        }
    }

    /// Removes the pod's directory with everything in it.
    pub fn forget_pod(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
        self.probe_records.remove(uid);
        self.user_ids.remove(uid);
    }

    pub fn make_pod(&mut self, uid: &PodUid, log_dir: &str) {
        self.pods.entry(uid.clone()).or_default();
        self.logs.entry(last_part(log_dir).to_owned()).or_default();
    }

    /// `…/<pod's directory>/<container>`
    pub fn make_log_dir(&mut self, path: &str) {
        let mut parts = path.rsplitn(3, '/');
        if let (Some(container), Some(pod)) = (parts.next(), parts.next()) {
            self.logs.entry(pod.to_owned()).or_default().entry(container.to_owned()).or_default();
        }
    }

    pub fn write_log(&mut self, path: &str) {
        if let Some((pod, container, number)) = log_parts(path)
            && let Some(numbers) = self.logs.get_mut(pod).and_then(|c| c.get_mut(container))
        {
            numbers.insert(number);
        }
    }

    pub fn remove_log(&mut self, path: &str) {
        if let Some((pod, container, number)) = log_parts(path)
            && let Some(numbers) = self.logs.get_mut(pod).and_then(|c| c.get_mut(container))
        {
            numbers.remove(&number);
        }
        self.links.retain(|_, target| target != path);
    }

    pub fn has_log(&self, path: &str) -> bool {
        log_parts(path).is_some_and(|(pod, container, number)| {
            self.logs.get(pod).and_then(|c| c.get(container)).is_some_and(|n| n.contains(&number))
        })
    }

    pub fn highest_log(&self, log_dir: &str, container: &str) -> Option<u32> {
        self.logs.get(last_part(log_dir))?.get(container)?.last().copied()
    }

    pub fn set_up_volume(&mut self, uid: &PodUid, volume: &str, content: Option<&str>) {
        if let Some(content) = content {
            self.content.insert((uid.clone(), volume.to_owned()), content.to_owned());
        }
        self.pods.entry(uid.clone()).or_default().insert(volume.to_owned());
    }

    /// Removes all volumes but those that are still mounted.
    pub fn tear_down_volumes(&mut self, uid: &PodUid, mounted: &BTreeSet<String>) {
        self.content.retain(|(pod, _), _| pod != uid);
        if let Some(volumes) = self.pods.get_mut(uid) {
            volumes.retain(|volume| mounted.contains(volume));
        }
    }

    /// A mount has vanished by itself.
    pub fn unmounted(&mut self, uid: &PodUid, volume: &str) {
        if let Some(volumes) = self.pods.get_mut(uid) {
            volumes.remove(volume);
        }
    }

    pub fn remove_pod(&mut self, uid: &PodUid) -> Result<(), WorldError> {
        if self.pods.get(uid).is_some_and(|volumes| !volumes.is_empty()) {
            return Err(WorldError::because(format!("volumes of pod {uid} are still mounted")));
        }
        self.forget_pod(uid);
        Ok(())
    }

    pub fn dead_links(&self) -> Vec<String> {
        self.links.iter().filter(|(_, target)| !self.has_log(target)).map(|(link, _)| link.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_found_by_their_numbers() {
        let mut disk = Disk::default();
        disk.make_pod(&"u".into(), "/logs/ns_p_u");
        disk.make_log_dir("/logs/ns_p_u/c");
        disk.write_log("/logs/ns_p_u/c/3.log");
        disk.write_log("/logs/ns_p_u/c/1.log");
        assert_eq!(disk.highest_log("/logs/ns_p_u", "c"), Some(3));
        disk.links.insert("l".into(), "/logs/ns_p_u/c/3.log".into());
        assert!(disk.dead_links().is_empty());
        disk.logs.remove("ns_p_u");
        assert_eq!(disk.dead_links(), ["l"]);
        disk.remove_log("/logs/ns_p_u/c/3.log");
        assert!(disk.links.is_empty());
    }
}
