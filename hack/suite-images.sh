# shellcheck shell=bash
# Sourced by hack/parts: stand-ins for the images that upstream's node suite pulls. They are written as the storage of an
# image registry (Debian's docker-registry serves it), so that nothing has to be pushed. Programs come from the
# Kubernetes module and from this machine's packages.

# What the suite names, without the host. Images that only [Serial], [Slow] or [Feature] specs use are not here:
# node-perf, cadvisor, etcd, volume/nfs, node-problem-detector, apparmor-loader.
SUITE_BUSYBOX=(e2e-test-images/busybox:1.37.0-1 e2e-test-images/busybox:1.36.1-1 e2e-test-images/glibc-dns-testing:2.0.0)
SUITE_AGNHOST=(e2e-test-images/agnhost:2.63.0 e2e-test-images/agnhost:2.55)
SUITE_NGINX=(e2e-test-images/nginx:1.15-4 e2e-test-images/nginx:1.27-0)
SUITE_PAUSE=pause:3.10.2

suite_images_path() {
    local programs key store
    programs=$(kubernetes_path "${SUITE_PROGRAMS[@]}")
    key=$(cat "$here/parts" "$here/suite-images.sh" "$here/pause.c" /bin/busybox | sha256sum | cut -c1-16)
    store=$CACHE/suite-images-$(kubernetes_version)-$key
    [[ -d $store ]] || locked suite-images build_suite_images "$store" "$programs"
    echo "$store"
}

build_suite_images() {
    local store=$1 programs=$2 work
    [[ ! -d $store ]] || return 0
    install_suite_packages
    say "building stand-ins for the node suite's images"
    work=$(mktemp -d "$CACHE/suite-images.XXXXXX")
    # shellcheck disable=SC2064
    trap "rm -rf '$work'" EXIT
    local base pause
    busybox_tree "$work/busybox"
    add_shell "$work/busybox"
    add_nmeter "$work/busybox"
    base=$(layer "$work" busybox)
    pause_tree "$work/pause"
    pause=$(layer "$work" pause)
    publish "$work" "$SUITE_PAUSE" '"Entrypoint":["/pause"]' "$pause"
    publish_all "$work" '"Cmd":["sh"]' "$base" -- "${SUITE_BUSYBOX[@]}"
    agnhost_tree "$work/agnhost" "$programs/agnhost" "$work/store"
    publish_all "$work" '"Entrypoint":["/agnhost"],"Cmd":["pause"]' "$base" "$(layer "$work" agnhost)" -- "${SUITE_AGNHOST[@]}"
    nginx_tree "$work/nginx"
    publish_all "$work" '"Entrypoint":["nginx"]' "$base" "$(layer "$work" nginx)" -- "${SUITE_NGINX[@]}"
    small_images "$work" "$programs" "$base"
    # The directory is put in place whole.
    mv "$work/store" "$store"
}

# Of which the images get programs, with their libraries.
install_suite_packages() {
    unpack_package netcat-openbsd "$CACHE/netcat-openbsd/bin/nc.openbsd"
    unpack_package bash-static "$CACHE/bash-static/bin/bash-static"
    [[ -x /usr/bin/curl && -x /usr/bin/ipcs ]] || apt_install curl util-linux >"$CACHE/apt-suite.log" 2>&1 </dev/null ||
        die "could not install curl and util-linux (see $CACHE/apt-suite.log)"
}

small_images() {
    local work=$1 programs=$2 base=$3
    publish "$work" e2e-test-images/nonroot:1.5 '"User":"1234"' "$base"
    mkdir -p "$work/nnp/bin" "$work/plugin" "$work/ipc" "$work/perl" "$work/kitten/etc"
    install -m 4755 "$programs/nonewprivs" "$work/nnp/bin/nnp"
    publish "$work" e2e-test-images/nonewprivs:1.4 '"Cmd":["nnp"]' "$base" "$(layer "$work" nnp)"
    install "$programs/sample-device-plugin" "$work/plugin/sampledeviceplugin"
    publish "$work" e2e-test-images/sample-device-plugin:1.7 '"Entrypoint":["/sampledeviceplugin","-alsologtostderr"]' \
        "$base" "$(layer "$work" plugin)"
    add_program "$work/ipc" /usr/bin/ipcs
    publish "$work" e2e-test-images/ipc-utils:1.4 '"Cmd":["sh"]' "$base" "$(layer "$work" ipc)"
    add_program "$work/perl" /usr/bin/perl
    publish "$work" e2e-test-images/perl:5.26 '"Cmd":["perl"]' "$base" "$(layer "$work" perl)"
    # Specs of image volumes read these two files.
    echo '{"image": "kitten.jpg"}' >"$work/kitten/data.json"
    echo 'NAME="Alpine Linux"' >"$work/kitten/etc/os-release"
    publish "$work" e2e-test-images/kitten:1.8 '"Cmd":["sh"]' "$base" "$(layer "$work" kitten)"
}

