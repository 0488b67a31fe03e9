# shellcheck shell=bash
# What the scripts say, all on stderr: stdout belongs to the stage.

say() {
    printf '%s\n' "$*" >&2
}

# fail MESSAGE [STATUS]: one line with the script's name, then exit.
fail() {
    say "${0##*/}: $1"
    exit "${2:-1}"
}
