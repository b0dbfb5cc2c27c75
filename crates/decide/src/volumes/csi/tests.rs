use std::sync::Arc;

use model::cluster::{ObjectContent, ObjectState, Token};
use model::node::NodeConfig;
use model::pod::PodView;
use model::quantity::Quantity;
use model::storage::{StorageObject, StorageState};
use model::{Mono, Now, Wall};
use serde_json::Value;

use super::*;
use crate::render::sample;
use crate::volumes::{expansion, volume_paths, volume_setups};

mod selinux;

const NOW: Now = Now { mono: Mono::ZERO, wall: Wall(0) };
const UNIQUE: &str = "kubernetes.io/csi/d.example^h";

/// A pod with a claim, and everything that its volume needs; to be changed.
struct Scene {
    pod: PodView,
    claim: Value,
    volume: Value,
    driver: Option<Value>,
    node: Value,
    attachment: Option<Value>,
    registered: bool,
    secrets: Vec<(&'static str, &'static str)>,
    selinux: bool,
    gate: bool,
}

fn persistent_pod(security: Value) -> PodView {
    sample::pod(json!({
        "securityContext": security,
        "serviceAccountName": "sa",
        "containers": [{"name": "c", "volumeMounts": [{"name": "data", "mountPath": "/d"}]}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "x"}}],
    }))
}

fn inline_pod() -> PodView {
    sample::pod(json!({
        "securityContext": {"fsGroup": 7},
        "containers": [{"name": "c", "volumeMounts": [{"name": "data", "mountPath": "/d"}]}],
        "volumes": [{"name": "data", "csi": {
            "driver": "d.example", "fsType": "ext4", "volumeAttributes": {"a": "1"},
        }}],
    }))
}

fn scene() -> Scene {
    Scene {
        pod: persistent_pod(json!({})),
        claim: json!({
            "metadata": {"name": "x", "namespace": "ns", "uid": "claim-uid"},
            "spec": {"volumeName": "pv"},
            "status": {"phase": "Bound"},
        }),
        volume: json!({
            "metadata": {"name": "pv"},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "mountOptions": ["noatime"],
                "claimRef": {"namespace": "ns", "name": "x", "uid": "claim-uid"},
                "csi": {"driver": "d.example", "volumeHandle": "h", "volumeAttributes": {"a": "1"}},
            },
        }),
        driver: Some(json!({"attachRequired": true, "fsGroupPolicy": "ReadWriteOnceWithFSType"})),
        node: json!({"volumesInUse": [UNIQUE], "volumesAttached": [{"name": UNIQUE, "devicePath": ""}]}),
        attachment: Some(json!({"attached": true, "attachmentMetadata": {"device": "/dev/x"}})),
        registered: true,
        secrets: Vec::new(),
        selinux: false,
        gate: false,
    }
}

impl Scene {
    fn config() -> NodeConfig {
        sample::config()
    }

    fn desk(&self) -> ObjectCache {
        let mut desk = ObjectCache::default();
        let claim = StorageKey::Claim { namespace: "ns".into(), name: "x".into() };
        let volume_name = self.claim["spec"]["volumeName"].as_str().unwrap();
        let volume = StorageKey::Volume { name: volume_name.into() };
        let id = VolumeId { driver: "d.example".into(), handle: "h".into() };
        let name = attachment_name(&id, &Self::config().node_name);
        let attachment = StorageKey::Attachment { name: name.clone() };
        desk.storage.set_wanted(&self.pod.uid, [claim.clone(), volume.clone(), attachment.clone()].into());
        let object = StorageObject::Claim(Arc::new(serde_json::from_value(self.claim.clone()).unwrap()));
        desk.storage.record_read(&claim, StorageState::Present(object), NOW);
        let object = StorageObject::Volume(Arc::new(serde_json::from_value(self.volume.clone()).unwrap()));
        desk.storage.record_read(&volume, StorageState::Present(object), NOW);
        if let Some(status) = &self.attachment {
            let object = json!({
                "metadata": {"name": name},
                "spec": {"attacher": "d.example", "nodeName": "n", "source": {}},
                "status": status,
            });
            let object = StorageObject::Attachment(Arc::new(serde_json::from_value(object).unwrap()));
            desk.storage.record_read(&attachment, StorageState::Present(object), NOW);
        }
        let drivers = self.driver.iter().map(|spec| {
            let object = json!({"metadata": {"name": "d.example"}, "spec": spec});
            Arc::new(serde_json::from_value(object).unwrap())
        });
        desk.storage.set_drivers(&drivers.collect::<Vec<_>>());
        desk.csi.set_registered(self.registered.then(|| "d.example".to_owned()).into_iter().collect());
        desk
    }

