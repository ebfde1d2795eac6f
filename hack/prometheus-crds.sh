#!/usr/bin/env bash
# Generates the CRDs of the Prometheus operator that config/prometheus uses from its API module into the user's cache
# and prints the folder's path. Finished folders are kept by version; run it as often as you like.
set -euo pipefail
cd "$(dirname "$0")/.."

module=github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring
read -r version source < <(go list -m -f '{{.Version}} {{.Dir}}' "$module")
if [[ -z $source ]]; then
  go mod download "$module"
  source=$(go list -m -f '{{.Dir}}' "$module")
fi
target=${XDG_CACHE_HOME:-$HOME/.cache}/stayput-lab/prometheus-crds-$version

if [[ ! -d $target ]]; then
  generator=bin/controller-gen
  if [[ ! -x $generator ]]; then
    (cd hack/tools && go build -o ../../bin/ sigs.k8s.io/controller-tools/cmd/controller-gen)
  fi
  mkdir -p "$(dirname "$target")"
  work=$(mktemp -d "$target.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  "$generator" crd "paths=$source/v1" "output:crd:dir=$work" >&2
  find "$work" -type f ! -name '*_podmonitors.yaml' ! -name '*_prometheusrules.yaml' -delete
  chmod 755 "$work"
  mv -T "$work" "$target" 2>/dev/null || [[ -d $target ]] # another run was faster
fi
echo "$target"
