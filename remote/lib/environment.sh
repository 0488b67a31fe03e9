# shellcheck shell=bash
# shellcheck disable=SC2154 # $root is set by the script that sources this
# The pinned uv in .uv, and one environment a system from uv.lock. Needs $root, messages.sh, python.sh and children.sh.
# Everything here may be killed at any point and called again.

uv_version=0.13.9
# As measured: 4.8 GB of files and 2.7 GB of loaded packages, which share their blocks where uv can link them.
project_gb=8

check_machine() {
    [[ "$(uname -s) $(uname -m)" == 'Linux x86_64' ]] || fail "needs Linux on x86-64, this is $(uname -s) on $(uname -m)"
    [[ -w "$root" ]] || fail "cannot write to $root: set-up makes its environments there"
}

# One set-up at a time in a checkout. The lock goes with the file descriptor, however the script ends.
lock_setup() {
    command -v flock >/dev/null || fail "flock is missing: install util-linux"
    exec {setup_lock}>"$root/.setup.lock" || fail "cannot write to $root"
    flock --nonblock "$setup_lock" || { say 'waiting for another set-up of this checkout'; flock "$setup_lock"; }
}

unlock_setup() {
    exec {setup_lock}>&-
}

has_pinned_uv() {
    [[ "$("$1/bin/uv" --version 2>/dev/null) " == "uv $uv_version "* ]]
}

# Any interpreter's pip will do: uv is one binary, and pip only checks and unpacks it.
find_pip() {
    local candidate
    while IFS= read -r candidate; do
        "$candidate" -m pip --version >/dev/null 2>&1 && { printf '%s\n' "$candidate"; return; }
    done < <(printf '%s\n' "$1"; pythons_on_path)
    fail "no pip for $1: install it (on Debian and Ubuntu: apt-get install python3-pip)"
}

# install_uv PYTHON: .uv appears whole, by a rename, or not at all.
install_uv() {
    has_pinned_uv "$root/.uv" && return
    local partial="$root/.uv.partial" pip
    pip="$(find_pip "$1")"
    say "installing uv $uv_version into .uv"
    rm -rf "$partial" || fail "cannot remove $partial"
    run_child env PIP_USER=0 "$pip" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --require-hashes --target "$partial" --requirement "$root/remote/uv-requirements.txt" >&2 \
        || fail "pip could not install uv $uv_version (see above); a second call starts over"
    has_pinned_uv "$partial" || fail "pip installed something that is not uv $uv_version: $("$partial/bin/uv" --version 2>&1)"
    if ! { rm -rf "$root/.uv" && mv "$partial" "$root/.uv"; }; then
        fail "cannot move $partial to $root/.uv"
    fi
}

environment_folder() {
    [[ "$1" == project ]] && printf '%s\n' "$root/.venv" || printf '%s\n' "$root/.venv-$1"
}

# sync_arguments SYSTEM: what of uv.lock a system's environment holds, an argument a line.
sync_arguments() {
    printf '%s\n' --locked
    [[ "$1" == project ]] || printf '%s\n' --no-dev --extra "$1"
}

# uv_command SYSTEM PYTHON: fills the array `uv` with the pinned uv, bound to that environment and interpreter.
uv_command() {
    uv=(env -u VIRTUAL_ENV -u PYTHONPATH -u PYTHONHOME "UV_PROJECT_ENVIRONMENT=$(environment_folder "$1")"
        "UV_PYTHON=$2" UV_PYTHON_DOWNLOADS=never "$root/.uv/bin/uv" --directory "$root")
}

# free_gb FOLDER: free space of its file system, in GB.
free_gb() {
    df -Pk "$1" | awk 'NR == 2 { printf "%d\n", $4 * 1024 / 1e9 }'
}

check_project_disk() {
    local have
    [[ -d "$(environment_folder project)" ]] && return
    have="$(free_gb "$root")"
    ((have >= project_gb)) || fail "the environment needs $project_gb GB of free disk, the file system of $root has $have GB"
}

# sync_environment SYSTEM PYTHON: the environment holds what uv.lock says afterwards, and nothing else.
sync_environment() {
    local uv arguments
    uv_command "$1" "$2"
    mapfile -t arguments < <(sync_arguments "$1")
    "${uv[@]}" sync "${arguments[@]}" --check --quiet 2>/dev/null && return
    say "syncing $(environment_folder "$1") from uv.lock"
    run_child "${uv[@]}" sync "${arguments[@]}" >&2 \
        || fail "uv could not make the environment of $1 (see above); what it has loaded is kept for the next call"
}
