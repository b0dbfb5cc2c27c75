# shellcheck shell=bash
# What the scripts in hack/bench.d share. They define usage() and source this.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=hack/env.sh
. "$here/env.sh"

# wrong_usage: for an option that nobody knows; --help is none.
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

# run_bench <name> <profile>: builds rubelet in that profile, and runs the benchmark beside it. What only watches is not
# built as what ships: linking that takes minutes for each program.
run_bench() {
    local name=$1 profile=$2 target=${CARGO_TARGET_DIR:-target}
    if [[ $profile == dist ]]; then
        cargo build --quiet --package rubelet --profile dist --features jemalloc
        RUBELET_BENCH_RUBELET=$(realpath "$target/dist/rubelet")
        export RUBELET_BENCH_RUBELET
        profile=release
    fi
    exec cargo bench --quiet --package rubelet --bench "$name" --profile "$profile"
}
