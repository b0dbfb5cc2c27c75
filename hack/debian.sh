# shellcheck shell=bash
# Sourced by scripts that take packages from the distribution.

apt_install() { apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=300 "$@"; }

# The mirror this machine already uses, so that none is named here.
debian_mirror() {
    local codename
    # shellcheck disable=SC1091
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:?}")
    apt-get --print-uris update 2>/dev/null |
        sed -n "s#^'\(.*\)/dists/$codename/InRelease'.*#\1#p" | head -n 1
}