# --- trees -----------------------------------------------------------------------------------

# The shell of the distribution's busybox drops variables whose names it does not like, which some specs set, and bash does
# not. Other specs want the words of busybox' shell, so it is bash only where such a variable is there.
add_shell() {
    install "$CACHE/bash-static/bin/bash-static" "$1/bin/bash"
    rm -f "$1/bin/sh"
    gcc -static -Os -s -o "$1/bin/sh" -x c - <<'TEXT'
#include <ctype.h>
#include <unistd.h>

extern char **environ;

static int is_name(const char *c) {
    while (isalnum((unsigned char)*c) || *c == '_') c++;
    return *c == '=';
}

int main(int count, char **arguments) {
    (void)count;
    for (char **variable = environ; *variable; variable++)
        if (!is_name(*variable)) execv("/bin/bash", arguments);
    execv("/bin/busybox", arguments);
    return 127;
}
TEXT
}

# Specs about the order of containers have each write the time, with milliseconds, as busybox' nmeter does when it is
# asked for '%3t'. The distribution's busybox has no nmeter.
add_nmeter() {
    gcc -static -Os -s -o "$1/bin/nmeter" -x c - <<'TEXT'
#include <stdio.h>
#include <sys/time.h>
#include <time.h>

int main(void) {
    struct timeval now;
    char text[16];
    gettimeofday(&now, NULL);
    strftime(text, sizeof text, "%H:%M:%S", gmtime(&now.tv_sec));
    printf("%s.%03ld\n", text, (long)now.tv_usec / 1000);
    return 0;
}
TEXT
}

# add_program <tree> <path> [name]: the program in /bin, and the shared libraries it names, where its loader looks for them.
add_program() {
    local tree=$1 library
    install -D "$2" "$tree/bin/${3:-${2##*/}}"
    while read -r library; do
        install -D "$library" "$tree$library"
    done < <(ldd "$2" | grep -oE '/[^ ]+')
}

# agnhost_tree <tree> <program> <store>
agnhost_tree() {
    local tree=$1 source
    source=$(go_run "$(go_command)" list -m -f '{{.Dir}}' k8s.io/kubernetes)/test/images/agnhost
    mkdir -p "$tree"/{uploads,etc}
    install "$2" "$tree/agnhost"
    ln -s agnhost "$tree/agnhost-2"
    # Busybox' shell takes its own programs before those in the image, such as nc.
    mkdir -p "$tree/bin"
    ln -s bash "$tree/bin/sh"
    install -m 644 "$source/porter/localhost.crt" "$source/porter/localhost.key" "$tree/"
    # A spec wants groups that the image itself gives to this user.
    printf '%s\n' root:x:0:0:root:/root:/bin/sh user-defined-in-image:x:1000:1000::/home/user:/bin/sh \
        nobody:x:65534:65534:nobody:/:/bin/sh >"$tree/etc/passwd"
    printf '%s\n' root:x:0: user-defined-in-image:x:1000: group-defined-in-image:x:50000:user-defined-in-image \
        nogroup:x:65534: >"$tree/etc/group"
    add_program "$tree" /usr/bin/curl
    add_program "$tree" "$CACHE/netcat-openbsd/bin/nc.openbsd" nc
    private_registry_tree "$tree/var/registry/pause" "$3"
}

