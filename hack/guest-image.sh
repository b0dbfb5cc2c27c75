# shellcheck shell=bash
# Sourced by hack/guest: the root filesystem and the kernels of guests, in the cache directory. One image serves both forms.

GUEST_PACKAGES=systemd,systemd-sysv,dbus,udev,kmod,iproute2,iptables,procps,containerd,runc,containernetworking-plugins,busybox-static
GUEST_PACKAGES+=,e2fsprogs,xfsprogs,quota,numactl,linux-image-cloud-amd64,initramfs-tools,zstd
# What this machine needs.
GUEST_TOOLS=(user-mode-linux mmdebstrap qemu-system-x86 e2fsprogs)

# What goes into the image makes another one, the kernel of user-mode-linux too: its modules are in there.
guest_image_path() {
    local key dir
    locked guest-tools install_guest_tools
    key=$(cat "$here/guest-image.sh" "$here"/guest.d/* /usr/bin/linux.uml /etc/debian_version | sha256sum | cut -c1-16)
    dir=$CACHE/guest-$key
    [[ -d $dir ]] || locked guest build_guest_image "$dir"
    touch "$dir"
    echo "$dir"
}

install_guest_tools() {
    [[ ! -x /usr/bin/linux.uml || ! -x /usr/bin/mmdebstrap || ! -x /usr/bin/qemu-system-x86_64 || ! -x /sbin/mke2fs ]] || return 0
    need_root
    say "installing ${GUEST_TOOLS[*]}"
    apt_install "${GUEST_TOOLS[@]}" >"$CACHE/apt-guest.log" 2>&1 </dev/null && return 0
    apt-get update >>"$CACHE/apt-guest.log" 2>&1 </dev/null
    apt_install "${GUEST_TOOLS[@]}" >>"$CACHE/apt-guest.log" 2>&1 </dev/null || die "could not install ${GUEST_TOOLS[*]} (see $CACHE/apt-guest.log)"
}

# The mounts that mmdebstrap makes are in a namespace of their own, and its processes too: should this be killed, none is left.
build_guest_image() {
    local dir=$1 work=$CACHE/guest.part mirror codename status=0
    [[ ! -d $dir ]] || return 0
    need_root
    mirror=$(debian_mirror)
    [[ -n $mirror ]] || die "no Debian mirror among this machine's apt sources"
    # shellcheck disable=SC1091
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:?}")
    say "building the guest's image (once for this machine, about two minutes)"
    rm -rf --one-file-system "$work"
    mkdir -p "$work/tmp" "$work/image"
    TMPDIR=$work/tmp setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child mmdebstrap --mode=root --variant=minbase \
        --include="$GUEST_PACKAGES" --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' --aptopt='Acquire::Check-Valid-Until "false"' \
        --customize-hook="'$here/guest.d/customize' \"\$1\" '$here/guest.d'" \
        "$codename" "$work/root" "$mirror" >"$CACHE/guest-image.log" 2>&1 </dev/null || status=$?
    if [[ $status -ne 0 ]]; then
        tail -n 20 "$CACHE/guest-image.log" >&2
        die "could not make the guest's root filesystem (see above, and $CACHE/guest-image.log)"
    fi
    take_kernels "$work"
    mke2fs -q -t ext4 -O ^has_journal -d "$work/root" "$work/image/disk.img" 8G
    mv "$work/image" "$dir"
    rm -rf --one-file-system "$work"
    # Those of earlier recipes.
    find "$CACHE" -maxdepth 1 -type d -name 'guest-*' -mtime +3 -exec rm -rf {} +
}

take_kernels() {
    local work=$1 modules
    cp /usr/bin/linux.uml "$work/image/linux.uml"
    cp "$work"/root/boot/vmlinuz-* "$work/image/vmlinuz"
    cp "$work"/root/boot/initrd.img-* "$work/image/initrd"
    rm -rf "$work/root/boot"
    mkdir "$work/root/boot"
    for modules in /usr/lib/uml/modules/*; do
        cp -r "$modules" "$work/root/lib/modules/${modules##*/}"
    done
}
