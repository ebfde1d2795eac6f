// Package cluster is the agent's side of the API server: it watches the node's own NodeUpdate and Node, applies the
// agent's part of the NodeUpdate's status, answers on the Node, and deletes the node's pods.
//
// It uses plain REST clients and two watches of one object each, because the agent has to be small on every node. The
// credentials may appear after the agent has started, and the API server may be away for as long as it likes: the views
// then stay what they were.
package cluster
