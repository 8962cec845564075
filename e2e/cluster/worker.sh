# A worker: one network and one mount namespace with its containerd, kubelet and kube-proxy.
# In: NAME[:SCENE][:kubelet=CPU], its number. Out: $STATE/NAME (its files), a line in $STATE/workers.
#   SCENE         a folder of node-agent/testdata: the machine that kubelet and pods see
#   kubelet=CPU   static CPU manager and single-numa-node; CPU is the one to hand out, NUMA node n holds the real CPU n

worker_make() {
    local name=${1%%:*} index=$2 scene="" cpu="" part parts
    IFS=: read -ra parts <<<"$1"
    for part in "${parts[@]:1}"; do
        case $part in kubelet=*) cpu=${part#kubelet=} ;; *) scene=$part ;; esac
    done
    [[ $name =~ ^[a-z][a-z0-9-]{0,13}$ ]] || fail "worker '$name': a name is 1 to 14 of a-z, 0-9 and '-'"
    [ $index -le 200 ] || fail "at most 200 workers"
    local folder=$STATE/$name
    mkdir -p "$folder"/{kubelet/pki,containerd,run,cni,cni-state,cdi,log,var,etc,work}
    [ -z "$cpu" ] || scene=${scene:-story}
    echo "$name $index ${scene:--} ${cpu:--}" >>"$STATE/workers"
    groups_make "$name"
    [ -z "$scene" ] || worker_scene "$folder" "$scene" "$cpu"
    start "$name" "$name" unshare --net --mount --uts --cgroup --propagation private "$HERE/worker_boot.sh" "$folder" "$name"
    until_true "worker $name to boot" 10 test -e "$folder/booted"
    network_worker "$name" "$index"
    containerd_configure "$folder" "$index"
    kubelet_configure "$folder/kubelet" "$name" "$(worker_address "$index")" "$cpu"
    containerd_start "$name"
}

# The kubelet's cpuset would name CPUs that are not there, so Kubelet mode lays the scene's NUMA nodes on the real ones.
worker_scene() { # FOLDER SCENE CPU
    local source=$ROOT/node-agent/testdata/$2
    [ -d "$source/root" ] || fail "no scene '$2'; there are: $(cd "$ROOT/node-agent/testdata" && echo */ | tr -d /)"
    [ -z "$3" ] || [ "$3" -lt "$(nproc --all)" ] || fail "kubelet=$3: this machine has CPUs 0 to $(($(nproc --all) - 1))"
    python3 "$HERE/scene.py" "$source" "$1/scene" ${3:+--cpus "$(seq -s, 0 $(($(nproc --all) - 1)))"}
    # Two machines never have the same GPU: every worker of a scene but the first gets uuids of its own.
    local same; same=$(awk -v scene="$2" '$3 == scene' "$STATE/workers" | wc -l)
    [ "$same" -le 1 ] || sed -i -E "s/GPU-[0-9a-f]{4}/GPU-$(printf %04x "$same")/" "$1/scene/nvml.yaml"
    cp "$1/scene/nvml.yaml" "$1/nvml.yaml"      # for `gpus WORKER restore`
}

worker_join() {
    kubelet_start "$1"
    proxy_start "$1"
    if [ -e "$STATE/$1/scene" ]; then devices_start "$1"; fi
}

worker_field() { awk -v name="$1" -v field="$2" '$1 == name { print $field }' "$STATE/workers"; }    # NAME 1..4: name index scene cpu

# work ID WORKER COMMAND...: starts a program in the worker's namespaces.
work() {
    local id=$1 name=$2 holder; shift 2
    holder=$(<"$STATE/pids/$name")
    start "$id-$name" "$name" nsenter --target "$holder" --net --mount --uts --cgroup -- env PATH="$(programs_folder)/bin:$PATH" "$@"
}

containerd_start() {
    rm -f "$STATE/$1/run/containerd/containerd.sock"
    work containerd "$1" containerd --config "$STATE/$1/containerd.toml"
    until_true "containerd of $1" 20 test -S "$STATE/$1/run/containerd/containerd.sock"
}

