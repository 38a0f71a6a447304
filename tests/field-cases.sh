#!/bin/bash
# Runs the field cases against a server and two mounts made for them, with all hooks, and prints
# their table.
#
#   tests/field-cases.sh [--no-heavy] [NNN ...]
#
# TIDEFS_BIN_DIR: folder of the programs (default target/ci); CASES_DIR: folder with run.sh (default
# ../shared/cases beside the project); other settings of run.sh (SETTLE, LOGS, ALLOW_SKIP) pass through.
set -u
self=$(realpath "$0")
project=$(dirname "$(dirname "$self")")
bin=$(realpath -m "${TIDEFS_BIN_DIR:-$project/target/ci}")
cases=$(realpath -m "${CASES_DIR:-$project/../shared/cases}")

# gone PID: waits until the process has ended, at most 20 s.
gone() {
  local tries
  for ((tries = 0; tries < 400; tries++)); do
    [[ -e /proc/$1 ]] && ! grep -qs '^State:[[:space:]]*Z' "/proc/$1/status" || return 0
    sleep 0.05
  done
  echo "process $1 does not end" >&2
  return 1
}

mount_pid() { # mount_pid SESSION
  sed -n 's/.*"pid" *: *\([0-9]*\).*/\1/p' "$world/state-$1"/*/mount.json 2>/dev/null | head -n 1
}

start_mount() { # start_mount SESSION
  "$bin/tidefs" mount main "$world/$1" --session "$1" --state "$world/state-$1" --server "$(<"$world/url")"
}

kill_mount() { # kill_mount SESSION
  local pid
  pid=$(mount_pid "$1")
  [[ -n $pid && $(cat "/proc/$pid/comm" 2>/dev/null) == tidefs* ]] || return 0
  kill -9 "$pid" && gone "$pid"
}

start_server() {
  local listen=127.0.0.1:0 http=127.0.0.1:0 tries ready
  [[ -e $world/ports ]] && read -r listen http <"$world/ports"
  : >"$world/server.out"
  setsid "$bin/tidefs-server" serve --json --data "$world/data" --listen "$listen" --http "$http" \
    >"$world/server.out" 2>>"$world/server.log" </dev/null &
  echo $! >"$world/server.pid"
  for ((tries = 0; tries < 600; tries++)); do
    ready=$(grep -E '"event" *: *"ready"' "$world/server.out") && break
    [[ -e /proc/$(<"$world/server.pid") ]] || break
    sleep 0.05
  done
  [[ -n ${ready:-} ]] || { echo "the server did not come up" >&2; tail -n 20 "$world/server.log" >&2; return 1; }
  listen=$(sed -n 's/.*"listen" *: *"\([^"]*\)".*/\1/p' <<<"$ready")
  http=$(sed -n 's/.*"http" *: *"\([^"]*\)".*/\1/p' <<<"$ready")
  echo "$listen $http" >"$world/ports"
  echo "http://$listen" >"$world/url"
}

stop_server() { # stop_server [SIGNAL]
  local pid
  pid=$(<"$world/server.pid") || return 0
  kill "-${1:-TERM}" "$pid" 2>/dev/null || return 0
  gone "$pid" || { kill -9 "$pid"; gone "$pid"; }
}

if [[ ${1:-} == --hook ]]; then
  world=${TIDEFS_CASES_WORLD:?}
  export TIDEFS_STATE=$world/state-${3:-a}
  case $2 in
    restart) kill_mount "$3" && start_mount "$3" ;;
    remount) "$bin/tidefs" unmount "$world/$3" && start_mount "$3" ;;
    stop-server) stop_server ;;
    start-server) start_server ;;
    *) exit 2 ;;
  esac
  exit
fi

[[ -f $cases/run.sh ]] || { echo "no $cases/run.sh: set CASES_DIR to the folder of the field cases" >&2; exit 2; }
[[ -x $bin/tidefs && -x $bin/tidefs-server ]] || { echo "no programs in $bin: run cargo build --profile ci, or set TIDEFS_BIN_DIR" >&2; exit 2; }
world=$(mktemp -d "${TMPDIR:-/tmp}/fXXXXXX") || exit 2
clean_up() {
  local session
  for session in a b; do
    kill_mount "$session"
    umount -l "$world/$session" 2>/dev/null
  done
  stop_server KILL 2>/dev/null
  if ! grep -qF " $world/" /proc/self/mountinfo; then rm -rf "$world"; fi
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

mkdir "$world/a" "$world/b"
start_server || exit 1
"$bin/tidefs" drive create main --server "$(<"$world/url")" >/dev/null || exit 1
start_mount a && start_mount b || exit 1
export TIDEFS_CASES_WORLD=$world TIDEFS_BIN_DIR=$bin A=$world/a B=$world/b
hook="bash '$self' --hook"
export RESTART_A="$hook restart a" RESTART_B="$hook restart b" REMOUNT_A="$hook remount a"
export STOP_SERVER="$hook stop-server" START_SERVER="$hook start-server"
bash "$cases/run.sh" "$@"
status=$?
((status == 0)) || { echo "--- server.log"; tail -n 10 "$world/server.log"; } >&2
exit "$status"
