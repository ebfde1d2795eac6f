// Package docs holds the tests that keep what is written for people true: every reason, outcome, metric and setting of
// the operator guide exists and none is missing, relative links lead somewhere, and the commands and examples of README
// and docs are those of the programs.
//
// It refuses to check prose.
package docs