kubelet_start() {
    work kubelet "$1" kubelet --config /var/lib/kubelet/config.yaml --kubeconfig /var/lib/kubelet/kubeconfig \
        --hostname-override "$1" --node-ip "$(worker_address "$(worker_field "$1" 2)")"
}

# The zeros keep it from setting limits of the whole machine.
proxy_start() {
    work proxy "$1" kube-proxy --kubeconfig "$PKI/proxy.kubeconfig" --hostname-override "$1" --proxy-mode iptables \
        --cluster-cidr $PODS.0.0/16 --conntrack-max-per-core 0 --conntrack-min 0 \
        --conntrack-tcp-timeout-established 0 --conntrack-tcp-timeout-close-wait 0
}

containerd_configure() { # FOLDER INDEX
    containerd_settings "$1/cni" "$(base_spec "$1")" >"$1/containerd.toml"
    worker_cni "$1/cni" "$2"
}

# restrict_oom_score_adj: sandboxes cannot start on machines without CAP_SYS_RESOURCE otherwise.
containerd_settings() { # FOLDER-OF-CNI BASE-SPEC
    cat <<TOML
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "fathom.dev/pause:1"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  enable_cdi = true
  cdi_spec_dirs = ["/etc/cdi"]
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "$1"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    $2
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      SystemdCgroup = false
TOML
}

# No ipMasq: other workers and NetworkPolicies must see a pod's own address.
worker_cni() { # FOLDER INDEX
    cat >"$1/10-pods.conflist" <<JSON
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "ptp", "ipMasq": false, "ipam": {"type": "host-local", "ranges": [[{"subnet": "$PODS.$2.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
JSON
}

# Containers mount a /proc of their own; this lays the scene's memory over it, as lxcfs does.
base_spec() { # FOLDER
    [ -e "$1/scene/root/proc/meminfo" ] || return 0
    "$(programs_folder)/bin/ctr" oci spec | jq --arg from "$1/scene/root/proc/meminfo" \
        '.mounts += [{destination: "/proc/meminfo", type: "bind", source: $from, options: ["bind", "ro"]}]' >"$1/base-spec.json"
    echo "base_runtime_spec = \"$1/base-spec.json\""
}

kubelet_configure() { # FOLDER NAME ADDRESS CPU
    local folder=$1; shift
    certificate "$1" "/O=system:nodes/CN=system:node:$1" "IP:$2,DNS:$1"
    kubeconfig "$1" "$folder/kubeconfig"
    cp "$PKI/ca.crt" "$PKI/$1.crt" "$PKI/$1.key" "$folder/pki/"
    echo "# pods with dnsPolicy Default find nothing" >"$folder/resolv.conf"
    cat >"$folder/config.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {x509: {clientCAFile: /var/lib/kubelet/pki/ca.crt}, anonymous: {enabled: false}, webhook: {enabled: true}}
authorization: {mode: Webhook}
tlsCertFile: /var/lib/kubelet/pki/$1.crt
tlsPrivateKeyFile: /var/lib/kubelet/pki/$1.key
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
clusterDNS: [$DNS]
clusterDomain: cluster.local
resolvConf: /var/lib/kubelet/resolv.conf
featureGates: {ImageVolume: true}
maxPods: 250
imageGCHighThresholdPercent: 100
evictionHard: {nodefs.available: "1%", imagefs.available: "1%", memory.available: "100Mi"}
$(kubelet_mode "$3")
YAML
}

kubelet_mode() { # CPU
    [ -n "$1" ] || return 0
    local others; others=$(seq 0 $(($(nproc --all) - 1)) | grep -vx "$1" | paste -sd,)
    printf 'cpuManagerPolicy: static\ntopologyManagerPolicy: single-numa-node\nreservedSystemCPUs: "%s"\n' "$others"
    # Its one CPU is whole only as long as nobody else asks for a part: who can run elsewhere does.
    echo 'registerWithTaints: [{key: one-exclusive-cpu, effect: PreferNoSchedule}]'
}