    fn with<T>(&self, run: impl FnOnce(&VolumeInputs<'_>) -> T) -> T {
        let mut desk = self.desk();
        let (mut config, mut facts) = (Self::config(), sample::facts());
        config.features.insert("SELinuxMount".into(), self.gate);
        facts.selinux_enabled = self.selinux;
        facts.selinux_file_label = "system_u:object_r:container_file_t:s0".into();
        let node = json!({"metadata": {"name": "n"}, "status": self.node});
        let node: k8s::Node = serde_json::from_value(node).unwrap();
        let plain = VolumeInputs {
            config: &config,
            facts: &facts,
            pod: &self.pod,
            cluster: None,
            node: Some(&node),
            now: Wall(0),
        };
        let needed = csi_volume_needs(&VolumeInputs { cluster: Some(&desk), ..plain }, false).named;
        desk.set_claimed_references(&self.pod.uid, needed.clone());
        for (name, value) in &self.secrets {
            let data = [("key".to_owned(), value.as_bytes().to_vec())].into();
            let content = ObjectContent { data, ..ObjectContent::default() };
            let key = secret_key("sec".into(), (*name).to_owned());
            desk.record_state(&key, ObjectState::Present(Arc::new(content)));
        }
        for wanted in &needed.tokens {
            let token = Token { token: format!("token for {:?}", wanted.audiences), expires: Wall(0) };
            desk.token_issued(wanted, Ok(token), NOW);
        }
        run(&VolumeInputs { cluster: Some(&desk), ..plain })
    }

    fn volume(&self) -> Result<CsiVolume, String> {
        self.with(|inputs| {
            let mut found = volume_setups(inputs).unwrap();
            match found.not_ready.pop() {
                None => match found.ready.remove(0).kind {
                    VolumeKind::Csi(volume) => Ok(*volume),
                    other => Err(format!("{other:?}")),
                },
                Some(VolumeNotReady::StageFailed { spec_name, stage, block, message, .. }) => {
                    Err(format!("{} {spec_name}: {message}", stage.failed(block)))
                }
                Some(VolumeNotReady::Waiting { cause: Cause::WaitingForVolume { message, .. }, .. }) => {
                    Err(format!("waits: {message}"))
                }
                Some(held) => Err(format!("{held:?}")),
            }
        })
    }
}

#[track_caller]
fn check(change: impl FnOnce(&mut Scene), expect: &str) {
    let mut scene = scene();
    change(&mut scene);
    match scene.volume() {
        Err(message) => assert!(message.contains(expect), "{message}"),
        Ok(volume) => panic!("{volume:?}, not {expect}"),
    }
}

#[test]
fn a_good_claim_gives_everything_that_its_set_up_needs() {
    let volume = scene().volume().unwrap();
    assert_eq!(volume.id.unique_name(), UNIQUE);
    assert_eq!(volume.spec_name, "pv");
    assert_eq!(volume.publish_context["device"], "/dev/x");
    assert_eq!(volume.volume_attributes["a"], "1");
    assert_eq!(
        volume.access,
        VolumeAccessType::Mount { fs_type: String::new(), flags: vec!["noatime".into()] }
    );
    assert!(!volume.ephemeral && !volume.requires_republish && !volume.read_only);
    assert_eq!(volume.pod_attributes, SecretMap::default());
    let place = scene().with(|inputs| volume_paths(inputs).unwrap().volumes.remove("data"));
    let source = MountSource { path: volume.paths.target, read_only: false, managed: true };
    assert_eq!(place, Some(VolumePath::Directory(source)));
}

#[test]
fn what_it_waits_for_in_the_order_in_which_it_comes() {
    check(|s| s.node = json!({}), NOT_IN_USE);
    check(|s| s.node = json!({"volumesInUse": [UNIQUE]}), NOT_ATTACHED);
    check(|s| s.attachment = None, "waits: volumeattachment");
    check(|s| s.attachment = Some(json!({"attached": false})), "was read before it was attached");
    check(
        |s| s.registered = false,
        "MountVolume.MountDevice failed pv: kubernetes.io/csi: attacher.MountDevice failed to create \
         newCsiDriverClient: driver name d.example not found in the list of registered CSI drivers",
    );
    check(
        |s| {
            s.volume["spec"]["csi"]["nodeStageSecretRef"] = json!({"name": "s1", "namespace": "sec"});
        },
        "waits: secret sec/s1 was not read yet",
    );
}

#[test]
fn what_need_not_be_attached_is_not_waited_for() {
    let mut loose = scene();
    loose.driver = Some(json!({"attachRequired": false}));
    (loose.node, loose.attachment) = (json!({}), None);
    assert_eq!(loose.volume().unwrap().publish_context, BTreeMap::new());
    // One that the cluster does not know is attached, as upstream has it.
    loose.driver = None;
    assert_eq!(loose.volume(), Err(format!("waits: {NOT_IN_USE}")));
    assert!(
        loose.with(|inputs| csi_volume_needs(inputs, false)).attachments.is_empty(),
        "not asked for before it is attached"
    );
    assert_eq!(scene().with(|inputs| csi_volume_needs(inputs, false)).attachments.len(), 1);
}

#[test]
fn secrets_tokens_and_the_pod_are_told_as_the_driver_wants() {
    let mut told = scene();
    told.volume["spec"]["csi"]["nodeStageSecretRef"] = json!({"name": "s1", "namespace": "sec"});
    told.volume["spec"]["csi"]["nodePublishSecretRef"] = json!({"name": "s2", "namespace": "sec"});
    told.secrets = vec![("s1", "stage"), ("s2", "publish")];
    let spec = json!({"podInfoOnMount": true, "tokenRequests": [{"audience": "a"}, {"audience": ""}]});
    told.driver = Some(spec.clone());
    let volume = told.volume().unwrap();
    assert_eq!(
        (volume.stage_secrets.0["key"].as_str(), volume.publish_secrets.0["key"].as_str()),
        ("stage", "publish")
    );
    let about = &volume.pod_attributes.0;
    assert_eq!(about["csi.storage.k8s.io/serviceAccount.name"], "sa");
    assert_eq!(about["csi.storage.k8s.io/ephemeral"], "false");
    assert_eq!(about["csi.storage.k8s.io/pod.uid"], told.pod.uid.to_string());
    let tokens: Value = serde_json::from_str(&about[TOKENS]).unwrap();
    assert_eq!(tokens["a"]["token"], json!("token for [\"a\"]"));
    assert_eq!(tokens[""]["expirationTimestamp"], json!("1970-01-01T00:00:00Z"));
    let mut hidden = spec;
    hidden["serviceAccountTokenInSecrets"] = json!(true);
    told.driver = Some(hidden);
    let volume = told.volume().unwrap();
    assert!(volume.publish_secrets.0.contains_key(TOKENS) && !volume.pod_attributes.0.contains_key(TOKENS));
}

#[test]
fn inline_volumes_need_a_driver_that_allows_them() {
    let inline = |driver: Option<Value>| Scene { pod: inline_pod(), driver, node: json!({}), ..scene() };
    let refused = "MountVolume.SetUp failed data: kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle \
                   mode: volume mode \"Ephemeral\" not supported by driver d.example";
    assert_eq!(inline(None).volume(), Err(format!("{refused} (no CSIDriver object)")));
    assert_eq!(inline(Some(json!({}))).volume(), Err(format!("{refused} (only supports [\"Persistent\"])")));
    let modes =
        json!({"volumeLifecycleModes": ["Ephemeral"], "requiresRepublish": true, "podInfoOnMount": true});
    let volume = inline(Some(modes.clone())).volume().unwrap();
    assert!(volume.ephemeral && volume.requires_republish);
    assert!(volume.id.handle.starts_with("csi-"));
    assert_eq!(volume.pod_attributes.0["csi.storage.k8s.io/ephemeral"], "true");
    assert_eq!(volume.fs_group, Some(FsGroup { id: 7, by_agent: true, on_root_mismatch: false }));
    let away = Scene { registered: false, ..inline(Some(modes)) };
    assert!(away.volume().unwrap_err().contains("mounter.SetUpAt failed to get CSI client: driver name"));
    // And the other way round: a driver that serves nothing else.
    check(
        |s| s.driver = Some(json!({"volumeLifecycleModes": ["Ephemeral"]})),
        "volume mode \"Persistent\" not supported by driver d.example (only supports [\"Ephemeral\"])",
    );
}

#[test]
fn who_applies_the_group() {
    let by_agent = |policy: Option<&str>, fs_type: &str, modes: &[&str], read_only: bool| {
        let mut scene = scene();
        scene.pod = persistent_pod(json!({"fsGroup": 7, "fsGroupChangePolicy": "OnRootMismatch"}));
        if read_only {
            scene.pod = sample::pod(json!({
                "securityContext": {"fsGroup": 7},
                "containers": [{"name": "c", "volumeMounts": [{"name": "data", "mountPath": "/d"}]}],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "x", "readOnly": true}}],
            }));
        }
        scene.driver = Some(json!({"fsGroupPolicy": policy}));
        scene.volume["spec"]["csi"]["fsType"] = json!(fs_type);
        scene.volume["spec"]["accessModes"] = json!(modes);
        scene.volume().unwrap().fs_group.unwrap().by_agent
    };
    assert!(by_agent(None, "ext4", &["ReadWriteOnce"], false));
    assert!(by_agent(Some("ReadWriteOnceWithFSType"), "ext4", &["ReadWriteMany", "ReadWriteOnce"], false));
    assert!(!by_agent(Some("ReadWriteOnceWithFSType"), "", &["ReadWriteOnce"], false));
    assert!(!by_agent(Some("ReadWriteOnceWithFSType"), "ext4", &["ReadWriteMany"], false));
    assert!(by_agent(Some("File"), "", &["ReadWriteMany"], false));
    assert!(!by_agent(Some("File"), "ext4", &["ReadWriteOnce"], true));
    assert!(!by_agent(Some("None"), "ext4", &["ReadWriteOnce"], false));
}

