//! Rows for containers.

use super::*;

#[test]
fn names_and_images() {
    spec("containers: []", &["spec.containers: Required value"]);
    container("name: ''", &["name: Required value"]);
    container("name: A", &["name: Invalid value"]);
    container("name: a.b", &["name: Invalid value"]);
    container("image: ''", &["image: Required value"]);
    container("image: ' i:1'", &["image: Invalid value"]);
    container("imagePullPolicy: X", &["imagePullPolicy: Unsupported value"]);
    container("terminationMessagePolicy: X", &["terminationMessagePolicy: Unsupported value"]);
    let two = |first: &str, second: &str| {
        format!("{{name: {first}, image: 'i:1'}}, {{name: {second}, image: 'i:1'}}")
    };
    spec(&format!("containers: [{}]", two("a", "a")), &["spec.containers[1].name: Duplicate value"]);
    spec(&format!("initContainers: [{}]", two("a", "a")), &["spec.initContainers[1].name: Duplicate value"]);
    spec(&format!("initContainers: [{}]", two("a", "c")), &["spec.initContainers[1].name: Duplicate value"]);
    spec("initContainers: [{name: i, image: ' i:1'}]", &["spec.initContainers[0].image: Invalid value"]);
}

#[test]
fn ports() {
    let port = |text: &str, expect: &[&str]| container(&format!("ports: [{text}]"), expect);
    port("{containerPort: 80, name: web, hostPort: 8080, protocol: UDP}", &[]);
    port("{}", &["ports[0].containerPort: Required value"]);
    port("{containerPort: 65536}", &["ports[0].containerPort: Invalid value"]);
    port("{containerPort: -1}", &["ports[0].containerPort: Invalid value"]);
    port("{containerPort: 1, hostPort: 65536}", &["ports[0].hostPort: Invalid value"]);
    port("{containerPort: 1, protocol: tcp}", &["ports[0].protocol: Unsupported value"]);
    for name in ["aB", "a--b", "-a", "a-", "12", "a.b", "abcdefghijklmnop"] {
        port(&format!("{{containerPort: 1, name: '{name}'}}"), &["ports[0].name: Invalid value"]);
    }
    port("{containerPort: 1, name: a}, {containerPort: 2, name: a}", &["ports[1].name: Duplicate value"]);
    port(
        "{containerPort: 1, hostPort: 9}, {containerPort: 2, hostPort: 9}",
        &["ports[1].hostPort: Duplicate value"],
    );
    port("{containerPort: 1, hostPort: 9}, {containerPort: 2, hostPort: 9, protocol: UDP}", &[]);
    port("{containerPort: 1, hostPort: 9}, {containerPort: 2, hostPort: 9, hostIP: 1.2.3.4}", &[]);
    spec(
        "containers: [{name: a, image: 'i:1', ports: [{containerPort: 1, hostPort: 9}]}, \
         {name: b, image: 'i:1', ports: [{containerPort: 1, hostPort: 9}]}]",
        &["spec.containers[1].ports[0].hostPort: Duplicate value"],
    );
    spec(
        "hostNetwork: true\ncontainers: [{name: a, image: 'i:1', ports: [{containerPort: 1, hostPort: 9}]}]",
        &["spec.containers[0].ports[0].hostPort: Invalid value"],
    );
    spec("hostNetwork: true\ncontainers: [{name: a, image: 'i:1', ports: [{containerPort: 1}]}]", &[]);
    spec(
        "initContainers: [{name: a, image: 'i:1', ports: [{containerPort: 1, hostPort: 9}]}, \
         {name: b, image: 'i:1', ports: [{containerPort: 1, hostPort: 9}]}]",
        &[],
    );
}

