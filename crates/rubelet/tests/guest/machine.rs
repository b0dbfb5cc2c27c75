//! The guest itself: commands and files get in and out, its death is told, and it leaves nothing.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::guest::{Form, Guest};
use crate::support::harness::{SLOW, hack, live_processes, mounts_below, run, wait};

/// Everything of the guest that can still be seen on this machine.
fn traces(dir: &Path) -> Vec<String> {
    let mut found = live_processes(&dir.to_string_lossy());
    found.extend(mounts_below(dir).iter().map(|mount| format!("mount {}", mount.display())));
    let records = fs::read_dir("/run/rubelet-test/guests").into_iter().flatten().flatten();
    let of_guest = format!("dir={}\n", dir.display());
    let ours =
        records.filter(|record| fs::read_to_string(record.path()).is_ok_and(|text| text.contains(&of_guest)));
    found.extend(ours.map(|record| record.path().display().to_string()));
    found.extend(dir.exists().then(|| dir.display().to_string()));
    found
}

#[test]
fn commands_and_files_pass_and_nothing_is_left_when_the_owner_is_killed() {
    let mut owner = Command::new("sleep").arg("3600").stdin(Stdio::null()).spawn().expect("start an owner");
    let guest = Guest::start_for(owner.id(), Form::Uml, &[]);
    assert!(traces(guest.dir()).len() > 2, "{:?}", traces(guest.dir()));

    let output = guest.output(60, "echo out; echo err >&2; exit 7");
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!((&*output.stdout, &*output.stderr), (&b"out\n"[..], &b"err\n"[..]));
    // Several at once, none of which waits for another.
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| guest.run("until [ -e /root/go ]; do sleep 0.1; done; echo went"));
        guest.run("touch /root/go");
        assert_eq!(waits.join().expect("the thread"), "went\n");
    });
    let output = guest.output(1, "sleep 3600");
    assert_eq!(output.status.code(), Some(124), "{output:?}");

    let (sent, came) = (guest.dir().join("sent"), guest.dir().join("came"));
    fs::create_dir(&sent).expect("make a directory");
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    fs::write(sent.join("bytes"), &bytes).expect("write a file");
    guest.copy_in(&sent, "/root/sent");
    guest.copy_out("/root/sent", &came);
    assert!(fs::read(came.join("bytes")).expect("the file came back") == bytes, "other bytes came back");

    assert_eq!(
        guest.run("stat -f -c %T /sys/fs/cgroup; systemctl is-system-running"),
        "cgroup2fs\nrunning\n"
    );

    owner.kill().expect("kill the owner");
    owner.wait().expect("the owner's end");
    wait("every trace of the guest to go", SLOW, || match traces(guest.dir()) {
        left if left.is_empty() => Ok(()),
        left => Err(left.join("\n")),
    });
}

#[test]
fn a_panic_of_its_kernel_is_told_with_the_end_of_the_console() {
    let guest = Guest::start(Form::Uml);
    let output = guest.output(60, "echo c >/proc/sysrq-trigger; sleep 3600");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(said.contains("the guest ended") && said.contains("Kernel panic"), "{said}");
    assert!(guest.console().contains("Kernel panic"));
    // And at once for whoever comes later.
    let output = guest.output(60, "true");
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    run(hack("guest").arg("stop").arg(guest.dir()));
    assert_eq!(traces(guest.dir()), Vec::<String>::new());
}
