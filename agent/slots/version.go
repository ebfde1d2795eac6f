package slots

import "github.com/stayput-dev/stayput/osimage/uki"

// CompareVersions orders two versions as systemd-boot does (UAPI.10 Version Format Specification): below 0 when a is
// older, 0 when they are equal, above 0 when a is newer. Any text is a version.
func CompareVersions(a, b string) int { return uki.CompareVersions(a, b) }