#[test]
fn devices_have_their_own_places() {
    let mut block = scene();
    block.pod = sample::pod(json!({
        "containers": [{"name": "c", "volumeDevices": [{"name": "data", "devicePath": "/dev/d"}]}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "x"}}],
    }));
    block.volume["spec"]["volumeMode"] = json!("Block");
    let volume = block.volume().unwrap();
    assert_eq!(volume.access, VolumeAccessType::Block);
    let place = block.with(|inputs| volume_paths(inputs).unwrap().volumes.remove("data"));
    let path = volume.paths.device.unwrap().link;
    assert_eq!(place, Some(VolumePath::Device { path, read_only: false }));
}

/// Its record would be taken for what all devices share, and it would never be let go of.
#[test]
fn a_device_with_a_taken_name_is_refused() {
    let named = |name: &str, mode: &str| {
        let mut block = scene();
        block.pod = sample::pod(json!({
            "containers": [{"name": "c", "volumeDevices": [{"name": "data", "devicePath": "/dev/d"}]}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "x"}}],
        }));
        if mode == "Filesystem" {
            block.pod = persistent_pod(json!({}));
        }
        block.volume["spec"]["volumeMode"] = json!(mode);
        block.volume["metadata"]["name"] = json!(name);
        block.claim["spec"]["volumeName"] = json!(name);
        block.volume()
    };
    for name in ["staging", "publish"] {
        let error = named(name, "Block").unwrap_err();
        let expect =
            format!("MapVolume.NewBlockVolumeMapper initialization failed {name}: the name {name:?}");
        assert!(error.starts_with(&expect), "{error}");
        assert!(named(name, "Filesystem").is_ok());
    }
    assert!(named("stage", "Block").is_ok());
}

