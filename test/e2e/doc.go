// Package e2e runs Stayput's scenarios on the lab: real systems on virtual machines, one struct a scenario.
//
// A Scenario says what its machines are told to run, what happens on the way (its Incidents), and how it must end. A Run
// plays it and checks, in every one of them, what must hold whatever happens; see invariants.go. All share a lab, with the hosts
// and pools in one cluster and the Nodes in another, and with a workload on each machine. Scenarios of different
// machines are played side by side, those of the same machine one after the other, each from where the one before has
// left it, also when that one failed.
//
// `make e2e`, or `go test -v -timeout 85m ./test/e2e`, needs root and the packages of hack/lab/packages.txt; nothing is skipped. For
// one scenario add `-run 'TestScenarios/kernel_panic'`: each is told a version that is newer than what its machines can
// be at. `-skip 'TestScenarios$'` leaves the tests that need no machine. The lab's directory, with every log and
// console, is kept when STAYPUT_E2E_KEEP names a directory.
package e2e
