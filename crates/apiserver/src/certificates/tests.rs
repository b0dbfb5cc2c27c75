use std::net::IpAddr;
use std::path::Path;

use model::Wall;
use model::k8s::NodeAddress;
use rcgen::{CertificateParams, DnType, SanType};

use super::CertificateError;
use super::key::CertificateKey;
use super::loaded::LoadedCertificate;
use super::loss::CertificateLoss;
use super::rotate::{RotationStatus, back_off, rotation_time};
use super::store::CertificateStore;
use super::template::{CertificatePurpose, CertificateTemplate};
use crate::kubeconfig::KeyPair;

/// Made by another implementation, with the name that it gives the request.
const EC_KEY: &str = "\
-----BEGIN EC PRIVATE KEY-----
MHcCAQEEICWi3XGRECXdXef+EQmtQGg/9topV3eu4v+ZpuS4vUj3oAoGCCqGSM49
AwEHoUQDQgAE0BQr7Hgt9rHo3fs4mFI/D3kBv2fmUXp2aO2AqeOFGcytzqRYz25J
bIRIbn2T6qQ8xGRNUTPv93oA45fr/kqHGA==
-----END EC PRIVATE KEY-----
";
const EC_NAME: &str = "node-csr-v9OTK4pMY7-GYfRsHCoi7bTRgJEeagW3Y3Ym06N4m0E";
const RSA_KEY: &str = "\
-----BEGIN RSA PRIVATE KEY-----
MIIEpQIBAAKCAQEAvc6YKRjwoKCaZ87xKy3ibPMnWcYz373U4B8uxHvDY2mA0Mei
ah1G3VayRE6MSX7CiKtIA4yLD6h67tj3Rs8huhDhRJDLb+KZ3pnZIZc1/J/xaPTM
zHBk3EMHrNn7d1IwFIS2+NJBGKL2Xd6Zta+jQXFbGRW07/xEZrwJv91kz9lHN0EX
uFuW8ID63CgTdgVej7wmymrdWwvOuR4IBUUgdn14xVk8jUik/Nbi+ET5bsnqk7dZ
F2ixzndoP2I1GrQpgWLHrYEqGnV9H0zVW5lvazbJJD47uyrmKTfNWE6Yo40UETro
Jh9qtYPQhRjCbKtWrtkDffZmyz6Mb5mGs0kYHwIDAQABAoIBAFZvYNqCSX4UdQwl
8KyFqjGML1TSDihrJahkeuMuKyW301oAN2WUbIN6KhcyH++OIp+jRFmdZGxegJEJ
S946kDTP4A3d1E7gxcpZjEggOI0Q9xohNKw62Kt3eOTNpZbKXivR3hMEiHFkMMZB
iwTydWllaiNLv8hzvGB+bAAsHW8KzcRTrAv9v/eVOIaG+SyyBLYD91MolyDfPwtH
0EPfrdjB7FplSaxSG/ob2rjh1P2HDzLUZ857OW2r7IbUdyQ+1pDLJYfW4ShAdtsb
OdSjr11RTR5robV2iQ93f8Qyl1x3BegXaCty6xP1PZH95aazhn3yjRnwyu+TG1iH
/DYHD+0CgYEA0hIm6DUsnXtV7aN0mgzMWkFgp0RYjD+wIuC+5YO00uLFAgiUFVa8
M0dt9w5HU0d3W4JKt/9VU+uDw0J3/uE9F6OPlsua40GOf4kEzCMo5yfgaidbyg7c
riRDXRreDBm/t38TyRskn7yn7yM6rZxdBsQggQfEgYTvMT5v3WDAOt0CgYEA505B
OWa3LWS0rVmBwXENdsAwAXwdC5EnWyQKt02y0o4KLMkVFJpFiZ4LnjbebDQGmb1j
BEV/xPd/L7Sz6iRUYOazf1xcdi2s9OJeuY4rk0ouWPxa2Ftm59AKzZPctc46bwQ3
t5DepQQ0YJSWme+ZuOIyxdYH/n+w1tktbeU0OSsCgYEAqUUHJMT0FlFzg/DZ2+fE
IlXb0+w2jYwkGXaPW9Esu2EO7fyLlkY1j/xWl2RiBLDpdEsgefK8hsqXeZbtqetE
lu+snA2j2MrST+HQg80xAFIZenAMflxLZebCgRtNIOL+oJU9FCdS84PIreDtP0dn
jjQrHM1tgg/jzQJKkU+MleECgYEAqD/k89MCVVOWlS2xU7tfVszPXpUgL4TDQumB
nfo3pC7Lue3+loDtKgA7ZTd2LPDfCD+ZYccH/IcnDdV8tUj904qccH0HiLMKxwpO
aty+V6Iy+ml9zzkVLnPHF+iBOAGtwYko2i7XtOLNEp+iuJBvmet3kS5xnC7XvEA3
amO5zAcCgYEArOsOGALSK4W3B+BKP/d870XQO1RGyEJxW+yUglB8EPdt/ybpkOW+
12syuTtPCnOirUrcIfl+tiTVLX7+rSiK6si9EHvat9y9/I1uBYuuw+Pmi8loKMP8
eCezvmT0v0CjYQkY4EHOWzvPmmhEVEfs2LVhg+vKekmLJbP2f+4fHmc=
-----END RSA PRIVATE KEY-----
";

