// Package agenttest makes a machine and a cluster for the agent's tests: a disk with two slots, a boot loader that
// counts tries as systemd-boot does, a boot gate, power that can fail, and an API server that can be away.
//
// Machine implements slots.Scheme, agent.Machine and agent.Store; Cluster implements agent.Cluster; Run plays one
// Scenario on both until the attempt has ended, and returns everything that was seen to go against the rules. The time is
// made up, and nothing runs in the background, so the same scenario always goes the same way.
//
// A fault is tied to a step: every effect on the machine calls point twice, before and after it took place, and a fault
// names the number of the call at which the process is killed, the power fails, or the journal is lost with it.
package agenttest
