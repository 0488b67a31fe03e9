#!/usr/bin/env bash
# The dead-man switch of a box: when the time is over, ends every job and, when told to, powers the box down.
#
#   deadman.sh arm SECONDS jobs|box     from now on; said again, it extends or shortens the time
#   deadman.sh resume SECONDS jobs|box  at the start of a box: arms it, or goes on with the deadline there is
#   deadman.sh status                   prints: STATE SECONDS_LEFT; STATE is armed, fired or off
#
# The deadline is a file with one line: EPOCH UPTIME BOOT jobs|box. Within a boot only the uptime counts, which
# nobody can set; the epoch decides after a restart.
set -euo pipefail

here="$(cd -P "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
folder="${here%/*}/deadman"
poll_s="${LLM_LADDER_DEADMAN_POLL_S:-5}"
grace_s="${LLM_LADDER_DEADMAN_GRACE_S:-60}"

valid='^([0-9]+) ([0-9]+) ([^ ]+) (jobs|box)$'

# now: sets epoch, uptime and boot. Builtins only: forks may fail when the watch matters.
now() {
    printf -v epoch '%(%s)T' -1
    read -r uptime _ </proc/uptime
    uptime="${uptime%.*}"
    read -r boot </proc/sys/kernel/random/boot_id
}

# left LINE: sets seconds and ends; no time is left of what is not a deadline.
left() {
    local epoch uptime boot
    now
    seconds=0 ends=jobs
    [[ "$1" =~ $valid ]] || return 0
    if [[ "${BASH_REMATCH[3]}" == "$boot" ]]; then
        seconds=$((BASH_REMATCH[2] - uptime))
    else
        seconds=$((BASH_REMATCH[1] - epoch))
    fi
    ends="${BASH_REMATCH[4]}"
}

arm() {
    local epoch uptime boot
    now
    # One more, because the uptime was rounded down.
    printf '%s %s %s %s\n' "$((epoch + $1 + 1))" "$((uptime + $1 + 1))" "$boot" "$2" >"$folder/deadline.new"
    mv "$folder/deadline.new" "$folder/deadline"
    rm -f "$folder/fired"
    launch
}

resume() {
    rm -f "$folder/fired"
    if [[ -e "$folder/deadline" ]]; then
        launch
    else
        arm "$@"
    fi
}

launch() {
    setsid bash "$here/deadman.sh" watch </dev/null >>"$folder/log" 2>&1 &
}

watch() {
    local line='' seen seconds ends
    exec 9>>"$folder/lock" 8<> <(:)
    # Waits, because who asks for the status holds the lock for a moment.
    flock -w 2 9 || exit 0
    [[ ! -e "$folder/fired" ]] || exit 0
    trap '' HUP TERM INT
    while :; do
        seen=''
        read -r seen 2>/dev/null <"$folder/deadline" || :
        # A file that was deleted or damaged changes nothing.
        [[ ! "$seen" =~ $valid ]] || line="$seen"
        left "$line"
        ((seconds > 0)) || break
        read -rt "$poll_s" -u 8 || :
    done
    fire "$ends"
}

fire() {
    : >"$folder/fired" || :
    exec 9>&-
    bash "$here/job.sh" signal TERM || :
    sleep "$grace_s" || :
    bash "$here/job.sh" signal KILL || :
    [[ "$1" != box ]] || exec bash "${LLM_LADDER_POWER_DOWN:-$here/power_down.sh}"
}

status() {
    local line='' seconds=0 ends
    if [[ -e "$folder/deadline" ]]; then
        read -r line <"$folder/deadline" || :
        left "$line"
    fi
    if [[ -e "$folder/fired" ]]; then
        echo "fired $seconds"
    elif [[ -e "$folder/lock" ]] && ! flock -s -n "$folder/lock" true; then
        echo "armed $seconds"
    else
        echo "off $seconds"
    fi
}

main() {
    umask 077
    mkdir -p "$folder"
    case "$1" in
        arm) arm "$2" "$3" ;;
        resume) resume "$2" "$3" ;;
        watch) watch ;;
        status) status ;;
        *) printf 'deadman.sh: no such verb: %s\n' "$1" >&2; exit 1 ;;
    esac
}

main "$@"
exit
