//! Streams of real log files that are written, rotated and attacked while they are read.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::sync::oneshot;

use super::{LogOptions, stream};

struct Bench {
    _temp: tempfile::TempDir,
    logs: PathBuf,
    path: PathBuf,
}

fn bench() -> Bench {
    let temp = tempfile::tempdir().unwrap();
    let logs = temp.path().join("pods");
    fs::create_dir_all(logs.join("ns_p_u/c")).unwrap();
    let path = logs.join("ns_p_u/c/0.log");
    File::create(&path).unwrap();
    Bench { _temp: temp, logs, path }
}

impl Bench {
    fn append(&self, text: &str) {
        OpenOptions::new()
            .append(true)
            .create(true)
            .open(&self.path)
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
    }
    fn say(&self, text: &str) {
        self.append(&line(text));
    }
    async fn all(&self, options: LogOptions) -> String {
        let pieces: Vec<_> = stream(&self.logs, &self.path, options, std::future::pending()).collect().await;
        let pieces: Vec<Bytes> = pieces.into_iter().map(|piece| piece.unwrap()).collect();
        String::from_utf8(pieces.concat()).unwrap()
    }
    fn follow(&self, options: LogOptions) -> (Follower, oneshot::Sender<()>) {
        let (end, ended) = oneshot::channel();
        let ended = async move {
            let _ = ended.await;
        };
        let options = LogOptions { follow: true, ..options };
        (Follower { stream: stream(&self.logs, &self.path, options, ended), text: String::new() }, end)
    }
}

fn line(text: &str) -> String {
    format!("2024-05-06T07:08:09.5Z stdout F {text}\n")
}

struct Follower {
    stream: BoxStream<'static, std::io::Result<Bytes>>,
    text: String,
}

impl Follower {
    /// Reads exactly this many more bytes.
    async fn expect(&mut self, expect: &str) {
        while self.text.len() < expect.len() {
            let piece = tokio::time::timeout(Duration::from_secs(20), self.stream.next()).await;
            let piece = piece.expect("more was due").expect("it ended early").unwrap();
            self.text += std::str::from_utf8(&piece).unwrap();
        }
        assert_eq!(std::mem::take(&mut self.text), expect);
    }
    async fn expect_end(mut self) {
        let end = tokio::time::timeout(Duration::from_secs(20), self.stream.next()).await;
        assert!(end.expect("the end was due").is_none());
    }
}

#[tokio::test]
async fn reads_what_is_there() {
    let b = bench();
    assert_eq!(b.all(LogOptions::default()).await, "");
    for number in 0..5000 {
        b.append(&line(&number.to_string()));
    }
    let all: String = (0..5000).map(|number| format!("{number}\n")).collect();
    assert_eq!(b.all(LogOptions::default()).await, all);
    let tail = |lines| LogOptions { tail_lines: Some(lines), ..LogOptions::default() };
    assert_eq!(b.all(tail(2)).await, "4998\n4999\n");
    assert_eq!(b.all(tail(0)).await, "");
    assert_eq!(b.all(tail(10_000)).await, all);
    assert_eq!(b.all(LogOptions { limit_bytes: Some(5), ..tail(2) }).await, "4998\n");
    b.append("2024-05-06T07:08:09.5Z stdout F cut");
    assert!(b.all(LogOptions::default()).await.ends_with("4999\ncut"));
}

#[tokio::test]
async fn follows_until_the_container_ends() {
    let b = bench();
    b.say("old");
    b.say("last");
    let (mut follower, end) = b.follow(LogOptions { tail_lines: Some(1), ..LogOptions::default() });
    follower.expect("last\n").await;
    b.say("one");
    follower.expect("one\n").await;
    b.append("2024-05-06T07:08:09.5Z stdout F half");
    b.append(" and half\n");
    follower.expect("half and half\n").await;
    b.append("2024-05-06T07:08:09.5Z stdout P par");
    b.append("t \n");
    follower.expect("part ").await;
    b.say("final words");
    end.send(()).unwrap();
    follower.expect("final words\n").await;
    follower.expect_end().await;
}

