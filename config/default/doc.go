// Package config holds the test that installs config/default and runs the controllers with exactly the rights that it
// gives them.
package config
