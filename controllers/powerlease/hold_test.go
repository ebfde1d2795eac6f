package powerlease

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

func leaseKey() types.NamespacedName {
	return types.NamespacedName{Namespace: testHost.Namespace, Name: Name(testHost.Name)}
}

// pass lets seconds pass for actors, one by one, and everybody react to each.
func pass(seconds int, actors ...*actor) {
	for range seconds {
		for _, a := range actors {
			a.clock.Step(time.Second)
		}
		synctest.Wait()
	}
}

func TestTheLeaseTellsWhoActs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		a, b := newActor(t, store, "stayput CLI of anna@desk", 0), newActor(t, store, "stayput-controller/pod-1", 0)
		use := a.hold(t, testHost)
		lease := store.lease(leaseKey())
		owner := lease.OwnerReferences[0]
		if len(lease.OwnerReferences) != 1 || owner.UID != testUID || owner.Name != "host-1" || owner.Kind != "BareMetalHost" ||
			owner.APIVersion != "metal3.io/v1alpha1" || ptr.Deref(owner.BlockOwnerDeletion, true) || owner.Controller != nil {
			t.Errorf("owners %+v", lease.OwnerReferences)
		}
		if holder := holderOf(lease); !strings.HasPrefix(holder, "stayput CLI of anna@desk #") || *lease.Spec.LeaseDurationSeconds != 60 {
			t.Errorf("spec %+v", lease.Spec)
		}
		_, err := b.tryHold(t.Context(), testHost)
		refused, ok := errors.AsType[*HeldError](err)
		if !ok || refused.Holder != "stayput CLI of anna@desk" || refused.Host != testHost || !refused.Since.Equal(testStart) ||
			refused.Left != time.Minute {
			t.Fatalf("got %#v", err)
		}
		if text := err.Error(); !strings.Contains(text, "metal/host-1: stayput CLI of anna@desk does so since 2026-11-30T12:00:00Z") {
			t.Errorf("text %q", text)
		}
		if err := use.finish(); err != nil {
			t.Fatal(err)
		}
		if holder := holderOf(store.lease(leaseKey())); holder != "" {
			t.Errorf("%q was left as its holder", holder)
		}
		if err := b.hold(t, testHost).finish(); err != nil {
			t.Fatal(err)
		}
		if lease := store.lease(leaseKey()); ptr.Deref(lease.Spec.LeaseTransitions, 0) != 2 {
			t.Errorf("spec %+v", lease.Spec)
		}
	})
}

// A use that runs for minutes keeps its lease, whatever the time of day is for the others.
func TestALongUseKeepsItsLease(t *testing.T) {
	t.Parallel()
	for _, skew := range []time.Duration{-time.Hour, 0, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			store := newMemory()
			a, b := newActor(t, store, "a", 0), newActor(t, store, "b", skew)
			use := a.hold(t, testHost)
			for range 100 {
				pass(7, a, b)
				if _, err := b.tryHold(t.Context(), testHost); !isHeld(err) {
					t.Fatalf("a clock %s off: got %v", skew, err)
				}
			}
			if err := Check(use.ctx); err != nil {
				t.Error(err)
			}
			if err := use.finish(); err != nil {
				t.Error(err)
			}
		})
	}
}

func isHeld(err error) bool {
	_, ok := errors.AsType[*HeldError](err)

	return ok
}

// A killed holder is followed after its lease's duration by the follower's clock, not before.
func TestAKilledHolderIsFollowed(t *testing.T) {
	t.Parallel()
	for _, skew := range []time.Duration{-time.Hour, 0, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			store := newMemory()
			killed, b := newActor(t, store, "killed", 0), newActor(t, store, "b", skew)
			use := killed.hold(t, testHost) // its clock never moves again
			for second := range 60 {
				if _, err := b.tryHold(t.Context(), testHost); !isHeld(err) {
					t.Fatalf("second %d: got %v", second, err)
				}
				pass(1, b)
			}
			follower := b.hold(t, testHost)
			// The killed one wakes up.
			killed.gate.set(refuse)
			killed.clock.Step(time.Minute)
			if err := Check(use.ctx); err == nil {
				t.Error("the one that slept may act")
			}
			synctest.Wait()
			killed.gate.set(nil)
			err := use.finish()
			if _, lost := errors.AsType[*LostError](err); !lost || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "slept") {
				t.Errorf("got %v", err)
			}
			// What it does on its way out does not touch its follower.
			if err := Check(follower.ctx); err != nil {
				t.Error(err)
			}
			if _, err := killed.tryHold(t.Context(), testHost); !isHeld(err) {
				t.Errorf("got %v", err)
			}
			if err := follower.finish(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Each process has its own duration; what counts is the holder's.
func TestTheHoldersDurationCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		killed, b := newActor(t, store, "killed", 0), newActor(t, store, "b", 0)
		b.options.Duration = minDuration
		use := killed.hold(t, testHost)
		for range 60 {
			if _, err := b.tryHold(t.Context(), testHost); !isHeld(err) {
				t.Fatalf("got %v", err)
			}
			pass(1, b)
		}
		if err := b.hold(t, testHost).finish(); err != nil {
			t.Fatal(err)
		}
		_ = use.finish()
	})
}

