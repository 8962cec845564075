# Image archives: how one is built, how workers get it.

# Without a container engine; the Containerfiles here only copy, so nothing is run.
image_build() { # NAME:TAG CONTEXT CONTAINERFILE ARCHIVE
    local work=$4.work policy=$4.policy
    local tool=(buildah --storage-driver vfs --root "$work/root" --runroot "$work/run")
    rm -rf "$work" "$4"
    mkdir -p "$work"
    echo '{"default": [{"type": "insecureAcceptAnything"}]}' >"$policy"
    "${tool[@]}" bud --isolation chroot --signature-policy "$policy" --quiet --layers=false --timestamp 0 -f "$3" -t "$1" "$2" >/dev/null
    "${tool[@]}" push --signature-policy "$policy" --quiet "$1" "docker-archive:$4:$1" >/dev/null
    rm -rf "$work" "$policy"
}

# What every cluster needs: the sandbox, DNS, and a shell with nc and wget for tests.
base_images() {
    local folder; folder=$(programs_folder)/images
    [ -e "$folder/.complete" ] && return
    say "making the images pause, coredns, box"
    mkdir -p "$folder"/{pause,coredns,box/bin,box/tmp,box/etc}
    cp "$(programs_folder)/pause" "$folder/pause/"
    cp "$(programs_folder)/bin/coredns" "$folder/coredns/"
    cp "$(command -v busybox)" "$folder/box/bin/busybox"
    chmod 1777 "$folder/box/tmp"
    local applet; for applet in $("$folder/box/bin/busybox" --list); do [ "$applet" = busybox ] || ln -sf busybox "$folder/box/bin/$applet"; done
    echo "nobody:x:65532:65532::/tmp:/bin/sh" >"$folder/box/etc/passwd"
    local name
    for name in pause coredns box; do
        image_build "fathom.dev/$name:1" "$folder/$name" "$HERE/manifests/$name.Containerfile" "$folder/$name.tar"
        rm -rf "${folder:?}/$name"
    done
    touch "$folder/.complete"
}

# Imports archives (all known ones if none is named) that the worker does not have yet.
images_import() { # WORKER [ARCHIVE...]
    local worker=$1 archive mark; shift
    [ $# -gt 0 ] || set -- "$(programs_folder)"/images/*.tar "$ROOT"/.dev/images/*.tar
    mkdir -p "$STATE/$worker/loaded"
    for archive in "$@"; do
        [ -e "$archive" ] || continue
        mark=$STATE/$worker/loaded/$(basename "$archive" .tar)
        [ "$(cat "$mark" 2>/dev/null)" != "$(stat -c '%Y %s' "$archive")" ] || continue
        ctr_of "$worker" images import "$archive" >"$mark.log" 2>&1 || fail "importing $archive on $worker: $(cat "$mark.log")"
        stat -c '%Y %s' "$archive" >"$mark"
    done
}

ctr_of() { local worker=$1; shift; "$(programs_folder)/bin/ctr" --address "$STATE/$worker/run/containerd/containerd.sock" --namespace k8s.io "$@"; }
