# Ending and starting single programs of a running cluster, for tests of what happens then.

#? stop ID [SIGNAL]    end one program (KILL unless told otherwise); ids as status prints them, e.g. apiserver, kubelet-node1
cmd_stop() {
    local id=${1:?stop ID [SIGNAL]} pid
    pid=$(cat "$STATE/pids/$id" 2>/dev/null) || fail "no program '$id'; ./dev cluster status lists them"
    kill -"${2:-KILL}" "$pid" 2>/dev/null || return 0
    while alive "$pid"; do sleep 0.05; done
}

#? start ID    start a program that was stopped
cmd_start() {
    local id=${1:?start ID}
    ! alive "$(cat "$STATE/pids/$id" 2>/dev/null || echo 0)" || fail "$id runs already"
    case $id in
        etcd) etcd_start ;;
        apiserver) apiserver_start; until_true "the API server" 60 kubectl get --raw /readyz ;;
        controller-manager) controller_manager_start ;;
        scheduler) scheduler_start ;;
        kubelet-*) kubelet_start "${id#*-}" ;;
        containerd-*) containerd_start "${id#*-}" ;;
        proxy-*) proxy_start "${id#*-}" ;;
        dra-*) dra_start "${id#*-}" ;;
        plugin-*) plugin_start "${id#*-}" ;;
        qemu) guest_boot ;;
        netpol-*) netpol_start "${id#*-}" ;;
        *) fail "cannot start '$id'; ./dev cluster status lists what there is" ;;
    esac
}

#? restart ID [SIGNAL] stop, then start
cmd_restart() { cmd_stop "$@"; cmd_start "$1"; }
