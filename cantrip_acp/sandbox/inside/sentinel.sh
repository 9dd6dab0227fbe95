#!/bin/sh
# Ends what is left when the process that started it is gone without a goodbye (kill -9, a crash).
#
# It reads lines from standard input: "+ID PID GROUP" when a sandbox starts, "-ID" when it has ended, "~FOLDER" and
# "=FOLDER" when stand-ins for protected names are and are no longer in a folder, "!FOLDER" for one more folder of ours.
# The end of input is the owner's end.
# $1 is the runtime folder to remove, the other arguments are the protected names.
trap '' HUP INT TERM QUIT PIPE
runtime=$1
shift
live=' '
folders=
more=
newline='
'
while IFS= read -r line; do
  case $line in
    +*) line=${line#+}; id=${line%% *}; live="$live$id:${line#* }; " ;;
    -*) id=${line#-}
        case $live in *" $id:"*) rest=${live#*" $id:"}; live="${live%%" $id:"*} ${rest#*; }" ;; esac ;;
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
while [ "$live" != ' ' ]; do
  entry=${live# }
  entry=${entry%%;*}
  live=" ${live#*; }"
  pids=${entry#*:}
  pid=${pids% *}
  group=${pids#* }
  [ "$pid" -gt 1 ] && kill -9 "$pid"
  [ "$group" -gt 1 ] && kill -9 "-$group"
done 2>/dev/null
IFS=$newline
set -f
for folder in $folders; do
  for name in "$@"; do
    # A stand-in is an empty folder with the sticky bit. Another process may have commands running here: then it stays,
    # and that process removes it.
    [ -k "$folder/$name" ] || continue
    if command -v flock >/dev/null; then flock -n -x "$folder" rmdir "$folder/$name"; else rmdir "$folder/$name"; fi
  done
done 2>/dev/null
for ours in "$runtime" $more; do
  case $ours in */cantrip-*) rm -rf "$ours" ;; esac
done
