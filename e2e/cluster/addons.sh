# What a cluster brings beside its own programs: DNS, and the class of the fake GPUs.

addons_apply() {
    kubectl apply -f "$HERE/manifests/coredns.yaml" -f "$HERE/manifests/deviceclass.yaml" >/dev/null
}

addons_wait() {
    until_true "all nodes to register" 60 nodes_registered
    kubectl wait --for=condition=Ready nodes --all --timeout=60s >/dev/null
    kubectl -n kube-system rollout status deployment/coredns --timeout=60s >/dev/null
}
nodes_registered() { [ "$(kubectl get nodes -o name | wc -l)" = "$(workers | wc -l)" ]; }
