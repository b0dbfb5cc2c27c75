//! Rows for metadata and for the fields of the pod itself.

use super::*;

#[test]
fn good_pods() {
    check(base(), &[]);
    metadata("labels: {a: '', example.com/b: X_y.z-1}\nannotations: {Example.COM/b: anything goes}", &[]);
    spec("hostname: h\nsubdomain: s\nnodeName: n.example", &[]);
    spec(
        "dnsPolicy: None\ndnsConfig: {nameservers: [1.2.3.4], searches: [a.b., ., _tcp.x_y], options: [{name: nn}]}",
        &[],
    );
    spec("tolerations: [{operator: Exists}, {key: k, value: v, effect: NoSchedule}]", &[]);
    spec("os: {name: linux}\nactiveDeadlineSeconds: 1\nterminationGracePeriodSeconds: 0", &[]);
    spec("hostAliases: [{ip: '::1', hostnames: [a.b]}, {ip: 10.1.2.3}]", &[]);
}

#[test]
fn names() {
    metadata("name: ''", &["metadata.name: Required value"]);
    metadata("name: Foo", &["metadata.name: Invalid value"]);
    metadata("name: a..b", &["metadata.name: Invalid value"]);
    metadata("name: a.b-c", &[]);
    metadata(&format!("name: {}", "a".repeat(254)), &["metadata.name: Invalid value"]);
    metadata("namespace: ''", &["metadata.namespace: Required value"]);
    metadata("namespace: a.b", &["metadata.namespace: Invalid value"]);
    metadata(&format!("namespace: {}", "a".repeat(64)), &["metadata.namespace: Invalid value"]);
    metadata("generateName: Foo-", &["metadata.generateName: Invalid value"]);
    metadata("generateName: foo-", &[]);
    metadata("generation: -1", &["metadata.generation: Invalid value"]);
}

#[test]
fn labels_and_annotations() {
    metadata("labels: {'a b': x}", &["metadata.labels: Invalid value"]);
    metadata("labels: {a: 'x y'}", &["metadata.labels: Invalid value"]);
    metadata("labels: {a/b/c: x}", &["metadata.labels: Invalid value"]);
    metadata("labels: {/b: x}", &["metadata.labels: Invalid value"]);
    metadata("labels: {a/: x}", &["metadata.labels: Invalid value"]);
    metadata("labels: {A.B/c: x}", &["metadata.labels: Invalid value"]);
    metadata(&format!("labels: {{a: {}}}", "x".repeat(64)), &["metadata.labels: Invalid value"]);
    metadata("annotations: {'a b': x}", &["metadata.annotations: Invalid value"]);
    metadata(&format!("annotations: {{a: {}}}", "x".repeat(256 * 1024)), &["metadata.annotations: Too long"]);
    metadata("finalizers: ['x y']", &["metadata.finalizers[0]: Invalid value"]);
    metadata(
        "ownerReferences: [{apiVersion: v1, kind: Node, name: '', uid: u}]",
        &["metadata.ownerReferences[0].name: Invalid value"],
    );
    metadata(
        "ownerReferences: [{apiVersion: v1, kind: Node, name: nn, uid: u, controller: true}, \
         {apiVersion: v1, kind: Node, name: m, uid: w, controller: true}]",
        &["metadata.ownerReferences[1].controller: Invalid value"],
    );
}

