// Plugins are real processes.
#![allow(clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};

use model::Wall;

use super::*;
use crate::kubeconfig::{ExecPlugin, InteractiveMode};

#[derive(Default)]
struct SetClock(AtomicI64);

impl WallClock for SetClock {
    fn wall(&self) -> Wall {
        Wall(self.0.load(Ordering::Relaxed))
    }
}

const V1: &str = "client.authentication.k8s.io/v1";

/// A plugin that counts its runs in `runs` and stores its input in `told`.
fn plugin(dir: &Path, script: &str) -> ExecPlugin {
    let command = dir.join("plugin");
    let home = dir.display();
    let text = format!(
        "#!/bin/sh\necho run >>{home}/runs\nprintf %s \"$KUBERNETES_EXEC_INFO\" >{home}/told\n{script}\n"
    );
    // Written by another process: a fork of another test would keep our file open for writing, and it could not be run.
    let writing = "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\"";
    let written = std::process::Command::new("/bin/sh")
        .arg("-c")
        .arg(writing)
        .arg(&command)
        .arg(text)
        .status()
        .expect("sh");
    assert!(written.success());
    ExecPlugin {
        command,
        args: vec!["one".into()],
        env: BTreeMap::from([("EXTRA".to_owned(), "value".to_owned())]),
        api_version: V1.into(),
        install_hint: Some("get it at the shop".into()),
        interactive_mode: InteractiveMode::Never,
        cluster_info: Some(serde_json::json!({ "server": "https://h" })),
    }
}

fn says(status: &str) -> String {
    format!("echo '{{\"kind\":\"ExecCredential\",\"apiVersion\":\"{V1}\",\"status\":{status}}}'")
}

fn keeper(plugin: ExecPlugin, clock: Arc<SetClock>) -> ApiCredentials {
    ApiCredentials::new(&Credential::Exec(Box::new(plugin)), clock).expect("a keeper")
}

fn runs(dir: &Path) -> usize {
    std::fs::read_to_string(dir.join("runs")).unwrap_or_default().lines().count()
}

fn header(shown: &RequestCredentials) -> String {
    shown.authorization.as_ref().and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_plugin_is_asked_once_until_its_answer_expires_or_is_refused() {
    let dir = tempfile::tempdir().expect("directory");
    let status = r#"{"token":"'"$EXTRA-$1"'","expirationTimestamp":"1970-01-01T00:00:10Z"}"#;
    let clock = Arc::new(SetClock::default());
    let keeper = keeper(plugin(dir.path(), &says(status)), clock.clone());
    let (first, second) = tokio::join!(keeper.current(), keeper.current());
    let first = first.expect("an answer");
    assert_eq!(
        (header(&first), header(&second.expect("an answer"))),
        ("Bearer value-one".into(), "Bearer value-one".into())
    );
    assert_eq!(runs(dir.path()), 1);
    let told: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("told")).expect("told")).expect("JSON");
    let spec = serde_json::json!({ "interactive": false, "cluster": { "server": "https://h" } });
    assert_eq!(told, serde_json::json!({ "kind": "ExecCredential", "apiVersion": V1, "spec": spec }));

    clock.0.store(10_000_000_000, Ordering::Relaxed);
    let renewed = keeper.current().await.expect("a new answer");
    assert_eq!(runs(dir.path()), 2);
    clock.0.store(0, Ordering::Relaxed);
    // Invalidating an old credential changes nothing; invalidating the present one replaces it.
    keeper.invalidate(&first).await;
    keeper.current().await.expect("the same answer");
    assert_eq!(runs(dir.path()), 2);
    keeper.invalidate(&renewed).await;
    keeper.current().await.expect("another answer");
    assert_eq!(runs(dir.path()), 3);
}

