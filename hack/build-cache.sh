# shellcheck shell=bash
# A build directory outside the tree, for hack/test: third-party crates are compiled once for a machine, not once for a
# clone. Cargo by itself still compiles in target/.

# use_build_cache: from now on cargo compiles there, unless another run uses it.
#
# Cargo knows crates of the workspace by name and takes what is not newer than its last build as built, so it would mix
# up two clones. The results for our own crates are therefore discarded when another tree compiled last. Incremental
# data may stay, because the compiler compares contents.
use_build_cache() {
    local dir
    dir=$CACHE/build-$(rustc -vV | sed -n 's/^release: //p; s/^commit-hash: \(.\{8\}\).*/\1/p' | paste -sd-)
    mkdir -p "$dir"
    if ! locked build-cache claim_build_cache "$dir"; then
        say "another run uses the build cache: compiling in target/"
        return
    fi
    forget_other_tree "$dir"
    export CARGO_BUILD_BUILD_DIR=$dir
}

# Until this script ends. A lock on a file would be inherited by processes that it leaves running.
claim_build_cache() {
    [[ ! -s $1/user ]] || ! is_alive "$(<"$1/user")" || return 1
    echo "$$:$(started_at $$)" >"$1/user"
}

# Which tree this is: a copy elsewhere is another one, and so is a new clone in the same place.
tree_identity() {
    local mark=target/build-cache-mark
    mkdir -p target
    [[ -s $mark ]] || cat /proc/sys/kernel/random/uuid >"$mark"
    echo "$PWD $(stat -c %d:%i:%W .) $(<"$mark")"
}

forget_other_tree() {
    local dir=$1 tree member
    tree=$(tree_identity)
    [[ -s $dir/tree && $(<"$dir/tree") == "$tree" ]] && return
    # Should this be cut short, the next run does it again.
    rm -f "$dir/tree"
    prune_build_cache "$dir"
    for member in crates/*/; do
        member=$(basename "$member")
        find "$dir" -maxdepth 4 -type d -regex ".*/\.fingerprint/$member-[0-9a-f]+" -prune -exec rm -rf {} +
    done
    echo "$tree" >"$dir/tree"
}

# Old versions of crates accumulate, and nothing shows which of them are still used.
readonly MOST_CACHED_MIB=20000
prune_build_cache() {
    [[ $(du -sm "$1" | cut -f1) -le $MOST_CACHED_MIB ]] || find "$1" -mindepth 1 -maxdepth 1 -type d -exec rm -rf {} +
}
