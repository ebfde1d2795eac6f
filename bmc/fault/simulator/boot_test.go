package simulator_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/bmc/fault/simulator"
)

func TestBootRules(t *testing.T) {
	t.Parallel()
	type rules = simulator.BootRules
	const (
		minimal = `{"Boot":{"BootSourceOverrideTarget":"Cd","BootSourceOverrideEnabled":"Once"}}`
		full    = `{"Boot":{"BootSourceOverrideTarget":"Cd","BootSourceOverrideEnabled":"Once","BootSourceOverrideMode":"UEFI"}}`
		target  = `{"Boot":{"BootSourceOverrideTarget":"Cd"}}`
		disable = `{"Boot":{"BootSourceOverrideEnabled":"Disabled"}}`
		always  = `{"Boot":{"BootSourceOverrideTarget":"Cd","BootSourceOverrideEnabled":"Continuous"}}`
	)
	kept := simulator.Boot{Target: "Cd", Enabled: "Once", Mode: "UEFI"}
	as := func(change func(*simulator.Boot)) simulator.Boot {
		boot := kept
		change(&boot)

		return boot
	}
	unchanged := simulator.Boot{Target: "None", Enabled: "Disabled", Mode: "UEFI"}
	cases := map[string]struct {
		change func(*rules)
		path   string
		body   string
		status int
		boot   simulator.Boot
	}{
		"minimal":           {nil, system, minimal, 204, kept},
		"full":              {nil, system, full, 204, kept},
		"always":            {nil, system, always, 204, as(func(b *simulator.Boot) { b.Enabled = "Continuous" })},
		"nothing":           {nil, system, `{"Boot":{}}`, 400, unchanged},
		"no such target":    {nil, system, `{"Boot":{"BootSourceOverrideTarget":"Tape"}}`, 400, unchanged},
		"no settings":       {nil, settings, minimal, 404, unchanged},
		"settings only":     {func(r *rules) { r.At, r.Settings = simulator.AtSettings, true }, settings, minimal, 204, kept},
		"not at the system": {func(r *rules) { r.At, r.Settings = simulator.AtSettings, true }, system, minimal, 400, unchanged},
		"settings without":  {func(r *rules) { r.Settings = true }, settings, minimal, 400, unchanged},
		"full needed":       {func(r *rules) { r.Full = true }, system, minimal, 400, unchanged},
		"full given":        {func(r *rules) { r.Full = true }, system, full, 204, kept},
		"minimal needed":    {func(r *rules) { r.Minimal = true }, system, full, 400, unchanged},
		"mode read-only":    {func(r *rules) { r.Mode = simulator.ModeReadOnly }, system, full, 400, unchanged},
		"mode absent":       {func(r *rules) { r.Mode = simulator.ModeAbsent }, system, full, 400, unchanged},
		"once only":         {func(r *rules) { r.Continuous = false }, system, always, 400, unchanged},
		"equal refused":     {func(r *rules) { r.EqualRefused = true }, system, disable, 400, unchanged},
		"reverts to once":   {func(r *rules) { r.RevertsToOnce = true }, system, target, 204, kept},
		"mode flips":        {func(r *rules) { r.ModeFlips = true }, system, minimal, 204, as(func(b *simulator.Boot) { b.Mode = "Legacy" })},
		"mode sent is kept": {func(r *rules) { r.ModeFlips = true }, system, full, 204, kept},
		"ignored":           {func(r *rules) { r.Ignore = true }, system, minimal, 204, unchanged},
		"kept though 400":   {func(r *rules) { r.LyingStatus = 400 }, system, minimal, 400, kept},
		"used up":           {func(r *rules) { r.UsedUp = true }, system, minimal, 204, unchanged},
		"pending is not yet": {
			func(r *rules) { r.At, r.Settings, r.Pending = simulator.AtSettings, true, true }, settings, minimal, 204, unchanged,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, func(p *simulator.Profile) {
				if c.change != nil {
					c.change(&p.Boot)
				}
			})
			b.want(c.status, "PATCH", c.path, c.body)
			if got := b.State("1").Boot; got != c.boot {
				t.Errorf("the override is %+v, want %+v", got, c.boot)
			}
		})
	}
}

func TestOnceIsUsedUpByAStart(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(p *simulator.Profile) {
		p.Boot.At, p.Boot.Settings, p.Boot.Pending = simulator.AtSettings, true, true
	})
	b.want(204, "PATCH", settings, `{"Boot":{"BootSourceOverrideTarget":"Pxe","BootSourceOverrideEnabled":"Once"}}`)
	boot := func(path string) any {
		object, _ := b.want(200, "GET", path, "")["Boot"].(map[string]any)

		return object["BootSourceOverrideTarget"]
	}
	if boot(settings) != "Pxe" || boot(system) != "None" {
		t.Errorf("pending: settings %v, system %v", boot(settings), boot(system))
	}
	for range 2 {
		b.reset(204, "ForceRestart")
		b.clock.Step(2 * time.Second)
	}
	if booted := b.State("1").Booted; !slices.Equal(booted, []string{"Pxe", "None"}) {
		t.Errorf("it was started from %v", booted)
	}
	if boot(settings) != "None" {
		t.Errorf("after the start Settings has %v", boot(settings))
	}
}

func TestETags(t *testing.T) {
	t.Parallel()
	const body = `{"Boot":{"BootSourceOverrideTarget":"Cd"}}`
	for rule, c := range map[simulator.ETagRule]struct {
		told                       string
		none, strong, weak, absurd int
	}{
		simulator.ETagNone:     {"", 204, 204, 204, 204},
		simulator.ETagChecked:  {`"1-1"`, 204, 204, 412, 412},
		simulator.ETagRequired: {`"1-1"`, 428, 204, 412, 412},
		simulator.ETagWeak:     {`W/"1-1"`, 204, 204, 412, 412},
		simulator.ETagRefused:  {`"1-1"`, 204, 412, 412, 412},
		simulator.ETagEmpty:    {"", 204, 412, 412, 412},
	} {
		t.Run(string(rule), func(t *testing.T) {
			t.Parallel()
			for tag, want := range map[string]int{"": c.none, `"1-1"`: c.strong, `W/"1-1"`: c.weak, `"other"`: c.absurd} {
				b := newBench(t, func(p *simulator.Profile) { p.ETag = rule })
				if _, header, _ := b.ask("GET", system, ""); header.Get("ETag") != c.told {
					t.Errorf("it tells %q, want %q", header.Get("ETag"), c.told)
				}
				if tag == "" {
					b.want(want, "PATCH", system, body)
				} else {
					b.want(want, "PATCH", system, body, "If-Match", tag)
				}
			}
		})
	}
	b := newBench(t, func(p *simulator.Profile) { p.ETag = simulator.ETagChecked })
	b.want(204, "PATCH", system, body, "If-Match", `"1-1"`)
	b.want(412, "PATCH", system, body, "If-Match", `"1-1"`)
}
