# Keys and kubeconfigs of one cluster, made anew with each: $STATE/pki, $STATE/kubeconfig (the administrator's).

PKI=$STATE/pki

certificates() {
    mkdir -p "$PKI"
    chmod 700 "$PKI"
    key ca
    openssl req -x509 -new -key "$PKI/ca.key" -out "$PKI/ca.crt" -days 30 -subj /CN=fathom-cluster 2>/dev/null
    certificate apiserver /CN=kube-apiserver "IP:$NODES.1,IP:127.0.0.1,IP:10.96.0.1,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local"
    certificate admin /O=system:masters/CN=admin
    certificate controller-manager /CN=system:kube-controller-manager
    certificate scheduler /CN=system:kube-scheduler
    certificate proxy /CN=system:kube-proxy
    key service-accounts
    openssl pkey -in "$PKI/service-accounts.key" -pubout -out "$PKI/service-accounts.pub"
    local user
    for user in controller-manager scheduler proxy; do kubeconfig $user "$PKI/$user.kubeconfig"; done
    kubeconfig admin "$STATE/kubeconfig"
}

key() { openssl ecparam -name prime256v1 -genkey -noout -out "$PKI/$1.key"; }

certificate() { # NAME SUBJECT [SUBJECT-ALTERNATIVE-NAMES]
    key "$1"
    openssl req -new -key "$PKI/$1.key" -subj "$2" 2>/dev/null |
        openssl x509 -req -CA "$PKI/ca.crt" -CAkey "$PKI/ca.key" -CAcreateserial -days 30 -out "$PKI/$1.crt" \
            -extfile <(echo "basicConstraints=CA:FALSE"; [ -z "${3:-}" ] || echo "subjectAltName=$3") 2>/dev/null
}

# Everything embedded, so that the file works from any namespace and can be copied.
kubeconfig() { # USER FILE
    cat >"$2" <<YAML
apiVersion: v1
kind: Config
current-context: fathom-cluster
clusters: [{name: fathom-cluster, cluster: {server: "$API", certificate-authority-data: $(base64 -w0 "$PKI/ca.crt")}}]
contexts: [{name: fathom-cluster, context: {cluster: fathom-cluster, user: $1}}]
users: [{name: $1, user: {client-certificate-data: $(base64 -w0 "$PKI/$1.crt"), client-key-data: $(base64 -w0 "$PKI/$1.key")}}]
YAML
    chmod 600 "$2"
}