#[tokio::test]
async fn a_plugin_may_give_a_certificate() {
    let dir = tempfile::tempdir().expect("directory");
    let made = rcgen::generate_simple_self_signed(vec!["n".to_owned()]).expect("a certificate");
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let quoted = |text: &str| text.replace('\n', "\\\\n").replace('\r', "");
    let status = format!(
        r#"{{"clientCertificateData":"{}","clientKeyData":"{}"}}"#,
        quoted(&certificate),
        quoted(&key)
    );
    // printf turns \\n into \n, which is JSON's line end.
    let script = says(&status).replacen("echo ", "printf '%b' ", 1);
    let keeper = keeper(plugin(dir.path(), &script), Arc::default());
    let shown = keeper.current().await.expect("an answer");
    let expect = KeyPair::from_pem(certificate.as_bytes(), key.as_bytes()).expect("a pair");
    assert_eq!((shown.pair.as_deref(), shown.authorization), (Some(&expect), None));
}

#[tokio::test]
async fn plugins_fail_in_words() {
    let check = async |change: fn(&mut ExecPlugin), script: String, expect: &str| {
        let dir = tempfile::tempdir().expect("directory");
        let mut plugin = plugin(dir.path(), &script);
        change(&mut plugin);
        let error = keeper(plugin, Arc::default()).current().await.map(|_| ()).expect_err("it should fail");
        let text = error.to_string().replace(&dir.path().display().to_string(), "DIR");
        assert_eq!(text, expect, "for {script}");
    };
    let same = |_: &mut ExecPlugin| {};
    check(same, "echo oh no >&2; exit 3".into(), "exec plugin DIR/plugin: exit status: 3: oh no").await;
    check(same, says("null"), "exec plugin DIR/plugin: its answer has no status").await;
    check(same, says("{}"), "exec plugin DIR/plugin: its answer has neither a token nor a certificate").await;
    let half = says(r#"{"clientKeyData":"k"}"#);
    check(same, half, "exec plugin DIR/plugin: its answer has only one of certificate and key").await;
    check(
        |plugin| plugin.api_version = V1.replace("v1", "v1beta1"),
        says(r#"{"token":"t"}"#),
        "exec plugin DIR/plugin: is configured to use API version client.authentication.k8s.io/v1beta1, but answered \
         with client.authentication.k8s.io/v1",
    )
    .await;
    check(
        |plugin| plugin.command.set_file_name("missing"),
        String::new(),
        "exec plugin DIR/missing: can't be started (get it at the shop)",
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_token_file_is_read_again() {
    let dir = tempfile::tempdir().expect("directory");
    let file = dir.path().join("token");
    let credential = Credential::TokenFile { file: file.clone(), first: Some("early".into()) };
    let keeper = ApiCredentials::new(&credential, Arc::<SetClock>::default()).expect("a keeper");
    let shown = async || header(&keeper.current().await.expect("a token"));
    assert_eq!(shown().await, "Bearer early");
    std::fs::write(&file, "one\n").expect("write");
    assert_eq!(shown().await, "Bearer one");
    std::fs::write(&file, "two\n").expect("write");
    assert_eq!(shown().await, "Bearer one", "a reading is good for a while");
    tokio::time::advance(Duration::from_secs(11)).await;
    assert_eq!(shown().await, "Bearer two");
    std::fs::write(&file, "three\n").expect("write");
    keeper.invalidate(&RequestCredentials::default()).await;
    assert_eq!(shown().await, "Bearer three", "a refusal is a reason to look");
    // While the file is being replaced, the last token is used.
    std::fs::remove_file(&file).expect("remove");
    keeper.reread_token_file();
    assert_eq!(shown().await, "Bearer three");
}

#[tokio::test]
async fn a_token_file_that_was_never_there_is_named() {
    let credential = Credential::TokenFile { file: "/no/token".into(), first: None };
    let keeper = ApiCredentials::new(&credential, Arc::<SetClock>::default()).expect("a keeper");
    let error = keeper.current().await.map(|_| ()).expect_err("no token");
    assert_eq!(error.to_string(), "token file /no/token: can't be read");
}
