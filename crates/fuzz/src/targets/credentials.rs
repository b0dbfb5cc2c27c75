//! Registry credentials: Docker config files, plugins, pull records, image names.

use std::time::Duration;

use decide::credentials::{docker_config, matching, plugin, plugin_config};
use host::credentials::HostPullRecords;
use model::credentials::{CredentialPlugin, DockerConfigForm, PulledRecord};
use ports::PullRecords;

use crate::scratch;
use crate::target::{Target, text};

const JSON: &[&str] = &["{\"", "\":", "\",\"", "}", "[", "]", "null", "\\u0000", "\"auths\":", "\"auth\":"];

pub const TARGETS: [Target; 5] = [
    Target { name: "docker_config", run: docker, dictionary: JSON },
    Target {
        name: "plugin_answer",
        run: answer,
        dictionary: &[
            "\"kind\":",
            "\"CredentialProviderResponse\"",
            "\"cacheDuration\":",
            "\"Image\"",
            "\"auth\":",
        ],
    },
    Target {
        name: "plugin_config",
        run: config,
        dictionary: &["providers:\n", "- name: ", "matchImages: [", "defaultCacheDuration: ", "*.", "env: "],
    },
    Target {
        name: "image_name",
        run: image,
        dictionary: &["/", ":", "@sha256:", "*", ".", "docker.io", "localhost", "[::1]", "?", "#", "%"],
    },
    Target { name: "pull_record", run: record, dictionary: JSON },
];

fn docker(data: &[u8]) {
    for form in [DockerConfigForm::Json, DockerConfigForm::Legacy] {
        if let Err(error) = docker_config::parse(form, data) {
            // The error is shown to users, and the file holds secrets, so it must be short.
            assert!(error.to_string().len() <= data.len() * 6 + 200);
        }
    }
}

fn asked() -> CredentialPlugin {
    CredentialPlugin {
        name: "p".into(),
        match_images: vec!["*.example.test".into()],
        default_cache: Duration::from_secs(1),
        api_version: "credentialprovider.kubelet.k8s.io/v1".into(),
        args: Vec::new(),
        env: Vec::new(),
        token: None,
    }
}

fn answer(data: &[u8]) {
    let _ = plugin::parse_plugin_response(&asked(), data, None);
}

fn config(data: &[u8]) {
    let _ = plugin_config::parse(&[("/p.yaml".to_owned(), data.to_vec())], true);
}

/// The first line is an image name, the rest a pattern.
fn image(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let (image, pattern) = text.split_once('\n').unwrap_or((text, "*.example.test/a"));
    assert!(image.starts_with(matching::without_tag(image)));
    let repository = matching::repository(image);
    assert!(repository.starts_with(matching::registry(&repository)));
    assert!(repository.len() <= image.len() + "docker.io/library/".len());
    let _ = matching::matches(pattern, &repository);
    // A valid location matches itself.
    if let Some(place) = matching::parse_location(&repository)
        && !repository.contains(['*', '?', '#', '@', '['])
    {
        assert!(matching::matches(&repository, &repository), "{repository:?} is at {place:?}");
    }
}

fn record(data: &[u8]) {
    let records = HostPullRecords::new(&scratch::dir());
    let image_ref = "sha256:1";
    let sound = PulledRecord {
        last_updated_time: None,
        image_ref: image_ref.into(),
        credential_mapping: Default::default(),
    };
    scratch::wait(records.write_pulled(&sound)).expect("write a record");
    let dir = scratch::dir().join("image_manager/pulled");
    let written = std::fs::read_dir(dir).expect("list records").flatten().next().expect("a record").path();
    std::fs::write(written, data).expect("damage the record");
    if let Ok(Some(read)) = scratch::wait(records.read_pulled(image_ref)) {
        scratch::wait(records.write_pulled(&read)).expect("write it again");
        assert_eq!(scratch::wait(records.read_pulled(image_ref)).expect("read it again"), Some(read));
    }
}
