//! Files that the kernel, the runtime and earlier agents wrote.

use std::path::Path;

use decide::render::dns::resolv_conf;
use host::mountinfo::MountTable;
use host::probe::PodProbeRecords;
use host::{cgroup, fuzzing};
use model::oom_kill::OutOfMemory;
use model::text_limits::TextLimit;
use model::user_namespace::UserNamespaceFile;
use ports::{LogOptions, LogOutput, ProbeRecordStore};

use crate::scratch;
use crate::target::{Target, text};

pub const TARGETS: [Target; 7] = [
    Target {
        name: "container_log",
        run: container_log,
        dictionary: &[
            "2026-01-02T03:04:05.678901234Z ",
            "stdout ",
            "stderr ",
            "F ",
            "P ",
            "P:x ",
            "{\"log\":\"",
            "\n",
        ],
    },
    Target {
        name: "mountinfo",
        run: mountinfo,
        dictionary: &[
            "36 35 98:0 / /mnt rw - ext4 /dev/x rw\n",
            " - ",
            "cgroup",
            "cgroup2",
            "\\040",
            "shared:1",
        ],
    },
    Target {
        name: "host_files",
        run: host_files,
        dictionary: &[
            "MemTotal: 1 kB\n",
            "0-3,8",
            "processor\t: 0\n",
            "hugepages-2048kB",
            "PRETTY_NAME=",
            "0::/",
        ],
    },
    Target {
        name: "resolv_conf",
        run: resolver,
        dictionary: &[
            "nameserver ",
            "search ",
            "options ",
            "ndots:5",
            "domain ",
            "#",
            ";",
            "\n",
            "\t",
            "10.0.0.1",
        ],
    },
    Target {
        name: "probe_record",
        run: probe_record,
        dictionary: &["v1 ", "\n", "{", "}", "\"containers\":"],
    },
    Target {
        name: "kernel_log",
        run: kernel_log,
        dictionary: &[
            "4,1,1,-;",
            "\0",
            "sh invoked oom-killer: ",
            "oom-kill:constraint=CONSTRAINT_MEMCG,",
            ",oom_memcg=/",
            ",task_memcg=/",
            ",global_oom",
            ",task=sh,pid=7,uid=0",
            "Task in /a killed as a result of limit of /b",
            "Memory cgroup out of memory: Killed process 7 (sh) x",
        ],
    },
    Target {
        name: "user_ids",
        run: user_ids,
        dictionary: &[
            "{\"uidMappings\":[",
            "\"gidMappings\":[",
            "\"hostId\":",
            "\"containerId\":0",
            "\"length\":65536",
        ],
    },
];

/// The first byte picks the options.
fn container_log(data: &[u8]) {
    let (pick, log) = data.split_first().map_or((0, data), |(first, rest)| (*first, rest));
    let output = match pick & 3 {
        0 | 1 => LogOutput::Both,
        2 => LogOutput::Stdout,
        _ => LogOutput::Stderr,
    };
    let options = LogOptions {
        follow: false,
        tail_lines: (pick & 4 != 0).then_some(3),
        since: None,
        timestamps: pick & 8 != 0,
        limit_bytes: (pick & 16 != 0).then_some(10),
        output,
        ..LogOptions::default()
    };
    let whole = fuzzing::log(&options, log, usize::MAX);
    // The size of the reads must not change the result.
    for piece in [1, 7, 4096] {
        assert_eq!(fuzzing::log(&options, log, piece), whole, "in pieces of {piece}");
    }
    assert!(whole.len() <= log.len() * 3 + 64, "{} bytes of a log became {}", log.len(), whole.len());
    assert!(options.limit_bytes.is_none_or(|limit| whole.len() as u64 <= limit), "more than was asked for");
}

fn mountinfo(data: &[u8]) {
    let table = MountTable::parse(data);
    assert!(table.mounts().len() <= data.len());
    for path in ["/", "/mnt", "/var/lib/kubelet/pods"] {
        let path = Path::new(path);
        assert!(table.at_or_below(path).all(|mount| mount.mount_point.starts_with(path)));
        if let Some(mount) = table.containing(path) {
            assert!(path.starts_with(&mount.mount_point));
        }
    }
    if let Some(text) = text(data) {
        let _ = cgroup::detect_in(Path::new("/sys/fs/cgroup"), text, "cpu\t1\t1\t1\nmemory\t2\t1\t1\n");
        let _ = cgroup::detect_in(Path::new("/sys/fs/cgroup"), "", text);
    }
}

fn host_files(data: &[u8]) {
    if let Some(text) = text(data) {
        let found = fuzzing::facts(text);
        assert!(found <= data.len() * 2 + 12, "{found} facts in {} bytes", data.len());
    }
}

fn resolver(data: &[u8]) {
    let Some(text) = text(data) else { return };
    if let Ok(config) = resolv_conf::parse("/etc/resolv.conf", text) {
        let said: usize = [&config.servers, &config.searches, &config.options]
            .into_iter()
            .flatten()
            .map(|word| word.len() + 1)
            .sum();
        assert!(said <= text.len() + 1, "{text:?} became {config:?}");
    }
}

/// The input as a record, and as the content of a record with a right checksum, so that the fuzzer gets past the
/// checksum.
fn probe_record(data: &[u8]) {
    check_record(data);
    let sum = data
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    check_record(&[format!("1 {sum:016x}\n").as_bytes(), data].concat());
}

fn check_record(data: &[u8]) {
    scratch::file("pods/uid/probe-results", data);
    let store = PodProbeRecords::new(scratch::dir());
    let found = scratch::wait(store.load());
    assert!(found.records.len() + found.problems.len() <= 1, "one file, one word about it");
    for (uid, record) in found.records {
        scratch::wait(store.save(&uid, &record)).expect("write it again");
        assert_eq!(scratch::wait(store.load()).records, [(uid, record)]);
    }
}

fn kernel_log(data: &[u8]) {
    let kills = fuzzing::oom_kills(data);
    let records = data.split(|byte| *byte == 0).count();
    assert!(kills.len() * 2 <= records, "{} kills in {records} records", kills.len());
    for kill in kills {
        let limit = match &kill.ran_out {
            OutOfMemory::Cgroup(path) => Some(path),
            OutOfMemory::Machine | OutOfMemory::UnknownCgroup => None,
        };
        for path in kill.process_cgroup.iter().chain(limit) {
            assert!(path.starts_with('/') && path.len() <= data.len() * 3 + 1, "{path:?}");
            assert!(!path.contains('\n'), "{path:?}");
        }
        assert!(!kill.victim.name.contains('\n') && kill.victim.name.len() <= TextLimit::Name.bytes());
    }
}

fn user_ids(data: &[u8]) {
    let Ok(file) = serde_json::from_slice::<UserNamespaceFile>(data) else { return };
    if let Some(ids) = file.ids() {
        assert_eq!(UserNamespaceFile::of(&ids).ids(), Some(ids), "what is written is what was read");
    }
}
