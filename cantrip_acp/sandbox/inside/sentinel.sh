#!/bin/sh
# Kills sandboxes and removes temporary files if the process that started this script (the owner) was killed or crashed.
#
# The script reads lines from standard input:
#   ~FOLDER   the folder now has placeholders at protected names
#   =FOLDER   the folder has no placeholders any more
#   !FOLDER   a further folder to remove
#   %FOLDER   a further folder in which control groups are created
#   .         the owner has cleaned up itself
# The end of the input means that the owner has ended.
# $1 is the runtime folder to remove. The other arguments are the protected names. The program name of each sandbox begins
# with the name of the runtime folder. So the script also finds a sandbox that has just started.
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
    %*) groups=$groups${line#?}$newline ;;
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
  for folder in $folders; do
    for name in "$@"; do
      # A placeholder is an empty folder with the sticky bit. If commands of another process run here, that process has the
      # lock. Then the placeholder stays, and that process removes it.
      [ -k "$folder/$name" ] || continue
      if command -v flock >/dev/null; then flock -n -x "$folder" rmdir "$folder/$name"; else rmdir "$folder/$name"; fi
      if [ -k "$folder/$name" ]; then left=yes; fi
    done
  done
  [ -n "$left" ] || break
  # The process that still has the lock may have started after the attempts above.
  set +f
  kill_sandboxes
  set -f
  round=$((round + 1))
  sleep 0.1
done 2>/dev/null
# When our owner was killed, its lock ended, and the sentinel of another process may have removed a placeholder. A sandbox of
# our owner that was just starting then made that folder itself, without the sticky bit and after our owner had started.
for folder in $folders; do
  for name in "$@"; do
    [ -d "$folder/$name" ] && [ ! -L "$folder/$name" ] && [ "$folder/$name" -nt "$runtime.ended/note" ] || continue
    if command -v flock >/dev/null; then flock -n -x "$folder" rmdir "$folder/$name"; else rmdir "$folder/$name"; fi
  done
done 2>/dev/null
for ours in "$runtime" "$runtime.ended" $more; do
  case $ours in */cantrip-*) rm -rf "$ours" ;; esac
done
set +f
kill_sandboxes
