# A worker with two real NUMA nodes: a guest in QEMU (software emulation), on the cluster's bridge. Slow, so only on demand.
# Everything of the guest is in $STATE/qemu; its files come from this machine and the cluster's own programs.

GUEST=qemu GUEST_INDEX=200
GUEST_FOLDER=$STATE/qemu
# Two NUMA nodes of two CPUs each: enough that a static CPU manager has one to give on either, beside a reserved one.
GUEST_MACHINE=(-M q35 -accel "tcg,thread=multi" -cpu max -m 3G -smp "4,sockets=2,cores=2"
    -object "memory-backend-ram,id=m0,size=1536M" -object "memory-backend-ram,id=m1,size=1536M"
    -numa "node,cpus=0-1,memdev=m0" -numa "node,cpus=2-3,memdev=m1" -numa "dist,src=0,dst=1,val=21")

#? qemu [off]   add a worker with two real NUMA nodes to the running cluster: a guest in QEMU, Ready within minutes
cmd_qemu() {
    running || fail "no cluster: ./dev cluster up"
    if [ "${1:-on}" = off ]; then guest_off; return; fi
    if alive "$(cat "$STATE/pids/$GUEST" 2>/dev/null || echo x)"; then say "the guest runs already"; return; fi
    local began=$SECONDS
    guest_packages
    mkdir -p "$GUEST_FOLDER"
    guest_initramfs
    guest_disk
    kubectl delete node $GUEST --ignore-not-found >/dev/null
    guest_network
    guest_boot
    until_true "the guest to be Ready (its console: $GUEST_FOLDER/console)" 600 guest_is_ready
    say "worker $GUEST is Ready after $((SECONDS - began)) s"
}

guest_off() {
    [ -e "$STATE/pids/$GUEST" ] || return 0
    cmd_stop $GUEST
    rm -rf "$STATE/pids/$GUEST" "$GUEST_FOLDER"
    kubectl delete node $GUEST --ignore-not-found >/dev/null
}

guest_is_ready() { kubectl wait --for=condition=Ready node/$GUEST --timeout=1s; }

guest_packages() {
    command -v qemu-system-x86_64 >/dev/null || {
        say "installing qemu-system-x86 (Debian)"
        apt-get update -qq && apt-get install -y -qq --no-install-recommends qemu-system-x86 e2fsprogs >/dev/null
    }
    [ ! -d "$(guest_kernel)/boot" ] || return 0
    local package; package=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends: linux-image/ { print $2; exit }')
    say "unpacking $package (Debian)"
    mkdir -p "$(guest_kernel)"
    (cd "$(guest_kernel)" && apt-get download -qq "$package" && dpkg -x ./*.deb . && rm ./*.deb && busybox depmod -b "$PWD" "$(ls lib/modules)")
}
guest_kernel() { echo "$(dirname "$(programs_folder)")/guest-kernel"; }

# Only what it takes to mount the disk: the drivers of virtio, the most basic first.
guest_initramfs() {
    local tree=$GUEST_FOLDER/initramfs modules driver module
    modules=$(echo "$(guest_kernel)"/lib/modules/*)
    rm -rf "$tree"
    mkdir -p "$tree"/{bin,proc,sys,dev,new,modules}
    cp "$(command -v busybox)" "$tree/bin/busybox"
    cp "$HERE/qemu/initramfs-init" "$tree/init"
    for driver in virtio_pci virtio_blk; do sed -n "s|^\([^:]*/$driver\.ko\):|\1|p" "$modules/modules.dep" | tr ' ' '\n' | tac; done |
        awk 'NF && !seen[$0]++' | while read -r module; do
            cp "$modules/$module" "$tree/modules/"
            basename "$module"
        done >"$tree/modules/order"
    (cd "$tree" && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) >"$GUEST_FOLDER/initramfs.gz"
}

