//! The file feed on real files. Its period is an hour unless a test says so, so changes are seen through inotify.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::FutureExt;
use futures::StreamExt;
use futures::stream::BoxStream;
use ports::{FeedNotice, PodFeed};

use super::FileFeed;
use super::testing::{next, show, toy_decoder};

const HOUR: Duration = Duration::from_secs(3600);

struct Bench {
    temp: tempfile::TempDir,
    path: PathBuf,
    feed: BoxStream<'static, FeedNotice>,
}

fn start_with(prepare: impl FnOnce(&Path), period: Duration) -> Bench {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("manifests");
    prepare(&path);
    let feed = Box::new(FileFeed::new(format!("{}/", path.display()), period, toy_decoder())).stream();
    Bench { temp, path, feed }
}

/// Starts on an empty directory, whose empty set was delivered.
async fn start() -> Bench {
    let mut bench = start_with(|path| fs::create_dir(path).unwrap(), HOUR);
    bench.expect(&["set"]).await;
    bench
}

impl Bench {
    /// `@` in what is expected stands for the path.
    async fn expect(&mut self, expected: &[&str]) {
        let path = self.path.to_str().unwrap();
        for expect in expected {
            assert_eq!(next(&mut self.feed).await.replace(path, "@"), *expect);
        }
    }
    fn write(&self, name: &str, text: &str) {
        fs::write(self.path.join(name), text).unwrap();
    }
    fn remove(&self, name: &str) {
        fs::remove_file(self.path.join(name)).unwrap();
    }
    /// Makes a change that is surely delivered, to show that nothing was delivered before it.
    async fn expect_nothing_but(&mut self, marker: &str, set: &str) {
        self.write(marker, &format!("pod {marker}"));
        self.expect(&[set]).await;
    }
}

#[tokio::test]
async fn files_come_change_and_go() {
    let mut b = start_with(
        |path| {
            fs::create_dir(path).unwrap();
            fs::write(path.join("b.yaml"), "pod b\n").unwrap();
            fs::write(path.join("a.yaml"), "pod z\npod a\n").unwrap();
        },
        HOUR,
    );
    b.expect(&["set ns/z ns/a ns/b"]).await;
    b.write("c.yaml", "pod c");
    b.expect(&["set ns/z ns/a ns/b ns/c"]).await;
    b.write("b.yaml", "pod b changed");
    b.expect(&["set ns/z ns/a ns/b=changed ns/c"]).await;
    fs::rename(b.path.join("a.yaml"), b.path.join("z.yaml")).unwrap();
    b.expect(&["set ns/b=changed ns/c ns/z ns/a"]).await;
    fs::rename(b.path.join("z.yaml"), b.temp.path().join("z.yaml")).unwrap();
    b.expect(&["set ns/b=changed ns/c"]).await;
    fs::rename(b.temp.path().join("z.yaml"), b.path.join("z.yaml")).unwrap();
    b.expect(&["set ns/b=changed ns/c ns/z ns/a"]).await;
    b.remove("b.yaml");
    b.expect(&["set ns/c ns/z ns/a"]).await;
    b.write("c.yaml", "pod c");
    b.expect_nothing_but("d", "set ns/c ns/d ns/z ns/a").await;
}

/// As upstream: the pod ends and starts again, although the manifest is the same.
#[tokio::test]
async fn a_file_deleted_and_written_again_ends_its_pods_first() {
    let mut b = start().await;
    b.write("a", "pod a\npod b");
    b.expect(&["set ns/a ns/b"]).await;
    b.write("c", "pod c");
    b.expect(&["set ns/a ns/b ns/c"]).await;
    b.remove("a");
    b.write("a", "pod a\npod b");
    b.expect(&["set ns/c", "set ns/a ns/b ns/c"]).await;
    // While a file is being written, nothing new is delivered.
    b.remove("a");
    let mut file = fs::File::create(b.path.join("a")).unwrap();
    file.write_all(b"pod a\n").unwrap();
    b.expect_nothing_but("d", "set ns/a ns/b ns/c ns/d").await;
    file.write_all(b"pod b").unwrap();
    drop(file);
    b.expect(&["set ns/c ns/d", "set ns/a ns/b ns/c ns/d"]).await;
}

#[tokio::test]
async fn a_pod_whose_manifest_moves_to_another_file_is_not_told_to_be_gone() {
    let mut b = start().await;
    b.write("a", "pod a");
    b.expect(&["set ns/a"]).await;
    b.write("b", "pod a");
    b.remove("a");
    b.expect_nothing_but("c", "set ns/a ns/c").await;
    // Editors that rename the old content away and write the new one.
    fs::rename(b.path.join("b"), b.path.join("b~")).unwrap();
    b.write("b", "pod a");
    b.remove("b~");
    b.expect_nothing_but("d", "set ns/a ns/c ns/d").await;
}

