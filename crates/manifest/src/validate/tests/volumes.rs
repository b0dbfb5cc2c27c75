//! Rows for volumes.

use super::*;

#[test]
fn names_and_sources() {
    volume("{}", &[]);
    volume("name: ''", &["name: Required value"]);
    volume("name: A", &["name: Invalid value"]);
    spec("volumes: [{name: v}, {name: v}]", &["spec.volumes[1].name: Duplicate value"]);
    volume("emptyDir: {}\nhostPath: {path: /x}", &["hostPath: Forbidden"]);
    volume("hostPath: {path: /x}\nnfs: {server: s, path: /p}", &["nfs: Forbidden"]);
}

#[test]
fn local_volumes() {
    volume("emptyDir: {medium: Memory, sizeLimit: 1Gi}", &[]);
    volume("emptyDir: {medium: HugePages-2Mi}", &[]);
    volume("emptyDir: {sizeLimit: -1}", &["emptyDir.sizeLimit: Invalid value"]);
    volume("emptyDir: {medium: Disk}", &["emptyDir.medium: Unsupported value"]);
    volume("hostPath: {path: /x, type: DirectoryOrCreate}", &[]);
    volume("hostPath: {path: ''}", &["hostPath.path: Required value"]);
    volume("hostPath: {path: /x/../y}", &["hostPath.path: Invalid value"]);
    volume("hostPath: {path: /x, type: Folder}", &["hostPath.type: Unsupported value"]);
    volume("image: {reference: 'i:1'}", &[]);
    volume("image: {reference: ''}", &["image.reference: Required value"]);
    volume("image: {reference: 'i:1', pullPolicy: X}", &["image.pullPolicy: Unsupported value"]);
}

#[test]
fn data_volumes() {
    volume("secret: {secretName: s, items: [{key: k, path: a/b, mode: 0400}]}", &[]);
    volume("secret: {}", &["secret.secretName: Required value"]);
    volume("configMap: {}", &["configMap.name: Required value"]);
    volume("configMap: {name: m, defaultMode: 01000}", &["configMap.defaultMode: Invalid value"]);
    volume("secret: {secretName: s, defaultMode: -1}", &["secret.defaultMode: Invalid value"]);
    let item = |text: &str, expect: &[&str]| {
        let expect: Vec<String> = expect.iter().map(|error| format!("configMap.items[0].{error}")).collect();
        volume(
            &format!("configMap: {{name: m, items: [{text}]}}"),
            &expect.iter().map(String::as_str).collect::<Vec<_>>(),
        );
    };
    item("{key: k, path: a}", &[]);
    item("{path: a}", &["key: Required value"]);
    item("{key: k}", &["path: Required value"]);
    item("{key: k, path: /a}", &["path: Invalid value"]);
    item("{key: k, path: a/../b}", &["path: Invalid value"]);
    item("{key: k, path: ..a}", &["path: Invalid value"]);
    item("{key: k, path: a, mode: 01777}", &["mode: Invalid value"]);
}

#[test]
fn downward_api() {
    let file = |text: &str, expect: &[&str]| {
        for (start, prefix) in [
            ("downwardAPI: {items: [", "downwardAPI.items[0]"),
            ("projected: {sources: [{downwardAPI: {items: [", "projected.sources[0].downwardAPI.items[0]"),
        ] {
            let end = if prefix.starts_with("projected") { "]}}]}" } else { "]}" };
            let expect: Vec<String> = expect
                .iter()
                .map(|error| {
                    if error.starts_with(':') {
                        format!("{prefix}{error}")
                    } else {
                        format!("{prefix}.{error}")
                    }
                })
                .collect();
            volume(&format!("{start}{text}{end}"), &expect.iter().map(String::as_str).collect::<Vec<_>>());
        }
    };
    file("{path: a, fieldRef: {fieldPath: metadata.labels}}", &[]);
    file("{path: a, fieldRef: {fieldPath: \"metadata.annotations['x']\"}}", &[]);
    file("{path: a, resourceFieldRef: {containerName: c, resource: limits.cpu}}", &[]);
    file("{path: a}", &[": Required value"]);
    file("{fieldRef: {fieldPath: metadata.name}}", &["path: Required value"]);
    file("{path: ../a, fieldRef: {fieldPath: metadata.name}}", &["path: Invalid value"]);
    file("{path: a, mode: 01777, fieldRef: {fieldPath: metadata.name}}", &["mode: Invalid value"]);
    file("{path: a, fieldRef: {fieldPath: status.podIP}}", &["fieldRef.fieldPath: Unsupported value"]);
    file(
        "{path: a, resourceFieldRef: {resource: limits.cpu}}",
        &["resourceFieldRef.containerName: Required value"],
    );
    file(
        "{path: a, fieldRef: {fieldPath: metadata.name}, resourceFieldRef: {containerName: c, resource: limits.cpu}}",
        &[": Invalid value"],
    );
    volume("downwardAPI: {defaultMode: 01777}", &["downwardAPI.defaultMode: Invalid value"]);
}

