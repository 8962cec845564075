# Images of operator, agent and engine from the built programs, and of the needle model.
# In: a folder of release programs. Out: .dev/images/*.tar (docker archives) under the chart's default names;
#     .dev/images/roots/IMAGE, the file tree of each: the context that its Containerfile expects of any container engine.

IMAGES=$ROOT/.dev/images

#? images FOLDER [--failpoints]   what ./dev images calls: FOLDER holds the release programs
cmd_images() {
    local programs=${1:?images FOLDER} version; shift
    version=$(awk -F'"' '/^\[workspace.package\]/ { on = 1 } on && /^version/ { print $2; exit }' "$ROOT/Cargo.toml")
    packages
    mkdir -p "$IMAGES"
    if [ "${1:-}" = --failpoints ]; then
        product fathom-operator "$version-failpoints" operator root_operator "$programs"/{fathom-operator,fathom}
        return
    fi
    product fathom-operator "$version" operator root_operator "$programs"/{fathom-operator,fathom}
    product fathom-node-agent "$version" node-agent root_program "$programs/fathom-node-agent"
    product fathom-engine "$version" engine root_program "$programs/fathom-engine"
    product needle-model "$version" e2e/cluster/manifests/needle-model. root_needle \
        "$ROOT"/engine/testdata/needle/{config.json,generation_config.json,model.safetensors,tokenizer.json,tokenizer_config.json}
}

# product NAME TAG CONTAINERFILE-FOLDER MAKER INPUT...: makes the image unless its inputs are those of last time.
product() {
    local name=$1 tag=$2 file=$ROOT/$3 maker=$4 archive=$IMAGES/$1-$2.tar key root; shift 4
    case $file in *.) file+=Containerfile ;; *) file+=/Containerfile ;; esac
    key=$(sha256sum "$@" "$file" "$HERE/product_images.sh" | cut -d' ' -f1 | sha256sum)
    [ "$(cat "$archive.key" 2>/dev/null)" != "$key" ] || [ ! -e "$archive" ] || return 0
    say "image fathom.dev/$name:$tag"
    root=$IMAGES/roots/$name
    rm -rf "$root"
    mkdir -p "$root"
    "$maker" "$root" "$@"
    image_build "fathom.dev/$name:$tag" "$root" "$file" "$archive"
    echo "$key" >"$archive.key"
}

root_needle() { local root=$1; shift; cp "$@" "$root/"; }

root_operator() { root_program "$@"; ln -s fathom "$1/kubectl-fathom"; }

# What a program linked to glibc needs, laid out as on Debian: drivers that are mounted into it bring libraries that
# expect libc's companions. Hosts are looked up by libc itself.
root_program() {
    local root=$1 program library; shift
    mkdir -p "$root"/{etc/ssl/certs,tmp,usr/lib64}
    mkdir -p "$root/usr$(dirname "$(library_of libc.so.6 "$1")")"
    ln -s usr/lib "$root/lib"
    ln -s usr/lib64 "$root/lib64"
    chmod 1777 "$root/tmp"
    printf 'root:x:0:0::/:/none\nfathom:x:65532:65532::/tmp:/none\n' >"$root/etc/passwd"
    printf 'root:x:0:\nfathom:x:65532:\n' >"$root/etc/group"
    echo "hosts: files dns" >"$root/etc/nsswitch.conf"
    cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
    for program in "$@"; do
        strip --strip-debug -o "$root/$(basename "$program")" "$program"
        for library in $(ldd "$program" | awk '/=> \// { print $3 } /^\t\/lib/ { print $1 }'); do cp -Lu "$library" "$root$library"; done
    done
    for library in libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1 libgcc_s.so.1; do
        cp -Lu "$(dirname "$(library_of libc.so.6 "$1")")/$library" "$root$(dirname "$(library_of libc.so.6 "$1")")/"
    done
}
library_of() { ldd "$2" | awk -v name="$1" '$1 == name { print $3 }'; }
