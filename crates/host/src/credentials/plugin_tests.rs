//! Tests with real programs as plugins.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use model::credentials::CredentialPlugin;
use model::text_limits::TextLimit;
use ports::PluginError;

use super::plugins::{check_programs, read_plugin_config, run_plugin};

struct Bench {
    dir: tempfile::TempDir,
    plugin: CredentialPlugin,
}

impl Bench {
    fn new(script: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let plugin = CredentialPlugin {
            name: "plug".into(),
            match_images: Vec::new(),
            default_cache: Duration::ZERO,
            api_version: String::new(),
            args: vec!["one".into(), "two words".into()],
            env: vec![("PLUGIN_VARIABLE".into(), "value".into())],
            token: None,
        };
        let path = dir.path().join("plug");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self { dir, plugin }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    async fn ask(&self, patience: Duration) -> Result<String, PluginError> {
        let program = self.path("plug");
        loop {
            match run_plugin(&program, &self.plugin, "h.test/a", "the request\n", patience).await {
                // Another test has forked while our file was open for writing.
                Err(PluginError::Start { source, .. })
                    if source.kind() == std::io::ErrorKind::ExecutableFileBusy =>
                {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                answer => return answer.map(|answer| String::from_utf8(answer).unwrap()),
            }
        }
    }
}

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(200);

fn is_running(pid_file: &Path) -> bool {
    let pid = std::fs::read_to_string(pid_file).unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

#[tokio::test]
async fn it_gets_request_arguments_and_environment() {
    let bench = Bench::new(r#"cat; echo "$# $2 $PLUGIN_VARIABLE ${PATH:+path}""#);
    assert_eq!(bench.ask(LONG).await.unwrap(), "the request\n2 two words value path\n");
}

#[tokio::test]
async fn it_need_not_read_the_request() {
    let bench = Bench::new("exec <&-; echo answer");
    assert_eq!(bench.ask(LONG).await.unwrap(), "answer\n");
}

#[tokio::test]
async fn what_it_says_in_failing_is_passed_on() {
    let bench = Bench::new("echo no token >&2; echo ignored; exit 3");
    let error = bench.ask(LONG).await.unwrap_err();
    assert_eq!(
        error.user_message(),
        "error execing credential provider plugin plug for image h.test/a: exit status: 3: no token"
    );
    let bench = Bench::new("kill -9 $$");
    let text = bench.ask(LONG).await.unwrap_err().user_message();
    assert!(text.contains("signal: 9"), "{text}");
}

#[tokio::test]
async fn one_that_can_not_be_started_is_named() {
    let bench = Bench::new("");
    std::fs::remove_file(bench.path("plug")).unwrap();
    let text = bench.ask(LONG).await.unwrap_err().user_message();
    assert!(text.starts_with("error execing credential provider plugin plug for image h.test/a: "), "{text}");
    assert!(text.ends_with("No such file or directory (os error 2)"), "{text}");
}

#[tokio::test]
async fn one_that_hangs_is_killed_with_all_that_it_started() {
    let bench = Bench::new(
        "cd $(dirname $0); sleep 600 & echo $! >child; echo $$ >own.part; mv own.part own; wait; echo late",
    );
    let error = bench.ask(SHORT * 10).await.unwrap_err();
    assert!(matches!(error, PluginError::TimedOut { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("plugin plug for image h.test/a: no answer within 2s"), "{text}");
    for file in ["own", "child"] {
        let path = bench.path(file);
        let mut rounds = 0;
        while is_running(&path) {
            rounds += 1;
            assert!(rounds < 500, "{file} lives on");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test]
async fn a_child_that_holds_the_pipe_open_counts_as_hanging() {
    let bench = Bench::new("sleep 600 & echo answer");
    let error = bench.ask(SHORT).await.unwrap_err();
    assert!(matches!(error, PluginError::TimedOut { .. }), "{error:?}");
}

#[tokio::test]
async fn one_that_writes_without_end_is_cut_off() {
    let bench = Bench::new("head -c 3000000 /dev/zero");
    let error = bench.ask(LONG).await.unwrap_err();
    assert!(matches!(error, PluginError::TooMuch { limit: 1_048_576, .. }), "{error:?}");
    let bench = Bench::new("cat /dev/zero");
    let error = bench.ask(SHORT).await.unwrap_err();
    assert!(matches!(error, PluginError::TimedOut { .. }), "{error:?}");
}

#[tokio::test]
async fn long_complaints_are_shortened() {
    let bench = Bench::new("head -c 100000 /dev/zero | tr '\\0' x >&2; echo the end >&2; exit 1");
    let text = bench.ask(LONG).await.unwrap_err().to_string();
    assert!(
        text.len() < TextLimit::PluginMessage.bytes() + 256 && text.ends_with("xthe end"),
        "{}",
        text.len()
    );
}

#[test]
fn programs_must_be_there() {
    let bench = Bench::new("");
    let dir = bench.dir.path();
    let plugins = [bench.plugin.clone()];
    assert!(check_programs(dir, &plugins).is_ok());
    let text = check_programs(&dir.join("none"), &plugins).unwrap_err().to_string();
    assert_eq!(text, format!("plugin binary directory {}/none did not exist", dir.display()));
    std::fs::set_permissions(dir.join("plug"), std::fs::Permissions::from_mode(0o644)).unwrap();
    let text = check_programs(dir, &plugins).unwrap_err().to_string();
    assert_eq!(text, format!("plugin binary {}/plug is not executable", dir.display()));
    std::fs::remove_file(dir.join("plug")).unwrap();
    let text = check_programs(dir, &plugins).unwrap_err().to_string();
    assert_eq!(text, format!("plugin binary executable {}/plug did not exist", dir.display()));
}

#[test]
fn the_configuration_is_a_file_or_a_directory_of_them() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    let names = |path: &Path| -> Vec<String> {
        let files = read_plugin_config(path).unwrap();
        files.iter().map(|(name, _)| name.rsplit('/').next().unwrap().to_owned()).collect()
    };
    let text = read_plugin_config(dir).unwrap_err().to_string();
    assert!(text.starts_with("no configuration files found in directory"), "{text}");
    for name in ["b.yaml", "a.json", "c.yml", "d.txt", "e"] {
        std::fs::write(dir.join(name), "x").unwrap();
    }
    std::fs::create_dir(dir.join("f.yaml")).unwrap();
    assert_eq!(names(dir), ["a.json", "b.yaml", "c.yml"]);
    assert_eq!(names(&dir.join("e")), ["e"]);
    let text = read_plugin_config(&dir.join("none")).unwrap_err().to_string();
    assert!(text.starts_with("unable to read"), "{text}");
}
