# shellcheck shell=bash
# Running a step of a stage so that Ctrl-C and kill reach it, once, and are obeyed by the script as well.

# run_child COMMAND...: its exit status. A signal is handed on (Ctrl-C to the whole group, as a terminal does),
# the child's end is awaited, and then the script ends too. COMMAND must be a program, not a shell function.
#
# The child gets a process group of its own: bash would wait for the end of a child in the foreground before it
# looked at any signal, and one in the background of the same group would ignore Ctrl-C.
run_child() {
    local child status=0 received=0
    set -m
    "$@" &
    child=$!
    set +m
    trap 'received=2; kill -INT -- "-$child"' INT
    trap 'received=15; kill -TERM "$child"' TERM
    trap 'received=1; kill -HUP "$child"' HUP
    wait "$child" || status=$?
    # A trapped signal ends `wait` although the child still cleans up.
    while kill -0 "$child" 2>/dev/null; do
        status=0
        wait "$child" || status=$?
    done
    trap - INT TERM HUP
    ((received == 0)) || exit $((128 + received))
    return "$status"
}
