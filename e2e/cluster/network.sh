# The network: the control plane's namespace holds a bridge and routes between workers; the machine itself gets one
# veth into it, which vanishes with the namespace.
#   10.89.0.1 control plane   10.89.0.10+i worker i   10.89.0.254 this machine   10.88.i.0/24 pods of worker i

NODES=10.89.0 PODS=10.88 SERVICES=10.96.0.0/16 DNS=10.96.0.10
API=https://$NODES.1:6443
UPLINK=fathom0

worker_address() { echo "$NODES.$((10 + $1))"; }

network_start() {
    local id; id=$(<"$STATE/pids/control-plane")
    local net=(nsenter --target "$id" --net)
    "${net[@]}" sh -c "
        ip link set lo up
        ip link add fathom type bridge
        ip addr add $NODES.1/24 dev fathom
        ip link set fathom up
        sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.fathom.send_redirects=0"
    ip link add $UPLINK type veth peer name machine netns "$id"
    "${net[@]}" ip link set machine master fathom up
    ip addr add $NODES.254/24 dev $UPLINK
    ip link set $UPLINK up
    ip route add $PODS.0.0/16 via $NODES.1
    ip route add $SERVICES via "$(worker_address 1)"    # its kube-proxy translates service addresses for us
}

network_worker() { # NAME INDEX
    local name=$1 index=$2 worker plane address
    worker=$(<"$STATE/pids/$name") plane=$(<"$STATE/pids/control-plane") address=$(worker_address "$2")
    # ip takes "a" for "address" and "b" for "broadcast", unless it is told that a name follows.
    nsenter --target "$plane" --net ip link add name "$name" type veth peer name eth0 netns "$worker"
    nsenter --target "$plane" --net ip link set dev "$name" master fathom up
    nsenter --target "$worker" --net sh -c "
        ip link set lo up
        ip addr add $address/24 dev eth0
        ip link set eth0 up
        ip route add default via $NODES.1
        sysctl -qw net.ipv4.ip_forward=1"
    nsenter --target "$plane" --net ip route add "$PODS.$index.0/24" via "$address"
}