const DAY: i64 = 86_400_000_000_000;

fn usages(key: &CertificateKey) -> Vec<String> {
    CertificatePurpose::Client.usages(key.is_rsa())
}

#[test]
fn a_request_has_the_name_that_others_give_it() {
    let key = CertificateKey::from_pem(EC_KEY.as_bytes()).expect("a SEC 1 key");
    assert_eq!(CertificateTemplate::client("n1").request_name(&key.public(), &usages(&key)), EC_NAME);
    // The key is unchanged after it was stored.
    let again = CertificateKey::from_pem(key.pem().as_bytes()).expect("the same key");
    assert_eq!(again.public(), key.public());
}

#[test]
fn usages_depend_on_the_key() {
    let rsa = CertificateKey::from_pem(RSA_KEY.as_bytes()).expect("a PKCS#1 key");
    assert_eq!(usages(&rsa), ["digital signature", "client auth", "key encipherment"]);
    let ec = CertificateKey::generate().expect("a key");
    assert_eq!(usages(&ec), ["digital signature", "client auth"]);
    assert_eq!(CertificatePurpose::Serving.usages(ec.is_rsa()), ["digital signature", "server auth"]);
}

#[test]
fn a_request_says_what_the_template_says() {
    let template = CertificateTemplate::serving(
        "n1",
        &addresses(&[("InternalIP", "10.0.0.1"), ("Hostname", "n1")]),
        false,
    );
    let template = template.expect("an address");
    let pem = CertificateKey::generate().expect("a key").request(&template).expect("a request");
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).expect("PEM");
    assert_eq!(pem.label, "CERTIFICATE REQUEST");
    use x509_parser::prelude::FromDer;
    let (_, request) = x509_parser::certification_request::X509CertificationRequest::from_der(&pem.contents)
        .expect("a request");
    let info = &request.certification_request_info;
    assert_eq!(info.subject.to_string(), "O=system:nodes, CN=system:node:n1");
    let names: Vec<String> = request
        .requested_extensions()
        .into_iter()
        .flatten()
        .filter_map(|extension| match extension {
            x509_parser::extensions::ParsedExtension::SubjectAlternativeName(names) => Some(names),
            _ => None,
        })
        .flat_map(|names| names.general_names.iter().map(ToString::to_string))
        .collect();
    assert_eq!(names, ["DNSName(n1)", "IPAddress(0a:00:00:01)"]);
}

