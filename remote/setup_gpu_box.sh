#!/usr/bin/env bash
# Makes a GPU box ready: looks at GPU, driver, disk, memory and Python before it spends time, then makes one
# environment a system from uv.lock. May be killed and called again at any point; what is ready is left as it is.
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

systems=(project vllm sglang)
min_driver=580  # torch 2.11.0 is built for CUDA 13.0; on an older driver it silently computes on the CPU
min_memory_gb=16

usage() {
    cat <<END
usage: bash remote/setup_gpu_box.sh [--dry-run] [SYSTEM…]

Checks this machine and makes the environments of the systems named (of all without a name):
  project   .venv         the engine, the harness, and transformers
  vllm      .venv-vllm    vLLM of uv.lock
  sglang    .venv-sglang  SGLang of uv.lock

Needs an NVIDIA driver >= $min_driver, $min_memory_gb GB of memory, CPython 3.11 or 3.12 with pip, and free disk
(all three: $(total_gb separate project vllm sglang) GB, or $(total_gb linked project vllm sglang) GB where the cache of uv is on the same file system).

  --dry-run                    check, and print what would be run; changes nothing
  PYTHON=/path/to/python3.11   the interpreter the environments are made from
END
}

# As measured, with a margin. Where uv can link from its cache, systems share most of their files.
disk_gb() {
    case "$1 $2" in
        'linked project' | 'separate project') echo "$project_gb" ;;
        'linked vllm') echo 4 ;;
        'linked sglang') echo 5 ;;
        'separate vllm') echo 12 ;;
        'separate sglang') echo 13 ;;
    esac
}

total_gb() {
    local kind="$1" system total=0
    shift
    for system in "$@"; do
        total=$((total + $(disk_gb "$kind" "$system")))
    done
    echo "$total"
}

report() {
    printf '%-5s %s\n' "$1" "$2"
    [[ "$1" == ok ]] || failed=1
}

check_gpu() {
    local listed name memory driver
    if ! command -v nvidia-smi >/dev/null; then
        report FAIL 'GPU: there is no nvidia-smi on PATH; an NVIDIA GPU with its driver is needed'
        return
    fi
    if ! listed="$(nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader,nounits 2>&1)"; then
        report FAIL "GPU: nvidia-smi fails: ${listed:-no output}"
        return
    fi
    while IFS=, read -r name memory driver; do
        driver="${driver// /}"
        if [[ "${driver%%.*}" =~ ^[0-9]+$ ]] && ((${driver%%.*} >= min_driver)); then
            report ok "GPU: $name,$memory MiB, driver $driver"
        else
            report FAIL "GPU: $name has driver $driver, needed is $min_driver or newer"
        fi
    done <<<"$listed"
}

check_memory() {
    local have
    have=$(($(getconf _PHYS_PAGES) * $(getconf PAGE_SIZE) / 1000000000))
    if ((have >= min_memory_gb)); then
        report ok "memory: $have GB"
    else
        report FAIL "memory: $have GB, needed are $min_memory_gb GB"
    fi
}

# Nearest folder that exists: the cache of uv is made on first use.
existing_parent() {
    local folder="$1"
    until [[ -d "$folder" ]]; do
        folder="$(dirname "$folder")"
    done
    printf '%s\n' "$folder"
}

check_free_disk() {
    local system missing=() cache kind=separate need have
    for system in "${chosen[@]}"; do
        [[ -d "$(environment_folder "$system")" ]] || missing+=("$system")
    done
    cache="$(existing_parent "${UV_CACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/uv}")"
    [[ "$(stat -c %d "$cache")" == "$(stat -c %d "$root")" ]] && kind=linked
    need="$(total_gb "$kind" "${missing[@]}")"
    have="$(free_gb "$root")"
    if ((have >= need)); then
        report ok "disk: $have GB free, needed are $need GB for ${missing[*]:-nothing that is missing}"
    else
        report FAIL "disk: $have GB free on the file system of $root, needed are $need GB for ${missing[*]}"
    fi
}

check_python() {
    if python="$(find_python 2>&1)"; then
        report ok "Python: $(describe_python "$python")"
    else
        report FAIL "Python: ${python#*: }"
    fi
}

# Looks at everything before it gives up, so that one call tells all that is to be mended.
check_box() {
    failed=0
    check_gpu
    check_memory
    check_free_disk
    check_python
    ((failed == 0)) || fail "this machine is not ready: mend what is marked FAIL and call again"
}

print_plan() {
    local system uv arguments
    has_pinned_uv "$root/.uv" || echo "would install uv $uv_version into .uv"
    for system in "${chosen[@]}"; do
        uv_command "$system" "$python"
        mapfile -t arguments < <(sync_arguments "$system")
        echo "would run ${uv[*]} sync ${arguments[*]}"
    done
}

# record_environment SYSTEM: sees the GPU from inside, and notes beside the environment that it matches the lock.
record_environment() {
    local folder uv arguments
    folder="$(environment_folder "$1")"
    uv_command "$1" "$python"
    mapfile -t arguments < <(sync_arguments "$1")
    "${uv[@]}" sync "${arguments[@]}" --check --quiet || fail "$folder does not match uv.lock right after it was made"
    "$folder/bin/python" -I - "$1" "$folder" "$root/uv.lock" "$uv_version" <<'END' || fail "$folder cannot use the GPU (see above)"
import hashlib, importlib.metadata, json, pathlib, platform, sys

import torch

system, folder, lock, uv_version = sys.argv[1:]
if not torch.cuda.is_available():
    sys.exit(f"torch {torch.__version__} in {folder} finds no CUDA device")
record = {
    "system": system,
    "lock_sha256": hashlib.sha256(pathlib.Path(lock).read_bytes()).hexdigest(),
    "matches_lock": True,
    "uv": uv_version,
    "python": platform.python_version(),
    "torch": torch.__version__,
    "version": "" if system == "project" else importlib.metadata.version(system),
    "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
}
partial = pathlib.Path(folder, ".setup.json.tmp")
partial.write_text(json.dumps(record, indent=1) + "\n")
partial.replace(partial.with_name("setup.json"))
print(f"{system} is ready: torch {record['torch']}, {record['version'] or 'from this checkout'}, {len(record['gpus'])} GPU(s)")
END
}

read_arguments() {
    local argument
    dry_run=0 chosen=()
    for argument in "$@"; do
        case "$argument" in
            -h | --help) usage; exit 0 ;;
            --dry-run) dry_run=1 ;;
            project | vllm | sglang) chosen+=("$argument") ;;
            *) fail "unknown system or flag '$argument'; there are: ${systems[*]}, --dry-run, --help" 2 ;;
        esac
    done
    ((${#chosen[@]} > 0)) || chosen=("${systems[@]}")
}

main() {
    local dry_run chosen failed python system
    read_arguments "$@"
    check_machine
    check_box
    if ((dry_run)); then
        print_plan
        return
    fi
    lock_setup
    install_uv "$python"
    for system in "${chosen[@]}"; do
        sync_environment "$system" "$python"
        record_environment "$system"
    done
}

main "$@"
