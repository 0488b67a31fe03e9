# shellcheck shell=bash
# shellcheck disable=SC2154 # $root is set by the script that sources this
# Finding an interpreter that works. A name on PATH proves nothing: pyenv keeps names of versions that are not
# switched on, and those only print an error.

# suitable_python COMMAND: prints the interpreter's path if it is a 64-bit CPython 3.11 or 3.12.
suitable_python() {
    "$1" -I -c '
import sys
if sys.version_info[:2] not in ((3, 11), (3, 12)) or sys.implementation.name != "cpython" or sys.maxsize < 2**32:
    sys.exit(1)
print(sys.executable)' 2>/dev/null
}

# pythons_on_path: every python3.12, python3.11 and python3 of PATH, a line each, in this order of preference.
pythons_on_path() {
    type -aP python3.12 python3.11 python3 || true
}

describe_python() {
    printf '%s (%s)' "$1" "$("$1" -I -c 'import platform; print(platform.python_version())' 2>/dev/null || echo 'does not run')"
}

# find_python: prints the interpreter to use: $PYTHON, else that of the environment there is, else the first on PATH.
find_python() {
    local candidate seen=''
    if [[ -n "${PYTHON:-}" ]]; then
        suitable_python "$PYTHON" || fail "PYTHON=$(describe_python "$PYTHON") is not a CPython 3.11 or 3.12 that runs here"
        return
    fi
    suitable_python "$root/.venv/bin/python" && return
    while IFS= read -r candidate; do
        suitable_python "$candidate" && return
        seen+="${seen:+, }$(describe_python "$candidate")"
    done < <(pythons_on_path)
    fail "no Python 3.11 or 3.12 found (seen on PATH: ${seen:-none}); install one, or give its path with PYTHON=/path/to/python3.11"
}