#[test]
fn projected() {
    let source = |text: &str, expect: &[&str]| {
        let expect: Vec<String> = expect.iter().map(|error| format!("projected.sources{error}")).collect();
        volume(
            &format!("projected: {{sources: [{text}]}}"),
            &expect.iter().map(String::as_str).collect::<Vec<_>>(),
        );
    };
    volume("projected: {defaultMode: 01777}", &["projected.defaultMode: Invalid value"]);
    source("{configMap: {name: m}}, {secret: {name: s}}", &[]);
    source("{configMap: {}}", &["[0].configMap.name: Required value"]);
    source("{secret: {}}", &["[0].secret.name: Required value"]);
    source("{secret: {name: s, items: [{key: k, path: /x}]}}", &["[0].secret.items[0].path: Invalid value"]);
    source("{configMap: {name: m}, secret: {name: s}}", &["[0]: Forbidden"]);
    source(
        "{configMap: {name: m, items: [{key: k, path: x}]}}, {secret: {name: s, items: [{key: k, path: x}]}}",
        &["[1]: Invalid value"],
    );
    source("{clusterTrustBundle: {name: x, path: p}}", &[]);
    source("{clusterTrustBundle: {signerName: a.b/c, path: p}}", &[]);
    source("{clusterTrustBundle: {path: p}}", &["[0].clusterTrustBundle: Required value"]);
    source(
        "{clusterTrustBundle: {name: x, signerName: a.b/c, path: p}}",
        &["[0].clusterTrustBundle: Invalid value"],
    );
    source(
        "{clusterTrustBundle: {name: x, labelSelector: {}, path: p}}",
        &["[0].clusterTrustBundle.labelSelector: Forbidden"],
    );
    source("{clusterTrustBundle: {name: x}}", &["[0].clusterTrustBundle.path: Required value"]);
    source(
        "{clusterTrustBundle: {signerName: c, path: p}}",
        &["[0].clusterTrustBundle.signerName: Invalid value"],
    );
    let good = "signerName: a.b/c, keyType: ED25519";
    source(&format!("{{podCertificate: {{{good}, keyPath: k, certificateChainPath: c}}}}"), &[]);
    source(&format!("{{podCertificate: {{{good}}}}}"), &["[0].podCertificate: Required value"]);
    source(
        &format!("{{podCertificate: {{{good}, keyPath: /k}}}}"),
        &["[0].podCertificate.keyPath: Invalid value"],
    );
    source(
        &format!("{{podCertificate: {{{good}, keyPath: k, maxExpirationSeconds: 1}}}}"),
        &["[0].podCertificate.maxExpirationSeconds: Invalid value"],
    );
    source(
        "{podCertificate: {signerName: a.b/c, keyType: X, keyPath: k}}",
        &["[0].podCertificate.keyType: Unsupported value"],
    );
    let token = |text: &str, expect: &[&str]| {
        let expect: Vec<String> = expect
            .iter()
            .map(|error| format!("spec.volumes[0].projected.sources[0].serviceAccountToken{error}"))
            .collect();
        let text = format!(
            "serviceAccountName: a\nvolumes: [{{name: v, projected: {{sources: [{{serviceAccountToken: {text}}}]}}}}]"
        );
        spec(&text, &expect.iter().map(String::as_str).collect::<Vec<_>>());
    };
    token("{path: t}", &[]);
    token("{path: t, expirationSeconds: 599}", &[".expirationSeconds: Invalid value"]);
    token("{path: t, expirationSeconds: 4294967297}", &[".expirationSeconds: Invalid value"]);
    token("{}", &[".path: Required value"]);
    token("{path: ../t}", &[".path: Invalid value"]);
    volume(
        "projected: {sources: [{serviceAccountToken: {path: t}}]}",
        &["projected.sources[0].serviceAccountToken: Forbidden"],
    );
}

