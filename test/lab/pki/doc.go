// Package pki makes the certificates of a lab when it is brought up: one authority for each cluster, and what it
// signs. Keys are made at run time and never leave the lab's directory; nothing here is fit for anything but a lab.
package pki
