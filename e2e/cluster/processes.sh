# Processes of the cluster: each in a control group below $NAME, its id in $STATE/pids, its output in $STATE/log.
# The groups are how `down` finds everything, whatever died before: containers are in them too.

# The mounted hierarchies of cgroup v1 as "FOLDER CONTROLLERS".
hierarchies() {
    awk '$3 == "cgroup" {
        n = split($4, option, ","); names = ""
        for (i = 1; i <= n; i++) if (option[i] !~ /^(rw|ro|.*atime|no(suid|dev|exec)|xattr|clone_children|release_agent=.*)$/)
            names = names (names == "" ? "" : ",") option[i]
        print $2, names }' /proc/mounts | sort -u
}

# Groups lie below this shell's own: what limits or ends us must limit and end the cluster too.
group_parent() { # CONTROLLERS, as in /proc/self/cgroup
    local path; path=$(awk -F: -v name="$1" '$2 == name { print $3 }' "/proc/$$/cgroup")
    echo "${path%/}"
}

# Makes the group NAME/CHILD in every hierarchy and writes their folders down: later commands come from other shells.
groups_make() {
    local folder option made
    [ -n "$(hierarchies)" ] || fail "control groups: found no cgroup v1 hierarchy. Only v1 (and hybrid) machines are supported"
    : >"$STATE/groups-$1"
    while read -r folder option; do
        if [ -e "$STATE/groups" ]; then made=$(awk -v f="$folder/" 'index($0, f) == 1' "$STATE/groups"); else made=; fi
        if [ -z "$made" ]; then
            made=$folder$(group_parent "$option")/$NAME
            group_folder "$made"
            echo "$made" >>"$STATE/groups.new"
        fi
        group_folder "$made/$1"
        echo "$made/$1" >>"$STATE/groups-$1"
    done < <(hierarchies)
    [ ! -e "$STATE/groups.new" ] || mv "$STATE/groups.new" "$STATE/groups"
}

group_folder() {
    mkdir -p "$1"
    [ -e "$1/cpuset.cpus" ] || return 0
    cat "${1%/*}/cpuset.cpus" >"$1/cpuset.cpus"
    cat "${1%/*}/cpuset.mems" >"$1/cpuset.mems"
}

group_enter() { # CHILD: moves this (sub)shell
    local folder
    while read -r folder; do echo "$BASHPID" >"$folder/cgroup.procs"; done <"$STATE/groups-$1"
}

# start ID GROUP COMMAND...: detached, never waited for; `exec` keeps the id that is written down.
start() {
    local id=$1 group=$2; shift 2
    (group_enter "$group"; exec setsid "$@") >>"$STATE/log/$id.log" 2>&1 </dev/null 9>&- &
    echo $! >"$STATE/pids/$id"
}

alive() { kill -0 "$1" 2>/dev/null; }
running() { [ -e "$STATE/complete" ] && alive "$(<"$STATE/pids/control-plane")"; }
workers() { [ ! -e "$STATE/workers" ] || cut -d' ' -f1 "$STATE/workers"; }

# The namespaces of a worker (or of control-plane) are those of the process that was started first in it.
inside() {
    local name=$1 id; shift
    id=$(cat "$STATE/pids/$name" 2>/dev/null) && alive "$id" || fail "no worker '$name'; there are: control-plane $(workers | xargs)"
    exec_in "$id" "$@"
}
exec_in() { local id=$1; shift; nsenter --target "$id" --net --mount --uts --cgroup -- "$@"; }

# Waits for a condition, not for a time: until WHAT SECONDS COMMAND...
until_true() {
    local what=$1 deadline=$((SECONDS + $2)); shift 2
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt "$deadline" ] || fail "waited in vain for $what; logs are in $STATE/log"
        sleep 0.1
    done
}
