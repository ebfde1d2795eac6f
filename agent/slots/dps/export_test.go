package dps

// SetChunks makes the scheme write and sync in small pieces, so that small images have many steps.
func (s *Scheme) SetChunks(chunk, syncEvery int64) { s.chunk, s.syncEvery = chunk, syncEvery }

// Names that tests check against.
const (
	StagedUKI  = stagedUKI
	LinuxDir   = linuxDir
	EmptyLabel = emptyLabel
)