#[test]
fn environment() {
    let env = |text: &str, expect: &[&str]| container(&format!("env: [{text}]"), expect);
    let from = |text: &str, expect: &[&str]| env(&format!("{{name: A, valueFrom: {text}}}"), expect);
    env("{name: 'odd name.x', value: v}", &[]);
    env("{name: ''}", &["env[0].name: Required value"]);
    env("{name: a=b}", &["env[0].name: Invalid value"]);
    env("{name: ä}", &["env[0].name: Invalid value"]);
    from("{}", &["env[0].valueFrom: Invalid value"]);
    env(
        "{name: A, value: x, valueFrom: {fieldRef: {fieldPath: metadata.name}}}",
        &["env[0].valueFrom: Invalid value"],
    );
    from(
        "{fieldRef: {fieldPath: metadata.name}, resourceFieldRef: {resource: limits.cpu}}",
        &["env[0].valueFrom: Invalid value"],
    );
    for field in [
        "metadata.uid",
        "status.podIPs",
        "spec.nodeName",
        "\"metadata.labels['a.b/c']\"",
        "\"metadata.annotations['A.B/c']\"",
    ] {
        from(&format!("{{fieldRef: {{fieldPath: {field}}}}}"), &[]);
    }
    from("{fieldRef: {}}", &["env[0].valueFrom.fieldRef.fieldPath: Required value"]);
    from(
        "{fieldRef: {apiVersion: v2, fieldPath: metadata.name}}",
        &["env[0].valueFrom.fieldRef.apiVersion: Invalid value"],
    );
    for field in ["metadata.labels", "status.phase", "spec.nodename"] {
        from(
            &format!("{{fieldRef: {{fieldPath: {field}}}}}"),
            &["env[0].valueFrom.fieldRef.fieldPath: Unsupported value"],
        );
    }
    for field in ["metadata.labels['']", "metadata.labels['a b']", "metadata.name['a']"] {
        from(
            &format!("{{fieldRef: {{fieldPath: \"{field}\"}}}}"),
            &["env[0].valueFrom.fieldRef.fieldPath: Invalid value"],
        );
    }
    for resource in ["limits.cpu", "requests.ephemeral-storage", "limits.hugepages-2Mi"] {
        from(&format!("{{resourceFieldRef: {{resource: {resource}}}}}"), &[]);
    }
    from(
        "{resourceFieldRef: {resource: ''}}",
        &["env[0].valueFrom.resourceFieldRef.resource: Required value"],
    );
    from(
        "{resourceFieldRef: {resource: limits.disk}}",
        &["env[0].valueFrom.resourceFieldRef.resource: Unsupported value"],
    );
    from("{resourceFieldRef: {resource: limits.cpu, divisor: 1m}}", &[]);
    from(
        "{resourceFieldRef: {resource: limits.cpu, divisor: 2m}}",
        &["env[0].valueFrom.resourceFieldRef.divisor: Unsupported value"],
    );
    from("{resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}", &[]);
    from(
        "{resourceFieldRef: {resource: limits.memory, divisor: 1m}}",
        &["env[0].valueFrom.resourceFieldRef.divisor: Unsupported value"],
    );
    from(
        "{resourceFieldRef: {resource: limits.hugepages-2Mi, divisor: 2}}",
        &["env[0].valueFrom.resourceFieldRef.divisor: Unsupported value"],
    );
    for kind in ["configMapKeyRef", "secretKeyRef"] {
        let path = |field: &str| format!("env[0].valueFrom.{kind}.{field}");
        from(&format!("{{{kind}: {{name: nn, key: K.x_y-z}}}}"), &[]);
        from(&format!("{{{kind}: {{name: NN, key: k}}}}"), &[&path("name: Invalid value")]);
        from(&format!("{{{kind}: {{name: nn, key: ''}}}}"), &[&path("key: Required value")]);
        from(&format!("{{{kind}: {{name: nn, key: 'a b'}}}}"), &[&path("key: Invalid value")]);
        from(&format!("{{{kind}: {{name: nn, key: ..a}}}}"), &[&path("key: Invalid value")]);
    }
}

