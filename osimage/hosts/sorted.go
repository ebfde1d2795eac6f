package hosts

import (
	"maps"
	"slices"

	"golang.org/x/net/http/httpguts"
)

func sortedKeys[V any](values map[string]V) []string {
	return slices.Sorted(maps.Keys(values))
}

func validHeader(name string, values []string) bool {
	return httpguts.ValidHeaderFieldName(name) && !slices.ContainsFunc(values, func(value string) bool {
		return !httpguts.ValidHeaderFieldValue(value)
	})
}
