# etcd, API server, controllers, scheduler, in a network namespace of their own.

control_plane_start() {
    start control-plane control-plane unshare --net --mount --uts --cgroup --propagation private sleep infinity
    local id; id=$(<"$STATE/pids/control-plane")
    until_true "the control plane's namespace" 5 namespace_is_new "$id"
    network_start
    etcd_start
    apiserver_start
}

# A shell that has not yet become `unshare`d shows our own namespace.
namespace_is_new() { [ "$(readlink "/proc/$1/ns/cgroup")" != "$(readlink /proc/self/ns/cgroup)" ] && [ "$(<"/proc/$1/comm")" = sleep ]; }

control_plane_wait() {
    until_true "the API server" 60 kubectl get --raw /readyz
    controller_manager_start
    scheduler_start
}

# plane ID COMMAND...: starts a component in the control plane's namespaces.
plane() {
    local id=$1 holder; shift
    holder=$(<"$STATE/pids/control-plane")
    start "$id" control-plane nsenter --target "$holder" --net --mount --uts --cgroup -- "$(programs_folder)/bin/$1" "${@:2}"
}

etcd_start() {
    plane etcd etcd --data-dir "$STATE/etcd" --unsafe-no-fsync --log-level warn \
        --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380
}

apiserver_start() {
    plane apiserver kube-apiserver --etcd-servers http://127.0.0.1:2379 \
        --advertise-address $NODES.1 --bind-address 0.0.0.0 --secure-port 6443 \
        --client-ca-file "$PKI/ca.crt" --tls-cert-file "$PKI/apiserver.crt" --tls-private-key-file "$PKI/apiserver.key" \
        --service-account-issuer https://kubernetes.default.svc \
        --service-account-key-file "$PKI/service-accounts.pub" --service-account-signing-key-file "$PKI/service-accounts.key" \
        --service-cluster-ip-range $SERVICES --authorization-mode Node,RBAC --allow-privileged \
        --enable-admission-plugins OwnerReferencesPermissionEnforcement,NodeRestriction \
        --kubelet-client-certificate "$PKI/admin.crt" --kubelet-client-key "$PKI/admin.key" --kubelet-preferred-address-types InternalIP \
        --feature-gates ImageVolume=true \
        --audit-policy-file "$HERE/audit-policy.yaml" --audit-log-path "$STATE/audit.log" --audit-log-maxsize 500 --audit-log-maxbackup 1
}

controller_manager_start() {
    plane controller-manager kube-controller-manager --kubeconfig "$PKI/controller-manager.kubeconfig" --leader-elect=false \
        --service-account-private-key-file "$PKI/service-accounts.key" --root-ca-file "$PKI/ca.crt" --use-service-account-credentials \
        --cluster-signing-cert-file "$PKI/ca.crt" --cluster-signing-key-file "$PKI/ca.key"
}

scheduler_start() {
    plane scheduler kube-scheduler --kubeconfig "$PKI/scheduler.kubeconfig" --leader-elect=false
}
