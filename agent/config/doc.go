// Package config reads the configuration of the agent and of the boot gate, /etc/stayput/agent.yaml.
//
// The file is small and holds no secret, only paths to files that may; but for a password in registry.proxy, which is why
// that value is in no error. An absent file is fine: every field but the
// node's name has a default, and the name defaults to the host name, as the kubelet's does. An unknown field is an
// error, because a misspelt setting that is ignored would only be noticed in the middle of an update.
package config
