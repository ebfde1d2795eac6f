#!/usr/bin/env bash
# Fuzz every parser in turn, FUZZTIME each (a duration of Go's, default 1m), all of them or those whose names match the
# argument. Prints a line for each. What fails is left in the package's testdata/fuzz, and belongs into the repository with
# its correction.
set -euo pipefail
cd "$(dirname "$0")/.."

time=${FUZZTIME:-1m}
pattern=${1:-.}
failed=0
output=$(mktemp)
trap 'rm -f "$output"' EXIT

printf '%-28s %-20s %12s %12s  %s\n' PACKAGE TARGET EXECUTIONS INTERESTING RESULT

while IFS=: read -r file name; do
	package=./$(dirname "$file")
	[[ $package/$name =~ $pattern ]] || continue

	result=passed
	# Making what was found smaller, by default for up to a minute each, would take most of the time of large inputs.
	if ! go test -run '^$' -fuzz "^$name\$" -fuzztime "$time" -fuzzminimizetime 2s "$package" >"$output" 2>&1; then
		result=FAILED
		failed=1
	fi

	last=$(grep 'execs:' "$output" | tail -n 1 || true)
	printf '%-28s %-20s %12s %12s  %s\n' "${package#./}" "$name" \
		"$(sed -n 's/.*execs: \([0-9]*\).*/\1/p' <<<"$last")" "$(sed -n 's/.*total: \([0-9]*\)).*/\1/p' <<<"$last")" "$result"

	if [[ $result == FAILED ]]; then
		grep -v '^fuzz: ' "$output" | sed 's/^/    /'
	fi
done < <(grep -rhoH --include='*_test.go' '^func Fuzz[A-Za-z0-9]*' . | sed 's|^\./||; s/:func /:/' | sort)

exit "$failed"