#[test]
fn annotations_with_a_meaning() {
    let key = |key: &str| format!("metadata.annotations[{key}]: Invalid value");
    let check_key = |name: &str, value: &str, good: bool| {
        let expect = key(name);
        let expect: &[&str] = if good { &[] } else { &[&expect] };
        metadata(&format!("annotations: {{{name}: '{value}'}}"), expect);
    };
    check_key("kubernetes.io/config.mirror", "x", false);
    check_key("controller.kubernetes.io/pod-deletion-cost", "12", true);
    check_key("controller.kubernetes.io/pod-deletion-cost", "-12", true);
    check_key("controller.kubernetes.io/pod-deletion-cost", "much", false);
    check_key("controller.kubernetes.io/pod-deletion-cost", "01", false);
    check_key("seccomp.security.alpha.kubernetes.io/pod", "runtime/default", true);
    check_key("seccomp.security.alpha.kubernetes.io/pod", "localhost/x.json", true);
    check_key("seccomp.security.alpha.kubernetes.io/pod", "localhost/../x", false);
    check_key("seccomp.security.alpha.kubernetes.io/pod", "other", false);
    check_key("container.seccomp.security.alpha.kubernetes.io/c", "other", false);
    check_key("container.apparmor.security.beta.kubernetes.io/c", "localhost/p", true);
    check_key("container.apparmor.security.beta.kubernetes.io/c", "other", false);
    check_key("container.apparmor.security.beta.kubernetes.io/none", "unconfined", false);

    let contradicting = |annotation: &str, path: &str, field: &str, expect: &[&str]| {
        let mut pod = base();
        pod["metadata"]["annotations"] = yaml(annotation);
        overlay(&mut pod, path, yaml(field));
        check(pod, expect);
    };
    contradicting(
        "seccomp.security.alpha.kubernetes.io/pod: unconfined",
        "/spec",
        "securityContext: {seccompProfile: {type: RuntimeDefault}}",
        &["spec.securityContext.seccompProfile.type: Forbidden"],
    );
    contradicting(
        "container.seccomp.security.alpha.kubernetes.io/c: localhost/x",
        "/spec/containers/0",
        "securityContext: {seccompProfile: {type: Localhost, localhostProfile: x}}",
        &[],
    );
    contradicting(
        "container.seccomp.security.alpha.kubernetes.io/c: localhost/x",
        "/spec/containers/0",
        "securityContext: {seccompProfile: {type: Unconfined}}",
        &["spec.containers[0].securityContext.seccompProfile.type: Forbidden"],
    );
    contradicting(
        "container.apparmor.security.beta.kubernetes.io/c: runtime/default",
        "/spec",
        "securityContext: {appArmorProfile: {type: Unconfined}}",
        &["spec.containers[0].securityContext.appArmorProfile.type: Forbidden"],
    );
}

#[test]
fn policies_and_times() {
    spec("restartPolicy: Sometimes", &["spec.restartPolicy: Unsupported value"]);
    spec("dnsPolicy: Maybe", &["spec.dnsPolicy: Unsupported value"]);
    spec("preemptionPolicy: Maybe", &["spec.preemptionPolicy: Unsupported value"]);
    spec("preemptionPolicy: ''", &["spec.preemptionPolicy: Required value"]);
    // a negative grace period is made 1 before it is looked at; only an undefaulted pod can have one
    spec("terminationGracePeriodSeconds: -1", &[]);
    let mut pod = model::codec::pod_from_value(base()).unwrap();
    crate::defaults(&mut pod);
    pod.spec.as_mut().unwrap().termination_grace_period_seconds = Some(-1);
    assert_eq!(validate(&pod).unwrap_err()[0].path, "spec.terminationGracePeriodSeconds");
    spec("activeDeadlineSeconds: 0", &["spec.activeDeadlineSeconds: Invalid value"]);
    spec("activeDeadlineSeconds: 2147483648", &["spec.activeDeadlineSeconds: Invalid value"]);
}

