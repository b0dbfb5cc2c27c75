# shellcheck shell=bash
# Sourced by hack/parts: Kubernetes' own programs, built from its published Go modules. hack/kubernetes
# pins them; the cache keeps the result by version.

CONTROL_PLANE=(kube-apiserver kube-controller-manager kube-scheduler kubectl)
# For comparisons with the upstream kubelet only: no test needs them.
# shellcheck disable=SC2034
NODE_PROGRAMS=("${CONTROL_PLANE[@]}" kubelet kubeadm)
# Upstream's node suite, its test runner, and programs for the images that it pulls.
# shellcheck disable=SC2034
SUITE_PROGRAMS=(e2e_node.test ginkgo agnhost sample-device-plugin nonewprivs)

kubernetes_version() { awk '$1 == "k8s.io/kubernetes" {print $2}' "$here/kubernetes/go.mod"; }

# kubernetes_path <program...>: the directory that has these.
kubernetes_path() {
    local dir
    dir=$CACHE/kubernetes-$(kubernetes_version)
    [[ -z $(missing_programs "$dir" "$@") ]] || locked kubernetes build_kubernetes "$dir" "$@"
    echo "$dir"
}

missing_programs() {
    local dir=$1 program
    shift
    for program in "$@"; do
        [[ -x $dir/$program ]] || echo "$program"
    done
}

# One after the other, each moved into place when complete: an interrupted build continues there.
build_kubernetes() {
    local dir=$1 go work program start=$SECONDS programs
    mapfile -t programs < <(missing_programs "$@")
    [[ ${#programs[@]} -gt 0 ]] || return 0
    go=$(go_command)
    mkdir -p "$dir"
    work=$CACHE/build-kubernetes
    rm -rf "$work"
    mkdir "$work"
    say "building Kubernetes $(kubernetes_version): ${programs[*]} (once for this machine)"
    say "  fetching its modules"
    go_run "$go" mod download
    for program in "${programs[@]}"; do
        say "  $((SECONDS - start))s: building $program"
        build_program "$go" "$program" "$work/$program"
        mv "$work/$program" "$dir/$program"
    done
    rm -rf "$work"
    say "  $((SECONDS - start))s: done"
}

# build_program <go> <name> <output>
build_program() {
    local build=(build) package
    case $2 in
        *.test) build=(test -c -vet=off) && package=k8s.io/kubernetes/test/${2%.test} ;;
        ginkgo) package=github.com/onsi/ginkgo/v2/ginkgo ;;
        agnhost | sample-device-plugin | nonewprivs) package=k8s.io/kubernetes/test/images/$2 ;;
        *) package=k8s.io/kubernetes/cmd/$2 ;;
    esac
    go_run "$1" "${build[@]}" -trimpath -ldflags "$(kubernetes_stamp)" -o "$3" "$package"
}

metrics_server_path() {
    local version program
    version=$(awk '$1 == "sigs.k8s.io/metrics-server" {print $2}' "$here/metrics-server/go.mod")
    program=$CACHE/metrics-server-$version/metrics-server
    [[ -x $program ]] || locked kubernetes build_metrics_server "$program"
    echo "$program"
}

# With the flags of Kubernetes' own programs: what was compiled for those is not compiled again.
build_metrics_server() {
    local program=$1
    [[ ! -x $program ]] || return 0
    say "building the metrics-server (once for this machine)"
    mkdir -p "${program%/*}"
    module=metrics-server go_run "$(go_command)" build -trimpath -ldflags '-s -w' -o "$program.part" \
        sigs.k8s.io/metrics-server/cmd/metrics-server
    mv "$program.part" "$program"
}

# It is part of Go, as source.
pprof_path() {
    local program
    program=$CACHE/pprof-$(go_wanted)/pprof
    [[ -x $program ]] || locked kubernetes build_pprof "$program"
    echo "$program"
}

build_pprof() {
    local program=$1
    [[ ! -x $program ]] || return 0
    say "building pprof (once for this machine)"
    mkdir -p "${program%/*}"
    go_run "$(go_command)" build -trimpath -ldflags '-s -w' -o "$program.part" cmd/pprof
    mv "$program.part" "$program"
}

