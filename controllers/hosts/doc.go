// Package hosts finds the Node that runs on a BareMetalHost.
//
// Three facts are asked, the surest first, and the first that names any Node decides: the Node's providerID in either
// of Metal3's forms; the Machine that consumes the host; the host name that inspection found. When a fact names
// several Nodes, or two hosts lead to one Node, the package refuses and says why: a wrong link would drain one machine
// and reset another.
package hosts