#[test]
fn names_of_other_objects() {
    spec("serviceAccountName: A", &["spec.serviceAccountName: Invalid value"]);
    spec("serviceAccount: A", &["spec.serviceAccountName: Invalid value"]);
    spec("nodeName: A", &["spec.nodeName: Invalid value"]);
    spec("priorityClassName: A", &["spec.priorityClassName: Invalid value"]);
    spec("runtimeClassName: A", &["spec.runtimeClassName: Invalid value"]);
    spec("schedulingGroup: {podGroupName: A}", &["spec.schedulingGroup.podGroupName: Invalid value"]);
    spec("schedulingGroup: {}", &["spec.schedulingGroup.podGroupName: Required value"]);
    spec("hostname: a.b", &["spec.hostname: Invalid value"]);
    spec("subdomain: a.b", &["spec.subdomain: Invalid value"]);
    spec("hostnameOverride: a.b", &[]);
    spec("hostnameOverride: A", &["spec.hostnameOverride: Invalid value"]);
    spec(&format!("hostnameOverride: {}", "a".repeat(63) + ".b"), &["spec.hostnameOverride: Too long"]);
    spec("hostnameOverride: a\nhostNetwork: true", &["spec.hostnameOverride: Forbidden"]);
    spec("hostnameOverride: a\nsetHostnameAsFQDN: true", &["spec.hostnameOverride: Forbidden"]);
}

#[test]
fn only_on_creation() {
    spec("ephemeralContainers: [{name: e, image: i:1}]", &["spec.ephemeralContainers: Forbidden"]);
    spec("schedulingGates: [{name: g}]", &[]);
    spec("schedulingGates: [{name: g}]\nnodeName: node", &["spec.nodeName: Forbidden"]);
    spec("schedulingGates: [{name: 'a b'}]", &["spec.schedulingGates[0]: Invalid value"]);
    spec("schedulingGates: [{name: g}, {name: g}]", &["spec.schedulingGates[1]: Duplicate value"]);
}

#[test]
fn network() {
    spec("hostAliases: [{ip: 010.1.2.3}]", &["spec.hostAliases[0].ip: Invalid value"]);
    spec("hostAliases: [{ip: '::ffff:1.2.3.4'}]", &["spec.hostAliases[0].ip: Invalid value"]);
    spec("hostAliases: [{ip: x}]", &["spec.hostAliases[0].ip: Invalid value"]);
    spec(
        "hostAliases: [{ip: 1.2.3.4, hostnames: [A]}]",
        &["spec.hostAliases[0].hostnames[0]: Invalid value"],
    );
    spec("dnsPolicy: None", &["spec.dnsConfig: Required value"]);
    spec("dnsPolicy: None\ndnsConfig: {searches: [a]}", &["spec.dnsConfig.nameservers: Required value"]);
    spec(
        "dnsConfig: {nameservers: [1.1.1.1, 1.1.1.2, 1.1.1.3, 1.1.1.4]}",
        &["spec.dnsConfig.nameservers: Too many"],
    );
    spec("dnsConfig: {nameservers: [x]}", &["spec.dnsConfig.nameservers[0]: Invalid value"]);
    spec("dnsConfig: {searches: [A]}", &["spec.dnsConfig.searches[0]: Invalid value"]);
    spec("dnsConfig: {searches: ['a_']}", &["spec.dnsConfig.searches[0]: Invalid value"]);
    spec("dnsConfig: {options: [{value: x}]}", &["spec.dnsConfig.options[0].name: Required value"]);
    let many = |count: usize, length: usize| {
        let searches = vec![format!("{}.b", "a".repeat(length)); count];
        format!("dnsConfig: {{searches: [{}]}}", searches.join(", "))
    };
    spec(&many(33, 1), &["spec.dnsConfig.searches: Too many"]);
    spec(&many(32, 63), &["spec.dnsConfig.searches: Too long"]);
    spec(&many(32, 1), &[]);
}

