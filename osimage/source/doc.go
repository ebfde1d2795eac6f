// Package source holds what all importers of vendors' artifacts return: the parts of an OS image, ready for
// osimage.Build.
//
// The importers read only. They mount nothing, need no rights beyond reading the file, and treat every byte as foreign:
// a broken or hostile artifact ends in one error that names the file, the place and what was expected there.
package source
