// Package layout holds the test that keeps the rule of who may import whom.
package layout
