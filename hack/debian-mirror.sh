#!/bin/sh
# Prints the address of the Debian archive that apt of this machine fetches from, so that what else is fetched comes from
# the same mirror: debian-mirror.sh Debian, or Debian-Security.
set -eu

label=$1
address=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' "Label: $label" | head -n 1)

if [ -z "$address" ]; then
	echo "debian-mirror.sh: apt knows no repository of Debian with the label $label: add one to /etc/apt, then apt-get update" >&2
	exit 1
fi

echo "${address%/}"
