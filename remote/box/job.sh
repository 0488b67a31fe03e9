#!/usr/bin/env bash
# Detached jobs of a box: they outlive every connection, and no job runs twice at a time.
#
#   job.sh start NAME new|again     command on stdin; prints started, or what the job of this name is: running, …
#   job.sh status NAME              prints: STATE RC LOG_BYTES; STATE is running, ended or lost
#   job.sh read NAME OFFSET LIMIT   the same line, then at most LIMIT bytes of the log from OFFSET
#   job.sh signal TERM|KILL [NAME]  without NAME to every job
#
# A job is a folder: command, lock (held while it runs), log, pid, and rc from when it has ended.
set -euo pipefail

here="$(cd -P "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
jobs="${here%/*}/jobs"

fail() {
    printf 'job.sh: %s\n' "$1" >&2
    exit 1
}

enter() {
    [[ -e "$jobs/$1/command" ]] || fail "no job '$1'"
    cd "$jobs/$1"
}

# The lock is asked for first: rc is written before it is released.
state() {
    local locked=0
    flock -s -n lock true || locked=1
    if [[ -e rc ]]; then
        echo ended
    elif ((locked)); then
        echo running
    else
        echo lost
    fi
}

status_line() {
    local state rc=-
    state="$(state)"
    [[ "$state" != ended ]] || read -r rc <"$PWD/rc"
    printf '%s %s %s\n' "$state" "$rc" "$(stat -c %s log)"
}

start() {
    local name="$1" again="$2" before usual
    usual="$(umask)"
    umask 077
    mkdir -p "$jobs/$name"
    cd "$jobs/$name"
    exec 8>>start.lock 9>>lock
    flock -w 20 8 || fail "job '$name' is being started by someone else for 20 s"
    cat >command.new
    if [[ -e command ]]; then
        [[ "$(<./command)" == "$(<./command.new)" ]] || fail "job '$name' is there with another command"
        before="$(state)"
        if [[ "$before" == running || "$again" != again ]]; then
            echo "$before"
            return
        fi
    fi
    # Waits, because who asks for the state holds the lock for a moment.
    flock -w 2 9 || fail "job '$name' has ended, but some of its processes still run: stop it first"
    rm -f rc
    : >>log
    # Room for the exit status, should the job fill the disk.
    printf '%8s\n' '' >rc.new
    mv command.new command
    umask "$usual"
    LLM_LADDER_JOB="$jobs/$name/" setsid bash "$here/job.sh" supervise "$name" </dev/null >>log 2>&1 8>&- &
    echo started
}

# A signal to the group is for the command to obey; its end is noted all the same, by programs that ignore signals.
supervise() {
    local rc=0
    cd "$jobs/$1"
    trap : INT TERM HUP
    (umask 077 && echo "$$" >pid.new)
    mv pid.new pid
    (cd "$HOME" && exec bash "$jobs/$1/command") || rc=$?
    trap '' INT TERM HUP
    printf '%s' "$rc" 1<>rc.new
    mv rc.new rc
}

# Everything a job started inherits the variable, also what has left its process group or session.
processes() {
    local file
    for file in /proc/[0-9]*/environ; do
        if grep -qzF -- "LLM_LADDER_JOB=$1" "$file" 2>/dev/null; then
            file="${file#/proc/}"
            echo "${file%/environ}"
        fi
    done
}

# TERM goes to the command, which ends what it started in its own order; KILL to everything but the supervisor.
signal() {
    local marked="$jobs/${2:+$2/}" pid file supervisors=' '
    for file in "$jobs"/${2:-*}/pid; do
        [[ ! -e "$file" ]] || supervisors+="$(<"$file") "
    done
    for pid in $(processes "$marked"); do
        case "$1" in
            TERM) [[ "$supervisors" != *" $pid "* ]] || kill -TERM -- "-$pid" 2>/dev/null || : ;;
            KILL) [[ "$supervisors" == *" $pid "* ]] || kill -KILL "$pid" 2>/dev/null || : ;;
        esac
    done
}

main() {
    case "$1" in
        start) start "$2" "$3" ;;
        status) enter "$2"; status_line ;;
        read) enter "$2"; status_line; dd if=log iflag=skip_bytes,count_bytes skip="$3" count="$4" bs=1M status=none ;;
        signal) signal "$2" "${3:-}" ;;
        supervise) supervise "$2" ;;
        *) fail "no such verb: $1" ;;
    esac
}

main "$@"
exit
