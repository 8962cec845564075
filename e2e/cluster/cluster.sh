#!/usr/bin/env bash
# A real Kubernetes on this machine; `./dev cluster` calls it, README.md beside it explains it.
# In: a command and its options. Out: processes in one control group and namespaces of their own, files below $STATE.
# Never: leaves something behind after `down`, or needs a container engine.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../.." && pwd)
STATE=${FATHOM_CLUSTER:-/tmp/fathom-cluster}    # everything that one cluster writes
NAME=fathom-cluster                             # control group; a second cluster on one machine is not supported

say() { printf '\033[1m== %s\033[0m\n' "$*" >&2; }
fail() { printf 'cluster: %s\n' "$*" >&2; exit 2; }

for part in programs processes network certificates control_plane worker devices addons images product_images faults netpol qemu down; do
    # shellcheck source=/dev/null
    . "$HERE/$part.sh"
done

#? up [--workers N] [--scene A,B] [--worker NAME[:SCENE][:kubelet=CPU]]...   start it, wait until every node is Ready
cmd_up() {
    local began=$EPOCHREALTIME workers=() scenes=() count=1 i
    while [ $# -gt 0 ]; do
        case $1 in
            --workers) count=${2:?--workers N}; shift 2 ;;
            --scene) IFS=, read -ra scenes <<<"${2:?--scene NAME[,NAME]}"; shift 2 ;;
            --worker) workers+=("${2:?--worker NAME[:SCENE][:kubelet=CPU]}"); shift 2 ;;
            *) fail "up: unknown option '$1'" ;;
        esac
    done
    if [ ${#workers[@]} = 0 ]; then
        [ "$count" -ge ${#scenes[@]} ] || count=${#scenes[@]}
        for ((i = 0; i < count; i++)); do workers+=("node$((i + 1))${scenes[i]:+:${scenes[i]}}"); done
    fi
    [ "$(id -u)" = 0 ] || fail "needs root: it makes namespaces, mounts and control groups"
    alone
    if running; then
        [ "$(<"$STATE/complete")" = "${workers[*]}" ] || fail "a cluster of other workers is up ($(<"$STATE/complete")): ./dev cluster down first"
        say "already up"; cmd_status; return
    fi
    [ ! -e "$STATE" ] || { say "clearing what an earlier cluster left"; clear_all; }
    packages; programs; base_images
    trap 'code=$?; [ $code = 0 ] || say "up failed: ./dev cluster down clears it; logs are in $STATE/log"' EXIT
    bring_up "${workers[@]}"
    echo "${workers[*]}" >"$STATE/complete"
    say "ready after $(awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }') s; next: eval \"\$(./dev cluster env)\""
}

# One `up` or `down` at a time; the lock ends with this process (`start` does not pass it on).
alone() {
    local folder; folder=$(dirname "$(programs_folder)")
    mkdir -p "$folder"
    exec 9>"$folder/lock"
    flock -n 9 || { say "waiting for another up or down"; flock 9; }
}

# Workers boot while the API server does: images are imported before anybody asks for them.
bring_up() {
    mkdir -p "$STATE"/{log,pids}
    groups_make control-plane
    certificates
    control_plane_start
    local spec index=0 importing=()
    for spec in "$@"; do
        index=$((index + 1))
        worker_make "$spec" $index
        images_import "${spec%%:*}" & importing+=($!)
    done
    control_plane_wait
    wait_all "${importing[@]}"
    for spec in "$@"; do worker_join "${spec%%:*}"; done
    addons_apply
    [ $# = 0 ] || addons_wait
}

wait_all() { local id; for id in "$@"; do wait "$id"; done; }

#? status       what runs, and the nodes; fails unless a complete cluster runs
cmd_status() {
    [ -e "$STATE/complete" ] || say "no complete cluster in $STATE"
    [ -e "$STATE/pids" ] || return 1
    local file id
    for file in "$STATE"/pids/*; do
        id=$(<"$file")
        printf '%-28s %8s  %s\n' "${file##*/}" "$id" "$(alive "$id" && echo running || echo ENDED)"
    done
    running && kubectl get nodes -o wide
}

#? env          exports for KUBECONFIG and PATH: eval "$(./dev cluster env)"
cmd_env() {
    [ -e "$STATE/kubeconfig" ] || fail "no cluster: ./dev cluster up"
    echo "export KUBECONFIG=$STATE/kubeconfig FATHOM_CLUSTER=$STATE PATH=$(programs_folder)/bin:\$PATH"
}

#? programs     build the programs; prints their folder
cmd_programs() { packages; programs >&2; echo "$(programs_folder)/bin"; }

#? load FILE... import image archives on every worker
cmd_load() {
    running || fail "no cluster: ./dev cluster up"
    local worker
    for worker in $(workers); do images_import "$worker" "$@"; done
}

#? exec WORKER COMMAND...   run a command in a worker's namespaces (or in control-plane)
cmd_exec() { local name=${1:?exec WORKER COMMAND...}; shift; inside "$name" env PATH="$(programs_folder)/bin:$PATH" "$@"; }

kubectl() { KUBECONFIG=$STATE/kubeconfig "$(programs_folder)/bin/kubectl" --cache-dir "$STATE/kubectl-cache" "$@"; }

if [ $# -eq 0 ]; then
    echo "usage: ./dev cluster COMMAND"; cat "$HERE"/*.sh | sed -n 's/^#? /  /p'; exit 0
fi
command=$1; shift
declare -F "cmd_$command" >/dev/null || fail "no command '$command'; ./dev cluster alone lists them"
"cmd_$command" "$@"
