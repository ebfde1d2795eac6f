// Package clusters keeps the connections to the clusters where Nodes live.
//
// A HostPool lives beside its BareMetalHosts; its Nodes may be in the same cluster or in another one, which the pool
// names by a kubeconfig Secret. Controllers ask the Registry for a Cluster on every pass and never keep one: the
// registry reads the Secret again each time and replaces the connection when it has changed.
//
//	registry := clusters.New(mgr, clusters.Options{})       // once; add it to the manager with mgr.Add(registry)
//	cluster, err := registry.Get(ctx, clusters.KeyOf(pool)) // on every pass; never waits for a network
//	source := clusters.Subscribe(registry, mapFunc)         // Nodes and NodeUpdates of every connected cluster
//
// Get never waits for a remote cluster: a cluster that is dead or slow gives an *Error at once, so it cannot hold up
// the pools of other clusters. When a connection comes or goes, subscribers get an event without an object.
//
// The package refuses kubeconfigs that would make this process run a program or read one of its own files (exec,
// auth-provider, tokenFile, certificate paths): whoever may write a Secret must not get the controller's rights.
package clusters