#[test]
fn tolerations() {
    let toleration = |text: &str, expect: &[&str]| {
        let expect: Vec<String> = expect.iter().map(|error| format!("spec.tolerations[0].{error}")).collect();
        spec(&format!("tolerations: [{text}]"), &expect.iter().map(String::as_str).collect::<Vec<_>>());
    };
    toleration("{key: 'a b', operator: Exists}", &["key: Invalid value"]);
    toleration("{operator: Equal}", &["operator: Invalid value"]);
    toleration("{key: k, operator: Exists, value: v}", &["value: Invalid value"]);
    toleration("{key: k, value: 'a b'}", &["value: Invalid value"]);
    toleration("{key: k, operator: Maybe}", &["operator: Unsupported value"]);
    toleration("{key: k, operator: Gt, value: '1'}", &["operator: Unsupported value"]);
    toleration("{operator: Exists, effect: Maybe}", &["effect: Unsupported value"]);
    toleration("{operator: Exists, effect: NoSchedule, tolerationSeconds: 5}", &["effect: Invalid value"]);
    toleration("{operator: Exists, effect: NoExecute, tolerationSeconds: 5}", &[]);
}

#[test]
fn scheduling() {
    spec("nodeSelector: {'a b': x}", &["spec.nodeSelector: Invalid value"]);
    spec(
        "readinessGates: [{conditionType: 'a b'}]",
        &["spec.readinessGates[0].conditionType: Invalid value"],
    );
    let node = |text: &str, expect: &[&str]| {
        let start =
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
        let expect: Vec<String> = expect.iter().map(|error| format!("{start}{error}")).collect();
        let text = format!(
            "affinity: {{nodeAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: {text}}}}}}}"
        );
        spec(&text, &expect.iter().map(String::as_str).collect::<Vec<_>>());
    };
    node("[]", &[": Required value"]);
    node("[{matchExpressions: [{key: k, operator: In, values: [v]}]}]", &[]);
    node(
        "[{matchExpressions: [{key: k, operator: In}]}]",
        &["[0].matchExpressions[0].values: Required value"],
    );
    node(
        "[{matchExpressions: [{key: k, operator: Exists, values: [v]}]}]",
        &["[0].matchExpressions[0].values: Forbidden"],
    );
    node(
        "[{matchExpressions: [{key: k, operator: Gt, values: ['1', '2']}]}]",
        &["[0].matchExpressions[0].values: Required value"],
    );
    node(
        "[{matchExpressions: [{key: k, operator: Is}]}]",
        &["[0].matchExpressions[0].operator: Invalid value"],
    );
    node(
        "[{matchExpressions: [{key: 'a b', operator: Exists}]}]",
        &["[0].matchExpressions[0].key: Invalid value"],
    );
    node(
        "[{matchExpressions: [{key: k, operator: In, values: ['a b']}]}]",
        &["[0].matchExpressions[0].values[0]: Invalid value"],
    );
    node("[{matchFields: [{key: metadata.name, operator: In, values: [node]}]}]", &[]);
    node(
        "[{matchFields: [{key: metadata.name, operator: In}]}]",
        &["[0].matchFields[0].values: Required value"],
    );
    node(
        "[{matchFields: [{key: metadata.name, operator: Exists}]}]",
        &["[0].matchFields[0].operator: Invalid value"],
    );
    node(
        "[{matchFields: [{key: other, operator: In, values: [node]}]}]",
        &["[0].matchFields[0].key: Invalid value"],
    );
    spec(
        "affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 0, preference: {}}]}}",
        &[
            "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: Invalid value",
        ],
    );
}