fn addresses(found: &[(&str, &str)]) -> Vec<NodeAddress> {
    found
        .iter()
        .map(|(type_, address)| NodeAddress { type_: (*type_).into(), address: (*address).into() })
        .collect()
}

#[test]
fn addresses_become_names() {
    let check = |found: &[(&str, &str)], expect: Option<(&[&str], &[&str])>| {
        let template = CertificateTemplate::serving("n", &addresses(found), false);
        let expect = expect.map(|(names, ips)| CertificateTemplate {
            dns_names: names.iter().map(|name| (*name).to_owned()).collect(),
            addresses: ips.iter().map(|ip| ip.parse().expect("an address")).collect(),
            ..CertificateTemplate::client("n")
        });
        assert_eq!(template, expect, "for {found:?}");
    };
    check(&[], None);
    check(&[("Hostname", "host")], None);
    // With the gate AllowDNSOnlyNodeCSR a DNS name is enough, but one is required.
    let named = CertificateTemplate::serving("n", &addresses(&[("Hostname", "host")]), true);
    assert_eq!(named.map(|template| template.dns_names), Some(vec!["host".to_owned()]));
    assert_eq!(CertificateTemplate::serving("n", &[], true), None);
    check(&[("InternalDNS", "a"), ("Hostname", "10.1.1.1")], Some((&["a"], &["10.1.1.1"])));
    check(
        &[
            ("InternalIP", "9.0.0.1"),
            ("ExternalIP", "10.0.0.1"),
            ("InternalIP", "9.0.0.1"),
            ("InternalIP", "bad"),
        ],
        Some((&[], &["10.0.0.1", "9.0.0.1"])),
    );
    check(
        &[
            ("ExternalDNS", "z"),
            ("InternalDNS", "b"),
            ("Hostname", "b"),
            ("InternalIP", "fd00::1"),
            ("Other", "x"),
        ],
        Some((&["b", "z"], &["fd00::1"])),
    );
}

/// A chain and its key, valid from `from` to `to` (days).
fn signed(template: &CertificateTemplate, from: i64, to: i64) -> (String, String) {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, template.common_name.clone());
    for organization in &template.organizations {
        params.distinguished_name.push(DnType::OrganizationName, organization.clone());
    }
    for name in &template.dns_names {
        params.subject_alt_names.push(SanType::DnsName(name.as_str().try_into().expect("a name")));
    }
    params.subject_alt_names.extend(template.addresses.iter().copied().map(SanType::IpAddress));
    let day =
        |days: i64| rcgen::date_time_ymd(1970, 1, 1) + std::time::Duration::from_secs(days as u64 * 86_400);
    (params.not_before, params.not_after) = (day(from), day(to));
    let key = rcgen::KeyPair::generate().expect("a key");
    (params.self_signed(&key).expect("a certificate").pem(), key.serialize_pem())
}

fn held(template: &CertificateTemplate, from: i64, to: i64) -> LoadedCertificate {
    let (certificate, key) = signed(template, from, to);
    let pair = KeyPair::from_pem(certificate.as_bytes(), key.as_bytes()).expect("a pair");
    LoadedCertificate::new(pair, Path::new("test")).expect("a certificate")
}

#[test]
fn a_certificate_is_replaced_in_good_time() {
    let held = held(&CertificateTemplate::client("n"), 10, 20);
    assert_eq!((held.not_before, held.not_after), (Wall(10 * DAY), Wall(20 * DAY)));
    assert_eq!(rotation_time(&held, 0.7), Wall(17 * DAY));
    assert_eq!(rotation_time(&held, 0.9), Wall(19 * DAY));
    assert!(held.has_not_expired(Wall(20 * DAY - 1)) && !held.has_not_expired(Wall(20 * DAY)));
}

#[test]
fn failures_wait_longer_and_longer() {
    let waits: Vec<f64> = (0..7).map(|failures| back_off(failures, 0.0).as_secs_f64()).collect();
    assert_eq!(waits, [2.0, 4.0, 8.0, 16.0, 32.0, 32.0, 32.0]);
    assert_eq!(back_off(1, 1.0).as_secs_f64(), 4.4);
}