/// A claim of one gigabyte, with two behind it.
fn behind() -> Scene {
    let mut scene = scene();
    scene.claim["metadata"]["resourceVersion"] = json!("5");
    scene.claim["status"]["capacity"] = json!({"storage": "1Gi"});
    scene.volume["spec"]["capacity"] = json!({"storage": "2Gi"});
    scene
}

#[test]
fn a_volume_that_is_larger_behind_its_claim_grows() {
    use crate::ledger::VolumeSize;
    let size = |text: &str| text.parse::<Quantity>().unwrap();
    let here = |text: &str| VolumeSize { size: size(text), ..VolumeSize::default() };
    let check = |change: &dyn Fn(&mut Scene), known: Option<VolumeSize>, expect: &str| {
        let mut scene = behind();
        change(&mut scene);
        let known = known.into_iter().map(|known| ("data".to_owned(), known)).collect();
        let found = scene.with(|inputs| expansion::volume_expansions(inputs, &known, true));
        let mut words: Vec<String> = Vec::new();
        words.extend(found.first_seen.iter().map(|(name, size)| format!("{name} has {size}")));
        words.extend(found.growing.iter().map(|(setup, to)| format!("{} grows to {}", setup.name, to.size)));
        words.extend(found.read_only.iter().map(|(name, _)| format!("{name} is read only")));
        assert_eq!(words.join(", "), expect);
    };
    check(&|_| {}, None, "data has 1Gi, data grows to 2Gi");
    check(&|_| {}, Some(here("1Gi")), "data grows to 2Gi");
    check(&|_| {}, Some(here("2Gi")), "");
    check(&|_| {}, Some(VolumeSize { in_use: true, ..here("1Gi") }), "");
    check(&|_| {}, Some(VolumeSize { not_our_turn_for_claim_version: Some("5".into()), ..here("1Gi") }), "");
    check(
        &|_| {},
        Some(VolumeSize { not_our_turn_for_claim_version: Some("4".into()), ..here("1Gi") }),
        "data grows to 2Gi",
    );
    check(&|s| s.volume["spec"]["capacity"] = json!({"storage": "1Gi"}), None, "data has 1Gi");
    check(&|s| s.claim["status"]["capacity"] = Value::Null, None, "");
    let stage = |s: &mut Scene, stage: &str| {
        s.claim["status"]["allocatedResources"] = json!({"storage": "2Gi"});
        s.claim["status"]["allocatedResourceStatuses"] = json!({"storage": stage});
    };
    check(&|s| stage(s, "NodeResizePending"), Some(here("1Gi")), "data grows to 2Gi");
    check(&|s| stage(s, "NodeResizeInfeasible"), Some(here("1Gi")), "");
    // What it needs for that is not there, or it is not its pod's to change.
    check(&|s| s.registered = false, Some(here("1Gi")), "");
    let read_only = |s: &mut Scene| {
        s.pod = sample::pod(json!({
            "containers": [{"name": "c", "volumeMounts": [{"name": "data", "mountPath": "/d"}]}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "x", "readOnly": true}}],
        }));
    };
    check(&read_only, Some(here("1Gi")), "pv is read only");
}

