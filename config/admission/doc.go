// Package admission is the home of the test that an agent cannot break out of what config/rbac and config/admission
// leave to it. The policies themselves are the YAML files beside it.
package admission