#[test]
fn environment_from_files() {
    let file = |text: &str, expect: &[&str]| {
        let expect: Vec<String> = expect
            .iter()
            .map(|error| format!("spec.containers[0].env[0].valueFrom.fileKeyRef.{error}"))
            .collect();
        let text = format!(
            "volumes: [{{name: v}}, {{name: h, hostPath: {{path: /h}}}}]\n\
             containers: [{{name: c, image: 'i:1', env: [{{name: A, valueFrom: {{fileKeyRef: {text}}}}}]}}]"
        );
        spec(&text, &expect.iter().map(String::as_str).collect::<Vec<_>>());
    };
    file("{volumeName: v, path: a/b, key: K}", &[]);
    file("{volumeName: v, path: ../b, key: K}", &["path: Invalid value"]);
    file("{volumeName: v, path: '', key: K}", &["path: Required value"]);
    file("{volumeName: v, path: b, key: ''}", &["key: Required value"]);
    file("{volumeName: none, path: b, key: K}", &["volumeName: Not found"]);
    file("{volumeName: h, path: b, key: K}", &["volumeName: Invalid value"]);
}

#[test]
fn environment_imports() {
    let from = |text: &str, expect: &[&str]| container(&format!("envFrom: [{text}]"), expect);
    from("{prefix: P_, configMapRef: {name: nn}}", &[]);
    from("{prefix: a=b, configMapRef: {name: nn}}", &["envFrom[0].prefix: Invalid value"]);
    from("{configMapRef: {name: ''}}", &["envFrom[0].configMapRef.name: Required value"]);
    from("{secretRef: {name: NN}}", &["envFrom[0].secretRef.name: Invalid value"]);
    from("{}", &["envFrom[0]: Invalid value"]);
    from("{configMapRef: {name: nn}, secretRef: {name: nn}}", &["envFrom[0]: Invalid value"]);
}

#[test]
fn mounts() {
    let mount = |text: &str, expect: &[&str]| {
        let expect: Vec<String> =
            expect.iter().map(|error| format!("spec.containers[0].volumeMounts{error}")).collect();
        let text = format!(
            "volumes: [{{name: v}}, {{name: w}}]\ncontainers: [{{name: c, image: 'i:1', volumeMounts: [{text}]}}]"
        );
        spec(&text, &expect.iter().map(String::as_str).collect::<Vec<_>>());
    };
    mount("{name: v, mountPath: /v, subPath: a/b}, {name: v, mountPath: /w, subPathExpr: $(A)/b}", &[]);
    mount("{name: x, mountPath: /v}", &["[0].name: Not found"]);
    mount("{mountPath: /v}", &["[0].name: Required value"]);
    mount("{name: v}", &["[0].mountPath: Required value"]);
    mount("{name: v, mountPath: /v}, {name: w, mountPath: /v}", &["[1].mountPath: Invalid value"]);
    mount("{name: v, mountPath: /v, subPath: /a}", &["[0].subPath: Invalid value"]);
    mount("{name: v, mountPath: /v, subPath: a/../b}", &["[0].subPath: Invalid value"]);
    mount("{name: v, mountPath: /v, subPath: a..b}", &[]);
    mount("{name: v, mountPath: /v, subPathExpr: ../b}", &["[0].subPathExpr: Invalid value"]);
    mount("{name: v, mountPath: /v, subPath: a, subPathExpr: b}", &["[0].subPathExpr: Invalid value"]);
    mount("{name: v, mountPath: /v, mountPropagation: HostToContainer}", &[]);
    mount("{name: v, mountPath: /v, mountPropagation: Both}", &["[0].mountPropagation: Unsupported value"]);
    mount("{name: v, mountPath: /v, mountPropagation: Bidirectional}", &["[0].mountPropagation: Forbidden"]);
    mount("{name: v, mountPath: /v, readOnly: true, recursiveReadOnly: Enabled}", &[]);
    mount("{name: v, mountPath: /v, recursiveReadOnly: Enabled}", &["[0].recursiveReadOnly: Forbidden"]);
    mount("{name: v, mountPath: /v, recursiveReadOnly: Disabled}", &[]);
    mount("{name: v, mountPath: /v, recursiveReadOnly: X}", &["[0].recursiveReadOnly: Unsupported value"]);
    mount(
        "{name: v, mountPath: /v, readOnly: true, recursiveReadOnly: IfPossible, mountPropagation: HostToContainer}",
        &["[0].recursiveReadOnly: Forbidden"],
    );
    spec(
        "volumes: [{name: v}]\ncontainers: [{name: c, image: 'i:1', securityContext: {privileged: true}, \
         volumeMounts: [{name: v, mountPath: /v, mountPropagation: Bidirectional}]}]",
        &[],
    );
}

