# Fake GPUs of a worker's scene (programs/fakegpus): a DRA driver, or in Kubelet mode a device plugin, as an installation
# has one or the other. Both read $STATE/WORKER/scene/nvml.yaml and follow its changes.

fakegpus() {
    if [ -z "${FAKEGPUS:-}" ]; then
        local key
        key=$(cat "$PROGRAMS"/fakegpus/*.go "$PROGRAMS"/go.{mod,sum} | sha256sum)
        FAKEGPUS=$(dirname "$(programs_folder)")/fakegpus-${key:0:12}
    fi
    echo "$FAKEGPUS"
}

fakegpus_build() {
    [ ! -x "$(fakegpus)" ] || return 0
    say "building the fake GPU driver"
    (cd "$PROGRAMS" && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$(fakegpus)" ./fakegpus)
}

devices_start() { if [ "$(worker_field "$1" 4)" = - ]; then dra_start "$1"; else plugin_start "$1"; fi; }

dra_start() {
    fakegpus_build
    until_true "the kubelet of $1" 60 test -d "$STATE/$1/kubelet/plugins_registry"
    work dra "$1" "$(fakegpus)" dra --node "$1"
}

plugin_start() {
    fakegpus_build
    until_true "the kubelet of $1" 60 test -S "$STATE/$1/kubelet/device-plugins/kubelet.sock"
    work plugin "$1" "$(fakegpus)" plugin --node "$1"
}

#? gpus WORKER [lose UUID | restore]   the GPUs that its driver sees; take one away, or bring all back
cmd_gpus() {
    local worker=${1:?gpus WORKER [lose UUID | restore]} file=$STATE/$1/scene/nvml.yaml
    [ -e "$file" ] || fail "worker '$worker' has no scene"
    case ${2:-} in
        "") grep -oE 'GPU-[0-9a-f-]+' "$file" ;;
        restore) replace_file "$file" <"$STATE/$worker/nvml.yaml" ;;
        lose)
            grep -qF "uuid: ${3:?gpus WORKER lose UUID}" "$file" || fail "$worker has no GPU $3; ./dev cluster gpus $worker lists them"
            # pairs name devices by number, which would shift
            awk -v gone="uuid: $3" '/^pairs:/ { exit } /^  - / { keep = index($0, gone) == 0 } /^devices:/ || keep' "$file" | replace_file "$file" ;;
        *) fail "gpus WORKER [lose UUID | restore]" ;;
    esac
}

# At once: a reader never sees half of it.
replace_file() { cat >"$1.new"; mv "$1.new" "$1"; }

#? held WORKER  what its kubelet says each container holds (PodResources), as JSON
cmd_held() { fakegpus_build; inside "${1:?held WORKER}" "$(fakegpus)" held; }