#[test]
fn pod_affinity() {
    let term = |text: &str, expect: &[&str]| {
        for (field, kind) in [("podAffinity", "podAffinity"), ("podAntiAffinity", "podAntiAffinity")] {
            let start = format!("spec.affinity.{field}.requiredDuringSchedulingIgnoredDuringExecution[0]");
            let expect: Vec<String> = expect.iter().map(|error| format!("{start}.{error}")).collect();
            let text =
                format!("affinity: {{{kind}: {{requiredDuringSchedulingIgnoredDuringExecution: [{text}]}}}}");
            spec(&text, &expect.iter().map(String::as_str).collect::<Vec<_>>());
        }
    };
    term("{topologyKey: zone, labelSelector: {matchLabels: {a: b}}}", &[]);
    term("{topologyKey: ''}", &["topologyKey: Required value"]);
    term("{topologyKey: 'a b'}", &["topologyKey: Invalid value"]);
    term("{topologyKey: z, namespaces: [A]}", &["namespaces[0]: Invalid value"]);
    term("{topologyKey: z, matchLabelKeys: [a]}", &["matchLabelKeys: Forbidden"]);
    term(
        "{topologyKey: z, labelSelector: {matchLabels: {'a b': c}}}",
        &["labelSelector.matchLabels: Invalid value"],
    );
    let selector = |text: &str| format!("{{topologyKey: z, labelSelector: {{matchExpressions: [{text}]}}}}");
    term(&selector("{key: k, operator: In}"), &["labelSelector.matchExpressions[0].values: Required value"]);
    term(
        &selector("{key: k, operator: Exists, values: [a]}"),
        &["labelSelector.matchExpressions[0].values: Forbidden"],
    );
    term(&selector("{key: k, operator: Gt}"), &["labelSelector.matchExpressions[0].operator: Invalid value"]);
    spec(
        "affinity: {podAffinity: {preferredDuringSchedulingIgnoredDuringExecution: \
         [{weight: 101, podAffinityTerm: {topologyKey: z}}]}}",
        &[
            "spec.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: Invalid value",
        ],
    );
}

#[test]
fn topology_spread() {
    let constraint = |text: &str, expect: &[&str]| {
        let expect: Vec<String> =
            expect.iter().map(|error| format!("spec.topologySpreadConstraints{error}")).collect();
        spec(
            &format!("topologySpreadConstraints: [{text}]"),
            &expect.iter().map(String::as_str).collect::<Vec<_>>(),
        );
    };
    let good = "{maxSkew: 1, topologyKey: z, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {a: b}}}";
    constraint(good, &[]);
    constraint(&format!("{good}, {good}"), &["[1]: Duplicate value"]);
    constraint(
        "{maxSkew: 0, topologyKey: z, whenUnsatisfiable: DoNotSchedule}",
        &["[0].maxSkew: Invalid value"],
    );
    constraint(
        "{maxSkew: 1, topologyKey: '', whenUnsatisfiable: DoNotSchedule}",
        &["[0].topologyKey: Required value"],
    );
    constraint(
        "{maxSkew: 1, topologyKey: z, whenUnsatisfiable: X}",
        &["[0].whenUnsatisfiable: Unsupported value"],
    );
    let with =
        |more: &str| format!("{{maxSkew: 1, topologyKey: z, whenUnsatisfiable: ScheduleAnyway, {more}}}");
    constraint(&with("minDomains: 1"), &["[0].minDomains: Invalid value"]);
    constraint(&with("nodeAffinityPolicy: X"), &["[0].nodeAffinityPolicy: Unsupported value"]);
    constraint(&with("nodeTaintsPolicy: X"), &["[0].nodeTaintsPolicy: Unsupported value"]);
    constraint(&with("matchLabelKeys: [a]"), &["[0].matchLabelKeys: Forbidden"]);
    constraint(
        &with("labelSelector: {matchLabels: {'a b': c}}"),
        &["[0].labelSelector.matchLabels: Invalid value"],
    );
}

