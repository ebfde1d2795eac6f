package redfish_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/bmc/redfish"
)

const monitorPath = "/redfish/v1/TaskService/Monitors/5"

func TestTask(t *testing.T) {
	t.Parallel()
	const get = "GET " + monitorPath
	accepted := reply{status: 202, header: map[string]string{"Location": monitorPath}}
	running := object{"TaskState": "Running"}
	ended := func(state, id string) reply {
		return reply{status: 200, body: object{"TaskState": state, "Messages": []object{{"MessageId": id, "Message": "it " + password}}}}
	}
	second := time.Second
	cases := map[string]struct {
		accepted reply
		monitor  []reply
		want     bmc.Kind
		text     string
		pauses   []time.Duration
	}{
		"the monitor's own answer": {
			accepted,
			[]reply{{status: 202, header: map[string]string{"Retry-After": "7"}}, {status: 202}, {status: 204}},
			"", "",
			[]time.Duration{second, 7 * second, second},
		},
		"Retry-After of the acceptance": {
			reply{status: 202, header: map[string]string{"Location": monitorPath, "Retry-After": "3"}},
			[]reply{{status: 204}},
			"", "",
			[]time.Duration{3 * second},
		},
		"Retry-After without measure": {
			reply{status: 202, header: map[string]string{"Location": monitorPath, "Retry-After": "86400"}},
			[]reply{{status: 204}},
			"", "",
			[]time.Duration{30 * second},
		},
		"absolute Location": {
			reply{status: 202, header: map[string]string{"Location": "https://192.0.2.9" + monitorPath}},
			[]reply{{status: 204}},
			"", "",
			[]time.Duration{second},
		},
		"a Task": {
			accepted,
			[]reply{{status: 200, body: running}, ended("Completed", "Base.1.8.Success")},
			"", "",
			[]time.Duration{second, second},
		},
		"a Task in the body": {
			reply{status: 202, body: object{"@odata.id": "/redfish/v1/TaskService/Tasks/5", "TaskMonitor": monitorPath}},
			[]reply{{status: 204}},
			"", "",
			[]time.Duration{second},
		},
		"no monitor":     {reply{status: 202}, nil, "", "", nil},
		"gone":           {accepted, []reply{{status: 202}, {status: 404}}, "", "", []time.Duration{second, second}},
		"a Dell's job":   {accepted, []reply{{status: 200, body: object{"JobState": "Scheduled"}}}, "", "", []time.Duration{second}},
		"fails":          {accepted, []reply{ended("Exception", "Base.1.8.GeneralError")}, bmc.Unknown, "ended as Exception: it", nil},
		"is killed":      {accepted, []reply{ended("Killed", "")}, bmc.Unknown, "Killed", nil},
		"job fails":      {accepted, []reply{{status: 200, body: object{"JobState": "Failed"}}}, bmc.Unknown, "Failed", nil},
		"conflict":       {accepted, []reply{ended("Exception", "Base.1.8.ActionParameterValueConflict")}, bmc.Conflict, "Exception", nil},
		"not ready":      {accepted, []reply{ended("Exception", "IDRAC.2.8.SYS518")}, bmc.Busy, "Exception", nil},
		"refused at end": {accepted, []reply{{status: 409, body: complaint("x", "already off")}}, bmc.Conflict, "already off", nil},
		"sick for a while": {
			accepted,
			[]reply{{status: 500}, {status: 503, header: map[string]string{"Retry-After": "4"}}, {status: 204}},
			"", "",
			[]time.Duration{second, second, 4 * second},
		},
		"sick for good": {accepted, []reply{{status: 500}}, bmc.Unknown, "has not ended", []time.Duration{second, second, second}},
	}
	for name, c := range cases {
		s := script(t)
		s.on("POST "+resetPath, c.accepted)
		s.on(get, c.monitor...)
		err := s.open().Do(t.Context(), bmc.ActionForceOff)
		if bmc.KindOf(err) != c.want {
			t.Errorf("%s: got %v (kind %q), want kind %q", name, err, bmc.KindOf(err), c.want)

			continue
		}
		if err != nil {
			wantKind(t, err, c.want, c.text, "sending ForceOff")
		}
		if c.pauses != nil && !slices.Equal(s.pauses, c.pauses) {
			t.Errorf("%s: paused %v, want %v", name, s.pauses, c.pauses)
		}
		if n := len(s.writes()); n != 1 {
			t.Errorf("%s: sent %d times, want once", name, n)
		}
		if looked := s.count(get) > 0; looked != (c.monitor != nil) {
			t.Errorf("%s: the monitor was read: %v", name, looked)
		}
	}
}

// A task that never ends is given up with the caller's context, and what became of it is unknown.
func TestStuckTask(t *testing.T) {
	t.Parallel()
	s := script(t)
	s.on("POST "+resetPath, reply{status: 202, header: map[string]string{"Location": monitorPath}})
	s.on("GET "+monitorPath, reply{status: 202})
	m := s.open()
	ctx, cancel := context.WithCancel(t.Context())
	looks := 0
	redfish.SetWait(m, func(ctx context.Context, _ time.Duration) error {
		if looks++; looks == 4 {
			cancel()
		}

		return ctx.Err()
	})
	err := m.Do(ctx, bmc.ActionForceOff)
	wantKind(t, err, bmc.Unknown, monitorPath, "has not ended")
	if !errors.Is(err, context.Canceled) || s.count("GET "+monitorPath) != 3 {
		t.Errorf("got %v after %d looks, want a cancelled context after 3", err, s.count("GET "+monitorPath))
	}
	if power, err := m.Power(t.Context()); err != nil || power != bmc.PowerOn {
		t.Errorf("the machine is of no use afterwards: %s, %v", power, err)
	}
}

// Without a deadline of the caller's a task is followed for ten minutes.
func TestEndlessTask(t *testing.T) {
	t.Parallel()
	s := script(t)
	s.on("POST "+resetPath, reply{status: 202, header: map[string]string{"Location": monitorPath, "Retry-After": "30"}})
	s.on("GET "+monitorPath, reply{status: 202, header: map[string]string{"Retry-After": "30"}})
	wantKind(t, s.open().Do(t.Context(), bmc.ActionForceOff), bmc.Unknown, "longer than 10m")
	if n := s.count("GET " + monitorPath); n != 20 {
		t.Errorf("looked %d times, want 20", n)
	}
}

// The real pause ends with the context.
func TestPauseEndsWithContext(t *testing.T) {
	t.Parallel()
	s := script(t)
	s.on("POST "+resetPath, reply{status: 202, header: map[string]string{"Location": monitorPath, "Retry-After": "25"}})
	m, err := redfish.Open(t.Context(), s.options())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	err = m.Do(ctx, bmc.ActionForceOff)
	wantKind(t, err, bmc.Unknown)
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want an error that is context.DeadlineExceeded", err)
	}
}
