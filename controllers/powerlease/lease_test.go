package powerlease

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"
)

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	good := Options{Leases: newMemory(), Holder: "a"}
	for name, tt := range map[string]struct {
		change  func(o *Options)
		problem string
	}{
		"good":         {func(*Options) {}, ""},
		"shortest":     {func(o *Options) { o.Duration = 12 * time.Second }, ""},
		"no client":    {func(o *Options) { o.Leases = nil }, "no client"},
		"no holder":    {func(o *Options) { o.Holder = " " }, "no holder"},
		"too short":    {func(o *Options) { o.Duration = 11 * time.Second }, "12s to 1h"},
		"too long":     {func(o *Options) { o.Duration = 2 * time.Hour }, "12s to 1h"},
		"half seconds": {func(o *Options) { o.Duration = 12500 * time.Millisecond }, "whole seconds"},
	} {
		o := good
		tt.change(&o)
		_, err := New(o)
		if (err == nil) != (tt.problem == "") || err != nil && !strings.Contains(err.Error(), tt.problem) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	leases, err := New(good)
	if err != nil {
		t.Fatal(err)
	}
	if err := leases.TryDo(t.Context(), testHost, "", nil); !errors.Is(err, errNoUID) {
		t.Errorf("no UID: got %v", err)
	}
	if err := Check(t.Context()); !errors.Is(err, errNoLease) {
		t.Errorf("a context without a lease: got %v", err)
	}
}

// Every name of a host gives a valid name of its own.
func TestName(t *testing.T) {
	t.Parallel()
	if name := Name("host-1"); name != "stayput-power-host-1" {
		t.Error(name)
	}
	if a, b := Name(strings.Repeat("a", 253)), Name(strings.Repeat("a", 252)); a == b || len(a) != 253 {
		t.Error(a, b)
	}
	if name := Name(strings.Repeat("a", 227) + "-." + strings.Repeat("b", 20)); len(validation.IsDNS1123Subdomain(name)) != 0 {
		t.Error(name)
	}
	rapid.Check(t, func(t *rapid.T) {
		host := rapid.StringMatching(`[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?`).
			Filter(func(s string) bool { return len(validation.IsDNS1123Subdomain(s)) == 0 }).Draw(t, "host")
		if wrong := validation.IsDNS1123Subdomain(Name(host)); len(wrong) != 0 {
			t.Fatalf("%s: %v", Name(host), wrong)
		}
	})
}

func TestPerson(t *testing.T) {
	t.Parallel()
	leases, err := New(Options{Leases: newMemory(), Holder: "stayput CLI of anna #2@desk"})
	if err != nil {
		t.Fatal(err)
	}
	first, second := leases.identity(), leases.identity()
	if first == second || person(first) != "stayput CLI of anna #2@desk" {
		t.Error(first, second, person(first))
	}
	for _, other := range []string{"", "kubectl", "anna #2", " #ABCDEFGHIJ"} {
		if got := person(other); got != other {
			t.Errorf("%q became %q", other, got)
		}
	}
}

// Do waits, says so once, and goes on within two seconds after the other is done.
func TestDoWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		a, b := newActor(t, store, "a", time.Hour), newActor(t, store, "b", 0)
		var told []string
		b.options.Waiting = func(holder string) { told = append(told, holder) }
		use := a.hold(t, testHost)
		ran := false
		done := make(chan error, 1)
		go func() {
			done <- b.Do(t.Context(), testHost, testUID, func(context.Context) error {
				ran = true

				return nil
			})
		}()
		synctest.Wait()
		pass(300, a, b)
		if ran || len(told) != 1 || told[0] != "a" {
			t.Fatalf("ran %t, told %v", ran, told)
		}
		if err := use.finish(); err != nil {
			t.Fatal(err)
		}
		pass(2, b)
		if err := <-done; err != nil || !ran || len(told) != 1 {
			t.Errorf("ran %t, told %v, %v", ran, told, err)
		}
	})
}

func TestDoGivesUpWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		a, b := newActor(t, store, "a", 0), newActor(t, store, "b", 0)
		use := a.hold(t, testHost)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // the bubble's time
		defer cancel()
		err := b.Do(ctx, testHost, testUID, func(context.Context) error { panic("two at a time") })
		if !isHeld(err) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if err := use.finish(); err != nil {
			t.Fatal(err)
		}
	})
}

// The command is killed; a waiting Do takes over after the duration, a minute.
func TestDoFollowsAKilledHolder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		killed, b := newActor(t, store, "killed", 0), newActor(t, store, "b", 0)
		use := killed.hold(t, testHost)
		done := make(chan error, 1)
		go func() { done <- b.Do(t.Context(), testHost, testUID, func(context.Context) error { return nil }) }()
		synctest.Wait()
		pass(59, b)
		if holder := person(holderOf(store.lease(leaseKey()))); holder != "killed" {
			t.Fatalf("after 59 s it is held by %q", holder)
		}
		pass(3, b)
		if err := <-done; err != nil {
			t.Error(err)
		}
		_ = use.finish()
	})
}

// Troubles with taking the lease: nothing is used, nothing is left.
func TestTakingFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		a := newActor(t, store, "a", 0)
		never := func(context.Context) error { panic("used without a lease") }
		a.gate.set(refuse)
		if err := a.Do(t.Context(), testHost, testUID, never); !errors.Is(err, errAPI) {
			t.Errorf("got %v", err)
		}
		for range 2 { // once it is created, once updated
			a.gate.set(func(_ context.Context, verb string, do func() (*coordinationv1.Lease, error)) (*coordinationv1.Lease, error) {
				lease, err := do()
				if verb != "get" && holderOf(lease) != "" {
					return nil, errAPI // carried out, but nobody knows
				}

				return lease, err
			})
			if err := a.Do(t.Context(), testHost, testUID, never); !errors.Is(err, errAPI) {
				t.Errorf("got %v", err)
			}
			if holder := holderOf(store.lease(leaseKey())); holder != "" {
				t.Errorf("%q was left as its holder", holder)
			}
		}
		// A client that sends again what was carried out gets a conflict with itself.
		resent := false
		a.gate.set(func(_ context.Context, verb string, do func() (*coordinationv1.Lease, error)) (*coordinationv1.Lease, error) {
			lease, err := do()
			if verb == "get" || resent {
				return lease, err
			}
			resent = true

			return do()
		})
		ran := false
		err := a.TryDo(t.Context(), testHost, testUID, func(context.Context) error {
			ran = true

			return nil
		})
		if !ran || !resent || err != nil {
			t.Errorf("ran %t, sent again %t, got %v", ran, resent, err)
		}
	})
}