#[test]
fn pod_security() {
    let context = |text: &str, expect: &[&str]| {
        let expect: Vec<String> =
            expect.iter().map(|error| format!("spec.securityContext.{error}")).collect();
        spec(&format!("securityContext: {text}"), &expect.iter().map(String::as_str).collect::<Vec<_>>());
    };
    context("{runAsUser: -1}", &["runAsUser: Invalid value"]);
    context("{runAsUser: 2147483648}", &["runAsUser: Invalid value"]);
    context("{runAsUser: 2147483647, runAsGroup: 0}", &[]);
    context("{runAsGroup: -1}", &["runAsGroup: Invalid value"]);
    context("{fsGroup: -1}", &["fsGroup: Invalid value"]);
    context("{supplementalGroups: [1, -1]}", &["supplementalGroups[1]: Invalid value"]);
    context("{fsGroupChangePolicy: X}", &["fsGroupChangePolicy: Unsupported value"]);
    context("{supplementalGroupsPolicy: X}", &["supplementalGroupsPolicy: Unsupported value"]);
    context("{seLinuxChangePolicy: MountOption}", &["seLinuxChangePolicy: Unsupported value"]);
    context("{sysctls: [{name: '', value: x}]}", &["sysctls[0].name: Required value"]);
    context("{sysctls: [{name: A.b, value: x}]}", &["sysctls[0].name: Invalid value"]);
    context("{sysctls: [{name: a..b, value: x}]}", &["sysctls[0].name: Invalid value"]);
    context(
        "{sysctls: [{name: kernel.sem, value: x}, {name: kernel.sem, value: z}]}",
        &["sysctls[1].name: Duplicate value"],
    );
    context("{sysctls: [{name: net/ipv4/conf/eth0.1/x, value: x}]}", &[]);
    context("{seccompProfile: {type: ''}}", &["seccompProfile.type: Required value"]);
    context("{seccompProfile: {type: X}}", &["seccompProfile.type: Unsupported value"]);
    context("{seccompProfile: {type: Localhost}}", &["seccompProfile.localhostProfile: Required value"]);
    context(
        "{seccompProfile: {type: Localhost, localhostProfile: /x}}",
        &["seccompProfile.localhostProfile: Invalid value"],
    );
    context(
        "{seccompProfile: {type: Localhost, localhostProfile: ../x}}",
        &["seccompProfile.localhostProfile: Invalid value"],
    );
    context(
        "{seccompProfile: {type: Unconfined, localhostProfile: x}}",
        &["seccompProfile.localhostProfile: Invalid value"],
    );
    context("{appArmorProfile: {type: ''}}", &["appArmorProfile.type: Required value"]);
    context("{appArmorProfile: {type: X}}", &["appArmorProfile.type: Unsupported value"]);
    context("{appArmorProfile: {type: Localhost}}", &["appArmorProfile.localhostProfile: Required value"]);
    context(
        "{appArmorProfile: {type: Localhost, localhostProfile: ' x'}}",
        &["appArmorProfile.localhostProfile: Invalid value"],
    );
    context(
        "{appArmorProfile: {type: Unconfined, localhostProfile: x}}",
        &["appArmorProfile.localhostProfile: Invalid value"],
    );
    let sysctl = |more: &str, name: &str, expect: &[&str]| {
        spec(&format!("{more}: true\nsecurityContext: {{sysctls: [{{name: {name}, value: '1'}}]}}"), expect);
    };
    sysctl("hostNetwork", "net.ipv4.ip_forward", &["spec.securityContext.sysctls[0].name: Invalid value"]);
    sysctl("hostNetwork", "net/ipv4/ip_forward", &["spec.securityContext.sysctls[0].name: Invalid value"]);
    sysctl("hostNetwork", "kernel.sem", &[]);
    sysctl("hostIPC", "kernel.shmmax", &["spec.securityContext.sysctls[0].name: Invalid value"]);
    sysctl("hostIPC", "fs.mqueue.msg_max", &["spec.securityContext.sysctls[0].name: Invalid value"]);
    sysctl("hostIPC", "net.ipv4.ip_forward", &[]);
}

