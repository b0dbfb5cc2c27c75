use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::*;

fn pem() -> (String, String) {
    let made = rcgen::generate_simple_self_signed(vec!["n".to_owned()]).expect("a certificate");
    (made.cert.pem(), made.signing_key.serialize_pem())
}

/// A kubeconfig of one cluster and one user, each as YAML flow.
fn kubeconfig(cluster: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: k, cluster: {cluster}}}]\n\
         users: [{{name: u, user: {user}}}]\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n"
    )
}

fn read(dir: &Path, text: &str) -> Result<ResolvedKubeconfig, KubeconfigError> {
    let file = dir.join("kubelet.conf");
    std::fs::write(&file, text).expect("write");
    load(&file)
}

fn refused(text: &str) -> String {
    let dir = tempfile::tempdir().expect("directory");
    let error = read(dir.path(), text).expect_err("it should be refused").to_string();
    let file = dir.path().join("kubelet.conf").display().to_string();
    assert!(error.contains(&file), "{error} names the file");
    error.replace(&file, "FILE").replace(&dir.path().display().to_string(), "DIR")
}

fn accepted(cluster: &str, user: &str) -> ResolvedKubeconfig {
    let dir = tempfile::tempdir().expect("directory");
    read(dir.path(), &kubeconfig(cluster, user)).expect("a good kubeconfig")
}

const SERVER: &str = "{server: 'https://h:6443'}";

#[test]
fn faults_name_file_and_field() {
    let check = |text: &str, expect: &str| {
        assert_eq!(refused(text), format!("kubeconfig FILE: {expect}"), "for {text}")
    };
    let cluster = |fields: &str, expect: &str| {
        check(&kubeconfig(fields, "{}"), &format!("clusters[0].cluster.{expect}"))
    };
    let user =
        |fields: &str, expect: &str| check(&kubeconfig(SERVER, fields), &format!("users[0].user.{expect}"));

    check("", "is empty");
    check("kind: Pod", "kind: is \"Pod\", not \"Config\"");
    check("clusters: []", "current-context: is not set: nothing says which server to use");
    check("current-context: a", "current-context: no context is called \"a\"");
    check(
        "current-context: a\ncontexts: [{name: a, context: {cluster: x}}]",
        "contexts[0].context.cluster: no cluster is called \"x\"",
    );
    check(
        "current-context: a\nclusters: [{name: x, cluster: {server: 'https://h'}}]\n\
         contexts: [{name: a, context: {cluster: x, user: yves}}]",
        "contexts[0].context.user: no user is called \"yves\"",
    );
    cluster("{}", "server: is not set");
    cluster("{server: 'ftp://h'}", "server: \"ftp://h\" must begin with https:// or http://");
    cluster(
        "{server: 'https://h', certificate-authority: ca.crt}",
        "certificate-authority: DIR/ca.crt: can't be read",
    );
    cluster(
        "{server: 'https://h', certificate-authority-data: '%'}",
        "certificate-authority-data: is not base64: Invalid symbol 37, offset 0.",
    );
    cluster(
        "{server: 'https://h', certificate-authority-data: aGFsbG8=}",
        "certificate-authority-data: holds no PEM certificate",
    );
    cluster(
        "{server: 'https://h', insecure-skip-tls-verify: true, certificate-authority: x}",
        "insecure-skip-tls-verify: can't go with a certificate authority: either it is checked or it isn't",
    );
    cluster(
        "{server: 'https://h', tls-server-name: 'a b'}",
        "tls-server-name: \"a b\" is no host name or address",
    );
    cluster(
        "{server: 'https://h', proxy-url: 'gopher://p'}",
        "proxy-url: must begin with http://, https:// or socks5://",
    );
    user("{client-certificate: a.pem}", "client-certificate: DIR/a.pem: can't be read");
    user("{client-key-data: aGFsbG8=}", "client-certificate: is not set, but client-key is");
    user("{token: t, username: u}", "token: and username are both set: more than one way to authenticate");
    user("{token: 12345}", "token: invalid type: integer `12345`, expected a string");
    user("{auth-provider: {name: gcp}}", "auth-provider: is no longer supported: use an exec plugin");
    user("{as-groups: [g]}", "as: is not set, but as-uid or as-groups is");
    user("{exec: {apiVersion: client.authentication.k8s.io/v1}}", "exec.command: is not set");
    user("{exec: {command: c}}", "exec.apiVersion: is not set");
    user(
        "{exec: {command: c, apiVersion: client.authentication.k8s.io/v1alpha1}}",
        "exec.apiVersion: is \"client.authentication.k8s.io/v1alpha1\": known are client.authentication.k8s.io/v1 and \
         client.authentication.k8s.io/v1beta1",
    );
    user(
        "{exec: {command: c, apiVersion: client.authentication.k8s.io/v1}}",
        "exec.interactiveMode: must be set with client.authentication.k8s.io/v1",
    );
    let text = refused("current-context: [a");
    assert!(text.starts_with("kubeconfig FILE: "), "{text}");
}

#[test]
fn a_missing_kubeconfig_is_named() {
    let error = load(Path::new("/does/not/exist")).expect_err("no file");
    assert_eq!(error.to_string(), "kubeconfig /does/not/exist: can't be read");
}