#[tokio::test]
async fn follows_across_rotations_without_loss_or_repetition() {
    let b = bench();
    b.say("begin");
    let (mut follower, end) = b.follow(LogOptions::default());
    follower.expect("begin\n").await;
    for number in 0..20 {
        b.say(&format!("before {number}"));
        // As the runtime does: it still writes to the old file after the rename, until it opens the new one.
        let mut old = OpenOptions::new().append(true).open(&b.path).unwrap();
        fs::rename(&b.path, b.path.with_extension(format!("log.{number}"))).unwrap();
        old.write_all(line(&format!("between {number}")).as_bytes()).unwrap();
        drop(old);
        File::create(&b.path).unwrap();
        b.say(&format!("after {number}"));
        follower.expect(&format!("before {number}\nbetween {number}\nafter {number}\n")).await;
    }
    b.say("x");
    fs::rename(&b.path, b.path.with_extension("log.last")).unwrap();
    b.say("y");
    end.send(()).unwrap();
    follower.expect("x\ny\n").await;
    follower.expect_end().await;
}

/// The runtime has begun a new log, and writes what it had read before to the old one.
#[tokio::test]
async fn what_is_written_late_to_the_old_file_is_read() {
    let b = bench();
    b.say("begin");
    let (mut follower, end) = b.follow(LogOptions::default());
    follower.expect("begin\n").await;
    let mut old = OpenOptions::new().append(true).open(&b.path).unwrap();
    fs::rename(&b.path, b.path.with_extension("log.20240101-000000")).unwrap();
    b.say("new");
    tokio::time::sleep(Duration::from_millis(300)).await;
    old.write_all(line("late").as_bytes()).unwrap();
    drop(old);
    follower.expect("late\nnew\n").await;
    end.send(()).unwrap();
    follower.expect_end().await;
}

/// A file that was rotated away in between is not yet at its end either, and is told once.
#[tokio::test]
async fn what_is_written_late_to_a_file_in_between_is_read_once() {
    let b = bench();
    let rotate = |name: &str| {
        fs::rename(&b.path, b.path.with_extension(format!("log.{name}"))).unwrap();
        File::create(&b.path).unwrap();
    };
    b.say("begin");
    let (mut follower, end) = b.follow(LogOptions::default());
    follower.expect("begin\n").await;
    rotate("20240101-000001");
    b.say("between");
    let mut between = OpenOptions::new().append(true).open(&b.path).unwrap();
    rotate("20240101-000002");
    b.say("new");
    let late = std::thread::spawn(move || {
        std::thread::park_timeout(Duration::from_millis(300));
        between.write_all(line("late").as_bytes()).unwrap();
    });
    follower.expect("between\nlate\nnew\n").await;
    late.join().unwrap();
    rotate("20240101-000003");
    b.say("newer");
    end.send(()).unwrap();
    follower.expect("newer\n").await;
    follower.expect_end().await;
}

/// Several rotations while the reader does not read.
#[tokio::test]
async fn what_was_rotated_away_in_between_is_read_too() {
    let b = bench();
    let rotate = |name: &str| {
        fs::rename(&b.path, b.path.with_extension(format!("log.{name}"))).unwrap();
        File::create(&b.path).unwrap();
    };
    b.say("long ago");
    rotate("20240101-000000");
    b.say("begin");
    let (mut follower, end) = b.follow(LogOptions::default());
    follower.expect("begin\n").await;
    b.say("first");
    rotate("20240101-000001");
    b.say("second");
    rotate("20240101-000002");
    b.say("third");
    // Compressed files, symlinks and files with other names are left out.
    fs::write(b.path.with_extension("log.20240101-000000.gz"), line("packed")).unwrap();
    fs::write(b.path.with_file_name("1.log.20240101-000003"), line("another")).unwrap();
    symlink(b.path.with_file_name("1.log.20240101-000003"), b.path.with_extension("log.20240101-000003"))
        .unwrap();
    follower.expect("first\nsecond\nthird\n").await;
    rotate("20240101-000004");
    b.say("fourth");
    follower.expect("fourth\n").await;
    rotate("20240101-000005");
    b.say("fifth");
    rotate("20240101-000006");
    b.say("sixth");
    end.send(()).unwrap();
    follower.expect("fifth\nsixth\n").await;
    follower.expect_end().await;
}

