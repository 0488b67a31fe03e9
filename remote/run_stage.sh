#!/usr/bin/env bash
# Runs one stage from a fresh checkout, set-up included. `bash remote/run_stage.sh --help` lists the stages.
set -euo pipefail

root="$(cd -P "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
started_in="$PWD"
# shellcheck source=remote/lib/messages.sh
source "$root/remote/lib/messages.sh"
# shellcheck source=remote/lib/children.sh
source "$root/remote/lib/children.sh"
# shellcheck source=remote/lib/python.sh
source "$root/remote/lib/python.sh"
# shellcheck source=remote/lib/environment.sh
source "$root/remote/lib/environment.sh"

own_stages() {
    cat <<'END'
test         the CPU test suite; flags go to pytest
figures      draws every figure of every committed run again, the same bytes each time
all          test, then every measuring stage that is for this machine and not apart, then figures
END
}

# A stage exists from when it has a file. Those that time kernels, in a folder of their own, declare other things.
list_measuring_stages() {
    local file
    for file in "$root"/harness/stages/*.toml "$root"/harness/stages/kernels/*.toml; do
        printf '%-12s %s\n' "$(basename "$file" .toml)" "$(sed -n 's/^description *= *"\(.*\)" *$/\1/p' "$file")"
    done | LC_ALL=C sort
}

usage() {
    cat <<END
usage: bash remote/run_stage.sh STAGE [FLAG…]

Makes the environment .venv from uv.lock where it is missing or out of date, then runs the stage.

stages
$({ list_measuring_stages; own_stages; } | sed 's/^/  /')

flags
  --env NAME=PYTHON[:IMPORT_PATH…]   use this interpreter, with these folders in front of its import path, for NAME:
                                     project, vllm or sglang; may be repeated. With project nothing is installed.
  other flags go to the stage: to \`python -m harness run\` for the measuring ones (see RUNBOOK.md)

variables
  PYTHON=/path/to/python3.11         the interpreter that .venv is made from
END
}

stage_names() {
    { list_measuring_stages; own_stages; } | awk '{ printf "%s%s", separator, $1; separator = ", " }'
}

check_stage() {
    if grep -qxF -- "$1" < <({ list_measuring_stages; own_stages; } | awk '{ print $1 }'); then
        return
    fi
    fail "unknown stage '$1'; there are: $(stage_names)" 2
}

# absolute_paths A[:B…]: relative parts are meant from where the script was called.
absolute_paths() {
    local part joined=''
    while IFS= read -r -d : part; do
        [[ "$part" == /* ]] || part="$started_in/$part"
        joined+="${joined:+:}$part"
    done <<<"$1:"
    printf '%s\n' "$joined"
}

# read_flags FLAG…: --env goes to `environments` (for the harness) and, for the project, sets `python` and
# `import_path`; all else goes to `flags`.
read_flags() {
    environments=() flags=() python='' import_path=''
    local value
    while (($#)); do
        case "$1" in
            --env) (($# > 1)) || fail '--env needs NAME=PYTHON[:IMPORT_PATH…]' 2; value="$2"; shift ;;
            --env=*) value="${1#--env=}" ;;
            *) flags+=("$1"); shift; continue ;;
        esac
        shift
        [[ "$value" == [a-z]*=?* ]] || fail "--env '$value': must be NAME=PYTHON[:IMPORT_PATH…]" 2
        value="${value%%=*}=$(absolute_paths "${value#*=}")"
        environments+=(--env "$value")
        if [[ "$value" == project=* ]]; then
            use_given_project "${value#project=}"
        fi
    done
}

use_given_project() {
    python="${1%%:*}"
    [[ "$1" != *:* ]] || import_path="${1#*:}"
    suitable_python "$python" >/dev/null || fail "--env project: $(describe_python "$python") is not a CPython 3.11 or 3.12 that runs here" 2
}

set_up() {
    local base
    check_machine
    base="$(find_python)"
    lock_setup
    install_uv "$base"
    check_project_disk
    sync_environment project "$base"
    unlock_setup
    python="$root/.venv/bin/python"
}

# Only the environment's own packages are imported, and those given. Compiled code is kept: without it every start
# of a server compiles all it imports anew, which takes longer than the import.
use_import_path() {
    unset PYTHONHOME PYTHONPATH PYTHONDONTWRITEBYTECODE
    [[ -z "$import_path" ]] || export PYTHONPATH="$import_path"
}

stored_runs() {
    [[ -d "$root/results/v1" ]] || return 0
    find "$root/results/v1" -mindepth 1 -maxdepth 1 -type d ! -name '.*' -printf '%f\n' | LC_ALL=C sort
}

# measure STAGE FLAG…: a run and its figures (the harness prepares the model). A run with invalid cells is stored and drawn, and the status is not 0.
measure() {
    local before run made status=0
    before="$(stored_runs)"
    run_child "$python" -m harness run "${environments[@]}" "$@" || status=$?
    mapfile -t made < <(LC_ALL=C comm -13 - <(stored_runs) <<<"$before")
    for run in "${made[@]}"; do
        run_child "$python" -m figures.make_figures --run "$run" >&2 || status=$?
    done
    return "$status"
}

run_everything() {
    local stage status=0
    OMP_NUM_THREADS=1 run_child "$python" -m pytest -n 2 || status=$?
    for stage in $("$python" -m harness stages); do
        measure "$stage" || status=$?
    done
    run_child "$python" -m figures.make_figures || status=$?
    return "$status"
}

main() {
    case "${1:-}" in
        '') usage >&2; exit 2 ;;
        -h | --help | help) usage; exit 0 ;;
    esac
    local stage="$1" environments flags python import_path
    shift
    check_stage "$stage"
    read_flags "$@"
    [[ "$stage" != all || ${#flags[@]} -eq 0 ]] || fail "stage 'all' takes no flag but --env, not '${flags[0]}'" 2
    cd "$root"
    [[ -n "$python" ]] || set_up
    use_import_path
    case "$stage" in
        # One thread a worker: two workers already fill two cores.
        test) OMP_NUM_THREADS=1 exec "$python" -m pytest -n 2 "${flags[@]}" ;;
        figures) exec "$python" -m figures.make_figures "${flags[@]}" ;;
        all) run_everything ;;
        *) measure "$stage" "${flags[@]}" ;;
    esac
}

main "$@"
