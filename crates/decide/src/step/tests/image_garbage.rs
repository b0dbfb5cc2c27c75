//! Removal of images: what is kept, the order, the times, and pods and pulls that come meanwhile.

use std::collections::BTreeSet;
use std::time::Duration;

use model::Mono;
use model::cri::Image;
use model::image_garbage::{ImageFilesystem, ImageGarbageConfig, ImageListing};
use model::node::NodeConfig;

use super::check_on;
use super::script::{Script, call_failure};
use crate::event::Event;
use crate::image_garbage::RunEnd;
use crate::step::Context;

/// `images <list>`, or `removed <image>`.
pub fn event(word: &str, rest: &str) -> Event {
    if word == "images" { listed(rest) } else { removed(rest) }
}

/// `<used>/<capacity>[ used by <image>,..]: <id>=<tag>,<tag> <size>[ pinned] / ..`, or `fails <message>`. Of a filesystem
/// that can't be read: `?`.
fn listed(rest: &str) -> Event {
    if let Some(message) = rest.strip_prefix("fails ") {
        return Event::ImagesListed(Err(call_failure(message)));
    }
    let (head, images) = rest.split_once(": ").expect("images <used>/<capacity>: <images>");
    let (filesystem, users) = head.split_once(" used by ").unwrap_or((head, ""));
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let filesystem = filesystem.split_once('/').map(|(used, capacity)| ImageFilesystem {
        capacity_bytes: number(capacity),
        available_bytes: number(capacity).saturating_sub(number(used)),
    });
    let image = |text: &str| {
        let mut words = text.split_whitespace();
        let (id, tags) = words.next().and_then(|word| word.split_once('=')).expect("<id>=<tags>");
        Image {
            id: format!("sha256:{id}"),
            repo_tags: tags.split(',').filter(|tag| !tag.is_empty()).map(str::to_owned).collect(),
            size: number(words.next().expect("a size")),
            pinned: words.next() == Some("pinned"),
            ..Image::default()
        }
    };
    Event::ImagesListed(Ok(ImageListing {
        images: images.split(" / ").filter(|text| *text != "-").map(image).collect(),
        container_images: users.split(',').map(str::to_owned).collect::<BTreeSet<_>>(),
        filesystem: filesystem.ok_or_else(|| "no such filesystem".to_owned()),
    }))
}

/// `<id>`, or `<id>: <message>`.
fn removed(rest: &str) -> Event {
    let (id, failure) = rest.split_once(": ").map_or((rest, None), |(id, text)| (id, Some(text)));
    let result = failure.map_or(Ok(()), |message| Err(call_failure(message)));
    Event::ImageRemoved { image: format!("sha256:{id}"), result }
}

fn config(min_age: u64, max_age: u64) -> ImageGarbageConfig {
    ImageGarbageConfig {
        high_percent: 80,
        low_percent: 50,
        min_age: Duration::from_secs(min_age),
        max_age: (max_age > 0).then(|| Duration::from_secs(max_age)),
    }
}

#[track_caller]
fn check_images(config: ImageGarbageConfig, script: &str) -> Script {
    check_on(NodeConfig { image_garbage: Some(config), ..NodeConfig::default() }, script)
}

#[test]
fn a_full_disk_is_emptied_to_the_low_threshold_oldest_first() {
    check_images(
        config(60, 0),
        r"
        show clocks events
        started
        ready
        read all: -                        => list images | timer full @60s
        images 79/100: a=x/a:1 20 / b=x/b:1 20                      => timer image-garbage @300s
        due image-garbage @300s            => list images
        images 79/100: a=x/a:1 20 / b=x/b:1 20                      => timer image-garbage @600s
        +100s
        due image-garbage @600s            => list images
        # `a` was in use until a moment ago, `c` is the newest
        images 80/100 used by x/a:1: a=x/a:1 20 / b=x/b:1 20 / c=x/c:1 20  => remove image sha256:b
        removed b
            => node FreeDiskSpaceFailed: Insufficient free disk space on the node's image filesystem (80% of 100 B used). Failed to free sufficient space by deleting unused images (freed 20 bytes). Investigate disk usage, as it could be used by active images, logs, volumes, or other data.
            => timer image-garbage @610s
        counted                            => collected by space 1
        # the other one is too young, and the Event is not repeated
        due image-garbage @610s            => list images
        images 80/100 used by x/a:1: a=x/a:1 20 / c=x/c:1 20        => timer image-garbage @660s
        due image-garbage @660s            => list images
        images 80/100: a=x/a:1 20 / c=x/c:1 20                      => remove image sha256:c
        removed c                          => remove image sha256:a
        removed a                          => timer image-garbage @670s
        due image-garbage @670s            => list images
        images 40/100: -                   => timer image-garbage @970s
        ",
    );
}