#[tokio::test]
async fn a_rewrite_of_the_same_size_is_seen_however_quick() {
    let mut b = start().await;
    for round in 100..150 {
        b.write("a", &format!("pod a {round}"));
        b.expect(&[&format!("set ns/a={round}")]).await;
    }
}

#[tokio::test]
async fn a_file_is_not_read_while_it_is_written() {
    let mut b = start().await;
    let mut file = fs::File::create(b.path.join("a")).unwrap();
    file.write_all(b"pod a 1\nbro").unwrap();
    b.expect_nothing_but("b", "set ns/b").await;
    file.write_all(b"ken?").unwrap();
    file.set_len(0).unwrap();
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0)).unwrap();
    file.write_all(b"pod a 2").unwrap();
    drop(file);
    b.expect(&["set ns/a=2 ns/b"]).await;
    // The same for a file that is rewritten in place.
    let mut file = fs::OpenOptions::new().write(true).truncate(true).open(b.path.join("a")).unwrap();
    b.expect_nothing_but("c", "set ns/a=2 ns/b ns/c").await;
    file.write_all(b"pod a 3").unwrap();
    drop(file);
    b.expect(&["set ns/a=3 ns/b ns/c"]).await;
}

#[tokio::test]
async fn a_writer_that_never_closes_is_waited_for_only_so_long() {
    let mut b = start_with(|path| fs::create_dir(path).unwrap(), Duration::from_millis(100));
    b.expect(&["set"]).await;
    let mut file = fs::File::create(b.path.join("a")).unwrap();
    file.write_all(b"pod a").unwrap();
    b.expect(&["set ns/a"]).await;
}

#[tokio::test]
async fn ten_kinds_of_broken_manifests_are_problems_and_hurt_no_other() {
    let outside = tempfile::tempdir().unwrap();
    let mut b = start_with(
        |path| {
            fs::create_dir(path).unwrap();
            fs::write(path.join("00-good"), "pod good").unwrap();
            fs::write(path.join("01-empty"), "").unwrap();
            fs::write(path.join("02-garbage"), "{[").unwrap();
            fs::write(path.join("03-binary"), b"\xff\xfe\x00").unwrap();
            fs::write(path.join("04-half"), "pod half\npo").unwrap();
            fs::File::create(path.join("05-big")).unwrap().set_len(10 << 20).unwrap();
            symlink("nothing", path.join("06-dangling")).unwrap();
            symlink("07-loop", path.join("07-loop")).unwrap();
            fs::create_dir(path.join("08-dir")).unwrap();
            fs::write(path.join("08-dir/inner"), "pod inner").unwrap();
            rustix::fs::mkfifoat(rustix::fs::CWD, path.join("09-fifo"), rustix::fs::Mode::RWXU).unwrap();
            fs::write(path.join("10-panic"), "pod panic").unwrap();
            fs::write(outside.path().join("linked"), "pod linked").unwrap();
            symlink(outside.path().join("linked"), path.join("11-link")).unwrap();
            for ignored in [".hidden", "backup~", "#auto#", "x.swp"] {
                fs::write(path.join(ignored), "pod ignored").unwrap();
            }
        },
        HOUR,
    );
    b.expect(&[
        "set ns/good ns/half ns/linked",
        "problem @/01-empty: @/01-empty: empty",
        "problem @/02-garbage: @/02-garbage: can't read \"{[\"",
        "problem @/03-binary: @/03-binary: not text",
        "problem @/04-half: @/04-half: can't read \"po\"",
        "problem @/05-big: @/05-big: has 10 MiB or more, which is too much for a manifest",
        "problem @/06-dangling: @/06-dangling: is a symbolic link to nothing",
        "problem @/07-loop: @/07-loop: Too many levels of symbolic links (os error 40)",
        "problem @/08-dir: @/08-dir: is a directory, not reading what is in it",
        "problem @/09-fifo: @/09-fifo: is not a regular file, ignoring it",
        "problem @/10-panic: @/10-panic: the manifest could not be decoded (internal error)",
    ])
    .await;
    b.write("01-empty", "pod filled");
    b.expect(&["set ns/good ns/filled ns/half ns/linked", "resolved @/01-empty"]).await;
    b.remove("02-garbage");
    b.expect(&["resolved @/02-garbage"]).await;
    b.write("10-panic", "other");
    b.expect(&["problem @/10-panic: @/10-panic: can't read \"other\""]).await;
    b.write("10-panic", "other");
    b.write("nothing", "pod target");
    b.expect(&[
        "set ns/good ns/filled ns/half ns/linked ns/target",
        "problem @/06-dangling: @/06-dangling: pod ns/target is also in @/nothing, which is used",
    ])
    .await;
}

