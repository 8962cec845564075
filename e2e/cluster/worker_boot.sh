#!/usr/bin/env bash
# Runs first in a worker's namespaces, lays out its file system and then holds the namespaces.
# In: the worker's folder and name. Out: production paths inside: /var/lib/kubelet, /run/containerd, /etc/cdi, /sys, /proc/meminfo.
# Never: mounts anything that the machine itself can see.
set -euo pipefail
FOLDER=$1 NODE=$2
# shellcheck source=processes.sh
. "$(dirname "${BASH_SOURCE[0]}")/processes.sh"

mapfile -t groups < <(hierarchies)
hostname "$NODE"

# Overlays give mount points that the machine does not have; what is written a lot gets a plain folder on top.
for top in var etc; do
    mkdir -p "$FOLDER/work/$top"
    mount -t overlay overlay -o "lowerdir=/$top,upperdir=$FOLDER/$top,workdir=$FOLDER/work/$top" /$top
done
mkdir -p /var/lib/{kubelet,containerd,cni} /etc/cdi
bind() { mount --bind "$FOLDER/$1" "$2"; }
bind kubelet /var/lib/kubelet
bind containerd /var/lib/containerd
bind cni-state /var/lib/cni
bind log /var/log
bind cdi /etc/cdi
mkdir -p "$FOLDER"/run/{lock,containerd}
bind run /run

# Fresh, so that it shows this network namespace and, through the cgroup namespace, this worker's groups as the root.
umount --recursive --lazy /sys
mount -t sysfs sysfs /sys
mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
for line in "${groups[@]}"; do
    folder=${line%% *} controllers=${line#* }
    mkdir -p "$folder"
    case $controllers in name=*) controllers=none,$controllers ;; esac
    mount -t cgroup -o "$controllers" cgroup "$folder"
done

# The scene is a machine's files; devices hang below /sys/devices with links from /sys/bus.
if [ -d "$FOLDER/scene" ]; then
    scene=$FOLDER/scene/root
    mkdir -p /var/lib/fathom-scene
    bind scene /var/lib/fathom-scene
    mount --bind "$scene/proc/meminfo" /proc/meminfo
    mount -t overlay overlay -o "lowerdir=$scene/sys/devices:/sys/devices" /sys/devices
    for part in node cpu; do
        [ ! -d "$scene/sys/devices/system/$part" ] || mount --bind "$scene/sys/devices/system/$part" /sys/devices/system/$part
    done
    mount --bind "$scene/sys/bus/pci/devices" /sys/bus/pci/devices
    # The kubelet would make this group with the scene's CPUs in it, fail and end. One that is there it only tries to
    # change, once a minute, and says so in an event.
    echo 1 >/sys/fs/cgroup/cpuset/cgroup.clone_children
    for line in "${groups[@]}"; do mkdir "${line%% *}/kubepods"; done
    echo 0 >/sys/fs/cgroup/cpuset/cgroup.clone_children
fi

mount --make-rshared /      # pods see what the kubelet mounts later
touch "$FOLDER/booted"
exec sleep infinity
