// Package e2e runs Stayput's scenarios on the lab: real systems on virtual machines, one struct a scenario.
//
// A Scenario says from what to what the nodes go, what happens to them on the way, and how it must end. The Runner
// plays it and checks, in every one of them, what must hold whatever happens; see invariants.go. The scenarios of one
// run share a lab and follow one another, each from where the one before has left the nodes.
//
// `go test ./test/e2e` needs root and the packages of hack/lab/packages.txt; nothing is skipped. The lab's directory,
// with every log and console, is kept when STAYPUT_E2E_KEEP names a directory.
package e2e