#[tokio::test]
async fn a_file_that_breaks_keeps_its_pods_until_it_is_gone() {
    let mut b = start().await;
    b.write("a", "pod a\npod b");
    b.expect(&["set ns/a ns/b"]).await;
    b.write("a", "pod a new\n???");
    b.expect(&["set ns/a=new ns/b", "problem @/a: @/a: can't read \"???\""]).await;
    b.write("a", "");
    b.expect(&["problem @/a: @/a: empty"]).await;
    fs::File::create(b.path.join("a")).unwrap().set_len(11 << 20).unwrap();
    b.expect(&["problem @/a: @/a: has 10 MiB or more, which is too much for a manifest"]).await;
    b.write("a", "pod b");
    b.expect(&["set ns/b", "resolved @/a"]).await;
    b.write("a", "???");
    b.expect(&["problem @/a: @/a: can't read \"???\""]).await;
    b.remove("a");
    b.expect(&["set", "resolved @/a"]).await;
}

#[tokio::test]
async fn of_two_files_with_one_pod_the_later_counts() {
    let mut b = start().await;
    b.write("b", "pod x 2\npod y");
    b.expect(&["set ns/x=2 ns/y"]).await;
    b.write("a", "pod w\npod x 1");
    b.expect(&["set ns/w ns/x=2 ns/y", "problem @/a: @/a: pod ns/x is also in @/b, which is used"]).await;
    b.remove("b");
    b.expect(&["set ns/w ns/x=1", "resolved @/a"]).await;
}

#[tokio::test]
async fn a_missing_path_is_an_empty_set_and_is_awaited() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("not/yet/there");
    let feed = Box::new(FileFeed::new(&path, HOUR, toy_decoder())).stream();
    let mut b = Bench { temp, path, feed };
    b.expect(&["set", "problem @: @: path does not exist, ignoring"]).await;
    fs::create_dir(b.temp.path().join("not")).unwrap();
    assert!(b.feed.next().now_or_never().is_none());
    fs::create_dir_all(&b.path).unwrap();
    b.expect(&["resolved @"]).await;
    b.write("a", "pod a");
    b.expect(&["set ns/a"]).await;
    fs::remove_dir_all(b.temp.path().join("not")).unwrap();
    b.expect(&["set", "problem @: @: path does not exist, ignoring"]).await;
    fs::create_dir_all(&b.path).unwrap();
    b.expect(&["resolved @"]).await;
    b.write("b", "pod b");
    b.expect(&["set ns/b"]).await;
}

#[tokio::test]
async fn a_replaced_directory_is_watched_again() {
    let mut b = start().await;
    b.write("a", "pod a");
    b.expect(&["set ns/a"]).await;
    let other = b.temp.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("b"), "pod b").unwrap();
    let flags = rustix::fs::RenameFlags::EXCHANGE;
    rustix::fs::renameat_with(rustix::fs::CWD, &other, rustix::fs::CWD, &b.path, flags).unwrap();
    b.expect(&["set ns/b"]).await;
    fs::write(other.join("c"), "pod c").unwrap();
    b.write("d", "pod d");
    b.expect(&["set ns/b ns/d"]).await;
}

#[tokio::test]
async fn a_linked_directory_that_is_swapped_is_seen() {
    let temp = tempfile::tempdir().unwrap();
    for version in ["1", "2"] {
        fs::create_dir(temp.path().join(version)).unwrap();
        fs::write(temp.path().join(version).join("a"), format!("pod a {version}")).unwrap();
    }
    // The layout of an atomically written volume: links through `..data`.
    let path = temp.path().join("manifests");
    fs::create_dir(&path).unwrap();
    symlink("../1", path.join("..data")).unwrap();
    symlink("..data/a", path.join("a")).unwrap();
    let feed = Box::new(FileFeed::new(&path, HOUR, toy_decoder())).stream();
    let mut b = Bench { temp, path, feed };
    b.expect(&["set ns/a=1"]).await;
    symlink("../2", b.path.join("..data_tmp")).unwrap();
    fs::rename(b.path.join("..data_tmp"), b.path.join("..data")).unwrap();
    b.expect(&["set ns/a=2"]).await;
}

#[tokio::test]
async fn links_made_in_the_directory_are_seen_at_once() {
    let mut b = start().await;
    fs::write(b.temp.path().join("a"), "pod a").unwrap();
    symlink(b.temp.path().join("a"), b.path.join("symlink")).unwrap();
    b.expect(&["set ns/a"]).await;
    fs::write(b.temp.path().join("b"), "pod b").unwrap();
    fs::hard_link(b.temp.path().join("b"), b.path.join("hard")).unwrap();
    b.expect(&["set ns/b ns/a"]).await;
}