#[tokio::test]
async fn a_log_cut_in_place_is_read_from_its_beginning() {
    let b = bench();
    b.say("a longer line than what follows");
    let (mut follower, _end) = b.follow(LogOptions::default());
    follower.expect("a longer line than what follows\n").await;
    File::create(&b.path).unwrap();
    b.say("new");
    follower.expect("new\n").await;
}

#[tokio::test]
async fn a_limit_ends_a_followed_log() {
    let b = bench();
    b.say("0123456789");
    let (mut follower, _end) = b.follow(LogOptions { limit_bytes: Some(4), ..LogOptions::default() });
    follower.expect("0123").await;
    follower.expect_end().await;
}

#[tokio::test]
async fn nothing_but_logs_is_read() {
    let b = bench();
    let secret = b.logs.parent().unwrap().join("secret");
    fs::write(&secret, line("secret")).unwrap();
    let first = |path: PathBuf| {
        let mut stream = stream(&b.logs, path, LogOptions::default(), std::future::pending());
        async move { (stream.next().await.map(|piece| piece.is_err()), stream.next().await.is_none()) }
    };
    assert_eq!(first(secret.clone()).await, (Some(true), true));
    assert_eq!(first(b.logs.join("../secret")).await, (Some(true), true));
    assert_eq!(first(b.path.with_extension("missing")).await, (Some(true), true));
    fs::remove_file(&b.path).unwrap();
    symlink(&secret, &b.path).unwrap();
    assert_eq!(first(b.path.clone()).await, (Some(true), true));
    fs::remove_file(&b.path).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &b.path, rustix::fs::Mode::RWXU).unwrap();
    assert_eq!(first(b.path.clone()).await, (Some(true), true));
}

#[tokio::test]
async fn a_symlink_swapped_in_during_a_follow_is_not_followed() {
    let b = bench();
    let secret = b.logs.parent().unwrap().join("secret");
    fs::write(&secret, line("secret")).unwrap();
    b.say("mine");
    let (mut follower, _end) = b.follow(LogOptions::default());
    follower.expect("mine\n").await;
    fs::remove_file(&b.path).unwrap();
    symlink(&secret, &b.path).unwrap();
    let next = tokio::time::timeout(Duration::from_secs(20), follower.stream.next()).await.unwrap();
    assert!(next.unwrap().is_err());
    follower.expect_end().await;
}

/// One piece is read per poll: for a reader that stops, the rest is not held in memory.
#[tokio::test]
async fn a_slow_reader_gets_small_pieces() {
    let b = bench();
    let log = line(&"x".repeat(1000)).repeat(2000);
    b.append(&log);
    let mut stream = stream(&b.logs, &b.path, LogOptions::default(), std::future::pending());
    let (mut total, mut pieces) = (0, 0);
    while let Some(piece) = stream.next().await {
        let piece = piece.unwrap();
        assert!(piece.len() <= 64 * 1024);
        total += piece.len();
        pieces += 1;
    }
    assert_eq!(total, 2000 * 1001);
    assert!(pieces > 20);
}

/// A container counts as running a moment before it has written anything.
#[tokio::test]
async fn the_first_line_of_a_fresh_log_is_waited_for() {
    let b = bench();
    let patient = || LogOptions { first_line_within: Duration::from_secs(60), ..LogOptions::default() };
    let read = async {
        let read = b.all(patient()).await;
        assert_eq!(read, "hello\n");
    };
    let write = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        b.say("hello");
    };
    tokio::join!(read, write);
    // A log that is not empty is read as it is.
    assert_eq!(b.all(patient()).await, "hello\n");
}

#[tokio::test]
async fn a_log_that_stays_empty_is_not_waited_for_any_longer() {
    let b = bench();
    assert_eq!(b.all(LogOptions::default()).await, "");
    let moment = LogOptions { first_line_within: Duration::from_millis(50), ..LogOptions::default() };
    assert_eq!(b.all(moment).await, "");
    // The log of a container that has ended is not waited for either.
    let patient = LogOptions { first_line_within: Duration::from_secs(3600), ..LogOptions::default() };
    let ended = stream(&b.logs, &b.path, patient, std::future::ready(()));
    assert_eq!(ended.count().await, 0);
}
