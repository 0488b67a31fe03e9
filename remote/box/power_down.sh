#!/usr/bin/env bash
# Powers a rented box down, and does not give up: stops the instance where it has been given a key for just that,
# powers a virtual machine off, ends the main process of a container.
set -euo pipefail

again_s="${LLM_LADDER_POWER_DOWN_AGAIN_S:-60}"

# The home of a stand-in for a box is not that of its account. This must never happen to the machine around it.
check_is_box() {
    local home
    home="$(getent passwd "$EUID" | cut -d: -f6)"
    [[ "$HOME" -ef "$home" ]] || { printf 'power_down.sh: HOME is %s, not %s: not a box\n' "$HOME" "$home" >&2; exit 1; }
}

of_main_process() {
    tr '\0' '\n' </proc/1/environ | sed -n "s/^$1=//p"
}

# Vast.ai gives a container a key for itself, in the environment of its main process. Through stdin: arguments show
# in the list of processes.
stop_instance() {
    local id key
    id="$(of_main_process CONTAINER_ID)"
    key="$(of_main_process CONTAINER_API_KEY)"
    [[ -n "$id" && -n "$key" ]] || return 0
    curl --silent --show-error --fail --max-time 30 --output /dev/null --config - <<END
url = "${VAST_URL:-https://console.vast.ai}/api/v0/instances/$id/"
request = "PUT"
header = "Authorization: Bearer $key"
header = "Content-Type: application/json"
data = "{\"state\": \"stopped\"}"
END
}

main() {
    check_is_box
    while :; do
        stop_instance || :
        [[ "$(</proc/1/comm)" != systemd ]] || systemctl poweroff || :
        kill -TERM 1 || :
        sleep "$again_s" || :
        # A main process that ignores TERM often waits for one of these.
        kill -KILL -1 || :
    done
}

main