#[test]
fn own_users_on_the_hosts_network_need_the_gate() {
    let validated = |more: &str, gate: bool| {
        let mut pod = base();
        overlay(&mut pod, "/spec", yaml(&format!("hostUsers: false\nhostNetwork: true\n{more}")));
        let mut pod = model::codec::pod_from_value(pod).unwrap();
        crate::defaults(&mut pod);
        let errors = validate_with_gate(&pod, gate).err().unwrap_or_default();
        errors.into_iter().map(|error| error.path.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(validated("", false), ["spec.hostNetwork"]);
    assert!(validated("", true).is_empty());
    assert_eq!(validated("hostPID: true", true), ["spec.hostPID"]);
}

#[test]
fn namespaces_and_systems() {
    spec("hostPID: true\nshareProcessNamespace: true", &["spec.shareProcessNamespace: Invalid value"]);
    spec("hostUsers: false\nhostNetwork: true", &["spec.hostNetwork: Forbidden"]);
    spec("hostUsers: false\nhostPID: true", &["spec.hostPID: Forbidden"]);
    spec("hostUsers: false\nhostIPC: true", &["spec.hostIPC: Forbidden"]);
    spec("os: {name: ''}", &["spec.os.name: Required value"]);
    spec("os: {name: beos}", &["spec.os.name: Unsupported value"]);
    spec(
        "os: {name: linux}\nsecurityContext: {windowsOptions: {}}",
        &["spec.securityContext.windowsOptions: Forbidden"],
    );
    spec(
        "os: {name: linux}\ncontainers: [{name: c, image: 'i:1', securityContext: {windowsOptions: {}}}]",
        &["spec.containers[0].securityContext.windowsOptions: Forbidden"],
    );
    spec("os: {name: windows}\nhostPID: true", &["spec.hostPID: Forbidden"]);
    spec("os: {name: windows}\nsecurityContext: {fsGroup: 1}", &["spec.securityContext.fsGroup: Forbidden"]);
    spec(
        "os: {name: windows}\ncontainers: [{name: c, image: 'i:1', securityContext: {privileged: false}}]",
        &["spec.containers[0].securityContext.privileged: Forbidden"],
    );
    spec("os: {name: windows}\nresources: {limits: {cpu: 1}}", &["spec.resources: Forbidden"]);
}

#[test]
fn pod_resources() {
    spec("overhead: {cpu: -1}", &["spec.overhead[cpu]: Invalid value"]);
    spec("overhead: {cpus: 1}", &["spec.overhead[cpus]: Invalid value"]);
    spec("resources: {limits: {cpu: 1, memory: 1Gi}}", &[]);
    spec(
        "resources: {limits: {example.com/gpu: 1}}",
        &["spec.resources.limits[example.com/gpu]: Invalid value"],
    );
    spec(
        "resources: {limits: {cpu: 1}, requests: {cpu: 2}}",
        &["spec.resources.requests[cpu]: Invalid value"],
    );
    spec("resources: {claims: [{name: x}]}", &["spec.resources.claims: Forbidden"]);
    spec(
        "resources: {requests: {cpu: 1}}\ncontainers: [{name: c, image: 'i:1', resources: {requests: {cpu: 2}}}]",
        &["spec.resources.requests[cpu]: Invalid value"],
    );
    spec(
        "resources: {limits: {cpu: 1}, requests: {cpu: 1}}\n\
         containers: [{name: c, image: 'i:1', resources: {limits: {cpu: 2}, requests: {cpu: 1}}}]",
        &["spec.containers[0].resources.limits[cpu]: Invalid value"],
    );
    spec("resourceClaims: [{name: r, resourceClaimName: x}]", &[]);
    spec("resourceClaims: [{resourceClaimName: x}]", &["spec.resourceClaims[0].name: Required value"]);
    spec(
        "resourceClaims: [{name: A, resourceClaimName: x}]",
        &["spec.resourceClaims[0].name: Invalid value"],
    );
    spec("resourceClaims: [{name: r}]", &["spec.resourceClaims[0]: Invalid value"]);
    spec(
        "resourceClaims: [{name: r, resourceClaimName: X}]",
        &["spec.resourceClaims[0].resourceClaimName: Invalid value"],
    );
    spec(
        "resourceClaims: [{name: r, resourceClaimName: x}, {name: r, resourceClaimName: x}]",
        &["spec.resourceClaims[1].name: Duplicate value"],
    );
}
