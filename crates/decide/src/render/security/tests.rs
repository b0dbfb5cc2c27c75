use std::collections::BTreeMap;

use model::ContainerId;
use model::node::{HostFacts, NodeConfig};
use serde_json::{Value, json};

use super::*;
use crate::render::{ContainerRef, sample};

fn pod_of(pod_context: Value, own: Value) -> PodView {
    sample::pod(json!({
        "securityContext": pod_context,
        "containers": [{"name": "c", "securityContext": own}],
    }))
}

fn context_for(
    config: &NodeConfig,
    pod: &PodView,
    image: &ResolvedImage,
) -> Result<ContainerSecurityContext, String> {
    let facts = sample::facts();
    let ctx = RenderContext { volume_groups: &[9], ..RenderContext::new(config, &facts) };
    let container = ContainerRef::find(pod, "c").unwrap();
    container_context(&ctx, pod, container.container, &ContainerInputs::new(&[], image, 0))
        .map_err(|error| error.to_string())
}

fn context(pod_context: Value, own: Value) -> ContainerSecurityContext {
    let pod = pod_of(pod_context, own);
    context_for(&sample::config(), &pod, &ResolvedImage::default()).unwrap()
}

#[test]
fn nothing_asked_for() {
    let context = context(json!({}), json!({}));
    assert_eq!(context.run_as_user, Some(Int64Value { value: 0 }));
    assert_eq!(context.run_as_group, None);
    assert_eq!(context.capabilities, None);
    assert_eq!(context.supplemental_groups, [9]);
    assert!(!context.privileged && !context.no_new_privs && !context.readonly_rootfs);
    assert_eq!(context.seccomp.unwrap().profile_type, ProfileType::Unconfined);
    assert_eq!((context.apparmor, context.apparmor_profile.as_str()), (None, ""));
    assert_eq!(context.masked_paths.len(), MASKED_PATHS.len());
    assert_eq!(context.readonly_paths, READONLY_PATHS);
}

