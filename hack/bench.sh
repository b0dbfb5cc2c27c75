# shellcheck shell=bash
# What the scripts in hack/bench.d share. They define usage() and source this.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=hack/env.sh
. "$here/env.sh"

# wrong_usage: for an unknown option, and for --help.
wrong_usage() {
    if [[ ${1:-} == --help ]]; then
        usage
        exit 0
    fi
    usage >&2
    exit 2
}

# The parts that a private containerd needs.
runtime_parts() {
    need_root
    "$here/parts" install
    "$here/parts" containerd "${RUBELET_TEST_CONTAINERD:-1.6}" >/dev/null
    "$here/parts" images >/dev/null
}

# build_rubelet <profile>: sets RUBELET_BENCH_RUBELET to the measured agent, and `watching` to the profile of the benchmarks
# themselves, which need no fat LTO: linking them that way takes minutes each.
build_rubelet() {
    local directory=$1
    watching=$1
    [[ $1 != dist ]] || watching=release
    [[ $1 != dev ]] || directory=debug
    if [[ $1 == dist ]]; then
        (cd "$here/.." && cargo dist --quiet)
    else
        (cd "$here/.." && cargo build --quiet --workspace --bin rubelet --profile "$1")
    fi
    RUBELET_BENCH_RUBELET=$(realpath "${CARGO_TARGET_DIR:-$here/../target}/$directory/rubelet")
    export RUBELET_BENCH_RUBELET
}

# watch <benchmark>: built with the features of the whole workspace, so that what its tests or another benchmark built is
# used again.
watch() {
    (cd "$here/.." && cargo bench --quiet --workspace --bench "$1" --profile "$watching")
}
