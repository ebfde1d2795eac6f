// Package prometheus is the home of the tests of the alerts: they use only metrics and labels that the controller's
// code has, and they fire when they should. The rules themselves are the YAML files beside it.
package prometheus
