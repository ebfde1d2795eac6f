// Package memory gives memory back that the agent needs only while it starts or stages, since nodes count what each
// of their services keeps resident.
//
// It refuses to limit memory: that is GOMEMLIMIT in the agent's unit.
package memory