// A duration that no holder can have was written by hand: it keeps others out for an hour at most.
func TestAnAbsurdDurationIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		killed, b := newActor(t, store, "killed", 0), newActor(t, store, "b", 0)
		use := killed.hold(t, testHost)
		store.edit(leaseKey(), func(lease *coordinationv1.Lease) { lease.Spec.LeaseDurationSeconds = new(int32(2_000_000_000)) })
		_, err := b.tryHold(t.Context(), testHost)
		refused, ok := errors.AsType[*HeldError](err)
		if !ok || refused.Left != maxDuration {
			t.Fatalf("got %v", err)
		}
		b.clock.Step(maxDuration)
		if err := b.hold(t, testHost).finish(); err != nil {
			t.Error(err)
		}
		_ = use.finish()
	})
}

// The use ends before others may take over, when the lease cannot be renewed.
func TestALeaseThatCannotBeRenewedEndsTheUse(t *testing.T) {
	t.Parallel()
	hang := func(ctx context.Context, _ string, _ func() (*coordinationv1.Lease, error)) (*coordinationv1.Lease, error) {
		<-ctx.Done()

		return nil, ctx.Err()
	}
	for name, through := range map[string]func(
		context.Context, string, func() (*coordinationv1.Lease, error),
	) (*coordinationv1.Lease, error){"refused": refuse, "no answer": hang} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newMemory()
				a, b := newActor(t, store, "a", 0), newActor(t, store, "b", 0)
				use := a.hold(t, testHost)
				pass(15, a, b) // renewed after 10
				a.gate.set(through)
				if _, err := b.tryHold(t.Context(), testHost); !isHeld(err) {
					t.Fatal(err)
				}
				pass(44, a, b)
				if err := Check(use.ctx); err != nil {
					t.Fatalf("49 s after the last renewal: %v", err)
				}
				pass(1, a, b)
				select {
				case <-use.ctx.Done():
				default:
					t.Fatal("50 s after the last renewal the use goes on")
				}
				err := <-use.done
				lost, ok := errors.AsType[*LostError](err)
				if !ok || !errors.Is(err, context.Canceled) || !strings.Contains(lost.Why, "50s") {
					t.Errorf("got %v", err)
				}
				pass(9, b)
				if _, err := b.tryHold(t.Context(), testHost); !isHeld(err) {
					t.Errorf("after 59 s: %v", err)
				}
				pass(6, b)
				if err := b.hold(t, testHost).finish(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A short trouble is overcome.
func TestARenewalIsTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newActor(t, newMemory(), "a", 0)
		use := a.hold(t, testHost)
		for range 10 {
			// A renewal that was due right before is up to 5 s old then, and the next try comes up to 6 s after: less than
			// the 50 s that a lease is held without proof.
			a.gate.set(refuse)
			pass(38, a)
			a.gate.set(nil)
			pass(6, a)
		}
		if err := Check(use.ctx); err != nil {
			t.Fatal(err)
		}
		if err := use.finish(); err != nil {
			t.Fatal(err)
		}
	})
}

// The answer to a renewal is lost, though it was carried out; so is somebody else's change of a label.
func TestAConflictIsLookedInto(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		a := newActor(t, store, "a", 0)
		use := a.hold(t, testHost)
		lose := func(_ context.Context, _ string, do func() (*coordinationv1.Lease, error)) (*coordinationv1.Lease, error) {
			_, _ = do()

			return nil, errAPI
		}
		for range 10 {
			a.gate.set(lose)
			pass(12, a)
			a.gate.set(nil)
			store.edit(leaseKey(), func(lease *coordinationv1.Lease) { lease.Labels = map[string]string{"seen": "true"} })
			pass(20, a)
		}
		if err := Check(use.ctx); err != nil {
			t.Fatal(err)
		}
		a.gate.set(lose)
		pass(12, a)
		a.gate.set(nil)
		if err := use.finish(); err != nil {
			t.Fatal(err)
		}
		if lease := store.lease(leaseKey()); holderOf(lease) != "" || lease.Labels["seen"] != "true" {
			t.Errorf("left: %+v", lease)
		}
	})
}

