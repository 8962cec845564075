# What the cluster consists of: Debian packages, and programs built from their Go modules.
# Out: $(programs_folder)/{kube,pause,bin/*}, outside the checkout so that clones share them.

VERSION=1.34.4
PROGRAMS=$HERE/programs
PACKAGES=(runc containernetworking-plugins iptables conntrack iproute2 socat buildah busybox-static openssl jq binutils)
COMPONENTS=(kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl etcd)

packages() {
    local missing=()
    mapfile -t missing < <(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "${PACKAGES[@]}" 2>/dev/null \
        | awk '$2 == "installed" { print $1 }' | sort | comm -13 - <(printf '%s\n' "${PACKAGES[@]}" | sort))
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null || fail "install ${missing[*]} (this machine has no apt-get)"
    say "installing ${missing[*]} (Debian)"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# Named after all that decides what is built.
programs_folder() {
    if [ -z "${PROGRAMS_FOLDER:-}" ]; then
        local key
        key=$(cd "$PROGRAMS" && { find . -path ./fakegpus -prune -o \( -name '*.go' -o -name go.mod -o -name go.sum \) -print | sort | xargs cat; go env GOVERSION; } | sha256sum)
        PROGRAMS_FOLDER=${XDG_CACHE_HOME:-$HOME/.cache}/fathom/cluster/${key:0:12}
    fi
    echo "$PROGRAMS_FOLDER"
}

programs() {
    command -v go >/dev/null || fail "go is missing: install Go 1.26 or later (https://go.dev)"
    local folder; folder=$(programs_folder)
    [ -e "$folder/.complete" ] && return
    say "building Kubernetes $VERSION, etcd, containerd, CoreDNS and Helm from their Go modules (once: 10 to 15 minutes on two cores)"
    mkdir -p "$folder/bin"
    (
        cd "$PROGRAMS" || exit
        export CGO_ENABLED=0
        go build -trimpath -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v$VERSION" -o "$folder/kube" .
        go build -trimpath -ldflags "-s -w" -o "$folder/" ./pause
        go build -trimpath -tags "no_btrfs no_devmapper no_zfs" -ldflags "-s -w" -o "$folder/bin/" \
            helm.sh/helm/v3/cmd/helm github.com/containerd/containerd/v2/cmd/{containerd,containerd-shim-runc-v2,ctr} \
            github.com/coredns/coredns
    )
    local name; for name in "${COMPONENTS[@]}"; do ln -sf ../kube "$folder/bin/$name"; done
    touch "$folder/.complete"
}
