//! Pods that need objects of the cluster.

use model::credentials::{PullCredentials, PullHistory, PullSecret, PulledRecord};
use model::cri::Image;
use model::node::NodeConfig;
use model::pod::Source;

use super::script::{Script, check_on};
use crate::{Effect, Event};

fn node() -> NodeConfig {
    NodeConfig { sources: vec![Source::Api], ..Default::default() }
}

#[track_caller]
fn check(script: &str) -> Script {
    check_on(node(), script)
}

#[test]
fn variables_wait_for_their_objects_and_start_at_once() {
    check(
        "
        show events
        pod a = c: {envFrom: [{configMapRef: {name: m}}], imagePullPolicy: IfNotPresent}
        up
        api a => watch configmap m | run a: dirs + cgroup > sandbox#0 | look img-c:1
        looked img-c:1: yes => N a/c Pulled: Container image \"img-c:1\" already present on machine and can be accessed by the pod
        done a => read a
        read a: s0 ready => -
        why a => c: waits for configmap m
        configmap m: away no route => -
        why a => c: waits for configmap m (no route)
        configmap m: gone => W a/c Failed: Error: configmap \"m\" not found
        why a => c: CreateContainerConfigError (configmap \"m\" not found)
        +100s
        timer full => read all
        read all: a = s0 ready => -
        configmap m: k=v => run a: start c#0?
        ",
    );
}

#[test]
fn what_a_container_may_start_without() {
    check(
        "
        show events
        pod a = c: {env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k, optional: true}}}]}
        up
        api a => watch secret s | run a: dirs + cgroup > sandbox#0 | look img-c:1
        secret s: gone => -
        looked img-c:1: yes
        done a
        read a: s0 ready => run a: start c#0?
        ",
    );
    check(
        "
        show events
        pod a = c: {env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]}
        up
        api a
        secret s: other=1
        looked img-c:1: yes
        done a
        read a: s0 ready => W a/c Failed: Error: couldn't find key k in Secret ns/s
        secret s: denied secrets \"s\" is forbidden => W a/c Failed: Error: secrets \"s\" is forbidden
        secret s: k=1 => run a: start c#0?
        ",
    );
}

const WITH_VOLUME: &str = "
    pod a = c: {volumeMounts: [{name: v, mountPath: /v}]}; spec: {volumes: [{name: v, configMap: {name: m}}]}
";

