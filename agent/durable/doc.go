// Package durable stores the agent's small files so that a power cut leaves the old contents or the new ones, and never
// brings the old ones back once a call has returned nil.
//
// It refuses to be for large files: all of the contents are written anew each time. A folder that is made on the way is
// not synced into its own folder: when the first file of all is lost with it, there were no old contents.
package durable
