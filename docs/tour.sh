#!/bin/sh
# Shows a shared drive at work: what is written on one mount is read on the other, both ways.
#
#   docs/tour.sh DIR-A DIR-B
#
# The two folders are mounts of one drive. `tidefs up a b --exec './docs/tour.sh a b'` makes them and runs
# this. The program is $TIDEFS, else the one built in target/release beside this script, else the one on PATH.
# Nothing here sleeps: `tidefs sync --level visible` returns once the other mount shows the work, or fails.
set -eu

if [ $# -ne 2 ]; then
  echo "usage: $0 DIR-A DIR-B (two mounts of one drive)" >&2
  exit 2
fi
a=$1
b=$2

tidefs=${TIDEFS:-}
if [ -z "$tidefs" ]; then
  built=$(dirname "$0")/../target/release/tidefs
  if [ -x "$built" ]; then tidefs=$built; else tidefs=tidefs; fi
fi

say() { printf '\n== %s\n' "$*"; }
# show FILE: its path and its lines.
show() { printf '%s:\n' "$1" && sed 's/^/    /' "$1"; }
# visible DIR: everything written there so far is shown by the other mount when this returns.
visible() { "$tidefs" sync "$1" --level visible --timeout 20s; }
# expect FILE TEXT: ends the tour with an error when FILE does not hold exactly TEXT.
expect() {
  if [ "$(cat "$1")" != "$2" ]; then
    echo "the tour failed: $1 does not hold what was written" >&2
    exit 1
  fi
}

# head DIR: the drive's last position, 0 on an empty drive.
head() {
  at=$("$tidefs" log "$1" -n 1 --json | sed -n 's/.*"position":\([0-9][0-9]*\).*/\1/p')
  echo "${at:-0}"
}

start=$(head "$a")

say "a writes a file"
mkdir -p "$a/tour"
printf 'written on a\n' >"$a/tour/note.txt"
visible "$a"

say "b reads it"
show "$b/tour/note.txt"
expect "$b/tour/note.txt" 'written on a'

say "b edits it, and a sees the edit"
printf 'edited on b\n' >>"$b/tour/note.txt"
visible "$b"
show "$a/tour/note.txt"
expect "$a/tour/note.txt" 'written on a
edited on b'

say "b saves by temporary file and rename, as editors do: one step on a"
printf 'saved on b\n' >"$b/tour/.note.txt.new"
mv "$b/tour/.note.txt.new" "$b/tour/note.txt"
visible "$b"
show "$a/tour/note.txt"
expect "$a/tour/note.txt" 'saved on b'

say "both write one path at the same time: the one placed last stands on both"
printf 'from a\n' >"$a/tour/both.txt"
printf 'from b\n' >"$b/tour/both.txt"
visible "$a"
visible "$b"
show "$a/tour/both.txt"
show "$b/tour/both.txt"
expect "$a/tour/both.txt" "$(cat "$b/tour/both.txt")"

say "the timeline, newest first"
made=$(($(head "$a") - start))
"$tidefs" log "$a" -n "$made"

say "overlaps: versions that were replaced by a session which had not seen them"
count=$("$tidefs" log "$a" -n "$made" --json |
  sed -n 's/.*"overlaps":\([0-9][0-9]*\).*/\1/p' |
  awk '{ sum += $1 } END { print sum + 0 }')
echo "recorded with these checkpoints: $count"
echo "(each is stored with its checkpoint; listing them, 'tidefs overlaps list', is not built yet)"

say "how b is"
"$tidefs" status "$b"