#[test]
fn volumes_wait_for_their_objects_and_follow_them() {
    check(&format!(
        "
        show events timers
        {WITH_VOLUME}
        up
        api a => watch configmap m | timer pod a @123s | look img-c:1
        looked img-c:1: yes
        why a => waits for configmap m
        configmap m: gone => W a FailedMount: MountVolume.SetUp failed for volume \"v\" : configmap \"m\" not found
        why a => set up volumes failed (MountVolume.SetUp failed for volume \"v\" : configmap \"m\" not found)
        configmap m: gone => -
        configmap m: k=1 => run a: dirs + cgroup > volume v {{k=1}} > sandbox#0 | timer pod a off
        done a
        read a: s0 ready => run a: start c#0?
        done a
        read a: s0 ready; c#0 running => -
        configmap m: k=1 => -
        configmap m: k=2 => run a: volume v {{k=2}}?
        configmap m: k=3 => -
        done a => run a: volume v {{k=3}}?
        done a => -
        configmap m: away gone fishing => -
        configmap m: gone => W a FailedMount: MountVolume.SetUp failed for volume \"v\" : configmap \"m\" not found
        configmap m: k=3 => -
        "
    ));
}

/// The end of the update that was begun last.
fn updated(script: &mut Script, update: &Effect, result: Result<(), &str>) -> Vec<String> {
    let Effect::UpdateVolume { uid, volume } = update else { panic!("no update: {update:?}") };
    let result = result.map_err(str::to_owned);
    script.event(Event::VolumeUpdated { uid: uid.clone(), volume: volume.clone(), result })
}

#[test]
fn files_follow_while_a_long_hook_runs() {
    let mut script = check(&format!(
        "
        show events
        {WITH_VOLUME}
        up
        api a
        looked img-c:1: yes
        configmap m: k=1 => run a: dirs + cgroup > volume v {{k=1}} > sandbox#0
        done a
        read a: s0 ready => run a: start c#0?
        configmap m: k=1 => -
        configmap m: k=3 => update a v
        "
    ));
    let first = script.effects()[0].clone();
    assert!(script.line("configmap m: k=4").is_empty(), "one at a time");
    assert_eq!(updated(&mut script, &first, Ok(())), ["update a v"]);
    let second = script.effects()[0].clone();
    let failed = updated(&mut script, &second, Err("disk full"));
    assert_eq!(failed, ["W a FailedMount: MountVolume.SetUp failed for volume \"v\" : disk full"]);
    assert!(script.line("configmap m: k=4").is_empty(), "it waits a little");
    script.line("+1s");
    assert_eq!(script.line("configmap m: k=5"), ["update a v"]);
}

#[test]
fn what_is_being_replaced_is_not_taken_away_meanwhile() {
    let mut script = check(&format!(
        "
        {WITH_VOLUME}
        up
        api a
        looked img-c:1: yes
        configmap m: k=1
        done a
        read a: s0 ready => run a: start c#0?
        configmap m: k=2 => update a v
        "
    ));
    let update = script.effects()[0].clone();
    script.line("api");
    script.line("skip a");
    script.line("read a: s0 ready");
    script.line("done a");
    let seen = script.line("read a: s0 dead");
    assert!(!seen.iter().any(|line| line.contains("tear-down")), "{seen:?}");
    let after = updated(&mut script, &update, Ok(()));
    assert!(after.iter().any(|line| line.contains("tear-down")), "{after:?}");
}

#[test]
fn a_volume_that_fails_is_tried_again_ever_later() {
    check(&format!(
        "
        show events timers
        {WITH_VOLUME}
        up
        api a
        configmap m: k=1 => run a: dirs + cgroup > volume v {{k=1}} > sandbox#0 | timer pod a off
        fail a: volume v {{k=1}} = disk full
        => W a FailedMount: MountVolume.SetUp failed for volume \"v\" : disk full | timer pod a @0.5s
        +0.5s
        due pod a => run a: dirs + cgroup > volume v {{k=1}} > sandbox#0
        fail a: volume v {{k=1}} = disk full
        => W a FailedMount: MountVolume.SetUp failed for volume \"v\" : disk full | timer pod a @1.5s
        +1s
        due pod a => run a: dirs + cgroup > volume v {{k=1}} > sandbox#0
        done a => read a
        "
    ));
}

#[test]
fn after_a_restart_running_pods_get_the_newest_files() {
    check(&format!(
        "
        {WITH_VOLUME}
        started
        ready
        services
        read all: a = s0 ready; c#0 running
        api a => watch configmap m
        why a => waits for configmap m
        configmap m: k=1 => run a: volume v {{k=1}}?
        done a => -
        "
    ));
}

#[test]
fn labels_are_written_anew() {
    check(
        "
        pod a = c: {volumeMounts: [{name: v, mountPath: /v}]}; meta: {labels: {l: old}}; spec: {volumes: [{name: v, downwardAPI: {items: [{path: l, fieldRef: {fieldPath: metadata.labels}}]}}]}
        up
        api a => run a: dirs + cgroup > volume v {l=l=\"old\"} > sandbox#0 | look img-c:1
        looked img-c:1: yes
        done a
        read a: s0 ready
        done a
        read a: s0 ready; c#0 running
        pod a = c: {volumeMounts: [{name: v, mountPath: /v}]}; meta: {labels: {l: new}}; spec: {volumes: [{name: v, downwardAPI: {items: [{path: l, fieldRef: {fieldPath: metadata.labels}}]}}]}
        api a => run a: volume v {l=l=\"new\"}?
        ",
    );
}

#[test]
fn an_object_is_watched_as_long_as_a_pod_uses_it() {
    check(
        "
        pod a = c: {envFrom: [{configMapRef: {name: m}}]}
        pod b = c: {envFrom: [{configMapRef: {name: m}}, {secretRef: {name: fixed}}]}
        up
        api a b => watch configmap m | run a: dirs + cgroup > sandbox#0 | look img-c:1
        => watch secret fixed | run b: dirs + cgroup > sandbox#0
        secret fixed: immutable k=v => unwatch secret fixed
        configmap m: k=v
        api b => cancel a
        skip a => run a: tear-down > drop-cgroup kubepods/besteffort/poda
        looked img-c:1: yes
        api => cancel b
        skip b => unwatch configmap m | run b: tear-down > drop-cgroup kubepods/besteffort/podb
        ",
    );
}

#[test]
fn tokens_are_asked_for_used_and_renewed() {
    check(
        "
        show events clocks
        pod a = c: {volumeMounts: [{name: v, mountPath: /v}]}; spec: {serviceAccountName: sa, volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: token, expirationSeconds: 600}}]}}]}
        up
        api a => ask token a/sa | look img-c:1
        looked img-c:1: yes
        why a => waits for token of sa
        token a: fails no such account => timer token a @0.5s
        => W a FailedMount: MountVolume.SetUp failed for volume \"v\" : failed to fetch token: no such account
        +0.5s
        token-due a => ask token a/sa
        token a: first 600 => timer token a @479.07s | run a: dirs + cgroup > volume v {token=first} > sandbox#0
        done a
        read a: s0 ready
        done a
        read a: s0 ready; c#0 running
        +480s
        token-due a => ask token a/sa
        token a: fails away => timer token a @481s
        +1s
        token-due a => ask token a/sa
        token a: second 600
        => timer token a @956.29s | run a: volume v {token=second}?
        done a => -
        token-due a
        +1000s
        token a: fails away
        => timer token a @1482s | W a FailedMount: MountVolume.SetUp failed for volume \"v\" : token \"ns\"/\"sa\"/[] expired and refresh failed: away
        ",
    );
}