#[tokio::test]
async fn what_inotify_cannot_tell_is_found_after_a_period() {
    let mut b = start_with(|path| fs::create_dir(path).unwrap(), Duration::from_millis(100));
    b.expect(&["set"]).await;
    fs::write(b.temp.path().join("target"), "pod a 1").unwrap();
    symlink(b.temp.path().join("target"), b.path.join("a")).unwrap();
    b.expect(&["set ns/a=1"]).await;
    fs::write(b.temp.path().join("target"), "pod a 2").unwrap();
    b.expect(&["set ns/a=2"]).await;
}

#[tokio::test]
async fn a_single_file_is_the_whole_set() {
    let mut b = start_with(|path| fs::write(path, "???").unwrap(), HOUR);
    b.expect(&["problem @: @: can't read \"???\""]).await;
    assert!(b.feed.next().now_or_never().is_none(), "no set before it made sense once");
    fs::write(&b.path, "pod a").unwrap();
    b.expect(&["set ns/a", "resolved @"]).await;
    fs::write(&b.path, "").unwrap();
    b.expect(&["problem @: @: empty"]).await;
    fs::write(b.temp.path().join("new"), "pod b").unwrap();
    fs::rename(b.temp.path().join("new"), &b.path).unwrap();
    b.expect(&["set ns/b", "resolved @"]).await;
    fs::write(&b.path, "pod b 2").unwrap();
    b.expect(&["set ns/b=2"]).await;
    fs::remove_file(&b.path).unwrap();
    b.expect(&["set", "problem @: @: path does not exist, ignoring"]).await;
    fs::write(&b.path, "pod c").unwrap();
    b.expect(&["set ns/c", "resolved @"]).await;
    fs::remove_file(&b.path).unwrap();
    b.expect(&["set", "problem @: @: path does not exist, ignoring"]).await;
    fs::create_dir(&b.path).unwrap();
    b.expect(&["resolved @"]).await;
}

#[tokio::test]
async fn lost_events_lose_nothing() {
    let mut b = start().await;
    let queue: usize =
        fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap().trim().parse().unwrap();
    // Hidden names: of all these events only the overflow itself is worth a look.
    for _ in 0..=queue / 2 {
        for name in [".x", ".y"] {
            fs::File::options()
                .append(true)
                .create(true)
                .open(b.path.join(name))
                .unwrap()
                .write_all(b"x")
                .unwrap();
        }
    }
    b.write("a", "pod a");
    b.expect(&["set ns/a"]).await;
    b.write("b", "pod b");
    b.expect(&["set ns/a ns/b"]).await;
}

#[tokio::test]
async fn a_burst_of_files_ends_in_the_right_set() {
    let mut b = start().await;
    for number in 0..200 {
        b.write(&format!("{number:03}"), &format!("pod p{number}"));
    }
    let expect = format!("set {}", (0..200).map(|n| format!("ns/p{n}")).collect::<Vec<_>>().join(" "));
    let mut looks = 0;
    while next(&mut b.feed).await != expect {
        looks += 1;
        assert!(looks < 200);
    }
    assert!(b.feed.next().now_or_never().map(|notice| show(&notice.unwrap())).is_none());
}

#[tokio::test]
async fn an_odd_path_is_a_problem() {
    let temp = tempfile::tempdir().unwrap();
    fs::write(temp.path().join("file"), "").unwrap();
    let mut feed = Box::new(FileFeed::new("/dev/null", HOUR, toy_decoder())).stream();
    assert_eq!(next(&mut feed).await, "problem /dev/null: /dev/null: path is not a directory or file");
    let below_a_file = temp.path().join("file/x");
    let mut feed = Box::new(FileFeed::new(&below_a_file, HOUR, toy_decoder())).stream();
    let told = next(&mut feed).await;
    assert!(told.contains("Not a directory"), "{told}");
}

#[tokio::test]
async fn runtime_classes_come_before_the_pods_that_may_need_them() {
    let mut bench = start().await;
    bench.write("a", "class fast crun\npod a");
    bench.expect(&["classes fast=crun", "set ns/a"]).await;
    bench.write("b", "class slow kata");
    bench.expect(&["classes fast=crun slow=kata"]).await;
    // A broken file keeps its last good content.
    bench.write("b", "nonsense");
    bench.expect(&["problem @/b: @/b: can't read \"nonsense\""]).await;
    bench.write("b", "class slow other");
    bench.expect(&["classes fast=crun slow=other", "resolved @/b"]).await;
    bench.remove("b");
    bench.expect(&["classes fast=crun"]).await;
}

#[tokio::test]
async fn of_two_files_with_one_class_the_later_counts() {
    let mut bench = start().await;
    bench.write("a", "class fast crun");
    bench.expect(&["classes fast=crun"]).await;
    bench.write("b", "class fast kata");
    bench
        .expect(&["classes fast=kata", "problem @/a: @/a: runtime class fast is also in @/b, which is used"])
        .await;
}
