package simulator

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Options describe a BMC.
type Options struct {
	// Profile is how it behaves.
	Profile Profile
	// Username and Password of its account.
	Username, Password string
	// Systems are the machines behind it; none means one.
	Systems []System
	// Clock measures all times. Default: the machine's.
	Clock clock.PassiveClock
	// Log are the entries of its log, oldest first. Default: three.
	Log []Entry
	// Console is what the machine has printed, oldest line first, where the profile keeps it. Default: the end of a start.
	Console []string
	// Skew is how far its own clock, which it tells and stamps log entries with, is ahead.
	Skew time.Duration
}

// Entry is an entry of the log.
type Entry struct {
	At                time.Time
	Severity, Message string
}

// Counts are what was seen of the clients.
type Counts struct {
	// Requests came in; Concurrent is how many there were at once, at most.
	Requests, Concurrent int
	// Sessions are open, SessionsPeak were at most.
	Sessions, SessionsPeak int
	// Logins made a session; Refused are wrong credentials, in any form, that came with a request.
	Logins, Refused int
}

const (
	powerOn  = "On"
	powerOff = "Off"
	disabled = "Disabled"
	once     = "Once"

	rootPath     = "/redfish/v1"
	systemsPath  = rootPath + "/Systems"
	managersPath = rootPath + "/Managers"
	sessionsPath = rootPath + "/SessionService/Sessions"
	tasksPath    = rootPath + "/TaskService/Tasks"
)

// BMC is a simulated BMC; it is an http.Handler.
type BMC struct {
	clock clock.PassiveClock

	mu       sync.Mutex
	original Profile
	profile  Profile
	options  Options
	systems  []*system
	sessions map[string]*session
	tasks    map[string]*task
	acts     []Act
	counts   Counts
	running  int
	serial   int
	onAct    func(Act)
}

// New makes a BMC.
func New(options Options) *BMC {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if len(options.Systems) == 0 {
		options.Systems = []System{{}}
	}
	b := &BMC{
		clock: options.Clock, options: options, original: options.Profile.clone(), profile: options.Profile.clone(),
		sessions: map[string]*session{}, tasks: map[string]*task{},
	}
	if b.options.Log == nil {
		b.options.Log = defaultLog(options.Clock.Now())
	}
	if b.options.Console == nil {
		b.options.Console = defaultConsole()
	}
	for _, described := range options.Systems {
		b.Add(described)
	}

	return b
}

// Add puts one more machine behind the BMC, and gives its ID.
func (b *BMC) Add(described System) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	number := len(b.systems) + 1
	orDefault := func(text *string, value string) {
		if *text == "" {
			*text = value
		}
	}
	id := b.profile.SystemID
	if number > 1 {
		id += "-" + strconv.Itoa(number)
	}
	orDefault(&described.ID, id)
	orDefault(&described.Name, "System")
	orDefault(&described.Power, powerOn)
	orDefault(&described.UUID, fmt.Sprintf("%08d-1111-4222-8333-%012d", number, number))
	orDefault(&described.Serial, fmt.Sprintf("SN%04d", number))
	b.systems = append(b.systems, &system{
		id: described.ID, board: described.Board, number: number,
		State: State{
			Power: described.Power, Name: described.Name, UUID: described.UUID, Serial: described.Serial,
			Status: described.Status, Images: map[string]string{},
			Boot: Boot{Target: "None", Enabled: disabled, Mode: "UEFI"},
		},
		revision: 1, ejected: map[string]time.Time{}, stale: map[string]string{},
	})

	return described.ID
}

// Path is the path of a system.
func Path(id string) string { return systemsPath + "/" + id }

// IDs are the systems' IDs.
func (b *BMC) IDs() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	ids := make([]string, 0, len(b.systems))
	for _, s := range b.systems {
		ids = append(ids, s.id)
	}

	return ids
}

// Profile is how it behaves now.
func (b *BMC) Profile() Profile {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.profile.clone()
}

// Configure changes how it behaves from now on.
func (b *BMC) Configure(change func(*Profile)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(&b.profile)
}

