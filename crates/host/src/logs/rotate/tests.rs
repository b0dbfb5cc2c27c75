use super::*;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::Duration;

struct Fixed;

impl WallClock for Fixed {
    fn wall(&self) -> Wall {
        Wall(1_800_000_000_000_000_000)
    }
}

struct Bench {
    _temp: tempfile::TempDir,
    dir: PathBuf,
    log: PathBuf,
    files: HostLogFiles,
}

impl Bench {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("pods/ns_p_uid/c");
        fs::create_dir_all(&dir).unwrap();
        let files = HostLogFiles::new(temp.path().join("pods"), Arc::new(Fixed));
        Self { _temp: temp, log: dir.join("0.log"), dir, files }
    }

    fn put(&self, name: &str, content: &str) {
        fs::write(self.dir.join(name), content).unwrap();
    }

    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(&self.dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    fn unpacked(&self, name: &str) -> String {
        let mut text = String::new();
        let file = File::open(self.dir.join(name)).unwrap();
        flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
        text
    }
}

#[tokio::test]
async fn a_log_is_renamed_and_older_files_are_compressed_and_removed() {
    let bench = Bench::new();
    bench.put("0.log.20260101-000000", "oldest");
    bench.put("0.log.20260102-000000.gz", "old");
    bench.put("0.log.20260103-000000", "new");
    bench.put("0.log", "current");
    bench.put("1.log", "of another instance");
    fs::set_permissions(bench.dir.join("0.log.20260103-000000"), fs::Permissions::from_mode(0o640)).unwrap();

    let renamed = bench.files.rename(&bench.log, 4).await.unwrap().unwrap();
    let name = renamed.file_name().unwrap().to_str().unwrap().to_owned();
    assert!(name.starts_with("0.log.2027"), "{name}");
    assert_eq!(
        bench.names(),
        ["0.log.20260102-000000.gz", "0.log.20260103-000000", name.as_str(), "1.log"],
        "with a new log there are four"
    );
    bench.files.compress(&bench.log, 4).await.unwrap();
    assert_eq!(
        bench.names(),
        ["0.log.20260102-000000.gz", "0.log.20260103-000000.gz", name.as_str(), "1.log"]
    );
    assert_eq!(bench.unpacked("0.log.20260103-000000.gz"), "new");
    let mode = fs::metadata(bench.dir.join("0.log.20260103-000000.gz")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    assert_eq!(fs::read_to_string(renamed).unwrap(), "current");
}

/// Nothing is overwritten, and the order of names stays that of time.
#[tokio::test]
async fn two_rotations_within_a_second_have_two_names() {
    let bench = Bench::new();
    let mut names = Vec::new();
    for number in 0..4 {
        bench.put("0.log", &number.to_string());
        let renamed = bench.files.rename(&bench.log, 10).await.unwrap().unwrap();
        names.push(renamed.file_name().unwrap().to_str().unwrap().to_owned());
        bench.files.compress(&bench.log, 10).await.unwrap();
    }
    assert!(names.is_sorted(), "{names:?}");
    let dir = LogDirectory::open(&bench.files.logs_dir, &bench.log).unwrap();
    let rotated = dir.rotated().unwrap();
    let contents: Vec<String> = rotated
        .iter()
        .map(|file| match file.is_compressed() {
            true => bench.unpacked(&file.name),
            false => fs::read_to_string(bench.dir.join(&file.name)).unwrap(),
        })
        .collect();
    assert_eq!(contents, ["0", "1", "2", "3"]);
}

/// However often a log is rotated within a second, and also when the clock was set back, the oldest goes.
#[tokio::test]
async fn the_newest_files_are_kept() {
    let bench = Bench::new();
    bench.put("0.log.20300101-000000", "of a clock that was ahead");
    for number in 0..8 {
        bench.put("0.log", &number.to_string());
        let renamed = bench.files.rename(&bench.log, 3).await.unwrap().unwrap();
        assert_eq!(fs::read_to_string(renamed).unwrap(), number.to_string());
        if number % 3 == 0 {
            bench.files.compress(&bench.log, 3).await.unwrap();
        }
    }
    assert_eq!(bench.names(), ["0.log.20300101-000000-000007", "0.log.20300101-000000-000008"]);
    let newest = bench.dir.join("0.log.20300101-000000-000008");
    assert_eq!(fs::read_to_string(newest).unwrap(), "7");
}

/// What others put beside a log stays, and holds up nothing.
#[tokio::test]
async fn files_with_other_names_are_left_alone() {
    let bench = Bench::new();
    for name in ["0.log.gz", "0.log.1", "0.log.backup.tmp", "0.logs", "0.log.20260101-000000.txt"] {
        bench.put(name, "of others");
    }
    fs::create_dir(bench.dir.join("0.log.20260101-000000")).unwrap();
    let before = bench.names().len();
    for number in 0..3 {
        bench.put("0.log", &number.to_string());
        bench.files.rename(&bench.log, 2).await.unwrap().unwrap();
        bench.files.compress(&bench.log, 2).await.unwrap();
    }
    bench.put("0.log", "current");
    bench.files.compress(&bench.log, 2).await.unwrap();
    assert_eq!(bench.names().len(), before + 2, "{:?}", bench.names());
    assert_eq!(fs::read_to_string(&bench.log).unwrap(), "current");
}

#[tokio::test]
async fn what_a_killed_agent_left_is_cleaned_up() {
    let bench = Bench::new();
    bench.put("0.log.20260101-000000", "packed already");
    bench.put("0.log.20260101-000000.gz", "packed");
    bench.put("0.log.20260102-000000", "half packed");
    bench.put("0.log.20260102-000000.tmp", "half");
    bench.put("0.log.20260103-000000", "newest");
    bench.files.compress(&bench.log, 5).await.unwrap();
    assert_eq!(
        bench.names(),
        ["0.log.20260101-000000.gz", "0.log.20260102-000000.gz", "0.log.20260103-000000"]
    );
    assert_eq!(bench.unpacked("0.log.20260102-000000.gz"), "half packed");
}

#[tokio::test]
async fn a_rename_is_undone_unless_there_is_a_new_log() {
    let bench = Bench::new();
    bench.put("0.log", "current");
    let renamed = bench.files.rename(&bench.log, 5).await.unwrap().unwrap();
    bench.files.rename_back(&renamed, &bench.log).await.unwrap();
    assert_eq!(bench.names(), ["0.log"]);
    let renamed = bench.files.rename(&bench.log, 5).await.unwrap().unwrap();
    bench.put("0.log", "new");
    assert!(bench.files.rename_back(&renamed, &bench.log).await.is_err());
    assert_eq!(fs::read_to_string(&bench.log).unwrap(), "new");
    fs::remove_file(&bench.log).unwrap();
    assert_eq!(bench.files.rename(&bench.log, 5).await.unwrap(), None, "there is none");
}

#[tokio::test]
async fn only_regular_files_below_the_logs_are_touched() {
    let bench = Bench::new();
    let secret = bench.dir.join("../../../secret");
    fs::write(&secret, "secret").unwrap();
    symlink("../../../secret", &bench.log).unwrap();
    assert!(bench.files.size(&bench.log).await.is_err());
    assert!(bench.files.rename(&bench.log, 5).await.is_err());
    symlink("../../../secret", bench.dir.join("0.log.20260101-000000")).unwrap();
    bench.put("0.log.20260102-000000", "newest");
    bench.files.compress(&bench.log, 5).await.unwrap();
    assert!(bench.dir.join("0.log.20260101-000000").is_symlink(), "it is not touched");
    symlink("c", bench.dir.join("../d")).unwrap();
    assert!(bench.files.size(&bench.dir.join("../d/0.log")).await.is_err());
    assert!(bench.files.size(&secret).await.is_err());
    assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
    assert_eq!(bench.files.size(&bench.dir.join("9.log")).await.unwrap(), None);
}

/// One watch each time, and none for what was written before it.
#[tokio::test]
async fn a_write_is_told_once() {
    let bench = Bench::new();
    bench.put("0.log", "abc");
    let at_once = bench.files.wait_until_written(&bench.log, 1);
    tokio::time::timeout(Duration::from_secs(20), at_once).await.unwrap().unwrap();
    for _ in 0..3 {
        let size = bench.files.size(&bench.log).await.unwrap().unwrap();
        let mut written = std::pin::pin!(bench.files.wait_until_written(&bench.log, size));
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut written).await.is_err());
        fs::OpenOptions::new().append(true).open(&bench.log).unwrap().write_all(b"more").unwrap();
        tokio::time::timeout(Duration::from_secs(20), written).await.unwrap().unwrap();
    }
    let size = bench.files.size(&bench.log).await.unwrap().unwrap();
    let mut gone = std::pin::pin!(bench.files.wait_until_written(&bench.log, size));
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut gone).await.is_err());
    fs::remove_file(&bench.log).unwrap();
    tokio::time::timeout(Duration::from_secs(20), gone).await.unwrap().unwrap();
    assert!(bench.files.wait_until_written(&bench.log, 0).await.is_err(), "there is nothing to watch");
}
