// Command stayput-controller is the manager: it brings HostPools to their releases and looks after machines that stay
// silent. It runs beside the BareMetalHosts, and reaches the Nodes of other clusters by the kubeconfigs that pools name.
package main
