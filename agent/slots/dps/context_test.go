package dps_test

import "context"

// contextOf is the context of a test, or of a property that has none.
func contextOf(t any) context.Context {
	if holder, ok := t.(interface{ Context() context.Context }); ok {
		return holder.Context()
	}

	return context.Background()
}
