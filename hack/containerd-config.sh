# shellcheck shell=bash
# Renders the configuration of a private containerd and of its pod network. Sourced by hack/runtime.
# Everything that containerd would put into a shared directory is moved below <dir>. The handler "second" is runc
# once more, under another name: for runtime classes.

PAUSE_IMAGE=rubelet.test/pause:1

# containerd_config <dir> <1.6|1.7|2.1|2.4> <snapshotter>
containerd_config() {
    local dir=$1 version=$2 snapshotter=$3
    case $version in
        2.*) echo "version = 3" ;;
        *) echo "version = 2" ;;
    esac
    cat <<TEXT
root = "$dir/containerd/root"
state = "$dir/containerd/state"
disabled_plugins = [$(unused_plugins "$version" "$snapshotter")]

[grpc]
  address = "$dir/containerd.sock"

[plugins."io.containerd.internal.v1.opt"]
  path = "$dir/containerd/opt"

TEXT
    case $version in
        1.6) cri_config_v2 "$dir" "$snapshotter" "" ;;
        1.7) cri_config_v2 "$dir" "$snapshotter" "enable_cdi = false" ;;
        2.*)
            cri_config_v3 "$dir" "$snapshotter"
            [[ -z ${RUBELET_TEST_RUNC:-} ]] || younger_runc "$dir" "$RUBELET_TEST_RUNC"
            ;;
    esac
}

# younger_runc <dir> <binary>: the handler "younger".
younger_runc() {
    cat <<TEXT

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.younger]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.younger.options]
  BinaryName = "$2"
  Root = "$1/runc"
  SystemdCgroup = false
TEXT
}

# Left out because they take time at the start, use paths outside of <dir>, or both.
unused_plugins() {
    local version=$1 snapshotter=$2 unused=(snapshotter.v1.btrfs snapshotter.v1.zfs snapshotter.v1.devmapper)
    case $version in
        1.6) unused+=(snapshotter.v1.aufs internal.v1.restart internal.v1.tracing tracing.processor.v1.otlp) ;;
        1.7) unused+=(snapshotter.v1.aufs snapshotter.v1.blockfile internal.v1.restart nri.v1.nri internal.v1.tracing tracing.processor.v1.otlp) ;;
        2.*) unused+=(snapshotter.v1.blockfile snapshotter.v1.erofs monitor.container.v1.restart nri.v1.nri internal.v1.tracing tracing.processor.v1.otlp) ;;
    esac
    [[ $snapshotter == native ]] || unused+=(snapshotter.v1.native)
    printf '"io.containerd.%s", ' "${unused[@]}"
}

# cri_config_v2 <dir> <snapshotter> <extra line>
cri_config_v2() {
    cat <<TEXT
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$PAUSE_IMAGE"
  restrict_oom_score_adj = true
  tolerate_missing_hugetlb_controller = true
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  $3

[plugins."io.containerd.grpc.v1.cri".registry]
  config_path = "$1/registry"

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "$1/cni/net.d"

[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "$2"
  default_runtime_name = "runc"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  Root = "$1/runc"
  SystemdCgroup = false

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.second]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.second.options]
  Root = "$1/runc"
  SystemdCgroup = false
TEXT
}

# cri_config_v3 <dir> <snapshotter>
cri_config_v3() {
    cat <<TEXT
[plugins."io.containerd.metadata.v1.bolt"]
  no_sync = true

[plugins."io.containerd.image-verifier.v1.bindir"]
  bin_dir = "$1/containerd/verifiers"

[plugins."io.containerd.grpc.v1.cri"]
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"

[plugins."io.containerd.cri.v1.images"]
  snapshotter = "$2"

[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "$PAUSE_IMAGE"

[plugins."io.containerd.cri.v1.images".registry]
  config_path = "$1/registry"

[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  enable_cdi = false

[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = "$1/cni/net.d"

[plugins."io.containerd.cri.v1.runtime".containerd]
  default_runtime_name = "runc"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  Root = "$1/runc"
  SystemdCgroup = false

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.second]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.second.options]
  Root = "$1/runc"
  SystemdCgroup = false
TEXT
}

# cni_config <dir> <network> <bridge> <subnet>
cni_config() {
    cat <<TEXT
{
  "cniVersion": "0.4.0",
  "name": "$2",
  "plugins": [
    {
      "type": "bridge",
      "bridge": "$3",
      "isGateway": true,
      "hairpinMode": true,
      "ipam": {
        "type": "host-local",
        "dataDir": "$1/cni/ipam",
        "ranges": [[{ "subnet": "$4" }]],
        "routes": [{ "dst": "0.0.0.0/0" }]
      }
    },
    { "type": "portmap", "capabilities": { "portMappings": true } }
  ]
}
TEXT
}
