// Package fakeagent answers NodeUpdates as the agents of real nodes do, without machines: it stages, waits until its
// node is told to go, changes the Node's boot ID, and reports. Tests of controllers use it, and say for each version
// how the attempt ends.
//
// It keeps the agent's promises on the wire (package protocol, NodeUpdate status by server-side apply with the agent's
// field manager) and checks the orchestrator's: a node that is told to go without being cordoned, or while its pods
// are still there, is noted in Violations.
package fakeagent
