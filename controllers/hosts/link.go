package hosts

import (
	"fmt"
	"slices"
	"strings"

	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Method says which fact linked a host to its Node.
type Method string

// The methods, surest first.
const (
	ByProviderID Method = "ProviderID"
	ByConsumer   Method = "Consumer"
	ByHostname   Method = "Hostname"
)

// Problem says why a host has no link.
type Problem string

// The problems.
const (
	// NoNode: no fact names a Node. The host may not be provisioned yet.
	NoNode Problem = "NoNode"
	// Ambiguous: a fact names several Nodes, or several hosts lead to one Node.
	Ambiguous Problem = "Ambiguous"
)

// Link is what was found for one host.
type Link struct {
	// Host is the BareMetalHost's name.
	Host string
	// Node is the Node's name, "" when there is a Problem.
	Node string
	// By is the fact that named the Node.
	By Method
	// Problem and Message say why there is no link, with the next action.
	Problem Problem
	Message string
}

// World is all that a link may be drawn from.
type World struct {
	// Hosts are the pool's, of one namespace.
	Hosts []metal3.BareMetalHost
	// Nodes are all of the cluster.
	Nodes []corev1.Node
	// Consumers maps the object that a host's consumerRef names to the name of its Machine's Node.
	Consumers map[types.NamespacedName]string
}

// metal3Scheme starts a providerID that Metal3 has set: metal3://<namespace>/<host>/<machine>, or, until
// cluster-api-provider-metal3 v1.13, metal3://<host uid>.
const metal3Scheme = "metal3://"

// Resolve links the hosts, in order of their names.
func Resolve(world World) []Link {
	links := make([]Link, 0, len(world.Hosts))
	owners := map[string][]string{}
	for i := range world.Hosts {
		link := resolveHost(&world.Hosts[i], world)
		if link.Node != "" {
			owners[link.Node] = append(owners[link.Node], link.Host)
		}
		links = append(links, link)
	}
	for i, link := range links {
		if claims := owners[link.Node]; len(claims) > 1 {
			slices.Sort(claims)
			links[i] = Link{Host: link.Host, Problem: Ambiguous, Message: fmt.Sprintf(
				"Node %s belongs to several hosts (%s); give the Node the providerID %s<namespace>/<host>/<machine> of its own host",
				link.Node, strings.Join(claims, ", "), metal3Scheme)}
		}
	}
	slices.SortFunc(links, func(a, b Link) int { return strings.Compare(a.Host, b.Host) })

	return links
}

func resolveHost(host *metal3.BareMetalHost, world World) Link {
	for _, fact := range []struct {
		method Method
		nodes  []string
	}{
		{ByProviderID, nodesWhere(world.Nodes, func(n *corev1.Node) bool { return providerIDNames(n, host) })},
		{ByConsumer, consumerNodes(host, world)},
		{ByHostname, hostnameNodes(host, world.Nodes)},
	} {
		switch len(fact.nodes) {
		case 0:
			continue
		case 1:
			return Link{Host: host.Name, Node: fact.nodes[0], By: fact.method}
		default:
			return Link{Host: host.Name, Problem: Ambiguous, Message: fmt.Sprintf(
				"host %s has several Nodes by %s (%s); delete the stale ones, or set the providerID of the right one",
				host.Name, fact.method, strings.Join(fact.nodes, ", "))}
		}
	}

	return Link{Host: host.Name, Problem: NoNode, Message: fmt.Sprintf(
		"no Node belongs to host %s: none has providerID %s%s/%s/…, none is named by its consumer, and none has host name %q; "+
			"wait until it has joined, or set the Node's providerID",
		host.Name, metal3Scheme, host.Namespace, host.Name, hostname(host))}
}

// providerIDNames tells whether the Node's providerID names the host.
func providerIDNames(node *corev1.Node, host *metal3.BareMetalHost) bool {
	rest, ok := strings.CutPrefix(node.Spec.ProviderID, metal3Scheme)
	if !ok {
		return false
	}
	parts := strings.Split(rest, "/")
	switch len(parts) {
	case 1:
		return parts[0] != "" && parts[0] == string(host.UID)
	case 3:
		return parts[0] == host.Namespace && parts[1] == host.Name
	default:
		return false
	}
}

// unclaimed tells whether the Node may be linked by a weaker fact: its providerID does not name some other machine.
func unclaimed(node *corev1.Node) bool {
	return !strings.HasPrefix(node.Spec.ProviderID, metal3Scheme)
}

func consumerNodes(host *metal3.BareMetalHost, world World) []string {
	key, ok := consumerKey(host)
	if !ok || world.Consumers[key] == "" {
		return nil
	}

	return nodesWhere(world.Nodes, func(n *corev1.Node) bool {
		return n.Name == world.Consumers[key] && unclaimed(n)
	})
}

func hostnameNodes(host *metal3.BareMetalHost, nodes []corev1.Node) []string {
	name := hostname(host)
	if name == "" {
		return nil
	}

	return nodesWhere(nodes, func(n *corev1.Node) bool {
		return unclaimed(n) && (n.Name == name || n.Labels[corev1.LabelHostname] == name)
	})
}

func hostname(host *metal3.BareMetalHost) string {
	if host.Status.HardwareDetails == nil {
		return ""
	}

	return host.Status.HardwareDetails.Hostname
}

func nodesWhere(nodes []corev1.Node, keep func(*corev1.Node) bool) []string {
	var names []string
	for i := range nodes {
		if keep(&nodes[i]) {
			names = append(names, nodes[i].Name)
		}
	}
	slices.Sort(names)

	return names
}