#[test]
fn what_is_used_pinned_or_needed_stays() {
    check_images(
        config(0, 0),
        r"
        pod a = c: {}
        started
        ready
        file a
        read all: a = s0 ready / orphan = c#0 exit(0)
        # the tag of a pod's spec, a container of the runtime, a pinned one
        images 99/100 used by x/d:1,sha256:e: a=docker.io/library/img-c:1 1 / d=x/d:1 1 / e= 1 / p=x/pause:1 1 pinned / u=x/u:1 1
            => remove image sha256:u
        removed u
        looked img-c:1: no                 => pull img-c:1
        due image-garbage                  => list images
        # the image that is being pulled
        images 99/100: b=docker.io/library/img-c:1 1                => -
        ",
    );
}

#[test]
fn images_of_a_pods_volumes_and_of_its_next_form_stay() {
    check_images(
        config(0, 0),
        r"
        pod a = spec: {volumes: [{name: v, image: {reference: 'x/v:1'}}]}
        started
        ready
        file a
        read all: a = s0 ready; c#0 running
        images 99/100: v=x/v:1 1 / u=x/u:1 1 => remove image sha256:u
        removed u
        # a pod that ends and is wanted again in another form
        file
        pod a = c: {image: 'x/next:1'}
        file a
        due image-garbage                  => list images
        images 99/100: n=x/next:1 1 / v=x/v:1 1 => remove image sha256:v
        ",
    );
}

#[test]
fn a_pod_that_comes_during_the_run_keeps_its_image() {
    check_images(
        config(0, 0),
        r"
        pod a = c: {image: 'x/b:1'}
        started
        ready
        file
        read all: -                        => list images
        images 99/100: a=x/a:1 1 / b=x/b:1 1 / c=x/c:1 1 => remove image sha256:a
        file a
        removed a                          => remove image sha256:c
        removed c                          => -
        ",
    );
}

/// An inspection that saw the image before it was removed, and one that came during its removal.
#[test]
fn an_image_that_is_being_removed_counts_as_absent() {
    check_images(
        config(0, 0),
        r"
        pod a = c: {}
        pod b = c: {}
        started
        ready
        file
        read all: -                        => list images
        # by a name that no spec has
        images 99/100: found=x/other:1 1   => remove image sha256:found
        file a                             => run a: dirs + cgroup > sandbox#0 | look img-c:1
        looked img-c:1: yes                => -
        # another pod joins those who wait
        file a b                           => run b: dirs + cgroup > sandbox#0
        removed found                      => look img-c:1
        looked img-c:1: no                 => pull img-c:1
        ",
    );
}

#[test]
fn an_answer_from_before_the_removal_is_asked_for_again() {
    check_images(
        config(0, 0),
        r"
        pod a = c: {}
        started
        ready
        file
        read all: -                        => list images
        images 99/100: found=x/other:1 1   => remove image sha256:found
        file a                             => run a: dirs + cgroup > sandbox#0 | look img-c:1
        removed found                      => -
        looked img-c:1: yes                => look img-c:1
        looked img-c:1: no                 => pull img-c:1
        ",
    );
}

#[test]
fn a_pull_whose_image_was_removed_is_made_again() {
    for (first, second) in [
        ("pulled img-c:1: ok => -", "removed found => look img-c:1"),
        ("removed found", "pulled img-c:1: ok => look img-c:1"),
    ] {
        check_images(
            config(0, 0),
            &format!(
                r"
                pod a = c: {{imagePullPolicy: Always}}
                started
                ready
                file a
                read all: a = s0 ready         => list images | pull img-c:1
                images 99/100: found=x/other:1 1   => remove image sha256:found
                {first}
                {second}
                looked img-c:1: no             => pull img-c:1
                "
            ),
        );
    }
}

#[test]
fn images_go_when_they_were_unused_for_too_long() {
    check_images(
        ImageGarbageConfig { high_percent: 100, ..config(0, 1000) },
        r"
        show clocks events
        started
        ready
        read all: -                        => list images | timer full @60s
        images 10/100: a=x/a:1 1 / b=x/b:1 1                 => timer image-garbage @300s
        +600s
        due image-garbage                  => list images
        images 10/100 used by x/b:1: a=x/a:1 1 / b=x/b:1 1   => timer image-garbage @900s
        +401s
        due image-garbage                  => list images
        images 10/100: a=x/a:1 1 / b=x/b:1 1                 => remove image sha256:a
        removed a: it is on fire
            => timer image-garbage @1301s
        due image-garbage @1301s           => list images
        images 10/100: a=x/a:1 1 / b=x/b:1 1                 => remove image sha256:a
        removed a: it is on fire
            => node ImageGCFailed: wanted to free images older than 16m40s, encountered errors in image deletion: it is on fire
            => timer image-garbage @1601s
        ",
    );
}