#[test]
fn network_storage() {
    volume("nfs: {server: s, path: /p}", &[]);
    volume("nfs: {path: /p}", &["nfs.server: Required value"]);
    volume("nfs: {server: s}", &["nfs.path: Required value"]);
    volume("nfs: {server: s, path: p}", &["nfs.path: Invalid value"]);
    volume("iscsi: {targetPortal: t, iqn: 'iqn.2001-04.com.example:x.y', lun: 0}", &[]);
    volume("iscsi: {targetPortal: t, iqn: eui.0123456789abcdef, lun: 0}", &[]);
    volume("iscsi: {targetPortal: t, iqn: naa.0123456789abcdef0123456789abcdef, lun: 0}", &[]);
    volume("iscsi: {iqn: eui.0123456789abcdef, lun: 0}", &["iscsi.targetPortal: Required value"]);
    volume("iscsi: {targetPortal: t, lun: 0}", &["iscsi.iqn: Required value"]);
    for name in ["x", "iqn.2001-04.com.example", "iqn.01-04.com:x", "eui.12", "naa.12"] {
        volume(&format!("iscsi: {{targetPortal: t, iqn: '{name}', lun: 0}}"), &["iscsi.iqn: Invalid value"]);
    }
    volume("iscsi: {targetPortal: t, iqn: eui.0123456789abcdef, lun: 256}", &["iscsi.lun: Invalid value"]);
    volume(
        "iscsi: {targetPortal: t, iqn: eui.0123456789abcdef, lun: 0, initiatorName: x}",
        &["iscsi.initiatorName: Invalid value"],
    );
    volume(
        "iscsi: {targetPortal: t, iqn: eui.0123456789abcdef, lun: 0, chapAuthSession: true}",
        &["iscsi.secretRef: Required value"],
    );
    volume("fc: {wwids: [w]}", &[]);
    volume("fc: {targetWWNs: [w], lun: 1}", &[]);
    volume("fc: {}", &["fc.targetWWNs: Required value"]);
    volume("fc: {wwids: [w], targetWWNs: [w], lun: 1}", &["fc.targetWWNs: Required value"]);
    volume("fc: {targetWWNs: [w]}", &["fc.lun: Required value"]);
    volume("fc: {targetWWNs: [w], lun: 256}", &["fc.lun: Invalid value"]);
    volume("rbd: {monitors: [m], image: i}", &[]);
    volume("rbd: {image: i}", &["rbd.monitors: Required value"]);
    volume("rbd: {monitors: [m]}", &["rbd.image: Required value"]);
    volume("cephfs: {}", &["cephfs.monitors: Required value"]);
    volume("glusterfs: {path: p}", &["glusterfs.endpoints: Required value"]);
    volume("glusterfs: {endpoints: e}", &["glusterfs.path: Required value"]);
    volume("quobyte: {registry: 'h:1,i:2', volume: v}", &[]);
    volume("quobyte: {registry: h, volume: v}", &["quobyte.registry: Invalid value"]);
    volume("quobyte: {registry: 'h:1'}", &["quobyte.volume: Required value"]);
    volume("quobyte: {volume: v}", &["quobyte.registry: Required value"]);
    volume(
        &format!("quobyte: {{registry: 'h:1', volume: v, tenant: {}}}", "t".repeat(65)),
        &["quobyte.tenant: Too long"],
    );
    volume("flocker: {datasetName: d}", &[]);
    volume("flocker: {}", &["flocker: Required value"]);
    volume("flocker: {datasetName: d, datasetUUID: u}", &["flocker: Invalid value"]);
    volume("flocker: {datasetName: d/e}", &["flocker.datasetName: Invalid value"]);
    volume("storageos: {volumeName: v}", &[]);
    volume("storageos: {}", &["storageos.volumeName: Required value"]);
    volume("storageos: {volumeName: V}", &["storageos.volumeName: Invalid value"]);
    volume("storageos: {volumeName: v, volumeNamespace: NN}", &["storageos.volumeNamespace: Invalid value"]);
    volume("storageos: {volumeName: v, secretRef: {}}", &["storageos.secretRef.name: Required value"]);
    volume("scaleIO: {gateway: g, system: s, volumeName: v}", &[]);
    volume("scaleIO: {system: s, volumeName: v}", &["scaleIO.gateway: Required value"]);
    volume("scaleIO: {gateway: g, volumeName: v}", &["scaleIO.system: Required value"]);
    volume("scaleIO: {gateway: g, system: s}", &["scaleIO.volumeName: Required value"]);
}