# private_registry_tree <directory> <store>: agnhost can be a registry itself, which has the pause image, by the tag "testing".
private_registry_tree() {
    local dir=$1 store=$2 manifest digest
    manifest=$(<"$store/repositories/${SUITE_PAUSE%:*}/_manifests/tags/${SUITE_PAUSE#*:}/current/link")
    mkdir -p "$dir/manifests"
    echo "$manifest" >"$dir/manifests/testing"
    copy_blob "$store" "${manifest#*:}" "$dir/manifests"
    while read -r digest; do
        copy_blob "$store" "$digest" "$dir/blobs"
    done < <(grep -oE 'sha256:[0-9a-f]{64}' "$(blob_path "$store" "${manifest#*:}")" | cut -d: -f2)
}

copy_blob() { install -D -m 644 "$(blob_path "$1" "$2")" "$3/sha256/${2:0:2}/$2/data"; }

# Something that serves a page, is called nginx, and says its pid where nginx does.
nginx_tree() {
    mkdir -p "$1/bin" "$1/www" "$1/var/run"
    echo '<h1>Welcome to nginx!</h1>' >"$1/www/index.html"
    cat >"$1/bin/nginx" <<'TEXT'
#!/bin/sh
echo $$ >/var/run/nginx.pid
busybox httpd -f -p 80 -h /www &
trap 'kill $!; exit 0' TERM INT QUIT
wait
TEXT
    chmod 755 "$1/bin/nginx"
}

# --- the registry's storage ------------------------------------------------------------------

blob_path() { echo "$1/blobs/sha256/${2:0:2}/$2/data"; }

# store_blob <store> <file>: moves it in and prints its digest.
store_blob() {
    local digest path
    digest=$(sha256sum <"$2" | cut -d' ' -f1)
    path=$(blob_path "$1" "$digest")
    mkdir -p "${path%/*}"
    mv "$2" "$path"
    echo "$digest"
}

# layer <work> <tree>: prints the digest. Layers are not compressed, so it is the diff's as well.
layer() {
    pack "$1/$2" "$1/layer.part"
    store_blob "$1/store" "$1/layer.part"
}

# link_digest <file> <digest>
link_digest() {
    mkdir -p "${1%/*}"
    printf 'sha256:%s' "$2" >"$1"
}

# descriptor <store> <media type> <digest>
descriptor() {
    printf '{"mediaType":"application/vnd.oci.image.%s","size":%s,"digest":"sha256:%s"}' "$2" "$(stat -c %s "$(blob_path "$1" "$3")")" "$3"
}

# publish_all <work> <config fields> <layer digest...> -- <name...>: each with a label layer, so that tags differ.
publish_all() {
    local work=$1 settings=$2 layers=() name
    shift 2
    while [[ $1 != -- ]]; do layers+=("$1") && shift; done
    shift
    for name in "$@"; do
        mkdir -p "$work/label/etc"
        echo "$name" >"$work/label/etc/rubelet-image"
        publish "$work" "$name" "$settings" "${layers[@]}" "$(layer "$work" label)"
    done
}

# publish <work> <name:tag> <config fields> <layer digest...>
publish() {
    local work=$1 store=$1/store name=${2%:*} tag=${2#*:} settings=$3 digest config manifest diffs='' layers=''
    local repository=$store/repositories/$name
    shift 3
    for digest in "$@"; do
        diffs+=",\"sha256:$digest\""
        layers+=,$(descriptor "$store" layer.v1.tar "$digest")
        link_digest "$repository/_layers/sha256/$digest/link" "$digest"
    done
    printf '{"architecture":"%s","os":"linux","created":"2000-01-01T00:00:00Z","config":{"Env":["PATH=/usr/bin:/bin"],%s},"rootfs":{"type":"layers","diff_ids":[%s]}}' \
        "$(dpkg --print-architecture)" "$settings" "${diffs:1}" >"$work/config.part"
    config=$(store_blob "$store" "$work/config.part")
    link_digest "$repository/_layers/sha256/$config/link" "$config"
    printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":%s,"layers":[%s]}' \
        "$(descriptor "$store" config.v1+json "$config")" "${layers:1}" >"$work/manifest.part"
    manifest=$(store_blob "$store" "$work/manifest.part")
    link_digest "$repository/_manifests/revisions/sha256/$manifest/link" "$manifest"
    link_digest "$repository/_manifests/tags/$tag/current/link" "$manifest"
    link_digest "$repository/_manifests/tags/$tag/index/sha256/$manifest/link" "$manifest"
}