#[test]
fn what_is_missing_needs_a_new_certificate_and_what_is_too_much_does_not() {
    let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
    let full = CertificateTemplate {
        dns_names: vec!["a".into(), "b".into()],
        addresses: vec![ip("10.0.0.1"), ip("fd00::1")],
        ..CertificateTemplate::client("n")
    };
    let certificate = held(&full, 0, 1);
    let check = |wanted: CertificateTemplate, expect: bool| {
        assert_eq!(wanted.satisfied_by(&certificate), expect, "{wanted:?}")
    };
    check(full.clone(), true);
    check(CertificateTemplate::client("n"), true);
    check(CertificateTemplate::client("m"), false);
    check(CertificateTemplate { dns_names: vec!["c".into()], ..full.clone() }, false);
    check(CertificateTemplate { addresses: vec![ip("10.0.0.2")], ..full.clone() }, false);
    check(CertificateTemplate { organizations: vec!["others".into()], ..full }, false);
}

#[test]
fn the_store_has_the_layout_of_a_kubelet() {
    let home = tempfile::tempdir().expect("directory");
    let dir = home.path().join("pki");
    let store = CertificateStore::open(&dir, "kubelet-client", None).expect("a store");
    assert_eq!(store.current().expect("nothing"), None);
    let template = CertificateTemplate::client("n");
    let (certificate, key) = signed(&template, 0, 9);
    let first = store.update(certificate.as_bytes(), key.as_bytes(), Wall(DAY)).expect("kept");
    let current = dir.join("kubelet-client-current.pem");
    let target = std::fs::read_link(&current).expect("a link");
    let name = target.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
    // The hour depends on the machine's time zone.
    let digits: String = name.chars().map(|c| if c.is_ascii_digit() { '9' } else { c }).collect();
    assert_eq!(digits, "kubelet-client-9999-99-99-99-99-99.pem");
    assert!(target.is_absolute());
    let mode = std::os::unix::fs::PermissionsExt::mode(&target.metadata().expect("metadata").permissions());
    assert_eq!(mode & 0o777, 0o600);
    let text = std::fs::read_to_string(&current).expect("text");
    assert!(text.starts_with("-----BEGIN CERTIFICATE") && text.contains("PRIVATE KEY"), "{text}");
    assert_eq!(store.current().expect("readable"), Some(first));

    let (certificate, key) = signed(&template, 0, 8);
    let second = store.update(certificate.as_bytes(), key.as_bytes(), Wall(3 * DAY)).expect("kept");
    assert_eq!(store.current().expect("readable"), Some(second));
    assert!(target.exists(), "old pairs stay");
}

#[test]
fn the_store_survives_an_interrupted_replacement() {
    let home = tempfile::tempdir().expect("directory");
    let dir = home.path();
    let store = CertificateStore::open(dir, "kubelet-client", None).expect("a store");
    let (certificate, key) = signed(&CertificateTemplate::client("n"), 0, 9);
    let kept = store.update(certificate.as_bytes(), key.as_bytes(), Wall(DAY)).expect("kept");
    // Other implementations remove the old link before they rename the new one.
    let (current, updated) = (dir.join("kubelet-client-current.pem"), dir.join("kubelet-client-updated.pem"));
    std::fs::rename(&current, &updated).expect("rename");
    let store = CertificateStore::open(dir, "kubelet-client", None).expect("a store");
    assert_eq!(store.current().expect("readable"), Some(kept));
    assert!(!updated.exists());

    // A symlink that was left over is replaced; a file is an error, and nothing is lost.
    std::os::unix::fs::symlink("/nowhere", &updated).expect("link");
    store.update(certificate.as_bytes(), key.as_bytes(), Wall(2 * DAY)).expect("kept");
    std::fs::remove_file(&current).expect("remove");
    std::fs::write(&current, "mine").expect("write");
    let error =
        store.update(certificate.as_bytes(), key.as_bytes(), Wall(3 * DAY)).expect_err("a file in the way");
    assert!(matches!(error, CertificateError::NotASymlink { .. }), "{error}");
}