#[test]
fn cloud_storage() {
    volume("gitRepo: {repository: r, directory: d}", &[]);
    volume("gitRepo: {}", &["gitRepo.repository: Required value"]);
    volume("gitRepo: {repository: r, directory: ../d}", &["gitRepo.directory: Invalid value"]);
    volume("gcePersistentDisk: {pdName: ''}", &["gcePersistentDisk.pdName: Required value"]);
    volume("gcePersistentDisk: {pdName: p, partition: 256}", &["gcePersistentDisk.partition: Invalid value"]);
    volume("awsElasticBlockStore: {volumeID: ''}", &["awsElasticBlockStore.volumeID: Required value"]);
    volume(
        "awsElasticBlockStore: {volumeID: v, partition: -1}",
        &["awsElasticBlockStore.partition: Invalid value"],
    );
    volume("cinder: {volumeID: v}", &[]);
    volume("cinder: {}", &["cinder.volumeID: Required value"]);
    volume("cinder: {volumeID: v, secretRef: {}}", &["cinder.secretRef.name: Required value"]);
    volume("azureFile: {secretName: s, shareName: h}", &[]);
    volume("azureFile: {shareName: h}", &["azureFile.secretName: Required value"]);
    volume("azureFile: {secretName: s}", &["azureFile.shareName: Required value"]);
    volume("azureDisk: {diskName: d, diskURI: 'https://x'}", &[]);
    volume("azureDisk: {diskURI: 'https://x'}", &["azureDisk.diskName: Required value"]);
    volume("azureDisk: {diskName: d, diskURI: x}", &["azureDisk.diskURI: Invalid value"]);
    volume("azureDisk: {diskName: d, diskURI: /subscriptions/x, kind: Managed}", &[]);
    volume("azureDisk: {diskName: d, diskURI: 'https://x', kind: X}", &["azureDisk.kind: Unsupported value"]);
    volume(
        "azureDisk: {diskName: d, diskURI: 'https://x', cachingMode: X}",
        &["azureDisk.cachingMode: Unsupported value"],
    );
    volume("vsphereVolume: {volumePath: ''}", &["vsphereVolume.volumePath: Required value"]);
    volume("photonPersistentDisk: {pdID: ''}", &["photonPersistentDisk.pdID: Required value"]);
    volume("portworxVolume: {volumeID: ''}", &["portworxVolume.volumeID: Required value"]);
    volume("flexVolume: {driver: a/b, options: {x: z}}", &[]);
    volume("flexVolume: {driver: ''}", &["flexVolume.driver: Required value"]);
    volume(
        "flexVolume: {driver: d, options: {a.k8s.io/x: z}}",
        &["flexVolume.options[a.k8s.io/x]: Invalid value"],
    );
}

#[test]
fn claims_and_drivers() {
    volume("persistentVolumeClaim: {claimName: c}", &[]);
    volume("persistentVolumeClaim: {claimName: ''}", &["persistentVolumeClaim.claimName: Required value"]);
    volume("csi: {driver: D.example.com}", &[]);
    volume("csi: {driver: ''}", &["csi.driver: Required value"]);
    volume("csi: {driver: a_b}", &["csi.driver: Invalid value"]);
    volume(&format!("csi: {{driver: {}}}", "d".repeat(64)), &["csi.driver: Too long"]);
    volume("csi: {driver: d, nodePublishSecretRef: {}}", &["csi.nodePublishSecretRef.name: Required value"]);
    volume(
        "csi: {driver: d, nodePublishSecretRef: {name: S}}",
        &["csi.nodePublishSecretRef.name: Invalid value"],
    );
    volume("ephemeral: {}", &["ephemeral.volumeClaimTemplate: Required value"]);
    let claim = |text: &str, expect: &[&str]| {
        let expect: Vec<String> =
            expect.iter().map(|error| format!("ephemeral.volumeClaimTemplate.spec.{error}")).collect();
        volume(
            &format!("ephemeral: {{volumeClaimTemplate: {{spec: {text}}}}}"),
            &expect.iter().map(String::as_str).collect::<Vec<_>>(),
        );
    };
    let good = "accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}";
    claim(&format!("{{{good}}}"), &[]);
    claim("{accessModes: [ReadWriteOnce]}", &["resources.requests[storage]: Required value"]);
    claim(
        "{accessModes: [ReadWriteOnce], resources: {requests: {storage: 0}}}",
        &["resources.requests[storage]: Invalid value"],
    );
    claim("{resources: {requests: {storage: 1}}}", &["accessModes: Required value"]);
    claim("{accessModes: [X], resources: {requests: {storage: 1}}}", &["accessModes: Unsupported value"]);
    claim(
        "{accessModes: [ReadWriteOncePod, ReadWriteOnce], resources: {requests: {storage: 1}}}",
        &["accessModes: Forbidden"],
    );
    claim(&format!("{{{good}, volumeMode: X}}"), &["volumeMode: Unsupported value"]);
    claim(&format!("{{{good}, storageClassName: X}}"), &["storageClassName: Invalid value"]);
    claim(
        &format!("{{{good}, selector: {{matchLabels: {{'a b': c}}}}}}"),
        &["selector.matchLabels: Invalid value"],
    );
}