#[test]
fn failures_are_told_when_they_come_again() {
    let gone = "removing unused images";
    check_images(
        config(0, 0),
        &format!(
            r"
            show clocks events logs
            started
            ready
            read all: -
            images fails no such service   => log {gone}: no such service | timer image-garbage @300s
            due image-garbage              => list images
            images ?: -
                => log {gone}: no such filesystem
                => node ImageGCFailed: no such filesystem | timer image-garbage @600s
            due image-garbage              => list images
            images 0/0: -
                => node InvalidDiskCapacity: invalid capacity 0 on image filesystem
                => log {gone}: invalid capacity 0 on image filesystem
                => node ImageGCFailed: invalid capacity 0 on image filesystem | timer image-garbage @900s
            "
        ),
    );
}

#[test]
fn a_runtime_that_goes_away_ends_the_run() {
    check_images(
        config(0, 0),
        r"
        started
        ready
        file
        read all: -
        images 99/100: a=x/a:1 1 / b=x/b:1 1   => remove image sha256:a
        removed a: !no answer              => check
        away
        timer image-garbage                => -
        # it goes on when the runtime can be read
        ready                              => read all
        read all: -                        => list images
        ",
    );
}

#[test]
fn a_runtime_may_tell_any_numbers() {
    let most = u64::MAX;
    check_images(
        config(0, 0),
        &format!(
            r"
            started
            ready
            read all: -                        => list images
            images {most}/{most}: a=x/a:1 {most} / b=x/b:1 {most} / c=x/c:1 0 => remove image sha256:a
            removed a                          => -
            due image-garbage                  => list images
            # none has a size, so the disk does not become emptier
            images {most}/{most}: d= 0 / e= 0  => remove image sha256:d
            removed d                          => remove image sha256:e
            # an answer that was not asked for
            removed x                          => -
            images 0/0: -                      => -
            removed e                          => -
            "
        ),
    );
}

#[test]
fn nothing_is_removed_by_itself_when_both_limits_are_off() {
    check_images(
        ImageGarbageConfig { high_percent: 100, ..config(0, 0) },
        r"
        show clocks events
        started
        ready
        read all: -                        => list images | timer full @60s
        images 100/100: a=x/a:1 1          => timer image-garbage @300s
        ",
    );
}

#[test]
fn after_a_pull_the_disk_is_looked_at_soon() {
    check_images(
        config(0, 0),
        r"
        show clocks
        pod a = c: {imagePullPolicy: Always}
        started
        ready
        file a
        read all: a = s0 ready             => list images | timer full @60s | pull img-c:1
        images 10/100: -                   => timer image-garbage @300s
        +5s
        pulled img-c:1: ok                 => timer image-garbage @15s | run a: dirs + cgroup
        ",
    );
}

/// As eviction asks for it: all that is old enough, whatever the thresholds are.
#[test]
fn a_reclaim_removes_everything_unused() {
    let mut script = check_images(
        ImageGarbageConfig { high_percent: 100, ..config(60, 0) },
        r"
        started
        ready
        read all: -                        => list images
        images 10/100: a=x/a:1 7 / b=x/b:1 5 / p=x/p:1 5 pinned
        +61s
        ",
    );
    let reclaim = |script: &mut Script, at: u64| {
        let now = Mono::ZERO.plus(Duration::from_secs(at));
        let now = model::Now { mono: now, ..crate::plan::tests::words::at(0.0) };
        let mut cx = Context { now, effects: Vec::new(), touched: BTreeSet::new(), mirrors: BTreeSet::new() };
        crate::step::image_garbage::reclaim_all(&mut script.state, &mut cx);
        cx.effects.len()
    };
    assert_eq!(reclaim(&mut script, 61), 1);
    assert!(script.state.image_garbage.reclaim_running());
    assert_eq!(reclaim(&mut script, 61), 0, "it goes on already");
    let steps = [
        ("images 10/100: a=x/a:1 7 / b=x/b:1 5 / p=x/p:1 5 pinned / new=x/new:1 5", "remove image sha256:a"),
        ("removed a", "remove image sha256:b"),
        // The second request is answered by a run of its own.
        ("removed b: in use", "list images"),
        ("images 10/100: b=x/b:1 5", "remove image sha256:b"),
    ];
    for (line, expect) in steps {
        assert_eq!(script.line(line), [expect], "{line}");
        assert!(script.state.image_garbage.reclaim_running());
    }
    assert!(script.line("removed b").is_empty());
    assert!(!script.state.image_garbage.reclaim_running());
    let end = script.state.image_garbage.last_reclaim.clone();
    assert!(matches!(end, Some(RunEnd { removed: 1, freed_bytes: 5, failure: None, .. })), "{end:?}");
    // Without a runtime nothing can be reclaimed, and nobody waits for it.
    script.line("away");
    assert_eq!(reclaim(&mut script, 70), 0);
    assert!(!script.state.image_garbage.reclaim_running());
}
