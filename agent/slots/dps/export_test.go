package dps

// SetSyncEvery makes the scheme write and sync in small pieces, so that small images have many steps.
func (s *Scheme) SetSyncEvery(bytes int64) { s.syncEvery = bytes }

// Names that tests check against.
const (
	StagedUKI  = stagedUKI
	LinuxDir   = linuxDir
	EmptyLabel = emptyLabel
)
