// Package statustable shows a person where a HostPool and its Nodes are: a header with what stands in the way, and one
// row for each Node, and what the agents say of Nodes that cannot go on. The command `stayput status` and the lab's demonstration print it.
//
// It is for eyes: programs read the objects. It refuses to ask a cluster; the caller brings what it has read.
package statustable