#[test]
fn block_devices() {
    let device = |text: &str, expect: &[&str]| {
        let expect: Vec<String> = expect.iter().map(|error| format!("spec.containers[0].{error}")).collect();
        let text = format!(
            "volumes: [{{name: d, persistentVolumeClaim: {{claimName: x}}}}, {{name: e, persistentVolumeClaim: {{claimName: z}}}}, {{name: v}}]\n\
             containers: [{{name: c, image: 'i:1', {text}}}]"
        );
        spec(&text, &expect.iter().map(String::as_str).collect::<Vec<_>>());
    };
    device("volumeDevices: [{name: d, devicePath: /dev/x}]", &[]);
    device("volumeDevices: [{name: v, devicePath: /dev/x}]", &["volumeDevices[0].name: Invalid value"]);
    device("volumeDevices: [{name: nn, devicePath: /dev/x}]", &["volumeDevices[0].name: Not found"]);
    device("volumeDevices: [{name: d}]", &["volumeDevices[0].devicePath: Required value"]);
    device(
        "volumeDevices: [{name: d, devicePath: /dev/../x}]",
        &["volumeDevices[0].devicePath: Invalid value"],
    );
    device(
        "volumeDevices: [{name: d, devicePath: /x}, {name: e, devicePath: /x}]",
        &["volumeDevices[1].devicePath: Invalid value"],
    );
    device(
        "volumeDevices: [{name: d, devicePath: /x}, {name: d, devicePath: /y}]",
        &["volumeDevices[1].name: Invalid value"],
    );
    device(
        "volumeDevices: [{name: d, devicePath: /x}], volumeMounts: [{name: d, mountPath: /y}]",
        &["volumeMounts[0].name: Invalid value", "volumeDevices[0].name: Invalid value"],
    );
    device(
        "volumeDevices: [{name: d, devicePath: /x}], volumeMounts: [{name: v, mountPath: /x}]",
        &["volumeMounts[0].mountPath: Invalid value", "volumeDevices[0].devicePath: Invalid value"],
    );
    spec(
        "hostUsers: false\nvolumes: [{name: d, persistentVolumeClaim: {claimName: x}}]\n\
         containers: [{name: c, image: 'i:1', volumeDevices: [{name: d, devicePath: /x}]}]",
        &["spec.containers[0].volumeDevices: Forbidden"],
    );
}

