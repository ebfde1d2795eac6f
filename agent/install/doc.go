// Package install puts the agent and the boot gate onto a node, or into the root directory of an image that is being
// built, and takes them away again.
//
// Everything lies outside the slots, in /opt/stayput and /etc/systemd/system, so that a vendor's image is used
// unchanged and a slot switch leaves the agent where it is. Each file is replaced atomically, and installing again
// changes nothing that is already as it should be. Uninstall removes exactly what Install puts there; the state
// directory and the configuration stay unless purging is asked for.
package install
