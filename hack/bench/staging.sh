#!/bin/sh
# Staging throughput: writing a content from a registry with TLS to a file, ours and with curl | zstd -d | dd. Ours hashes
# and reads back everything besides. Needs docker-registry, curl and zstd; about 3 GiB in $TMPDIR. COUNT runs of each.
#
# Then ours once more with profiles of processor and memory, which stay in bin/profiles for "go tool pprof"; their largest
# entries are printed without what makes and pushes the image before.
set -eu

cd "$(dirname "$0")/../.."
export CGO_ENABLED=0
go test ./osimage -run '^$' -bench Staging -benchtime "${COUNT:-3}x" -timeout 20m

profiles=$PWD/bin/profiles
mkdir -p "$profiles"
go test ./osimage -run '^$' -bench 'Staging/stayput$' -benchtime "${COUNT:-3}x" -timeout 20m -o "$profiles/osimage.test" \
	-cpuprofile "$profiles/staging.cpu" -memprofile "$profiles/staging.mem"

preparing='chunk\.\(\*(batch|packer|encoding|Encoder)|benchmarkImage|Push|upload'
for sort in flat cum; do
	go tool pprof -top "-$sort" -nodecount 30 -ignore "$preparing" "$profiles/osimage.test" "$profiles/staging.cpu" 2>/dev/null
done
go tool pprof -top -sample_index=alloc_space -nodecount 12 -ignore "$preparing" "$profiles/osimage.test" "$profiles/staging.mem" 2>/dev/null