#[test]
fn the_secret_for_growth_is_read_and_given() {
    let mut scene = behind();
    scene.volume["spec"]["csi"]["nodeExpandSecretRef"] = json!({"namespace": "sec", "name": "grow"});
    let found = scene.with(|inputs| expansion::volume_expansions(inputs, &BTreeMap::new(), true));
    assert_eq!(found.growing, [], "it waits for the secret");
    scene.secrets = vec![("grow", "hidden")];
    let found = scene.with(|inputs| expansion::volume_expansions(inputs, &BTreeMap::new(), false));
    let (_, wanted) = &found.growing[0];
    assert_eq!(wanted.secrets.0["key"], "hidden");
    assert_eq!(
        (wanted.claim.uid.as_str(), wanted.version.as_str(), wanted.online),
        ("claim-uid", "5", false)
    );
}

#[test]
fn which_volumes_are_not_attached_and_will_not_be() {
    let full = json!({"attached": false, "attachError": {"message": "full", "errorCode": 8}});
    let tells = json!({"nodeAllocatableUpdatePeriodSeconds": 10});
    let in_use = json!({"volumesInUse": [UNIQUE]});
    let base = || Scene {
        driver: Some(tells.clone()),
        node: in_use.clone(),
        attachment: Some(full.clone()),
        ..scene()
    };
    let check = |change: &dyn Fn(&mut Scene), expect: Option<bool>, read: bool| {
        let mut scene = base();
        change(&mut scene);
        scene.with(|inputs| {
            let found = unattached(inputs);
            let full = found.first().map(|one| one.full_driver.is_some());
            assert_eq!(full, expect, "{found:?}");
            assert!(found.iter().all(|one| one.volume == "data"));
            assert_eq!(!csi_volume_needs(inputs, true).attachments.is_empty(), read, "of one that is late");
        });
    };
    check(&|_| (), Some(true), true);
    check(&|s| s.node = json!({}), Some(true), true);
    check(&|s| s.node["volumesAttached"] = json!([{"name": UNIQUE, "devicePath": ""}]), None, true);
    check(&|s| s.attachment = None, Some(false), true);
    check(
        &|s| s.attachment = Some(json!({"attached": true, "attachError": full["attachError"]})),
        Some(false),
        true,
    );
    for error in [json!(null), json!({"message": "ResourceExhausted"}), json!({"errorCode": 14})] {
        let status = json!({"attached": false, "attachError": error});
        check(&|s| s.attachment = Some(status.clone()), Some(false), true);
    }
    // Those who don't tell how many they take are waited for.
    check(&|s| s.driver = Some(json!({"nodeAllocatableUpdatePeriodSeconds": 0})), Some(false), false);
    check(&|s| s.driver = Some(json!({})), Some(false), false);
    check(&|s| s.driver = None, Some(false), false);
    check(
        &|s| s.driver = Some(json!({"attachRequired": false, "nodeAllocatableUpdatePeriodSeconds": 10})),
        None,
        false,
    );
    base().with(|inputs| {
        assert!(csi_volume_needs(inputs, false).attachments.is_empty(), "nothing is read too soon")
    });
}