#[test]
fn the_containers_settings_override_the_pods() {
    let pod = json!({
        "runAsUser": 1, "runAsGroup": 2, "fsGroup": 3, "supplementalGroups": [4, 5],
        "supplementalGroupsPolicy": "Strict",
        "seLinuxOptions": {"user": "pu", "level": "pl"},
    });
    let inherited = context(pod.clone(), json!({}));
    assert_eq!(inherited.run_as_user, Some(Int64Value { value: 1 }));
    assert_eq!(inherited.run_as_group, Some(Int64Value { value: 2 }));
    assert_eq!(inherited.supplemental_groups, [3, 4, 5, 9]);
    assert_eq!(inherited.supplemental_groups_policy, SupplementalGroupsPolicy::Strict);
    assert_eq!(inherited.selinux_options.unwrap().user, "pu");
    let own = json!({
        "runAsUser": 10, "runAsGroup": 20, "privileged": true, "readOnlyRootFilesystem": true,
        "allowPrivilegeEscalation": false, "procMount": "Unmasked",
        "capabilities": {"add": ["A"], "drop": ["B", "C"]},
        "seLinuxOptions": {"role": "r", "type": "t"},
    });
    let own = context(pod, own);
    assert_eq!(own.run_as_user, Some(Int64Value { value: 10 }));
    assert_eq!(own.run_as_group, Some(Int64Value { value: 20 }));
    assert!(own.privileged && own.readonly_rootfs && own.no_new_privs);
    assert_eq!((own.masked_paths.len(), own.readonly_paths.len()), (0, 0));
    let capabilities = own.capabilities.unwrap();
    assert_eq!(capabilities.add_capabilities, ["A"]);
    assert_eq!(capabilities.drop_capabilities, ["B", "C"]);
    let selinux = own.selinux_options.unwrap();
    assert_eq!((selinux.user.as_str(), selinux.role.as_str(), selinux.r#type.as_str()), ("", "r", "t"));
}

#[test]
fn the_images_user_counts_when_nobody_else_says() {
    let check = |uid: Option<i64>, username: &str, own: Value, expect: (Option<i64>, &str)| {
        let image = ResolvedImage { reference: "i".into(), user_uid: uid, username: username.into() };
        let context = context_for(&sample::config(), &pod_of(json!({}), own), &image).unwrap();
        let seen = (context.run_as_user.map(|user| user.value), context.run_as_username.as_str());
        assert_eq!(seen, expect, "{uid:?} {username}");
    };
    check(None, "", json!({}), (Some(0), ""));
    check(Some(7), "", json!({}), (Some(7), ""));
    check(None, "bob", json!({}), (None, "bob"));
    check(None, "bob", json!({"runAsUser": 5}), (Some(5), ""));
    check(Some(7), "", json!({"runAsUser": 0}), (Some(0), ""));
}

#[test]
fn non_root_is_verified() {
    let check = |pod_context: Value, own: Value, uid: Option<i64>, username: &str, expect: Option<&str>| {
        let image = ResolvedImage { reference: "i".into(), user_uid: uid, username: username.into() };
        let pod = pod_of(pod_context, own);
        let error = context_for(&sample::config(), &pod, &image).err();
        assert_eq!(error.as_deref(), expect);
    };
    let wanted = || json!({"runAsNonRoot": true});
    let as_root = "container has runAsNonRoot and image will run as root (pod: \"p_ns(u-1)\", container: c)";
    check(wanted(), json!({}), None, "", Some(as_root));
    check(json!({}), wanted(), Some(0), "", Some(as_root));
    check(wanted(), json!({"runAsNonRoot": false}), Some(0), "", None);
    check(wanted(), json!({}), Some(1), "", None);
    check(wanted(), json!({"runAsUser": 5}), Some(0), "", None);
    check(
        wanted(),
        json!({"runAsUser": 0}),
        Some(5),
        "",
        Some("container's runAsUser breaks non-root policy (pod: \"p_ns(u-1)\", container: c)"),
    );
    check(
        wanted(),
        json!({}),
        None,
        "bob",
        Some(
            "container has runAsNonRoot and image has non-numeric user (bob), cannot verify user is non-root \
             (pod: \"p_ns(u-1)\", container: c)",
        ),
    );
}

#[test]
fn seccomp_profiles() {
    use ProfileType::{Localhost, RuntimeDefault, Unconfined};
    let check = |default: bool, pod: Value, own: Value, expect: Result<(ProfileType, &str), &str>| {
        let config = NodeConfig { seccomp_default: default, ..sample::config() };
        let pod = pod_of(json!({ "seccompProfile": pod }), json!({ "seccompProfile": own }));
        let got = context_for(&config, &pod, &ResolvedImage::default());
        let got = got.map(|context| context.seccomp.unwrap()).map(|p| (p.profile_type, p.localhost_ref));
        let expect = expect.map(|(kind, path)| (kind, path.to_owned())).map_err(str::to_owned);
        assert_eq!(got, expect);
    };
    let of = |kind: &str| json!({ "type": kind });
    check(false, Value::Null, Value::Null, Ok((Unconfined, "")));
    check(true, Value::Null, Value::Null, Ok((RuntimeDefault, "")));
    check(true, of("Unconfined"), Value::Null, Ok((Unconfined, "")));
    check(false, of("Unconfined"), of("RuntimeDefault"), Ok((RuntimeDefault, "")));
    let local = json!({"type": "Localhost", "localhostProfile": "a/b.json"});
    check(false, local, Value::Null, Ok((Localhost, "/r/seccomp/a/b.json")));
    let unset = "localhostProfile must be set if seccompProfile type is Localhost.";
    check(false, Value::Null, of("Localhost"), Err(unset));
    check(false, json!({"type": "Localhost", "localhostProfile": ""}), Value::Null, Err(unset));
}

#[test]
fn apparmor_profiles() {
    use ProfileType::{Localhost, RuntimeDefault, Unconfined};
    type Expect<'a> = Result<Option<(ProfileType, &'a str, &'a str)>, &'a str>;
    let check = |of_pod: Value, annotation: Option<&str>, own: Value, expect: Expect<'_>| {
        let mut pod =
            (*pod_of(json!({ "appArmorProfile": of_pod }), json!({ "appArmorProfile": own })).pod).clone();
        let key = "container.apparmor.security.beta.kubernetes.io/c".to_owned();
        pod.metadata.annotations = annotation.map(|text| BTreeMap::from([(key, text.to_owned())]));
        let got = context_for(&sample::config(), &sample::view(pod), &ResolvedImage::default());
        let got = got.map(|c| c.apparmor.map(|p| (p.profile_type, p.localhost_ref, c.apparmor_profile)));
        let expect = expect.map(|e| e.map(|(kind, name, old)| (kind, name.to_owned(), old.to_owned())));
        assert_eq!(got, expect.map_err(str::to_owned));
    };
    let of = |kind: &str| json!({ "type": kind });
    let local = || json!({"type": "Localhost", "localhostProfile": "prof"});
    check(Value::Null, None, Value::Null, Ok(None));
    check(of("RuntimeDefault"), None, Value::Null, Ok(Some((RuntimeDefault, "", "runtime/default"))));
    check(of("RuntimeDefault"), Some("unconfined"), Value::Null, Ok(Some((Unconfined, "", "unconfined"))));
    check(
        of("RuntimeDefault"),
        Some("nonsense"),
        Value::Null,
        Ok(Some((RuntimeDefault, "", "runtime/default"))),
    );
    check(Value::Null, Some("localhost/x"), Value::Null, Ok(Some((Localhost, "x", "localhost/x"))));
    check(Value::Null, Some("unconfined"), local(), Ok(Some((Localhost, "prof", "localhost/prof"))));
    check(Value::Null, None, of("Localhost"), Err("missing localhost apparmor profile name"));
    check(Value::Null, None, of("Odd"), Err("unknown apparmor profile type: \"Odd\""));
}

#[test]
fn an_ephemeral_container_sees_its_targets_processes() {
    let check = |spec: Value, expect: (NamespaceMode, &str)| {
        let (config, facts) = (sample::config(), sample::facts());
        let mut spec = spec;
        spec["containers"] = json!([{"name": "c"}]);
        let pod = sample::pod(spec);
        let (image, target) = (ResolvedImage::default(), ContainerId::new("t"));
        let inputs = ContainerInputs { target: Some(&target), ..ContainerInputs::new(&[], &image, 0) };
        let ctx = RenderContext::new(&config, &facts);
        let context = container_context(&ctx, &pod, &pod.containers()[0], &inputs).unwrap();
        let options = context.namespace_options.unwrap();
        assert_eq!((options.pid, options.target_id.as_str()), expect);
    };
    check(json!({}), (NamespaceMode::Target, "t"));
    check(json!({"shareProcessNamespace": true}), (NamespaceMode::Pod, ""));
    check(json!({"hostPID": true}), (NamespaceMode::Node, ""));
}

#[test]
fn masked_paths_include_what_the_host_has() {
    let throttle = "/sys/devices/system/cpu/cpu0/thermal_throttle".to_owned();
    let facts = HostFacts { thermal_throttle_paths: vec![throttle.clone()], ..sample::facts() };
    let config = sample::config();
    assert_eq!(masked_paths(&RenderContext::new(&config, &facts)).last(), Some(&throttle));
}

#[test]
fn sandboxes() {
    let (config, facts) = (sample::config(), sample::facts());
    let ctx = RenderContext { volume_groups: &[9], ..RenderContext::new(&config, &facts) };
    let check = |spec: Value| sandbox_context(&ctx, &sample::pod(spec)).map_err(|error| error.to_string());
    let plain = check(json!({"containers": [{"name": "c"}]})).unwrap();
    assert!(!plain.privileged);
    assert_eq!(plain.seccomp.unwrap().profile_type, ProfileType::RuntimeDefault);
    assert_eq!(plain.run_as_user, None);
    let full = check(json!({
        "securityContext": {
            "runAsUser": 1, "runAsGroup": 2, "fsGroup": 3, "supplementalGroups": [4],
            "seLinuxOptions": {"level": "l"}, "seccompProfile": {"type": "Unconfined"},
        },
        "containers": [{"name": "c"}],
        "ephemeralContainers": [{"name": "e", "securityContext": {"privileged": true}}],
    }))
    .unwrap();
    assert!(full.privileged);
    assert_eq!(full.run_as_user, Some(Int64Value { value: 1 }));
    assert_eq!(full.run_as_group, Some(Int64Value { value: 2 }));
    assert_eq!(full.supplemental_groups, [3, 9, 4], "volumes' groups come earlier than in containers");
    assert_eq!(full.selinux_options.unwrap().level, "l");
    assert_eq!(full.seccomp.unwrap().profile_type, ProfileType::RuntimeDefault);
    assert_eq!(
        check(json!({"containers": [], "securityContext": {"supplementalGroupsPolicy": "Odd"}})).unwrap_err(),
        "unsupported supplementalGroupsPolicy: Odd"
    );
}
