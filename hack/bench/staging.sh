#!/bin/sh
# Staging throughput: writing a content from a registry with TLS to a file, ours and with curl | zstd -d | dd. Ours hashes
# and reads back everything besides. Needs docker-registry, curl and zstd; about 3 GiB in $TMPDIR. COUNT runs of each.
set -eu

cd "$(dirname "$0")/../.."
exec env CGO_ENABLED=0 go test ./osimage -run '^$' -bench Staging -benchtime "${COUNT:-3}x" -timeout 20m
