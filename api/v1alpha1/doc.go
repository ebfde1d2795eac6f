// Package v1alpha1 holds the two objects of Stayput's API.
//
// A HostPool is what an operator writes: which BareMetalHosts belong together, which release they shall run, and how
// fast that may happen. It lives in the management cluster, beside the hosts.
//
// A NodeUpdate is what a node's agent reads and answers: one small object for each Node, of the same name, in the
// cluster where the Node lives. Its spec has exactly one writer, the door that the release comes from; its status is
// the agent's, but for the outOfBand part, which belongs to the controller that drives the BMC.
//
// The package imports nothing else of Stayput.
//
// +kubebuilder:object:generate=true
// +groupName=stayput.dev
package v1alpha1
