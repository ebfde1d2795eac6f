// Package faulty is a machine for tests: a disk, a boot partition and a boot loader that behave as the real ones do when
// the power goes.
//
// What was written and not synced is in a volatile cache, sector by sector, and a power cut keeps all of it, none, or
// any part. The boot partition is a FAT: names do not differ in case, a rename that was cut off may leave the old name,
// the new one, both, or neither, and when both are left they share their clusters, so that removing one damages the
// other. The boot loader picks an entry, counts its tries down, and starts the slot only if its bytes are right, as
// dm-verity would.
//
// A Machine is a dps.Host. It is the judge too, and therefore shares no code with the scheme: it reads the partition
// table with go-diskfs alone and has its own idea of which entry comes first.
package faulty