#[test]
fn resources() {
    let resources = |text: &str, expect: &[&str]| container(&format!("resources: {text}"), expect);
    resources("{limits: {cpu: 1, memory: 1Gi, ephemeral-storage: 1Gi, example.com/gpu: 2}}", &[]);
    resources(
        "{limits: {cpu: -1}, requests: {cpu: -1}}",
        &["resources.limits[cpu]: Invalid value", "resources.requests[cpu]: Invalid value"],
    );
    resources("{requests: {disk: 1}}", &["resources.requests[disk]: Invalid value"]);
    resources("{requests: {storage: 1}}", &["resources.requests[storage]: Invalid value"]);
    resources(
        "{requests: {'a b': 1}}",
        &["resources.requests[a b]: Invalid value", "resources.requests[a b]: Invalid value"],
    );
    resources("{limits: {cpu: 1}, requests: {cpu: 2}}", &["resources.requests[cpu]: Invalid value"]);
    resources(
        "{limits: {example.com/gpu: 1500m}}",
        &[
            "resources.limits[example.com/gpu]: Invalid value",
            "resources.requests[example.com/gpu]: Invalid value",
        ],
    );
    resources("{requests: {example.com/gpu: 1}}", &["resources.limits[example.com/gpu]: Required value"]);
    resources(
        "{limits: {example.com/gpu: 2}, requests: {example.com/gpu: 1}}",
        &["resources.requests[example.com/gpu]: Invalid value"],
    );
    resources("{limits: {cpu: 1, hugepages-2Mi: 4Mi}}", &[]);
    resources(
        "{limits: {cpu: 1, hugepages-2Mi: 4Mi}, requests: {hugepages-2Mi: 2Mi}}",
        &["resources.requests[hugepages-2Mi]: Invalid value"],
    );
    resources(
        "{limits: {cpu: 1, hugepages-2Mi: 3Mi}, requests: {hugepages-2Mi: 3Mi}}",
        &[
            "resources.limits[hugepages-2Mi]: Invalid value",
            "resources.requests[hugepages-2Mi]: Invalid value",
        ],
    );
    resources("{limits: {hugepages-2Mi: 4Mi}}", &["resources: Forbidden"]);
    resources("{claims: [{name: r}]}", &["resources.claims[0]: Not found"]);
    let claims = |text: &str, expect: &[&str]| {
        let expect: Vec<String> =
            expect.iter().map(|error| format!("spec.containers[0].resources.claims{error}")).collect();
        let text = format!(
            "resourceClaims: [{{name: r, resourceClaimName: x}}]\n\
             containers: [{{name: c, image: 'i:1', resources: {{claims: [{text}]}}}}]"
        );
        spec(&text, &expect.iter().map(String::as_str).collect::<Vec<_>>());
    };
    claims("{name: r, request: a}, {name: r, request: b}", &[]);
    claims("{name: r}, {name: r}", &["[1]: Duplicate value"]);
    claims("{name: r, request: a}, {name: r, request: a}", &["[1]: Duplicate value"]);
    claims("{name: r, request: a}, {name: r}", &["[1]: Duplicate value"]);
    claims("{name: r, request: A}", &["[0].request: Invalid value"]);
    claims("{name: ''}", &["[0]: Required value"]);
}

#[test]
fn probes() {
    let probe = |text: &str, expect: &[&str]| {
        for kind in ["livenessProbe", "readinessProbe", "startupProbe"] {
            let expect: Vec<String> = expect
                .iter()
                .map(|error| {
                    if error.starts_with(':') { format!("{kind}{error}") } else { format!("{kind}.{error}") }
                })
                .collect();
            container(&format!("{kind}: {text}"), &expect.iter().map(String::as_str).collect::<Vec<_>>());
        }
    };
    probe("{exec: {command: [x]}}", &[]);
    probe("{httpGet: {port: web, path: /x, httpHeaders: [{name: X-A, value: b}]}}", &[]);
    probe("{tcpSocket: {port: 80}}", &[]);
    probe("{grpc: {port: 80}}", &[]);
    probe("{}", &[": Required value"]);
    probe("{exec: {command: [x]}, tcpSocket: {port: 80}}", &["tcpSocket: Forbidden"]);
    probe("{exec: {command: []}}", &["exec.command: Required value"]);
    probe("{httpGet: {port: 0}}", &["httpGet.port: Invalid value"]);
    probe("{httpGet: {port: Web}}", &["httpGet.port: Invalid value"]);
    probe("{httpGet: {port: 80, scheme: ftp}}", &["httpGet.scheme: Unsupported value"]);
    probe(
        "{httpGet: {port: 80, httpHeaders: [{name: 'a b', value: c}]}}",
        &["httpGet.httpHeaders[0].name: Invalid value"],
    );
    probe("{tcpSocket: {port: 65536}}", &["tcpSocket.port: Invalid value"]);
    probe("{grpc: {port: 0}}", &["grpc.port: Invalid value"]);
    for field in ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "failureThreshold"] {
        probe(&format!("{{exec: {{command: [x]}}, {field}: -1}}"), &[&format!("{field}: Invalid value")]);
    }
    let grace = |kind: &str, grace: i64, expect: &[&str]| {
        container(
            &format!("{kind}: {{exec: {{command: [x]}}, terminationGracePeriodSeconds: {grace}}}"),
            expect,
        );
    };
    grace("livenessProbe", 1, &[]);
    grace("livenessProbe", 0, &["livenessProbe.terminationGracePeriodSeconds: Invalid value"]);
    grace("readinessProbe", 1, &["readinessProbe.terminationGracePeriodSeconds: Invalid value"]);
    container("readinessProbe: {exec: {command: [x]}, successThreshold: 2}", &[]);
    for kind in ["livenessProbe", "startupProbe"] {
        let expect = format!("{kind}.successThreshold: Invalid value");
        container(&format!("{kind}: {{exec: {{command: [x]}}, successThreshold: 2}}"), &[&expect]);
    }
}