# One line per package: what it is the interface of, and its directory in the module cache.
protocol_paths() {
    local go name source package dir
    go=$(go_command)
    while read -r name source package; do
        dir=$(go_run "$go" mod download -json "$source" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
        [[ -n $dir ]] || die "could not fetch $source"
        echo "$name $dir/$package"
    done <<'TEXT'
cri k8s.io/cri-api pkg/apis/runtime/v1
registration k8s.io/kubelet pkg/apis/pluginregistration/v1
pods k8s.io/kubelet pkg/apis/pods/v1alpha1
core k8s.io/api core/v1
core k8s.io/apimachinery pkg/apis/meta/v1
core k8s.io/apimachinery pkg/api/resource
core k8s.io/apimachinery pkg/util/intstr
csi github.com/container-storage-interface/spec lib/go/csi
containerd github.com/containerd/containerd/api services/events/v1
containerd github.com/containerd/containerd/api types
containerd github.com/containerd/containerd/api events
otlp go.opentelemetry.io/proto/otlp collector/trace/v1
otlp go.opentelemetry.io/proto/otlp trace/v1
otlp go.opentelemetry.io/proto/otlp common/v1
otlp go.opentelemetry.io/proto/otlp resource/v1
TEXT
}

# The user's own Go settings must not matter: the pinned module and its checksums count.
go_run() {
    local go=$1
    shift
    (cd "$here/${module:-kubernetes}" && CGO_ENABLED=0 GOWORK=off GOFLAGS=-mod=readonly nice -n 19 "$go" "$@" </dev/null)
}

# The version that upstream's release build sets, as far as a published module has it.
kubernetes_stamp() {
    local version package number
    version=$(kubernetes_version)
    IFS=. read -ra number <<<"${version#v}"
    printf -- '-s -w'
    for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
        printf -- ' -X %s.%s' "$package" "gitVersion=$version" "$package" "gitMajor=${number[0]}" \
            "$package" "gitMinor=${number[1]}" "$package" gitTreeState=clean
    done
}

# --- the Go toolchain ------------------------------------------------------------------------

# The newest that any of our modules asks for.
go_wanted() { awk '$1 == "go" {print $2}' "$here"/*/go.mod | sort -V | tail -n 1; }

# The first Go of this machine that is new enough. Without one, the release comes as a module, by whatever
# Go there is or by the distribution's: checked against the checksum database like any other.
go_command() {
    local wanted go fetched
    wanted=$(go_wanted)
    fetched=$CACHE/go-$wanted/bin/go
    for go in $(type -P go || true) /usr/local/go/bin/go /usr/lib/go-*/bin/go "$fetched"; do
        if is_go_new_enough "$go" "$wanted"; then
            echo "$go"
            return
        fi
    done
    fetch_go "$wanted" "$fetched" >&2
    echo "$fetched"
}

is_go_new_enough() {
    local has
    has=$(cd / && GOTOOLCHAIN=local "$1" version 2>/dev/null | sed -nE 's/^go version go([0-9.]+).*/\1/p') || return 1
    [[ -n $has && $(printf '%s\n' "$2" "$has" | sort -V | head -n 1) == "$2" ]]
}

fetch_go() {
    local wanted=$1 fetched=$2 go work module
    go=$(type -P go || true)
    if [[ -z $go ]]; then
        say "installing golang-go, to fetch Go $wanted"
        need_root
        DEBIAN_FRONTEND=noninteractive apt_install golang-go >"$CACHE/apt.log" 2>&1 </dev/null ||
            { apt-get update && DEBIAN_FRONTEND=noninteractive apt_install golang-go; } >"$CACHE/apt.log" 2>&1 </dev/null ||
            die "could not install golang-go (see $CACHE/apt.log)"
        go=$(type -P go)
    fi
    say "fetching Go $wanted"
    work=$CACHE/fetch-go
    [[ ! -d $work ]] || chmod -R u+w "$work"
    rm -rf "$work"
    module=golang.org/toolchain@v0.0.1-go$wanted.linux-$(dpkg --print-architecture)
    mkdir -p "$work"
    (cd "$work" && GOMODCACHE=$work/modules GOTOOLCHAIN=local GOFLAGS=-modcacherw "$go" mod download "$module" </dev/null)
    # A module's archive keeps no permissions.
    chmod -R u+w,+x "$work/modules/$module"/{bin,pkg/tool}
    rm -rf "${fetched%/bin/go}"
    mv "$work/modules/$module" "${fetched%/bin/go}"
    rm -rf "$work"
}
