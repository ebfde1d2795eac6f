#!/bin/sh
# Memory of building an image, and of pushing, pulling and writing it, for a content of 2 GiB. Needs docker-registry; about
# 1 GiB in $TMPDIR.
set -eu

cd "$(dirname "$0")/../.."
exec env CGO_ENABLED=0 OSIMAGE_TEST_MIB="${MIB:-2048}" go test ./osimage -count=1 -run '^TestMemory$' -v -timeout 20m
