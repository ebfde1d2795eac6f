// Package config holds the tests that apply every kustomization of config to a kube-apiserver, and that install
// config/default and config/nodes and run the controllers with exactly the rights that these give them.
package config
