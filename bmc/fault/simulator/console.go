package simulator

import (
	"fmt"
	"net/http"
	"slices"
)

const (
	// consoleService is OpenBMC's name of the log.
	consoleService = "HostLogger"
	// consoleWindow is how many lines an answer has at most; who asks for more is refused (bmcweb, query.hpp).
	consoleWindow = 1000
)

// defaultConsole is what a machine prints whose root file system is missing.
func defaultConsole() []string {
	return []string{
		"[    0.000000] Linux version 6.12.41 (builder@example)",
		"[    1.412911] Run /init as init process",
		"",
		"[\x1b[0;32m  OK  \x1b[0m] Reached target \x1b[0;1;39minitrd-root-device.target\x1b[0m.",
		"[    9.000417] Kernel panic - not syncing: VFS: Unable to mount root fs",
	}
}

// Print adds lines to the console, as the machine does.
func (b *BMC) Print(lines ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.options.Console = append(slices.Clone(b.options.Console), lines...)
}

// Console is what the machine has printed.
func (b *BMC) Console() []string {
	b.mu.Lock()
	defer b.mu.Unlock()

	return slices.Clone(b.options.Console)
}

// consoleEntries are some lines, as $skip and $top choose them: an entry a line, with no time, numbered from 0.
func (b *BMC) consoleEntries(r *http.Request, path string) *answer {
	rules, total := b.profile.Log, len(b.options.Console)
	skip, top := number(r, "$skip", 0), number(r, "$top", consoleWindow)
	switch {
	case rules.ConsoleWhole && r.URL.RawQuery != "":
		return b.refuse(http.StatusNotImplemented, "Base.1.12.QueryNotSupported", "Querying is not supported by the implementation.")
	case rules.ConsoleWhole:
		top = total
	case top > consoleWindow:
		return b.refuse(http.StatusBadRequest, "Base.1.12.QueryParameterOutOfRange", "The value of $top is out of range.")
	}
	skip = min(max(skip, 0), total)
	end := min(skip+max(top, 0), total)
	members := make([]any, 0, end-skip)
	for i := skip; i < end; i++ {
		members = append(members, object{
			"@odata.id": path + "/" + itoa(i), "@odata.type": "#LogEntry.v1_9_0.LogEntry", "Id": itoa(i),
			"Name": "Host Logger Entry", "EntryType": "Oem", "OemRecordFormat": "Host Logger Entry", "Severity": "OK",
			"Message": b.options.Console[i],
		})
	}
	body := collection(path, members)
	body["Members@odata.count"] = total
	if end < total {
		body["Members@odata.nextLink"] = path + "?$skip=" + itoa(end)
	}
	for i := range rules.ConsoleGrows {
		b.options.Console = append(b.options.Console, fmt.Sprintf("line %d", total+i))
	}

	return show(body)
}
