package main

import (
	"errors"
	"testing"
)

// A lab's folder is removed as a whole: its name must not lead elsewhere.
func TestIDsThatAreNoNames(t *testing.T) {
	t.Parallel()

	for id, refused := range map[string]bool{
		"default": false, "e2e-1": false, "": true, "../x": true, "x/../../y": true, ".": true, "A_1": false,
	} {
		if _, err := (&flags{id: id}).dir(); errors.Is(err, errID) != refused {
			t.Errorf("%q: %v", id, err)
		}
	}
}