#[test]
fn files_are_beside_the_kubeconfig_and_data_wins() {
    let dir = tempfile::tempdir().expect("directory");
    let ((filed, key), (inline, inline_key)) = (pem(), pem());
    std::fs::write(dir.path().join("both.pem"), format!("{filed}{key}")).expect("write");
    std::fs::write(dir.path().join("ca.crt"), &filed).expect("write");
    let cluster = "{server: 'https://h:6443/base', certificate-authority: ca.crt}";
    let in_files = kubeconfig(cluster, "{client-certificate: both.pem, client-key: both.pem}");
    let access = read(dir.path(), &in_files).expect("certificates in files");
    let expect = KeyPair::from_pem(filed.as_bytes(), key.as_bytes()).expect("a pair");
    assert_eq!(access.certificate, Some(expect));
    assert_eq!(access.server, "https://h:6443/base");
    let pem_file = dir.path().join("both.pem");
    assert_eq!(access.certificate_files, Some((pem_file.clone(), pem_file.clone())));
    assert_eq!(
        access.files,
        [dir.path().join("kubelet.conf"), dir.path().join("ca.crt"), pem_file.clone(), pem_file]
    );

    let data = |text: &str| STANDARD.encode(text);
    let user = format!(
        "{{client-certificate: nowhere, client-key: nowhere, client-certificate-data: {}, client-key-data: {}}}",
        data(&inline),
        data(&inline_key)
    );
    let access = read(dir.path(), &kubeconfig(cluster, &user)).expect("inline certificates");
    let expect = KeyPair::from_pem(inline.as_bytes(), inline_key.as_bytes()).expect("a pair");
    assert_eq!((access.certificate, access.certificate_files), (Some(expect), None));
}

#[test]
fn a_certificate_that_is_kept_elsewhere_need_not_be_there() {
    let dir = tempfile::tempdir().expect("directory");
    let file = dir.path().join("kubelet.conf");
    let text = kubeconfig(SERVER, "{client-certificate: pki/current.pem, client-key: pki/current.pem}");
    std::fs::write(&file, text).expect("write");
    assert!(load(&file).is_err());
    let access = load_without_client_certificate(&file).expect("without the file");
    let pem = dir.path().join("pki/current.pem");
    assert_eq!((access.certificate, access.certificate_files), (None, Some((pem.clone(), pem))));
}

#[test]
fn who_we_are() {
    let check =
        |user: &str, expect: Credential| assert_eq!(accepted(SERVER, user).credential, expect, "for {user}");
    check("{}", Credential::None);
    check("{token: t}", Credential::Token("t".into()));
    check("{token: '12345'}", Credential::Token("12345".into()));
    check("{username: u, password: p}", Credential::Basic { username: "u".into(), password: "p".into() });
    check("{tokenFile: /t, token: t}", Credential::TokenFile { file: "/t".into(), first: Some("t".into()) });
    let exec = "{exec: {command: ./plugin, apiVersion: client.authentication.k8s.io/v1beta1}}";
    match accepted(SERVER, exec).credential {
        Credential::Exec(plugin) => {
            assert_eq!(plugin.interactive_mode, InteractiveMode::IfAvailable);
            assert!(plugin.command.is_absolute(), "{:?}", plugin.command);
        }
        other => panic!("{other:?}"),
    }
    // If the file contains a credential, the plugin is not used.
    let both = "{token: t, exec: {command: c, apiVersion: client.authentication.k8s.io/v1beta1}}";
    check(both, Credential::Token("t".into()));
    let acting = accepted(SERVER, "{token: t, as: jane, as-groups: [a, b]}").impersonate;
    assert_eq!(
        acting,
        Impersonation { user: Some("jane".into()), uid: None, groups: vec!["a".into(), "b".into()] }
    );
}

#[test]
fn servers_without_a_scheme() {
    let check =
        |cluster: &str, expect: &str| assert_eq!(accepted(cluster, "{}").server, expect, "for {cluster}");
    check("{server: 'h:8080'}", "http://h:8080");
    check("{server: 'h:6443', insecure-skip-tls-verify: true}", "https://h:6443");
    check("{server: 'https://[::1]:6443'}", "https://[::1]:6443");
}

#[test]
fn what_a_bootstrap_leaves_can_be_read_again() {
    let dir = tempfile::tempdir().expect("directory");
    let (ca, _) = pem();
    let cluster = format!(
        "{{server: 'https://h:6443', certificate-authority-data: {}, tls-server-name: name, proxy-url: 'http://p:3128'}}",
        STANDARD.encode(&ca)
    );
    let bootstrap = read(dir.path(), &kubeconfig(&cluster, "{token: t}")).expect("a bootstrap kubeconfig");
    let (file, current) =
        (dir.path().join("new/kubelet.conf"), dir.path().join("pki/kubelet-client-current.pem"));
    write_bootstrapped_kubeconfig(&file, &bootstrap, &current).expect("written");
    let access = load_without_client_certificate(&file).expect("read again");
    assert_eq!(access.credential, Credential::None);
    assert_eq!(access.certificate_files, Some((current.clone(), current)));
    assert_eq!((&access.server, &access.trust), (&bootstrap.server, &bootstrap.trust));
    assert_eq!((&access.tls_server_name, &access.proxy), (&bootstrap.tls_server_name, &bootstrap.proxy));
    let text = std::fs::read_to_string(&file).expect("text");
    for name in ["default-cluster", "default-context", "default-auth", "namespace: default"] {
        assert!(text.contains(name), "{name} in {text}");
    }
    let mode = std::os::unix::fs::PermissionsExt::mode(&file.metadata().expect("metadata").permissions());
    assert_eq!(mode & 0o777, 0o600);
}
