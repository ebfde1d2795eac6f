// Package demo tells a person what Stayput does, on the lab: a good update, a release that falls back by itself, and a
// machine that falls silent and is reset through its BMC.
//
// Each chapter is a scenario of package e2e, which plays it and checks the invariants. This package explains it, shows
// the nodes while it runs, and compares the objects at its end with what the chapter has promised. A story is good only
// when every chapter was told to its end and everything in it was seen.
//
// It refuses to bring up or tear down anything: `hack/lab demo` does.
package demo
