package simulator_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/bmc/fault/simulator"
)

func TestMedia(t *testing.T) {
	t.Parallel()
	const plainBody = `{"Image":"http://192.0.2.1/a.iso"}`
	type rules = simulator.MediaRules
	post := func(status int, path, body string) func(*bench) {
		return func(b *bench) { b.want(status, "POST", path, body) }
	}
	shows := func(inserted bool, image any) func(*bench) {
		return func(b *bench) {
			if got := b.want(200, "GET", cd, ""); got["Inserted"] != inserted || got["Image"] != image {
				b.t.Errorf("the slot shows %v %v, want %v %v", got["Inserted"], got["Image"], inserted, image)
			}
		}
	}
	step := func(d time.Duration) func(*bench) { return func(b *bench) { b.clock.Step(d) } }
	const url = "http://192.0.2.1/a.iso"
	cases := map[string]struct {
		change func(*rules)
		steps  []func(*bench)
	}{
		"in and out": {nil, []func(*bench){post(204, insert, plainBody), shows(true, url), post(204, eject, "{}"), shows(false, nil)}},
		"no image":   {nil, []func(*bench){post(400, insert, "{}")}},
		"replaced":   {nil, []func(*bench){post(204, insert, `{"Image":"http://x/b"}`), post(204, insert, plainBody), shows(true, url)}},
		"occupied":   {func(m *rules) { m.Occupied = 500 }, []func(*bench){post(204, insert, plainBody), post(500, insert, plainBody)}},
		"ejecting": {func(m *rules) { m.Ejecting = 3 * time.Second }, []func(*bench){
			post(204, insert, plainBody), post(204, eject, ""), post(500, insert, plainBody), step(3 * time.Second), post(204, insert, plainBody),
		}},
		"ejecting, in other words": {
			func(m *rules) { m.Ejecting, m.EjectingMessage = 3*time.Second, "Base.1.12.InternalError" },
			[]func(*bench){
				post(204, insert, plainBody), post(204, eject, ""), func(b *bench) {
					if got := fmt.Sprint(b.want(500, "POST", insert, plainBody)); !strings.Contains(got, "InternalError") {
						b.t.Errorf("it says %s", got)
					}
				},
			},
		},
		"stale inserted": {func(m *rules) { m.StaleInserted = 3 * time.Second }, []func(*bench){
			post(204, insert, plainBody), post(204, eject, ""), shows(true, url), step(3 * time.Second), shows(false, nil),
		}},
		"stale image": {func(m *rules) { m.StaleImage = true }, []func(*bench){
			post(204, insert, plainBody), post(204, eject, ""), shows(false, url),
		}},
		"protocol": {func(m *rules) { m.TransferProtocol = true }, []func(*bench){
			post(400, insert, plainBody), post(204, insert, `{"Image":"`+url+`","TransferProtocolType":"HTTP"}`),
		}},
		"credentials": {func(m *rules) { m.Credentials = true }, []func(*bench){
			post(400, insert, plainBody), post(204, insert, `{"Image":"`+url+`","UserName":"","Password":""}`),
		}},
		"flags": {func(m *rules) { m.ReadOnlyFlags = true }, []func(*bench){
			post(400, insert, `{"Image":"`+url+`","Inserted":true}`), post(204, insert, plainBody),
		}},
		"eject body": {func(m *rules) { m.EjectBody = true }, []func(*bench){
			post(204, insert, plainBody), post(400, eject, ""), post(400, eject, `{"a":1}`), post(204, eject, "{}"),
		}},
		"405":    {func(m *rules) { m.Slots[0].Insert = simulator.Refused405 }, []func(*bench){post(405, insert, plainBody)}},
		"400":    {func(m *rules) { m.Slots[0].Insert = simulator.Refused400 }, []func(*bench){post(400, insert, plainBody)}},
		"absent": {func(m *rules) { m.Slots[0].Insert = simulator.NoInsert }, []func(*bench){post(405, insert, plainBody)}},
		"patch": {func(m *rules) { m.Slots[0].Insert = simulator.ByPatch }, []func(*bench){
			func(b *bench) {
				b.want(400, "PATCH", cd, plainBody)
				b.want(204, "PATCH", cd, `{"Image":"`+url+`","Inserted":true}`)
				shows(true, url)(b)
				b.want(204, "PATCH", cd, `{"Image":null,"Inserted":false}`)
				shows(false, nil)(b)
				b.Configure(func(p *simulator.Profile) { p.Media.Ejecting = time.Second })
				b.want(500, "PATCH", cd, `{"Image":"`+url+`","Inserted":true}`)
				b.clock.Step(time.Second)
				b.want(204, "PATCH", cd, `{"Image":"`+url+`","Inserted":true}`)
			},
		}},
		"elsewhere": {func(m *rules) { m.Under = simulator.AtSystem }, []func(*bench){post(404, insert, plainBody)}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, func(p *simulator.Profile) {
				if c.change != nil {
					c.change(&p.Media)
				}
			})
			for _, step := range c.steps {
				step(b)
			}
		})
	}
}
