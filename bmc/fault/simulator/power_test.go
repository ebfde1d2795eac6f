package simulator_test

import (
	"testing"
	"time"

	"github.com/stayput-dev/stayput/bmc/fault/simulator"
)

func TestPowerTakesItsTime(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(p *simulator.Profile) { p.Reset.Transitions = true })
	b.reset(204, "ForceOff")
	b.wantPower("PoweringOff")
	b.clock.Step(1999 * time.Millisecond)
	b.wantPower("PoweringOff")
	b.clock.Step(time.Millisecond)
	b.wantPower("Off")
	b.reset(204, "On")
	b.wantPower("PoweringOn")
	b.clock.Step(2 * time.Second)
	b.wantPower("On")
	b.reset(204, "GracefulShutdown")
	b.clock.Step(3 * time.Second)
	b.wantPower("PoweringOff")
	b.clock.Step(time.Second)
	b.wantPower("Off")
	b.reset(204, "On")
	b.clock.Step(2 * time.Second)
	b.Configure(func(p *simulator.Profile) { p.Reset.Types = append(p.Reset.Types, "PowerCycle") })
	b.reset(204, "PowerCycle")
	b.clock.Step(2 * time.Second)
	if got := b.State("1").Power; got != "Off" {
		t.Errorf("in the middle of a power cycle: %s", got)
	}
	b.clock.Step(2 * time.Second)
	b.wantPower("On")
	if booted := b.State("1").Booted; len(booted) != 3 {
		t.Errorf("it was started %d times, want 3", len(booted))
	}
}

func TestPowerQuirks(t *testing.T) {
	t.Parallel()
	type rules = simulator.ResetRules
	later := func(d time.Duration, power any) func(*bench) {
		return func(b *bench) {
			b.clock.Step(d)
			b.wantPower(power)
		}
	}
	send := func(status int, kind string) func(*bench) { return func(b *bench) { b.reset(status, kind) } }
	cases := map[string]struct {
		change func(*rules)
		steps  []func(*bench)
	}{
		"an On before it is off is lost": {nil, []func(*bench){send(204, "ForceOff"), send(204, "On"), later(time.Hour, "Off")}},
		"stale": {func(r *rules) { r.Stale = 20 * time.Second }, []func(*bench){
			send(204, "ForceOff"), later(21*time.Second, "On"), later(time.Second, "Off"),
		}},
		"stuck": {func(r *rules) { r.Stuck, r.Transitions = true, true }, []func(*bench){
			send(204, "ForceOff"), later(24*time.Hour, "PoweringOff"),
		}},
		"ignored": {func(r *rules) { r.Ignore = true }, []func(*bench){send(204, "ForceOff"), later(time.Hour, "On")}},
		"conflict": {func(r *rules) { r.OnConflict = time.Minute }, []func(*bench){
			send(204, "ForceOff"), later(2*time.Second, "Off"), send(409, "On"), later(59*time.Second, "Off"), send(409, "On"),
			later(time.Second, "Off"), send(204, "On"), later(2*time.Second, "On"),
		}},
		"POST": {func(r *rules) { r.PostBusy = 30 * time.Second }, []func(*bench){
			send(204, "ForceRestart"), later(2*time.Second, "On"), send(400, "ForceOff"), later(30*time.Second, "On"), send(204, "ForceOff"),
		}},
		"already": {func(r *rules) { r.Already = 409 }, []func(*bench){
			send(409, "On"), send(204, "ForceOff"), later(2*time.Second, "Off"), send(409, "ForceOff"), send(409, "ForceRestart"),
		}},
		"restart while off is like On": {nil, []func(*bench){
			send(204, "ForceOff"), later(2*time.Second, "Off"), send(204, "ForceRestart"), later(2*time.Second, "On"),
		}},
		"deaf": {func(r *rules) { r.DeafOS = true }, []func(*bench){
			send(204, "GracefulShutdown"), later(time.Hour, "On"), send(204, "ForceOff"), later(2*time.Second, "Off"),
		}},
		"restart stays off": {func(r *rules) { r.RestartStaysOff = true }, []func(*bench){
			send(204, "ForceRestart"), later(time.Hour, "Off"), send(204, "On"), later(2*time.Second, "On"),
		}},
		"ignored in transition": {func(r *rules) { r.IgnoreInTransition = true }, []func(*bench){
			send(204, "ForceOff"), send(204, "ForceRestart"), later(time.Hour, "Off"),
		}},
		"unwired": {func(r *rules) { r.Unwired = []string{"ForceOff"} }, []func(*bench){send(500, "ForceOff"), later(time.Hour, "On")}},
		"unknown": {nil, []func(*bench){send(400, "Explode"), send(400, "")}},
		"absent":  {func(r *rules) { r.Absent = true }, []func(*bench){send(404, "ForceOff")}},
		"200":     {func(r *rules) { r.Status = 200 }, []func(*bench){send(200, "ForceOff"), later(2*time.Second, "Off")}},
		"If-Match": {func(r *rules) { r.NoIfMatch = true }, []func(*bench){func(b *bench) {
			b.want(412, "POST", resetURI, `{"ResetType":"ForceOff"}`, "If-Match", `"x"`)
			b.want(204, "POST", resetURI, `{"ResetType":"ForceOff"}`)
		}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, func(p *simulator.Profile) {
				if c.change != nil {
					c.change(&p.Reset)
				}
			})
			for _, step := range c.steps {
				step(b)
			}
		})
	}
}

func TestTasks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rules       simulator.TaskRules
		first, last int
		state       any
		power       string
	}{
		"runs":     {simulator.TaskRules{Runs: 5 * time.Second}, 202, 200, "Completed", "Off"},
		"stuck":    {simulator.TaskRules{Stuck: true}, 202, 202, "Running", "Off"},
		"fails":    {simulator.TaskRules{Runs: time.Second, Fails: true}, 202, 200, "Exception", "On"},
		"vanishes": {simulator.TaskRules{Vanishes: true}, 404, 404, nil, "Off"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, func(p *simulator.Profile) { p.Reset.Status, p.Reset.Task = 202, c.rules })
			status, header, _ := b.ask("POST", resetURI, `{"ResetType":"ForceOff"}`)
			if status != 202 {
				t.Fatalf("got %d", status)
			}
			monitor := header.Get("Location")
			b.want(c.first, "GET", monitor, "")
			b.clock.Step(10 * time.Second)
			if got := b.want(c.last, "GET", monitor, "")["TaskState"]; got != c.state {
				t.Errorf("the task is %v, want %v", got, c.state)
			}
			b.wantPower(c.power)
		})
	}
}
