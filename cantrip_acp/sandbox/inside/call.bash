# A gate as a shell command, for machines whose only shell is bash. It reads the answer up to a NUL and runs it.
set -C
w=/run/cantrip
i=$(($$ % 64))
n=0
until { printf '%s\0' "${0##*/}" "${CANTRIP_CELL-}" "$@" >"$w/requests/$i"; } 2>/dev/null; do
  i=$(((i + 1) % 64))
  n=$((n + 1))
  if [ $((n % 64)) -eq 0 ]; then
    if [ "$n" -gt 200000 ]; then
      echo "${0##*/}: no gate call could be made: too many calls run at the same time" >&2
      exit 1
    fi
    command -p sleep 0.01
  fi
done
exec 3<>"$w/answers/$i"
printf '%s\n' "$i" >"$w/announce"
while IFS= read -r -d '' answer <&3; do
  eval "$answer"
done
