#!/bin/sh
# Ends what is left when the process that started it is gone without a goodbye (kill -9, a crash).
#
# It reads lines from standard input: "~FOLDER" and "=FOLDER" when stand-ins for protected names are and are no longer in a
# folder, "!FOLDER" for one more folder of ours, "%FOLDER" for the one that our control groups are made in, "." for an owner
# that has put everything away. The end of input is the owner's end.
# $1 is the runtime folder to remove, the other arguments are the protected names. Each sandbox of the owner carries the
# runtime folder's name as the name of its program, so that even one that was only just started is found.
trap '' HUP INT TERM QUIT PIPE
runtime=$1
token=${runtime##*/}
shift
folders=
more=
groups=
newline='
'
while IFS= read -r line; do
  case $line in
    .) exit 0 ;;
    %*) groups=${line#?} ;;
    !*) more=$more${line#?}$newline ;;
    '~'*) folders="$folders${line#?}$newline" ;;
    '='*) folder=${line#?}$newline
          case $newline$folders in
            *"$newline$folder"*) before=$newline$folders; before=${before%%"$newline$folder"*}
                                 after=$newline$folders; after=${after#*"$newline$folder"}
                                 folders=${before#"$newline"}; [ -z "$folders" ] || folders=$folders$newline
                                 folders=$folders$after ;;
          esac ;;
  esac
done
# A sandbox mounts files of this folder when it starts. Rename the folder first: a process that our owner forked, and that
# has not become a sandbox yet, then fails instead of running a command without an owner.
case $runtime in */cantrip-*) mv "$runtime" "$runtime.ended" 2>/dev/null ;; esac
kill_sandboxes() {
  for process in /proc/[0-9]*; do
    line=
    { IFS= read -r line < "$process/cmdline"; } 2>/dev/null
    case $line in "$token"*) kill -9 "${process##*/}" 2>/dev/null ;; esac
  done
}
# Several rounds: one may be starting at this instant.
for round in 1 2 3 4; do
  kill_sandboxes
  sleep 0.05
done
IFS=$newline
set -f
# Again for up to ten seconds: a sandbox that is dying slowly still holds its lock and its mounts.
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
  for folder in $folders; do
    for name in "$@"; do
      # A stand-in is an empty folder with the sticky bit. Another process may have commands running here: then it stays,
      # and that process removes it.
      [ -k "$folder/$name" ] || continue
      if command -v flock >/dev/null; then flock -n -x "$folder" rmdir "$folder/$name"; else rmdir "$folder/$name"; fi
      if [ -k "$folder/$name" ]; then left=yes; fi
    done
  done
  [ -n "$left" ] || break
  # Whatever holds it may have started after the rounds above.
  set +f
  kill_sandboxes
  set -f
  round=$((round + 1))
  sleep 0.1
done 2>/dev/null
for ours in "$runtime" "$runtime.ended" $more; do
  case $ours in */cantrip-*) rm -rf "$ours" ;; esac
done
set +f
kill_sandboxes
