#!/usr/bin/env bash
# Installs an environment on a box without a registry, from a folder that `python -m remote.wheelhouse pack` made.
# May be killed and called again at any point; what is ready is left as it is.
set -euo pipefail

root="$(cd -P "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
# shellcheck source=remote/lib/messages.sh
source "$root/remote/lib/messages.sh"
# shellcheck source=remote/lib/children.sh
source "$root/remote/lib/children.sh"
# shellcheck source=remote/lib/python.sh
source "$root/remote/lib/python.sh"
# shellcheck source=remote/lib/environment.sh
source "$root/remote/lib/environment.sh"

manifest_format=1
box_py="$root/remote/wheelhouse/box.py"

usage() {
    cat <<END_OF_USAGE
usage: bash remote/wheelhouse.sh install FOLDER [--into ENVIRONMENT]

Makes the environment that FOLDER holds (part-0000, part-0001, … and MANIFEST.json, made elsewhere by
\`python -m remote.wheelhouse pack\`) without any network: looks at lock, glibc, Python, parts and free disk before
it writes, installs by the hashes of uv.lock, and compares the result with uv.lock.

  --into ENVIRONMENT           its folder; default: where set-up makes it (.venv, .venv-vllm, …)
  PYTHON=/path/to/python3.12   the interpreter; default: the one in FOLDER, else one of PATH
END_OF_USAGE
}

read_arguments() {
    into=''
    case "${1:-}" in
        install) shift ;;
        -h | --help) usage; exit 0 ;;
        *) fail "unknown command '${1:-}'; there is: install, --help" 2 ;;
    esac
    folder="${1:-}"
    [[ -n "$folder" && "$folder" != -* ]] || fail 'install needs the folder of a wheelhouse' 2
    shift
    while (($# > 0)); do
        case "$1" in
            --into) into="${2:-}"; [[ -n "$into" ]] || fail '--into needs a folder' 2; shift 2 ;;
            *) fail "unknown flag '$1'; there is: --into" 2 ;;
        esac
    done
}

# manifest_value FIELD: a field of the first level. Without Python, which may come out of the parts.
manifest_value() {
    sed -nE "s/^ \"$1\": \"?([^\",]*)\"?,?\$/\1/p" "$manifest"
}

# tool_sum FILE: SHA-256 of uv or CPython.
tool_sum() {
    sed -nE "s/^  \"${1//./\\.}\": \"([0-9a-f]{64})\",?\$/\1/p" "$manifest"
}

read_manifest() {
    manifest="$folder/MANIFEST.json"
    [[ -f "$manifest" ]] || fail "$folder has no MANIFEST.json: it is not a wheelhouse, or was not sent whole"
    [[ "$(tail -n 1 "$manifest")" == '}' ]] || fail "$manifest is cut off: send it again"
    local found
    found="$(manifest_value format)"
    [[ "$found" == "$manifest_format" ]] || fail "$manifest has format '$found', this checkout reads $manifest_format"
    extra="$(manifest_value extra)" minor="$(manifest_value python)" glibc="$(manifest_value glibc)"
    uv_wheel="$(manifest_value uv)" cpython="$(manifest_value cpython)"
    stream_bytes="$(manifest_value stream_bytes)" environment_bytes="$(manifest_value environment_bytes)"
    mapfile -t parts < <(sed -nE 's/^  "(part-[0-9]{4})": "([0-9a-f]{64})",?$/\1 \2/p' "$manifest")
    system="$extra"
    [[ "$extra" != none ]] || system=project
    into="$(realpath -m "${into:-$(environment_folder "$system")}")"
    work="$into.wheelhouse"
}

sha256_of() {
    local sum
    sum="$(sha256sum "$1")" || fail "cannot read $1"
    printf '%s\n' "${sum%% *}"
}

check_lock() {
    local wanted found
    wanted="$(manifest_value lock_sha256)" found="$(sha256_of "$root/uv.lock")"
    [[ "$found" == "$wanted" ]] \
        || fail "$folder was packed from another uv.lock (SHA-256 $wanted, here $found): pack it again from this checkout"
}

check_glibc() {
    local have
    have="$(getconf GNU_LIBC_VERSION 2>/dev/null)" || fail "this system has no glibc, needed is $glibc or newer"
    have="${have#glibc }"
    [[ "$(printf '%s\n' "$glibc" "$have" | sort -V | head -n 1)" == "$glibc" ]] \
        || fail "this system has glibc $have, needed is $glibc or newer"
}

# The work folder beside an environment says that a call was killed while it made that environment.
check_target() {
    [[ ! -e "$into" || -f "$into/wheelhouse.json" || -d "$work" ]] \
        || fail "$into is there and was not made from a wheelhouse: remove it, or choose another with --into"
}

# matches_lock: whether the environment holds what uv.lock says, and nothing else.
matches_lock() {
    local arguments
    mapfile -t arguments < <(sync_arguments "$system")
    env -u VIRTUAL_ENV -u PYTHONPATH -u PYTHONHOME "UV_PROJECT_ENVIRONMENT=$into" "UV_PYTHON=$into/bin/python" \
        UV_PYTHON_DOWNLOADS=never "$root/.uv/bin/uv" --directory "$root" sync "${arguments[@]}" --check --offline "$@"
}

is_installed() {
    [[ ! -d "$work" ]] && cmp -s "$manifest" "$into/wheelhouse.json" && has_pinned_uv "$root/.uv" \
        && matches_lock --quiet 2>/dev/null
}

is_minor() {
    [[ "$("$1" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" == "$minor" ]]
}

# find_minor_python: prints the interpreter of this box that the wheels are for.
find_minor_python() {
    local candidate seen=''
    while IFS= read -r candidate; do
        is_minor "$candidate" && suitable_python "$candidate" && return
        seen+="${seen:+, }$(describe_python "$candidate")"
    done < <(if [[ -n "${PYTHON:-}" ]]; then printf '%s\n' "$PYTHON"; else pythons_on_path; fi)
    fail "$folder is for CPython $minor, seen are: ${seen:-none}; install it, name it with PYTHON=, or pack with --with-python"
}

check_parts() {
    local name sum missing=() damaged=()
    while read -r name sum; do
        if [[ ! -f "$folder/$name" ]]; then
            missing+=("$name")
        elif [[ "$(sha256_of "$folder/$name")" != "$sum" ]]; then
            damaged+=("$name")
        fi
    done < <(printf '%s\n' "${parts[@]}")
    ((${#missing[@]} + ${#damaged[@]} == 0)) \
        || fail "of ${#parts[@]} parts are missing: ${missing[*]:-none}; damaged: ${damaged[*]:-none}; send these again"
}

# check_disk BYTES
check_disk() {
    local need have parent="$into"
    until [[ -d "$parent" ]]; do
        parent="$(dirname "$parent")"
    done
    need=$((($1 + 999999999) / 1000000000)) have="$(free_gb "$parent")"
    ((have >= need)) || fail "the file system of $into has $have GB free, needed are $need GB"
}

# unpack: $work/unpacked holds what the parts hold; it appears whole.
unpack() {
    [[ ! -d "$work" ]] || cmp -s "$manifest" "$work/MANIFEST.json" || rm -rf "$work"
    if [[ -d "$work/unpacked" ]]; then
        check_disk "$environment_bytes"
        return
    fi
    say "checking ${#parts[@]} parts"
    check_parts
    check_disk $((stream_bytes + environment_bytes))
    rm -rf "$work/partial"
    mkdir -p "$work/partial" || fail "cannot write to $work"
    cp "$manifest" "$work/MANIFEST.json"
    say 'joining them'
    # shellcheck disable=SC2016 # the inner bash expands it
    run_child bash -o pipefail -c 'cd "$1" && cat "${@:3}" | tar -x -C "$2"' - \
        "$folder" "$work/partial" "${parts[@]%% *}" || fail "cannot unpack the parts into $work (see above)"
    mv "$work/partial" "$work/unpacked"
}

# check_tool FILE: uv and CPython are not in uv.lock.
check_tool() {
    [[ "$(sha256_of "$work/unpacked/$1")" == "$(tool_sum "$1")" ]] || fail "$work/unpacked/$1 is damaged: remove $work"
}

# install_cpython: prints the interpreter of the parts; it stays beside the environments that are made from it.
install_cpython() {
    local name="${cpython%-linux-x86_64.tar}"
    if [[ ! -d "$root/.$name" ]]; then
        check_tool "$cpython"
        tar -x -C "$work" -f "$work/unpacked/$cpython" || fail "cannot unpack $cpython"
        mv "$work/$name" "$root/.$name" || fail "cannot write to $root"
    fi
    is_minor "$root/.$name/bin/python$minor" || fail "$root/.$name is not a CPython $minor that runs here"
    printf '%s\n' "$root/.$name/bin/python$minor"
}

choose_python() {
    if [[ -n "$cpython" && -z "${PYTHON:-}" ]]; then
        install_cpython
    else
        find_minor_python
    fi
}

install_packed_uv() {
    local partial="$root/.uv.partial" sum
    has_pinned_uv "$root/.uv" && return
    [[ -n "$uv_wheel" ]] || fail "there is no uv $uv_version in $root/.uv, and $folder has none: pack with --with-uv"
    check_tool "$uv_wheel"
    sum="$(tool_sum "$uv_wheel")"
    grep -qF "sha256:$sum" "$root/remote/uv-requirements.txt" || fail "$uv_wheel is not the uv of remote/uv-requirements.txt"
    say "installing uv $uv_version into .uv"
    rm -rf "$partial" || fail "cannot remove $partial"
    mkdir -p "$partial/bin" || fail "cannot write to $root"
    "$python" -I "$box_py" unpack-uv "$work/unpacked/$uv_wheel" "$partial/bin" || fail "cannot unpack $uv_wheel"
    has_pinned_uv "$partial" || fail "$uv_wheel holds something that is not uv $uv_version"
    if ! { rm -rf "$root/.uv" && mv "$partial" "$root/.uv"; }; then
        fail "cannot move $partial to $root/.uv"
    fi
}

# A cache beside the environment: its files become those of the environment by hard links, without more disk.
make_environment() {
    local uv=(env -u VIRTUAL_ENV -u PYTHONPATH -u PYTHONHOME "UV_CACHE_DIR=$work/cache" UV_PYTHON_DOWNLOADS=never
        "$root/.uv/bin/uv" --no-config --offline)
    "$python" -I "$box_py" requirements "$manifest" "$root/uv.lock" >"$work/requirements.txt" \
        || fail "$folder does not fit uv.lock (see above)"
    say "installing $(wc -l <"$work/requirements.txt") packages into $into"
    run_child "${uv[@]}" venv --quiet --clear --python "$python" "$into" >&2 || fail "uv could not make $into (see above)"
    run_child "${uv[@]}" pip sync --quiet --python "$into/bin/python" --no-index --find-links "$work/unpacked/wheels" \
        --require-hashes "$work/requirements.txt" >&2 || fail "uv could not fill $into (see above)"
    if ! matches_lock --quiet 2>/dev/null; then
        matches_lock >&2 || true
        fail "$into does not match uv.lock right after it was made (see above)"
    fi
}

main() {
    local folder into manifest extra minor glibc uv_wheel cpython stream_bytes environment_bytes parts system work python
    read_arguments "$@"
    read_manifest
    check_machine
    check_lock
    if is_installed; then
        say "$into is ready: it matches $manifest and uv.lock"
        return
    fi
    check_glibc
    check_target
    [[ -n "$cpython" && -z "${PYTHON:-}" ]] || python="$(find_minor_python)"
    lock_setup
    unpack
    python="$(choose_python)"
    install_packed_uv
    make_environment
    mv "$work/MANIFEST.json" "$into/wheelhouse.json" || fail "cannot write to $into"
    rm -rf "$work"
    say "$into is ready: $system for CPython $minor, as uv.lock says"
}

main "$@"
