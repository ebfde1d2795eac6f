#!/usr/bin/env bash
# Installs the Debian packages of hack/lab/packages.txt that are missing. Needs root only when something is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()
while read -r name _; do
  [[ -z $name || $name == \#* ]] && continue
  dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null | grep -qx installed || missing+=("$name")
done <hack/lab/packages.txt

((${#missing[@]})) || exit 0

echo "Installing Debian packages: ${missing[*]}"
if ((EUID != 0)); then
  echo "Not root. Run: sudo apt-get install --no-install-recommends ${missing[*]}" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
