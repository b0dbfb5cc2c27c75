//! One instance of a container.

use model::cri::{
    ContainerConfig, ContainerMetadata, ImageSpec, LinuxContainerConfig, Mount, NamespaceOptions,
};
use model::files::ContainerFiles;
use model::k8s;
use model::pod::PodView;

use super::env::Environment;
use super::mounts::Mounts;
use super::{
    ContainerInputs, ContainerRef, RenderContext, RenderError, RenderedContainer, annotations, env, hostname,
    linux, mounts, security,
};
use crate::stop_signals;

/// Of one instance of a container, below the directory of its pod's logs.
pub fn log_path(container: &str, restart_count: u32) -> String {
    format!("{container}/{restart_count}.log")
}

/// The configuration of a container, and the files it needs.
pub fn container_config(
    ctx: &RenderContext<'_>,
    pod: &PodView,
    container: &ContainerRef<'_>,
    inputs: &ContainerInputs<'_>,
) -> Result<RenderedContainer, RenderError> {
    let names = hostname::pod_names(ctx, pod)?;
    let environment = env::environment(ctx, pod, container, inputs)?;
    let spec = container.container;
    let Mounts { mut mounts, devices, sub_paths, etc_hosts, termination_log } =
        mounts::mounts(ctx, pod, spec, &names, &environment, inputs)?;
    let security_context = security::container_context(ctx, pod, spec, inputs)?;
    map_users(&mut mounts, security_context.namespace_options.as_ref());
    let config = ContainerConfig {
        metadata: ContainerMetadata { name: spec.name.clone(), attempt: inputs.restart_count },
        image: Some(ImageSpec {
            image: inputs.image.reference.clone(),
            user_specified_image: spec.image.clone().unwrap_or_default(),
            ..ImageSpec::default()
        }),
        command: expanded(&environment, spec.command.as_deref()),
        args: expanded(&environment, spec.args.as_deref()),
        working_dir: spec.working_dir.clone().unwrap_or_default(),
        envs: environment.into_list(),
        mounts,
        devices,
        labels: annotations::container_labels(pod, spec),
        annotations: annotations::container_annotations(pod, spec, inputs.restart_count),
        log_path: log_path(&spec.name, inputs.restart_count),
        stdin: spec.stdin.unwrap_or(false),
        stdin_once: spec.stdin_once.unwrap_or(false),
        tty: spec.tty.unwrap_or(false),
        linux: Some(LinuxContainerConfig {
            resources: Some(linux::container_resources(ctx, pod, spec)),
            security_context: Some(security_context),
        }),
        stop_signal: stop_signal(ctx, spec),
        ..ContainerConfig::default()
    };
    let log_dir = format!("{}/{}", ctx.config.pod_log_dir(&pod.full_name, &pod.uid), spec.name);
    let files = ContainerFiles { log_dir, etc_hosts, termination_log, sub_paths };
    Ok(RenderedContainer { config, files })
}

/// The runtime's own choice, unless containers may choose and this one does.
fn stop_signal(ctx: &RenderContext<'_>, spec: &k8s::Container) -> i32 {
    let chosen = spec.lifecycle.as_ref().and_then(|lifecycle| lifecycle.stop_signal.as_deref());
    let chosen = chosen.filter(|_| ctx.config.feature(stop_signals::GATE));
    chosen.and_then(stop_signals::number).unwrap_or(0)
}

fn expanded(environment: &Environment, words: Option<&[String]>) -> Vec<String> {
    words.unwrap_or_default().iter().map(|word| environment.expand(word)).collect()
}

/// Files keep their owners in the eyes of a container with its own users.
fn map_users(mounts: &mut [Mount], options: Option<&NamespaceOptions>) {
    let Some(users) = options.and_then(|options| options.userns_options.as_ref()) else {
        return;
    };
    for mount in mounts {
        mount.uid_mappings = users.uids.clone();
        mount.gid_mappings = users.gids.clone();
    }
}

#[cfg(test)]
mod tests {
    use model::cri::IdMapping;
    use serde_json::{Value, json};

    use super::*;
    use crate::render::{ResolvedImage, sample};

