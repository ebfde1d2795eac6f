#!/usr/bin/env bash
# Generates the CRDs of a Go module that ships none into the user's cache and prints the folder's path.
# Usage: hack/crds.sh metal3|prometheus
# Finished folders are kept by version; run it as often as you like.
set -euo pipefail
cd "$(dirname "$0")/.."

options=crd
only=.
case ${1-} in
metal3)
  module=github.com/metal3-io/baremetal-operator/apis
  packages=metal3.io/...
  # HardwareData has a floating point field, which controller-gen refuses unless told otherwise.
  options=crd:allowDangerousTypes=true
  ;;
prometheus)
  module=github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring
  packages=v1
  only='_(podmonitors|prometheusrules)\.yaml$'
  ;;
*)
  echo "crds.sh: want metal3 or prometheus, not '${1-}'" >&2
  exit 2
  ;;
esac

read -r version source < <(go list -m -f '{{.Version}} {{.Dir}}' "$module")
if [[ -z $source ]]; then
  go mod download "$module"
  source=$(go list -m -f '{{.Dir}}' "$module")
fi
target=${XDG_CACHE_HOME:-$HOME/.cache}/stayput-lab/$1-crds-$version

if [[ ! -d $target ]]; then
  generator=bin/controller-gen
  if [[ ! -x $generator ]]; then
    (cd hack/tools && go build -o ../../bin/ sigs.k8s.io/controller-tools/cmd/controller-gen)
  fi
  mkdir -p "$(dirname "$target")"
  work=$(mktemp -d "$target.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  "$generator" "$options" "paths=$source/$packages" "output:crd:dir=$work" >&2
  for file in "$work"/*; do
    [[ $file =~ $only ]] || rm "$file"
  done
  chmod 755 "$work"
  mv -T "$work" "$target" 2>/dev/null || [[ -d $target ]] # another run was faster
fi
echo "$target"
