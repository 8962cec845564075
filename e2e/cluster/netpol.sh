# NetworkPolicies enforced for real: kube-router's firewall alone, one process per worker. Slow to build, so only on demand.

kube_router() {
    local key; key=$(cat "$HERE"/netpol/go.{mod,sum} | sha256sum)
    echo "$(dirname "$(programs_folder)")/kube-router-${key:0:12}"
}

#? netpol [off]   enforce NetworkPolicies on every worker from now on (builds kube-router once: some minutes)
cmd_netpol() {
    running || fail "no cluster: ./dev cluster up"
    local worker
    if [ "${1:-on}" = off ]; then
        for worker in $(workers); do netpol_stop "$worker"; done
        return
    fi
    command -v ipset >/dev/null || { say "installing ipset (Debian)"; apt-get update -qq && apt-get install -y -qq --no-install-recommends ipset >/dev/null; }
    if [ ! -x "$(kube_router)" ]; then
        say "building kube-router from its Go module"
        (cd "$HERE/netpol" && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$(kube_router)" github.com/cloudnativelabs/kube-router/v2/cmd/kube-router)
    fi
    for worker in $(workers); do
        alive "$(cat "$STATE/pids/netpol-$worker" 2>/dev/null || echo x)" || netpol_start "$worker"
    done
    for worker in $(workers); do until_true "kube-router on $worker" 60 firewall_is_up "$worker"; done
}

netpol_start() {
    work netpol "$1" "$(kube_router)" --run-firewall=true --run-router=false --run-service-proxy=false --run-loadbalancer=false \
        --kubeconfig="$STATE/kubeconfig" --hostname-override="$1" --service-cluster-ip-range=$SERVICES --health-port=0 --metrics-port=0
}

firewall_is_up() { inside "$1" iptables-save -t filter | grep -q KUBE-ROUTER-FORWARD; }

# kube-router leaves its rules when it ends.
netpol_stop() {
    [ -e "$STATE/pids/netpol-$1" ] || return 0
    cmd_stop "netpol-$1"
    rm "$STATE/pids/netpol-$1"
    inside "$1" sh -c 'iptables-save | grep -vE "KUBE-(ROUTER|NWPLCY|POD-FW)" | iptables-restore; ipset destroy'
}