#[test]
fn lifecycle() {
    container("lifecycle: {postStart: {exec: {command: [x]}}, preStop: {sleep: {seconds: 0}}}", &[]);
    container("lifecycle: {postStart: {tcpSocket: {port: 1}}}", &[]);
    container("lifecycle: {postStart: {}}", &["lifecycle.postStart: Required value"]);
    container(
        "lifecycle: {preStop: {exec: {command: [x]}, sleep: {seconds: 1}}}",
        &["lifecycle.preStop.sleep: Forbidden"],
    );
    container(
        "lifecycle: {preStop: {sleep: {seconds: 31}}}",
        &["lifecycle.preStop.sleep.seconds: Invalid value"],
    );
    container(
        "lifecycle: {preStop: {sleep: {seconds: -1}}}",
        &["lifecycle.preStop.sleep.seconds: Invalid value"],
    );
    container(
        "lifecycle: {preStop: {httpGet: {port: 0}}}",
        &["lifecycle.preStop.httpGet.port: Invalid value"],
    );
    container("lifecycle: {stopSignal: SIGTERM}", &["lifecycle.stopSignal: Forbidden"]);
    let signal = |os: &str, signal: &str, expect: &[&str]| {
        spec(
            &format!(
                "os: {{name: {os}}}\ncontainers: [{{name: c, image: 'i:1', lifecycle: {{stopSignal: {signal}}}}}]"
            ),
            expect,
        );
    };
    for good in ["SIGUSR1", "SIGRTMIN", "SIGRTMIN+15", "SIGRTMAX-14", "SIGRTMAX"] {
        signal("linux", good, &[]);
    }
    for bad in ["USR1", "SIGX", "SIGRTMIN+16", "SIGRTMIN+0", "SIGRTMAX-15", "SIGRTMIN+01"] {
        signal("linux", bad, &["spec.containers[0].lifecycle.stopSignal: Invalid value"]);
    }
    signal("windows", "SIGTERM", &[]);
    signal("windows", "SIGUSR1", &["spec.containers[0].lifecycle.stopSignal: Unsupported value"]);
}

#[test]
fn init_containers() {
    let init = |text: &str, expect: &[&str]| {
        let expect: Vec<String> =
            expect.iter().map(|error| format!("spec.initContainers[0].{error}")).collect();
        spec(
            &format!("initContainers: [{{name: i, image: 'i:1', {text}}}]"),
            &expect.iter().map(String::as_str).collect::<Vec<_>>(),
        );
    };
    let probe = "{exec: {command: [x]}}";
    for field in ["livenessProbe", "readinessProbe", "startupProbe"] {
        init(&format!("{field}: {probe}"), &[&format!("{field}: Forbidden")]);
        init(&format!("restartPolicy: OnFailure, {field}: {probe}"), &[&format!("{field}: Forbidden")]);
        init(&format!("restartPolicy: Always, {field}: {probe}"), &[]);
        init(&format!("restartPolicy: Always, {field}: {{}}"), &[&format!("{field}: Required value")]);
    }
    init("lifecycle: {preStop: {exec: {command: [x]}}}", &["lifecycle: Forbidden"]);
    init("restartPolicy: Always, lifecycle: {preStop: {exec: {command: [x]}}}", &[]);
    init("restartPolicy: Sometimes", &["restartPolicy: Unsupported value"]);
    init("resizePolicy: [{resourceName: cpu, restartPolicy: NotRequired}]", &[]);
    init(
        "resizePolicy: [{resourceName: cpu, restartPolicy: RestartContainer}]",
        &["resizePolicy[0].restartPolicy: Invalid value"],
    );
}