#[test]
fn a_certificate_of_another_key_is_not_kept() {
    let home = tempfile::tempdir().expect("directory");
    let store = CertificateStore::open(home.path(), "kubelet-client", None).expect("a store");
    let ((certificate, _), (_, key)) =
        (signed(&CertificateTemplate::client("n"), 0, 9), signed(&CertificateTemplate::client("n"), 0, 9));
    store.update(certificate.as_bytes(), key.as_bytes(), Wall(DAY)).expect_err("they don't belong together");
    store.update(b"nothing", key.as_bytes(), Wall(DAY)).expect_err("no certificate");
    assert_eq!(store.current().expect("nothing"), None);
    assert_eq!(home.path().read_dir().expect("list").count(), 0);
}

#[test]
fn given_files_count_until_there_is_a_pair_of_our_own() {
    let home = tempfile::tempdir().expect("directory");
    let template = CertificateTemplate::client("n");
    let put = |name: &str, text: &str| {
        let path = home.path().join(name);
        std::fs::write(&path, text).expect("write");
        path
    };
    let (certificate, key) = signed(&template, 0, 5);
    let given = (put("mine.crt", &certificate), put("mine.key", &key));
    let (beside, beside_key) = signed(&template, 0, 6);
    put("kubelet-client.crt", &beside);
    put("kubelet-client.key", &beside_key);
    let ends =
        |store: &CertificateStore| store.current().expect("readable").map(|held| held.not_after.0 / DAY);
    let alone = CertificateStore::open(home.path(), "kubelet-client", None).expect("a store");
    assert_eq!(ends(&alone), Some(6));
    let store = CertificateStore::open(home.path(), "kubelet-client", Some(given)).expect("a store");
    assert_eq!(ends(&store), Some(5));
    let (certificate, key) = signed(&template, 0, 7);
    store.update(certificate.as_bytes(), key.as_bytes(), Wall(DAY)).expect("kept");
    assert_eq!(ends(&store), Some(7));
}

struct At(i64);

impl ports::WallClock for At {
    fn wall(&self) -> Wall {
        Wall(self.0 * DAY)
    }
}

/// Why an agent would end within so many seconds.
async fn loss(
    held: Option<LoadedCertificate>,
    healthy: bool,
    today: i64,
    seconds: u64,
) -> Option<CertificateLoss> {
    let held = tokio::sync::watch::Sender::new(held.map(std::sync::Arc::new));
    let healthy = tokio::sync::watch::Sender::new(healthy);
    let rotation = RotationStatus::seen(held.subscribe(), healthy.subscribe());
    tokio::time::timeout(std::time::Duration::from_secs(seconds), rotation.wait_until_lost(&At(today)))
        .await
        .ok()
}

#[tokio::test(start_paused = true)]
async fn an_agent_without_a_certificate_ends_only_when_the_server_works() {
    let certificate = || Some(held(&CertificateTemplate::client("n"), 0, 9));
    let check = async |held: Option<LoadedCertificate>,
                       healthy: bool,
                       today: i64,
                       seconds: u64,
                       expect: Option<CertificateLoss>| {
        let found = loss(held.clone(), healthy, today, seconds).await;
        assert_eq!(found, expect, "{:?} {healthy} {today} {seconds}", held.map(|held| held.not_after));
    };
    check(certificate(), true, 8, 3600, None).await;
    check(certificate(), true, 10, 0, Some(CertificateLoss::Expired)).await;
    check(certificate(), false, 10, 3600, None).await;
    check(None, true, 1, 299, None).await;
    check(None, true, 1, 330, Some(CertificateLoss::NoCertificate)).await;
    check(None, false, 1, 3600, None).await;
}
