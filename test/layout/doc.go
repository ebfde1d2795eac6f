// Package layout holds the tests of what the repository may be made of: who imports whom, and which programs tests start.
package layout
