use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use model::probe::{ContainerProbeRecord, ProbeKind, ProbeRecord};
use model::{ContainerId, PodUid};
use ports::ProbeRecordStore;
use tempfile::TempDir;

use crate::probe::PodProbeRecords;

fn record(id: &str, ready: bool) -> ProbeRecord {
    let mut of = ContainerProbeRecord::new(ContainerId::new(id));
    of.results.insert(ProbeKind::Readiness, ready);
    of.results.insert(ProbeKind::Startup, true);
    of.must_restart = !ready;
    ProbeRecord { containers: [("c".to_owned(), of)].into() }
}

fn root(pods: &[&str]) -> (TempDir, PodProbeRecords) {
    let dir = tempfile::tempdir().unwrap();
    for pod in pods {
        fs::create_dir_all(dir.path().join("pods").join(pod)).unwrap();
    }
    let store = PodProbeRecords::new(dir.path());
    (dir, store)
}

fn file(root: &TempDir, pod: &str) -> std::path::PathBuf {
    root.path().join("pods").join(pod).join("probe-results")
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap().flatten();
    let mut names: Vec<_> = entries.map(|e| e.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn what_is_saved_is_loaded() {
    let (root, store) = root(&["a", "b", "without"]);
    let (a, b) = (PodUid::new("a"), PodUid::new("b"));
    store.save(&a, &record("a0", true)).await.unwrap();
    store.save(&b, &record("b0", true)).await.unwrap();
    store.save(&b, &record("b1", false)).await.unwrap();
    let found = store.load().await;
    assert_eq!(found.records, [(a, record("a0", true)), (b, record("b1", false))]);
    assert!(found.problems.is_empty());
    assert_eq!(names(&root.path().join("pods/b")), ["probe-results"], "no draft is left");
    assert_eq!(file(&root, "a").metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn before_there_are_pods_there_is_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let found = PodProbeRecords::new(dir.path().join("none")).load().await;
    assert!(found.records.is_empty() && found.problems.is_empty());
}

#[tokio::test]
async fn a_pod_that_is_gone_gets_no_record_and_no_directory() {
    let (root, store) = root(&["other"]);
    store.save(&PodUid::new("gone"), &record("c0", true)).await.unwrap();
    assert_eq!(names(&root.path().join("pods")), ["other"]);
}

#[tokio::test]
async fn no_uid_leads_elsewhere() {
    let (root, store) = root(&["a"]);
    fs::create_dir(root.path().join("elsewhere")).unwrap();
    for uid in ["..", ".", "", "a/../../elsewhere", "/tmp", "../elsewhere", "a/"] {
        let error = store.save(&PodUid::new(uid), &record("c0", true)).await.unwrap_err();
        assert!(error.to_string().contains("is no name for a directory"), "{uid:?}: {error}");
    }
    symlink(root.path().join("elsewhere"), root.path().join("pods/link")).unwrap();
    assert!(store.save(&PodUid::new("link"), &record("c0", true)).await.is_err());
    assert_eq!(names(&root.path().join("elsewhere")), [""; 0]);
}

/// Whatever happened to the file: the record is not used, it is said why, and the others are loaded.
#[tokio::test]
async fn a_damaged_record_is_left_out() {
    let good = {
        let (root, store) = root(&["a"]);
        store.save(&PodUid::new("a"), &record("a0", true)).await.unwrap();
        fs::read_to_string(file(&root, "a")).unwrap()
    };
    let flipped = good.replace("true", "flse");
    let cut = &good[..good.len() - 1];
    for (text, expect) in [
        ("", "it has no first line"),
        ("1", "it has no first line"),
        ("1\n{}", "it has no checksum"),
        ("2 x\n{}", "version \"2\" is not known"),
        ("1 0000000000000000\n{}", "the checksum differs"),
        (cut, "the checksum differs"),
        (&flipped, "the checksum differs"),
        (&good.replace("a0", "a1"), "the checksum differs"),
        // whole, and yet no record
        ("1 af63bd4c8601b7df\n\0", "expected value"),
    ] {
        let (root, store) = root(&["a", "b"]);
        store.save(&PodUid::new("b"), &record("b0", true)).await.unwrap();
        fs::write(file(&root, "a"), text).unwrap();
        let found = store.load().await;
        assert_eq!(found.records.len(), 1, "{text:?}");
        let problem = found.problems[0].user_message();
        assert!(
            problem.contains("probe-results is damaged") && problem.contains(expect),
            "{text:?}: {problem}"
        );
        // and replaced by the next
        store.save(&PodUid::new("a"), &record("a0", true)).await.unwrap();
        assert_eq!(store.load().await.records.len(), 2);
    }
}

#[tokio::test]
async fn what_is_no_file_is_not_read() {
    let (root, store) = root(&["dir", "link", "fifo", "big"]);
    fs::create_dir(file(&root, "dir")).unwrap();
    symlink("/etc/hostname", file(&root, "link")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, file(&root, "fifo"), rustix::fs::Mode::RWXU).unwrap();
    fs::write(file(&root, "big"), vec![b'x'; 2 << 20]).unwrap();
    let found = store.load().await;
    assert_eq!((found.records.len(), found.problems.len()), (0, 4), "{:?}", found.problems);
}

#[tokio::test]
async fn a_draft_of_a_crashed_agent_is_overwritten() {
    let (root, store) = root(&["a"]);
    fs::write(root.path().join("pods/a/probe-results.new"), "half a rec").unwrap();
    assert!(store.load().await.records.is_empty());
    store.save(&PodUid::new("a"), &record("a0", true)).await.unwrap();
    assert_eq!(store.load().await.records.len(), 1);
}