// Heal makes it behave as it did at first. What is true of the systems stays.
func (b *BMC) Heal() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.profile = b.original.clone()
}

// State is what is true of a system now.
func (b *BMC) State(id string) State {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.system(id)
	if s == nil {
		return State{}
	}
	s.settle(b.clock.Now())

	return s.copyState()
}

// Change changes what is true of a system. A change of power that was under way is forgotten when change sets Power.
func (b *BMC) Change(id string, change func(*State)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.system(id)
	if s == nil {
		return
	}
	s.settle(b.clock.Now())
	before := s.Power
	change(&s.State)
	if s.Power != before {
		s.pending = nil
	}
	s.revision++
}

// SetSkew makes the BMC's own clock differ.
func (b *BMC) SetSkew(skew time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.options.Skew = skew
}

// SetPassword changes the account's.
func (b *BMC) SetPassword(password string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.options.Password = password
}

// OnAct calls f, outside any lock, after a request that would change something was decided and before it is answered.
func (b *BMC) OnAct(f func(Act)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.onAct = f
}

// Acts are the requests that would have changed something, oldest first.
func (b *BMC) Acts() []Act {
	b.mu.Lock()
	defer b.mu.Unlock()

	return slices.Clone(b.acts)
}

// Accepted counts the accepted requests of a system by type.
func (b *BMC) Accepted(id string) map[string]int {
	counts := map[string]int{}
	for _, act := range b.Acts() {
		if act.System == id && act.Accepted() {
			counts[act.Type]++
		}
	}

	return counts
}

// Counts are what was seen of the clients so far.
func (b *BMC) Counts() Counts {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.endSessions()
	counts := b.counts
	counts.Sessions = len(b.sessions)

	return counts
}

// ServeHTTP implements http.Handler.
func (b *BMC) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	b.counts.Requests++
	b.running++
	b.counts.Concurrent = max(b.counts.Concurrent, b.running)
	b.mu.Unlock()
	answer, act, hook := b.decide(r)
	if act != nil && hook != nil {
		hook(*act)
	}
	answer.write(w)
	b.mu.Lock()
	b.running--
	b.mu.Unlock()
}

// decide answers one request under the lock.
func (b *BMC) decide(r *http.Request) (*answer, *Act, func(Act)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	known := len(b.acts)
	answer := b.route(r)
	if len(b.acts) == known {
		return answer, nil, nil
	}
	act := &b.acts[len(b.acts)-1]
	act.Status = answer.status
	copied := *act

	return answer, &copied, b.onAct
}

// record notes a request that would change something; decide adds the status.
func (b *BMC) record(s *system, what string) *Act {
	b.acts = append(b.acts, Act{System: s.id, Type: what, At: b.clock.Now()})

	return &b.acts[len(b.acts)-1]
}

// system finds one.
func (b *BMC) system(id string) *system {
	for _, s := range b.systems {
		if s.id == id {
			return s
		}
	}

	return nil
}

// route finds what answers a request; the lock is held.
func (b *BMC) route(r *http.Request) *answer {
	path := strings.TrimRight(r.URL.Path, "/")
	switch {
	case path == rootPath && r.Method == http.MethodGet:
		return b.root()
	case path == sessionsPath && r.Method == http.MethodPost && b.profile.Session.Offered:
		return b.login(r)
	case !b.authorized(r):
		return b.refuse(http.StatusUnauthorized, "Base.1.12.NoValidSession", "There is no valid session.")
	}
	for _, area := range []struct {
		prefix string
		serve  func(*http.Request, []string) *answer
	}{
		{sessionsPath, b.sessionArea}, {tasksPath, b.taskArea}, {systemsPath, b.systemArea}, {managersPath, b.managerArea},
	} {
		if path == area.prefix {
			return area.serve(r, nil)
		}
		if rest, found := strings.CutPrefix(path, area.prefix+"/"); found {
			return area.serve(r, strings.Split(rest, "/"))
		}
	}

	return b.missing()
}
