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
