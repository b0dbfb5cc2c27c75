//! The search that is led by coverage: libFuzzer over one target, which `RUBELET_FUZZ_TARGET` names. See `hack/fuzz`.

#![no_main]

use std::sync::OnceLock;

use fuzz::Target;

static TARGET: OnceLock<Target> = OnceLock::new();

fn target() -> Target {
    let wanted = std::env::var("RUBELET_FUZZ_TARGET").unwrap_or_default();
    let known = fuzz::targets();
    let found = known.iter().find(|target| target.name == wanted);
    let names = || known.iter().map(|target| target.name).collect::<Vec<_>>().join(", ");
    *found.unwrap_or_else(|| panic!("RUBELET_FUZZ_TARGET={wanted:?} is none of {}", names()))
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| (TARGET.get_or_init(target).run)(data));