#[test]
fn restart_rules() {
    let rule = "{action: Restart, exitCodes: {operator: In, values: [42]}}";
    container("restartPolicy: Never", &[]);
    container("restartPolicy: X", &["restartPolicy: Unsupported value"]);
    container(&format!("restartPolicyRules: [{rule}]"), &["restartPolicy: Required value"]);
    let rules = |text: &str, expect: &[&str]| {
        container(&format!("restartPolicy: Never\nrestartPolicyRules: [{text}]"), expect)
    };
    rules(rule, &[]);
    rules("{action: RestartAllContainers, exitCodes: {operator: NotIn, values: [0]}}", &[]);
    rules("{action: X, exitCodes: {operator: In}}", &["restartPolicyRules[0].action: Unsupported value"]);
    rules("{action: Restart}", &["restartPolicyRules[0].exitCodes: Required value"]);
    rules(
        "{action: Restart, exitCodes: {operator: X}}",
        &["restartPolicyRules[0].exitCodes.operator: Unsupported value"],
    );
    rules(&vec![rule; 21].join(", "), &["restartPolicyRules: Too many"]);
    let codes = vec!["1"; 256].join(", ");
    rules(
        &format!("{{action: Restart, exitCodes: {{operator: In, values: [{codes}]}}}}"),
        &["restartPolicyRules[0].exitCodes.values: Too many"],
    );
}

#[test]
fn resize_policies() {
    let policy = |text: &str, expect: &[&str]| container(&format!("resizePolicy: [{text}]"), expect);
    policy("{resourceName: cpu, restartPolicy: RestartContainer}", &[]);
    policy(
        "{resourceName: disk, restartPolicy: NotRequired}",
        &["resizePolicy[0].resourceName: Unsupported value"],
    );
    policy(
        "{resourceName: '', restartPolicy: NotRequired}",
        &["resizePolicy[0].resourceName: Required value"],
    );
    policy("{resourceName: cpu, restartPolicy: X}", &["resizePolicy[0].restartPolicy: Unsupported value"]);
    policy(
        "{resourceName: cpu, restartPolicy: NotRequired}, {resourceName: cpu, restartPolicy: NotRequired}",
        &["resizePolicy[1].resourceName: Duplicate value"],
    );
    spec(
        "restartPolicy: Never\ncontainers: [{name: c, image: 'i:1', resizePolicy: [{resourceName: cpu, restartPolicy: RestartContainer}]}]",
        &["spec.containers[0].resizePolicy[0].restartPolicy: Invalid value"],
    );
}

#[test]
fn security() {
    let context = |text: &str, expect: &[&str]| {
        let expect: Vec<String> = expect.iter().map(|error| format!("securityContext.{error}")).collect();
        container(
            &format!("securityContext: {text}"),
            &expect.iter().map(String::as_str).collect::<Vec<_>>(),
        );
    };
    context("{privileged: true, runAsUser: 0}", &[]);
    context("{runAsUser: -1}", &["runAsUser: Invalid value"]);
    context("{runAsGroup: 2147483648}", &["runAsGroup: Invalid value"]);
    context("{procMount: Default}", &[]);
    context("{procMount: X}", &["procMount: Unsupported value"]);
    context("{procMount: Unmasked}", &["procMount: Invalid value"]);
    context(
        "{privileged: true, allowPrivilegeEscalation: false}",
        &["allowPrivilegeEscalation: Invalid value"],
    );
    context(
        "{capabilities: {add: [CAP_SYS_ADMIN]}, allowPrivilegeEscalation: false}",
        &["allowPrivilegeEscalation: Invalid value"],
    );
    context("{seccompProfile: {type: X}}", &["seccompProfile.type: Unsupported value"]);
    context("{appArmorProfile: {type: Localhost, localhostProfile: p}}", &[]);
    context(
        "{appArmorProfile: {type: Localhost, localhostProfile: ''}}",
        &["appArmorProfile.localhostProfile: Required value"],
    );
    context(
        &format!("{{appArmorProfile: {{type: Localhost, localhostProfile: {}}}}}", "p".repeat(4096)),
        &["appArmorProfile.localhostProfile: Too long"],
    );
    spec(
        "hostUsers: false\ncontainers: [{name: c, image: 'i:1', securityContext: {procMount: Unmasked}}]",
        &[],
    );
}