#[test]
fn only_pods_of_the_api_wait_for_services() {
    let config = NodeConfig { sources: vec![Source::Api, Source::File], ..Default::default() };
    check_on(
        config,
        "
        started
        ready
        read all:
        api a => run a: dirs + cgroup > sandbox#0 | look img-c:1
        file f => run f: dirs + cgroup > sandbox#0
        looked img-c:1: yes
        done a
        done f
        read f: s0 ready => run f: start c#0?
        read a: s0 ready => -
        why a => c: waits for services
        services => run a: start c#0?
        services => -
        ",
    );
}

#[test]
fn pull_secrets_are_read_first_and_may_be_missing() {
    check(
        "
        show events
        pod a = spec: {imagePullSecrets: [{name: s}, {name: t}]}
        up
        api a => watch secret s | watch secret t | run a: dirs + cgroup > sandbox#0
        done a
        read a: s0 ready
        why a => c: waits for secret s
        secret s: gone => -
        secret t: x=y
        => W a FailedToRetrieveImagePullSecret: Unable to retrieve some image pull secrets (s); attempting to pull the image may not succeed.
        => look img-c:1
        ",
    );
}

#[test]
fn pods_with_other_secrets_pull_for_themselves() {
    check(
        "
        pod a = c: {image: 'h.test/a:1', imagePullPolicy: Always}; spec: {imagePullSecrets: [{name: s}]}
        pod b = c: {image: 'h.test/a:1', imagePullPolicy: Always}; spec: {imagePullSecrets: [{name: t}]}
        pod d = c: {image: 'h.test/a:1', imagePullPolicy: Always}; spec: {imagePullSecrets: [{name: s}]}
        up
        api a b d
        done a
        done b
        done d
        read a: s0 ready
        read d: s0 ready
        read b: s0 ready
        secret s: login h.test me => pull h.test/a:1 as me
        secret t: login h.test you => -
        pulled h.test/a:1: ok => pull h.test/a:1 as you | run a: start c#0? | run d: start c#0?
        pulled h.test/a:1: ok => run b: start c#0?
        ",
    );
}

/// A node that has the image, pulled with the login of secret `s` of another namespace or an earlier time.
fn verified(record: PullSecret) -> Vec<String> {
    let mut run = check(
        "
        pod a = c: {image: 'h.test/a:1', imagePullPolicy: IfNotPresent}; spec: {imagePullSecrets: [{name: s}]}
        up
        api a
        done a
        read a: s0 ready
        secret s: login h.test me => look h.test/a:1
        ",
    );
    let with = PullCredentials { kubernetes_secrets: vec![record], ..Default::default() };
    let history = PullHistory::Pulled(PulledRecord {
        last_updated_time: None,
        image_ref: "sha256:1".into(),
        credential_mapping: [("h.test/a".to_owned(), with)].into(),
    });
    let image = Image { id: "sha256:1".into(), ..Default::default() };
    run.event(Event::ImageInspected { image: "h.test/a:1".into(), result: Ok(Some(image)), history })
}

#[test]
fn a_pods_secret_opens_what_it_opened_before() {
    let login =
        model::credentials::Login { username: "me".into(), password: "p".into(), ..Default::default() };
    let hash = crate::credentials::keyring::login_hash(&login);
    let secret = |uid: &str, credential_hash: &str| PullSecret {
        uid: uid.into(),
        namespace: "ns".into(),
        name: "s".into(),
        credential_hash: credential_hash.into(),
    };
    let started = "run a: start c#0?";
    assert_eq!(verified(secret("uid-s", &hash)), [started]);
    assert_eq!(verified(secret("uid-s", "older")), ["note h.test/a:1 by s", started]);
    assert_eq!(verified(secret("other", &hash)), ["note h.test/a:1 by s", started]);
    assert_eq!(verified(secret("other", "other")), ["pull h.test/a:1 as me"]);
}