guest_disk() {
    local root=$GUEST_FOLDER/root
    rm -rf "$root"
    mkdir -p "$root"/{bin,sbin,usr/bin,usr/sbin,usr/lib/cni,lib64,lib/modules,proc,sys,dev,run,tmp,root,images,var/log,var/lib/kubelet/pki,etc/cdi,etc/cni/net.d,etc/containerd}
    guest_programs "$root"
    guest_settings "$root"
    cp "$(programs_folder)"/images/*.tar "$root/images/"
    cp "$IMAGES"/*-[0-9].[0-9].[0-9].tar "$root/images/" 2>/dev/null || true
    mkfs.ext4 -q -F -d "$root" "$GUEST_FOLDER/disk.img" 3G
    rm -rf "$root"
}

guest_programs() { # ROOT
    local root=$1 program target library plugins
    plugins=/usr/lib/$(uname -m)-linux-gnu/xtables
    cp "$(command -v busybox)" "$root/bin/busybox"
    chroot "$root" /bin/busybox --install -s /bin
    rm -f "$root"/bin/{ip,mount,umount}
    cp "$(programs_folder)"/bin/{containerd,containerd-shim-runc-v2,ctr} "$(programs_folder)/kube" "$root/usr/bin/"
    ln -s kube "$root/usr/bin/kubelet"
    ln -s kube "$root/usr/bin/kube-proxy"
    for program in runc xtables-nft-multi conntrack ip mount umount /usr/lib/cni/{ptp,portmap,host-local,loopback}; do
        target=$root/usr/sbin
        case $program in /*) target=$root/usr/lib/cni ;; *) program=$(command -v "$program") ;; esac
        cp -L "$program" "$target/"
        guest_libraries "$root" "$program"
    done
    for program in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do ln -s xtables-nft-multi "$root/usr/sbin/$program"; done
    mkdir -p "$root$plugins"
    cp "$plugins"/*.so "$root$plugins/"
    for library in "$plugins"/*.so; do guest_libraries "$root" "$library"; done
    cp -r "$(guest_kernel)"/lib/modules/* "$root/lib/modules/"
    rm -rf "$root"/lib/modules/*/kernel/{sound,drivers/{gpu,infiniband,scsi,nvme,hv}}
}

guest_libraries() { # ROOT PROGRAM
    local library
    for library in $(ldd "$2" 2>/dev/null | awk '/=> \// { print $3 } /^\t\/lib/ { print $1 }'); do
        mkdir -p "$1$(dirname "$library")"
        cp -Ln "$library" "$1$library"
    done
}

guest_settings() { # ROOT
    local root=$1 address; address=$(worker_address $GUEST_INDEX)
    cp "$HERE/qemu/init" "$root/init"
    printf 'NODE=%s ADDRESS=%s GATEWAY=%s.1\n' $GUEST "$address" $NODES >"$root/etc/guest"
    echo "root:x:0:0::/root:/bin/sh" >"$root/etc/passwd"
    echo "root:x:0:" >"$root/etc/group"
    echo "127.0.0.1 localhost" >"$root/etc/hosts"
    : >"$root/etc/resolv.conf"
    head -c16 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$root/etc/machine-id"
    # The same files as any worker, with the paths of a machine of its own.
    worker_cni "$root/etc/cni/net.d" $GUEST_INDEX
    containerd_settings /etc/cni/net.d "" >"$root/etc/containerd/config.toml"
    kubelet_configure "$root/var/lib/kubelet" $GUEST "$address" "" >/dev/null
    # The reserved memory is what evictionHard keeps: the kubelet wants them equal.
    cat >>"$root/var/lib/kubelet/config.yaml" <<YAML
cpuManagerPolicy: static
memoryManagerPolicy: Static
topologyManagerPolicy: single-numa-node
reservedSystemCPUs: "0"
reservedMemory: [{numaNode: 0, limits: {memory: 100Mi}}]
runtimeRequestTimeout: 10m
YAML
    cp "$PKI/proxy.kubeconfig" "$root/var/lib/kubelet/proxy.kubeconfig"
}

guest_network() {
    nsenter --target "$(<"$STATE/pids/control-plane")" --net sh -c "
        ip link del guest 2>/dev/null; ip tuntap add dev guest mode tap && ip link set guest master fathom up &&
        ip route replace $PODS.$GUEST_INDEX.0/24 via $(worker_address $GUEST_INDEX)"
}

# The tap is in the control plane's namespace, so QEMU is too.
guest_boot() {
    start $GUEST control-plane nsenter --target "$(<"$STATE/pids/control-plane")" --net -- \
        qemu-system-x86_64 "${GUEST_MACHINE[@]}" -nographic -nodefaults -no-reboot \
        -kernel "$(echo "$(guest_kernel)"/boot/vmlinuz-*)" -initrd "$GUEST_FOLDER/initramfs.gz" \
        -append "console=ttyS0 quiet panic=1 mitigations=off random.trust_cpu=on" \
        -drive "file=$GUEST_FOLDER/disk.img,if=virtio,format=raw,cache=unsafe" \
        -netdev tap,id=net,ifname=guest,script=no,downscript=no -device virtio-net-pci,netdev=net,romfile= \
        -serial "file:$GUEST_FOLDER/console"
}
