# shellcheck shell=bash
# What every script in hack/ shares: where the cache is, how to speak, how to fail.

# An error inside $(...) ends that too.
shopt -s inherit_errexit

CACHE=${XDG_CACHE_HOME:-${HOME:?}/.cache}/rubelet-test
# Records of the runtime instances and clusters alive on this machine, and the locks that guard them.
# shellcheck disable=SC2034
REGISTRY=/run/rubelet-test

say() { printf '%s\n' "$*" >&2; }
die() {
    say "${0##*/}: $*"
    exit 1
}

need_root() { [[ $EUID -eq 0 ]] || die "needs root: containers, mounts and cgroups are real here"; }

# locked <name> <command...>: one at a time on this machine. Call it plainly, never before `||` or `&&`:
# bash would go on past errors inside the command.
locked() {
    local name=$1
    shift
    mkdir -p "$CACHE"
    (
        flock 9
        "$@"
    ) 9>"$CACHE/$name.lock"
}

# The start time distinguishes a process from a later one with the same pid.
started_at() {
    local stat fields
    { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 0
    read -ra fields <<<"${stat##*) }"
    [[ ${fields[0]} == Z ]] || echo "${fields[19]}"
}

# is_alive <pid>:<start time>
is_alive() { [[ -n ${1#*:} && $(started_at "${1%%:*}") == "${1#*:}" ]]; }

# fact <file> <key>: the value of a key=value line.
fact() { sed -n "s/^$2=//p" "$1" 2>/dev/null | head -n 1; }
