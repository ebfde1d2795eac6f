// Package apiserver gives tests a real kube-apiserver with Stayput's and Metal3's CRDs, for use on one test or shared
// by a package. It needs the binaries of `make lab-tools`, and fails with that advice when they are missing; it never
// skips.
package apiserver