    fn render(spec: Value, name: &str, ids: Option<&IdMapping>) -> Result<RenderedContainer, String> {
        let (config, facts) = (sample::config(), sample::facts());
        let mut spec = spec;
        spec["enableServiceLinks"] = json!(true);
        let pod = sample::pod(spec);
        let image =
            ResolvedImage { reference: "sha256:1".into(), user_uid: Some(0), username: String::new() };
        let ips = ["10.1.0.5".to_owned()];
        let ctx = RenderContext { user_namespace: ids, ..RenderContext::new(&config, &facts) };
        let container = ContainerRef::find(&pod, name).unwrap();
        container_config(&ctx, &pod, &container, &ContainerInputs::new(&ips, &image, 2))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn commands_are_expanded_with_the_environment() {
        let rendered = render(
            json!({"containers": [{
                "name": "c", "image": "i:1", "workingDir": "/w", "tty": true,
                "command": ["run", "$(A)"], "args": ["$(A)$(B)", "$$(A)"],
                "env": [{"name": "A", "value": "1"}],
            }]}),
            "c",
            None,
        )
        .unwrap();
        let config = rendered.config;
        assert_eq!(config.command, ["run", "1"]);
        assert_eq!(config.args, ["1$(B)", "$(A)"]);
        assert_eq!((config.working_dir.as_str(), config.tty, config.stdin), ("/w", true, false));
        assert_eq!((config.log_path.as_str(), config.metadata.attempt), ("c/2.log", 2));
        let image = config.image.unwrap();
        assert_eq!((image.image.as_str(), image.user_specified_image.as_str()), ("sha256:1", "i:1"));
        assert_eq!(rendered.files.log_dir, "/logs/ns_p_u-1/c");
    }

    #[test]
    fn stop_signals_need_the_gate() {
        let rendered = |gate: Option<bool>, signal: Value| {
            let mut config = sample::config();
            config.features.extend(gate.map(|on| (stop_signals::GATE.to_owned(), on)));
            let pod = sample::pod(json!({
                "enableServiceLinks": true,
                "containers": [{"name": "c", "lifecycle": {"stopSignal": signal}}],
            }));
            let facts = sample::facts();
            let ctx = RenderContext::new(&config, &facts);
            let container = ContainerRef::find(&pod, "c").unwrap();
            let image = ResolvedImage::default();
            let inputs = ContainerInputs::new(&[], &image, 0);
            container_config(&ctx, &pod, &container, &inputs).unwrap().config.stop_signal
        };
        for (name, gate, signal, expect) in [
            ("off by default", None, json!("SIGUSR1"), 0),
            ("off", Some(false), json!("SIGUSR1"), 0),
            ("on", Some(true), json!("SIGUSR1"), 29),
            ("on, and none chosen", Some(true), json!(null), 0),
        ] {
            assert_eq!(rendered(gate, signal), expect, "{name}");
        }
    }

    #[test]
    fn mounts_follow_the_pods_users() {
        let ids = IdMapping { host_id: 65536, container_id: 0, length: 65536 };
        let spec = json!({"hostUsers": false, "containers": [{"name": "c", "terminationMessagePath": "/t"}]});
        let rendered = render(spec, "c", Some(&ids)).unwrap();
        assert_eq!(rendered.config.mounts.len(), 2);
        for mount in rendered.config.mounts {
            assert_eq!((mount.uid_mappings, mount.gid_mappings), (vec![ids.clone()], vec![ids.clone()]));
        }
        let rendered = render(json!({"containers": [{"name": "c"}]}), "c", None).unwrap();
        assert!(rendered.config.mounts[0].uid_mappings.is_empty());
    }

    #[test]
    fn the_first_problem_is_told() {
        let check = |spec: Value, expect: &str| assert_eq!(render(spec, "c", None), Err(expect.to_owned()));
        check(
            json!({"containers": [{"name": "c", "env": [
                {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "n", "key": "k"}}}
            ]}]}),
            "couldn't get configMap ns/n, no kubeClient defined",
        );
        check(
            json!({"hostname": "A_", "containers": [{"name": "c"}]}),
            "pod Hostname \"A_\" is not a valid DNS label",
        );
        check(
            json!({"containers": [{"name": "c", "securityContext": {"runAsNonRoot": true}}]}),
            "container has runAsNonRoot and image will run as root (pod: \"p_ns(u-1)\", container: c)",
        );
    }

    #[test]
    fn containers_of_every_kind_are_found() {
        let pod = sample::pod(json!({
            "containers": [{"name": "c"}],
            "initContainers": [{"name": "i"}],
            "ephemeralContainers": [{"name": "e", "image": "x", "tty": true}],
        }));
        use model::pod::ContainerKind;
        let kind = |name: &str| ContainerRef::find(&pod, name).map(|found| found.kind);
        assert_eq!(kind("c"), Some(ContainerKind::Regular));
        assert_eq!(kind("i"), Some(ContainerKind::Init));
        assert_eq!(kind("e"), Some(ContainerKind::Ephemeral));
        assert_eq!(kind("z"), None);
        let ephemeral = ContainerRef::find(&pod, "e").unwrap();
        assert_eq!((ephemeral.container.image.as_deref(), ephemeral.container.tty), (Some("x"), Some(true)));
    }
}
