#!/bin/sh
# Kills sandboxes and removes temporary files if the process that started this script (the owner) was killed or crashed.
#
# The script reads lines from standard input:
#   %FOLDER   a further folder in which control groups are created
#   .         the owner has cleaned up itself
# The end of the input means that the owner has ended.
# $1 is the runtime folder to remove. The program name of each sandbox begins with the name of the runtime folder. So the
# script also finds a sandbox that has just started.
trap '' HUP INT TERM QUIT PIPE
runtime=$1
token=${runtime##*/}
groups=
newline='
'
while IFS= read -r line; do
  case $line in
    .) exit 0 ;;
    %*) groups=$groups${line#?}$newline ;;
  esac
done
# A sandbox mounts files of this folder when it starts. So rename the folder first. Then a process that the owner has forked
# and that is not a sandbox yet fails, and does not run a command without an owner.
case $runtime in */cantrip-*) mv "$runtime" "$runtime.ended" 2>/dev/null ;; esac
kill_sandboxes() {
  for process in /proc/[0-9]*; do
    line=
    { IFS= read -r line < "$process/cmdline"; } 2>/dev/null
    case $line in "$token"*) kill -9 "${process##*/}" 2>/dev/null ;; esac
  done
}
# Try several times, because a sandbox may be starting now.
for round in 1 2 3 4; do
  kill_sandboxes
  sleep 0.05
done
IFS=$newline
set -f
# Try for up to ten seconds, because a sandbox that ends slowly still has its lock and its mounts.
round=0
while [ $round -lt 100 ]; do
  left=
  for group in $groups; do
    set +f
    for group in "$group/$token"-*; do
      [ ! -d "$group" ] || rmdir "$group" || left=yes
    done
    set -f
  done
  [ -n "$left" ] || break
  # The process that still has the lock may have started after the attempts above.
  set +f
  kill_sandboxes
  set -f
  round=$((round + 1))
  sleep 0.1
done 2>/dev/null
for ours in "$runtime" "$runtime.ended"; do
  case $ours in */cantrip-*) rm -rf "$ours" ;; esac
done
set +f
kill_sandboxes
