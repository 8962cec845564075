# Takes the cluster down, whatever is left of it. Processes are found by their control group, and with the last process
# of a namespace its mounts, interfaces, routes and rules vanish.

#? down         end everything, leave the machine as it was
cmd_down() { alone; clear_all; }

clear_all() {
    local folders deadline=$((SECONDS + 30)) folder
    mapfile -t folders < <(find /sys/fs/cgroup -type d -name "$NAME" -prune 2>/dev/null)
    while processes_left "${folders[@]}" | xargs -r kill -KILL 2>/dev/null || [ -n "$(processes_left "${folders[@]}")" ]; do
        [ -n "$(processes_left "${folders[@]}")" ] || break
        [ $SECONDS -lt $deadline ] || fail "these processes do not end: $(processes_left "${folders[@]}" | xargs)"
        sleep 0.1
    done
    for folder in "${folders[@]}"; do find "$folder" -depth -type d -exec rmdir {} + 2>/dev/null || true; done
    ip link del "$UPLINK" 2>/dev/null || true
    rm -rf --one-file-system "$STATE"
    leftovers
}

processes_left() { # FOLDER...
    [ $# -gt 0 ] || return 0
    find "$@" -name cgroup.procs -exec cat {} + 2>/dev/null | sort -un
}

# Nothing of the cluster may be left; a wrong exit code is how a test notices.
leftovers() {
    local left
    left=$(find /sys/fs/cgroup -type d -name "$NAME" 2>/dev/null; grep -F "$STATE/" /proc/mounts || true
        ip -o link show "$UPLINK" 2>/dev/null || true; ip route | grep -E "^($PODS|$NODES|10\.96)\." || true)
    [ -z "$left" ] || fail "left behind:
$left"
}