// What others do to the Lease by hand ends the use with the next renewal.
func TestALeaseThatWasTakenAwayEndsTheUse(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		do  func(store *memory)
		why string
	}{
		"deleted": {func(m *memory) { m.remove(leaseKey()) }, "deleted"},
		"deleted and made again": {func(m *memory) {
			m.remove(leaseKey())
			b, _ := New(Options{Leases: m, Holder: "b"})
			_ = b.TryDo(context.Background(), testHost, testUID, func(context.Context) error { return nil })
		}, "cleared by hand"},
		"cleared": {func(m *memory) {
			m.edit(leaseKey(), func(lease *coordinationv1.Lease) { lease.Spec.HolderIdentity = nil })
		}, "cleared by hand"},
		"taken": {func(m *memory) {
			m.edit(leaseKey(), func(lease *coordinationv1.Lease) { lease.Spec.HolderIdentity = new("kubectl") })
		}, "kubectl has taken it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newMemory()
				a := newActor(t, store, "a", 0)
				use := a.hold(t, testHost)
				tt.do(store)
				before := store.lease(leaseKey())
				pass(10, a)
				err := <-use.done
				if lost, ok := errors.AsType[*LostError](err); !ok || !strings.Contains(lost.Why, tt.why) {
					t.Errorf("got %v", err)
				}
				if after := store.lease(leaseKey()); after != nil && after.ResourceVersion != before.ResourceVersion {
					t.Errorf("the Lease was written: %+v", after)
				}
			})
		})
	}
}

// A lease whose taking took too long is not used, and is given back.
func TestALateAnswerIsNotUsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		a := newActor(t, store, "a", 0)
		a.gate.set(func(_ context.Context, verb string, do func() (*coordinationv1.Lease, error)) (*coordinationv1.Lease, error) {
			if verb == "create" {
				a.clock.Step(50 * time.Second)
			}

			return do()
		})
		_, err := a.tryHold(t.Context(), testHost)
		if _, lost := errors.AsType[*LostError](err); !lost {
			t.Errorf("got %v", err)
		}
		if holder := holderOf(store.lease(leaseKey())); holder != "" {
			t.Errorf("%q was left as its holder", holder)
		}
	})
}

// Others count from when they have an answer: the holder may have written just before it.
func TestASlowReadDoesNotShortenTheWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		killed, b := newActor(t, store, "killed", 0), newActor(t, store, "b", 0)
		use := killed.hold(t, testHost)
		b.gate.set(func(_ context.Context, _ string, do func() (*coordinationv1.Lease, error)) (*coordinationv1.Lease, error) {
			b.clock.Step(5 * time.Second)

			return do()
		})
		if _, err := b.tryHold(t.Context(), testHost); !isHeld(err) {
			t.Fatal(err)
		}
		b.gate.set(nil)
		pass(59, b)
		if _, err := b.tryHold(t.Context(), testHost); !isHeld(err) {
			t.Fatalf("59 s after the first answer: %v", err)
		}
		_ = use.finish()
	})
}

// After the use has panicked or its context has ended, the lease is free.
func TestTheLeaseIsAlwaysGivenBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		a, b := newActor(t, store, "a", 0), newActor(t, store, "b", 0)
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic was lost")
				}
			}()
			_ = a.TryDo(t.Context(), testHost, testUID, func(context.Context) error { panic("in the use") })
		}()
		if err := b.hold(t, testHost).finish(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		use, err := a.tryHold(ctx, testHost)
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := <-use.done; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		if err := b.hold(t, testHost).finish(); err != nil {
			t.Fatal(err)
		}
	})
}

// Others stay out until a use has returned that does not heed its context.
func TestAUseThatLingersKeepsOthersOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		a, b := newActor(t, store, "a", 0), newActor(t, store, "b", 0)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			_ = a.TryDo(ctx, testHost, testUID, func(context.Context) error {
				<-t.Context().Done() // t's own ends last

				return nil
			})
		}()
		synctest.Wait()
		cancel()
		for range 10 {
			pass(20, a, b)
			if _, err := b.tryHold(t.Context(), testHost); !isHeld(err) {
				t.Fatalf("got %v", err)
			}
		}
	})
}
