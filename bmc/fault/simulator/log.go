package simulator

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

// defaultLog is what a machine that was started an hour ago has to tell.
func defaultLog(now time.Time) []Entry {
	return []Entry{
		{At: now.Add(-2 * time.Hour), Severity: "Warning", Message: "The chassis is open while the power is off."},
		{At: now.Add(-time.Hour), Severity: "OK", Message: "The server was powered on."},
		{At: now.Add(-time.Minute), Severity: "Critical", Message: "The watchdog timer expired."},
	}
}

// logService is one log: what is told of it, and what gives its entries.
type logService struct {
	id, name, entryType string
	entries             func(r *http.Request, path string) *answer
}

// logServices are the logs at a place.
func (b *BMC) logServices(at Place) []logService {
	var services []logService
	if b.profile.Log.Under == at {
		services = append(services, logService{b.profile.Log.Service, "System Event Log", "SEL", b.entries})
	}
	if b.profile.Log.Console && at == AtSystem {
		services = append(services, logService{consoleService, "Host Logger Service", "OEM", b.consoleEntries})
	}

	return services
}

func (b *BMC) logArea(r *http.Request, at Place, owner string, rest []string) *answer {
	base := owner + "/LogServices"
	services := b.logServices(at)
	path := strings.Join(rest, "/")
	switch {
	case r.Method != http.MethodGet:
		return b.notAllowed()
	case path == "":
		members := make([]any, 0, len(services))
		for _, service := range services {
			members = append(members, link(base+"/"+service.id))
		}

		return show(collection(base, members))
	}
	for _, service := range services {
		self := base + "/" + service.id
		switch path {
		case service.id:
			return show(object{
				"@odata.id": self, "@odata.type": "#LogService.v1_2_0.LogService", "Id": service.id,
				"Name": service.name, "LogEntryType": service.entryType, "Entries": link(self + "/Entries"),
			})
		case service.id + "/Entries":
			return service.entries(r, self+"/Entries")
		}
	}

	return b.missing()
}

// entries is a page of the log: $skip and $top choose, as the next link does.
func (b *BMC) entries(r *http.Request, path string) *answer {
	members := make([]any, 0, len(b.options.Log))
	for i, entry := range b.options.Log {
		id := itoa(i + 1)
		members = append(members, object{
			"@odata.id": path + "/" + id, "@odata.type": "#LogEntry.v1_9_0.LogEntry", "Id": id, "Name": "Log Entry " + id,
			"EntryType": "SEL", "Severity": entry.Severity, "Message": entry.Message,
			"Created": entry.At.Add(b.options.Skew).Format(time.RFC3339),
		})
	}
	if !b.profile.Log.OldestFirst {
		slices.Reverse(members)
	}
	total := len(members)
	skip, page := number(r, "$skip", 0), number(r, "$top", total)
	if b.profile.Log.Page > 0 {
		page = min(page, b.profile.Log.Page)
	}
	skip = min(max(skip, 0), total)
	end := min(skip+max(page, 0), total)
	body := collection(path, members[skip:end])
	body["Members@odata.count"] = total
	if end < total && b.profile.Log.Page > 0 {
		body["Members@odata.nextLink"] = path + "?$skip=" + itoa(end)
	}

	return show(body)
}

func number(r *http.Request, name string, otherwise int) int {
	value := 0
	text := r.URL.Query().Get(name)
	if text == "" {
		return otherwise
	}
	for _, digit := range text {
		if digit < '0' || digit > '9' || value > 1<<20 {
			return otherwise
		}
		value = value*10 + int(digit-'0')
	}

	return value
}
