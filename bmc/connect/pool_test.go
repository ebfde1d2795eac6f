package connect_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/bmc/connect"
	"github.com/stayput-dev/stayput/bmc/fault"
	"github.com/stayput-dev/stayput/bmc/fault/simulator"
)

// world opens machines that do nothing, and counts.
type world struct {
	clock  *clocktesting.FakeClock
	pool   *connect.Pool
	opened atomic.Int32
	closed chan struct{}
	// cut counts closings whose context had ended already.
	cut  atomic.Int32
	fail atomic.Pointer[bmc.Error]
}

type idleMachine struct {
	bmc.Machine

	world *world
}

func (m idleMachine) Close(ctx context.Context) error {
	if ctx.Err() != nil {
		m.world.cut.Add(1)
	}
	m.world.closed <- struct{}{}

	return ctx.Err()
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{clock: clocktesting.NewFakeClock(time.Unix(1e9, 0)), closed: make(chan struct{}, 100)}
	w.pool = connect.NewPool(connect.PoolOptions{
		Clock: w.clock, Random: func() float64 { return 0.5 },
		Open: func(context.Context, bmc.Options) (bmc.Machine, error) {
			w.opened.Add(1)
			if err := w.fail.Load(); err != nil {
				return nil, err
			}

			return idleMachine{world: w}, nil
		},
	})
	t.Cleanup(func() {
		if err := w.pool.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})

	return w
}

func options(host, password string) bmc.Options {
	return bmc.Options{
		Address:     bmc.Address{Scheme: "https", Host: host},
		Credentials: bmc.Credentials{Username: "admin", Password: password},
	}
}

// realServer is a BMC that listens, and what opens it.
func realServer(t *testing.T) (*fault.BMC, bmc.Options) {
	t.Helper()
	server, err := fault.Start(fault.Options{
		BMC: simulator.Options{Profile: simulator.LenovoXCC(), Username: "admin", Password: "secret"}, TLS: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	o := options(server.Endpoint.Host(), "secret")
	o.CA = server.Endpoint.CA()

	return server, o
}

func openSessions(server *fault.BMC) int { return server.Simulator.Counts().Sessions }

func nothing(context.Context, bmc.Machine) error { return nil }

func (w *world) want(t *testing.T, o bmc.Options, kind bmc.Kind, opened int32) {
	t.Helper()
	_ = w.wantError(t, o, kind, opened)
}

// wantError is want, and gives the error.
func (w *world) wantError(t *testing.T, o bmc.Options, kind bmc.Kind, opened int32) error {
	t.Helper()
	err := w.pool.Do(t.Context(), o, nothing)
	if bmc.KindOf(err) != kind || w.opened.Load() != opened {
		t.Fatalf("got %v after %d opened, want kind %q after %d", err, w.opened.Load(), kind, opened)
	}

	return err
}

func TestOneOperationAtATime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var (
		inside atomic.Int32
		wait   sync.WaitGroup
	)
	for range 50 {
		wait.Go(func() {
			err := w.pool.Do(t.Context(), options("a", "x"), func(ctx context.Context, _ bmc.Machine) error {
				if inside.Add(1) != 1 {
					t.Error("two operations at one BMC")
				}
				// Another BMC is not held up by this one.
				err := w.pool.Do(ctx, options("b", "x"), nothing)
				inside.Add(-1)

				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if got := w.opened.Load(); got != 2 {
		t.Errorf("opened %d, want 2", got)
	}
}

func TestReopensWhenOptionsDiffer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	changed := []func(*bmc.Options){
		func(*bmc.Options) {},
		func(o *bmc.Options) { o.Credentials.Password = "new" },
		func(o *bmc.Options) { o.Address.SystemPath = "/redfish/v1/Systems/2" },
		func(o *bmc.Options) { o.CA = []byte("ca") },
		func(o *bmc.Options) { o.SkipVerify = true },
		func(o *bmc.Options) { o.LegacyTLS = true },
		func(o *bmc.Options) { o.UUID = "27946b59-9e44-4fa7-8e91-f3527a1ef094" },
	}
	o := options("a", "x")
	for i, change := range changed {
		change(&o)
		w.want(t, o, "", int32(i+1))
		o.CA = append([]byte{}, o.CA...)
		w.want(t, o, "", int32(i+1))
		if len(w.closed) != i {
			t.Errorf("change %d: %d closed", i, len(w.closed))
		}
	}
}

func TestDropsAfterErrors(t *testing.T) {
	t.Parallel()
	for _, kind := range bmc.Kinds() {
		w := newWorld(t)
		_ = w.pool.Do(t.Context(), options("a", "x"), func(context.Context, bmc.Machine) error {
			return fmt.Errorf("using: %w", &bmc.Error{Kind: kind, Op: "reading", Detail: "failed"})
		})
		want := 0
		if kind == bmc.Auth || kind == bmc.Transient || kind == bmc.Unknown {
			want = 1
		}
		if len(w.closed) != want {
			t.Errorf("%s: %d closed, want %d", kind, len(w.closed), want)
		}
	}
}

func TestTheSessionIsClosedThoughTheCallerIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	err := w.pool.Do(ctx, options("a", "x"), func(context.Context, bmc.Machine) error {
		cancel()

		return &bmc.Error{Kind: bmc.Unknown, Op: "sending", Detail: "interrupted"}
	})
	if bmc.KindOf(err) != bmc.Unknown || len(w.closed) != 1 || w.cut.Load() != 0 {
		t.Errorf("%v, %d closed, %d of them with a context that had ended", err, len(w.closed), w.cut.Load())
	}
}

func TestAPanicClosesTheMachine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	func() {
		defer func() { _ = recover() }()
		_ = w.pool.Do(t.Context(), options("a", "x"), func(context.Context, bmc.Machine) error { panic("use") })
	}()
	if len(w.closed) != 1 {
		t.Errorf("%d closed", len(w.closed))
	}
	w.want(t, options("a", "x"), "", 2)
}

func TestBackoff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := options("a", "x")
	w.fail.Store(&bmc.Error{Kind: bmc.Transient, Op: "connecting", Detail: "no route"})
	w.want(t, o, bmc.Transient, 1)
	// Three quarters of 5 s, of 10 s.
	for i, pause := range []time.Duration{3750 * time.Millisecond, 7500 * time.Millisecond} {
		err := w.wantError(t, o, bmc.Transient, int32(i+1))
		if bmc.RetryAfter(err) != pause || !strings.Contains(err.Error(), "no route") {
			t.Fatalf("got %v, %v", bmc.RetryAfter(err), err)
		}
		w.clock.Step(pause - 1)
		w.want(t, o, bmc.Transient, int32(i+1))
		w.clock.Step(1)
		w.want(t, o, bmc.Transient, int32(i+2))
	}
	w.want(t, options("b", "x"), bmc.Transient, 4)
	w.clock.Step(time.Hour)
	w.fail.Store(&bmc.Error{Kind: bmc.Busy, Op: "connecting", RetryAfter: 7 * time.Minute})
	w.want(t, o, bmc.Busy, 5)
	w.clock.Step(7*time.Minute - 1)
	w.want(t, o, bmc.Busy, 5)
	w.clock.Step(1)
	w.fail.Store(nil)
	w.want(t, o, "", 6)
}

func TestRefusedCredentials(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old := options("a", "old")
	w.fail.Store(&bmc.Error{Kind: bmc.Auth, Op: "logging in", Detail: "refused"})
	opened := int32(1)
	w.want(t, old, bmc.Auth, opened)
	for _, pause := range []time.Duration{10 * time.Minute, 20 * time.Minute, 40 * time.Minute, time.Hour, time.Hour} {
		w.clock.Step(pause - 1)
		w.want(t, old, bmc.Auth, opened)
		w.clock.Step(1)
		opened++
		w.want(t, old, bmc.Auth, opened)
	}
	w.fail.Store(nil)
	w.want(t, options("a", "new"), "", opened+1)
	w.want(t, old, bmc.Auth, opened+1)
}

func TestCallersOwnErrorsAreNotTheBMCs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	own := fs.ErrNotExist
	err := w.pool.Do(t.Context(), options("a", "x"), func(context.Context, bmc.Machine) error { return own })
	if !errors.Is(err, own) {
		t.Error(err)
	}
	w.want(t, options("a", "x"), "", 1)
}

func TestCancelWhileWaiting(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	err := w.pool.Do(t.Context(), options("a", "x"), func(ctx context.Context, _ bmc.Machine) error {
		gone, cancel := context.WithCancel(ctx)
		cancel()
		if err := w.pool.Do(gone, options("a", "x"), nothing); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}

		return nil
	})
	if err != nil {
		t.Error(err)
	}
	w.want(t, options("a", "x"), "", 1)
}

func TestErrorsOfAnotherBMCAreNotThisOnes(t *testing.T) {
	t.Parallel()
	o := options("a", "x")
	returns := func(err error) func(context.Context, bmc.Machine) error {
		return func(context.Context, bmc.Machine) error { return err }
	}
	for _, kind := range bmc.Kinds() {
		w := newWorld(t)
		theirs := &bmc.Error{Kind: kind, Op: "reading", BMC: "b:443", Err: &bmc.Error{Kind: kind, Op: "reading"}}
		for _, err := range []error{theirs, fmt.Errorf("using: %w", theirs), errors.Join(fs.ErrNotExist, theirs)} {
			if got := w.pool.Do(t.Context(), o, returns(err)); !errors.Is(got, err) {
				t.Errorf("%s: got %v", kind, got)
			}
			w.want(t, o, "", 1)
		}
		if len(w.closed) != 0 {
			t.Errorf("%s: the session was closed", kind)
		}
	}

	// As one of this BMC beside it does.
	w := newWorld(t)
	theirs := &bmc.Error{Kind: bmc.Auth, Op: "reading", BMC: "b:443"}
	ours := &bmc.Error{Kind: bmc.Transient, Op: "reading", BMC: "a:443"}
	_ = w.pool.Do(t.Context(), o, returns(errors.Join(theirs, fmt.Errorf("using: %w", ours))))
	w.want(t, o, bmc.Transient, 1)
}

// Nested uses: the inner BMC is left alone, the outer one is not.
func TestAnotherBMCThatDoesNotAnswerWithinAUse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	outer, inner := options("a", "x"), options("b", "x")
	err := w.pool.Do(t.Context(), outer, func(ctx context.Context, _ bmc.Machine) error {
		w.fail.Store(&bmc.Error{Kind: bmc.Transient, Op: "connecting", BMC: "b:443"})

		return w.pool.Do(ctx, inner, nothing)
	})
	if bmc.KindOf(err) != bmc.Transient {
		t.Fatal(err)
	}
	w.fail.Store(nil)
	w.want(t, inner, bmc.Transient, 2)
	w.want(t, outer, "", 2)
}

// An account that may read and not switch: the switching is refused, and the reading goes on.
func TestAnActThatTheAccountMayNotDo(t *testing.T) {
	t.Parallel()
	server, o := realServer(t)
	if err := server.Inject(fault.ActForbidden); err != nil {
		t.Fatal(err)
	}
	pool := connect.NewPool(connect.PoolOptions{})
	for range 3 {
		err := pool.Do(t.Context(), o, func(ctx context.Context, m bmc.Machine) error { return m.Do(ctx, bmc.ActionForceOff) })
		if bmc.KindOf(err) != bmc.Auth || bmc.RetryAfter(err) != 0 {
			t.Fatalf("got %v", err)
		}
		err = pool.Do(t.Context(), o, func(ctx context.Context, m bmc.Machine) error {
			_, err := m.Power(ctx)

			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := pool.Close(t.Context()); err != nil || openSessions(server) != 0 {
		t.Errorf("%v, %d sessions after Close", err, openSessions(server))
	}
}

// A password that was changed at the BMC shows at the next login, and is not sent a third time.
func TestCredentialsThatAreRefusedWithinAUse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := options("a", "x")
	err := w.pool.Do(t.Context(), o, func(context.Context, bmc.Machine) error {
		return &bmc.Error{Kind: bmc.Auth, Op: "reading", BMC: "a:443"}
	})
	if bmc.KindOf(err) != bmc.Auth || len(w.closed) != 1 {
		t.Fatalf("got %v, %d closed", err, len(w.closed))
	}
	w.fail.Store(&bmc.Error{Kind: bmc.Auth, Op: "logging in", BMC: "a:443"})
	w.want(t, o, bmc.Auth, 2)
	w.want(t, o, bmc.Auth, 2)
}

func TestClosesIdleMachines(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.want(t, options("a", "x"), "", 1)
	w.clock.Step(connect.DefaultIdleAfter)
	<-w.closed
	w.want(t, options("a", "x"), "", 2)
}

func TestCloseDuringDo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ending, cancel := context.WithCancel(t.Context())
	inside, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- w.pool.Do(context.WithoutCancel(t.Context()), options("a", "x"), func(ctx context.Context, _ bmc.Machine) error {
			close(inside)
			<-ctx.Done()

			return nil
		})
	}()
	<-inside
	cancel()
	if err := w.pool.Close(ending); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil || len(w.closed) != 1 {
		t.Errorf("%v, %d closed", err, len(w.closed))
	}
	if err := w.wantError(t, options("a", "x"), bmc.Transient, 1); !strings.Contains(err.Error(), "closed") {
		t.Error(err)
	}
}

func TestSessionsOfARealServer(t *testing.T) {
	t.Parallel()
	server, o := realServer(t)
	pool := connect.NewPool(connect.PoolOptions{})
	read := func(ctx context.Context, m bmc.Machine) error {
		_, err := m.Power(ctx)

		return err
	}
	for range 100 {
		if err := pool.Do(t.Context(), o, read); err != nil {
			t.Fatal(err)
		}
	}
	logins := 0
	for _, request := range server.Proxy.Requests() {
		if request == http.MethodPost+" /redfish/v1/SessionService/Sessions" {
			logins++
		}
	}
	if logins != 1 || openSessions(server) != 1 {
		t.Errorf("%d logins, %d sessions", logins, openSessions(server))
	}
	if err := pool.Close(t.Context()); err != nil || openSessions(server) != 0 {
		t.Errorf("%v, %d sessions after Close", err, openSessions(server))
	}
}

// A context that has ended shows which driver was asked, and sends nothing.
func TestAnIPMIAddressIsOpenedByItsProtocol(t *testing.T) {
	t.Parallel()
	address, err := bmc.ParseAddress("ipmi://127.0.0.1:6230")
	if err != nil {
		t.Fatal(err)
	}
	o := options("", "secret")
	o.Address = address
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := connect.Open(gone, o); !errors.Is(err, context.Canceled) || bmc.KindOf(err) != bmc.Transient {
		t.Errorf("got %v (%s)", err, bmc.KindOf(err))
	}
}

func TestOpenRefusesOtherSchemes(t *testing.T) {
	t.Parallel()
	o := options("a", "x")
	for _, address := range []bmc.Address{
		{Scheme: "gopher", Host: "a"}, {Scheme: "ipmi", Host: "a"}, {Scheme: "https", Host: "a", Protocol: "Telnet"},
	} {
		o.Address = address
		if _, err := connect.Open(t.Context(), o); bmc.KindOf(err) != bmc.Unsupported {
			t.Errorf("%+v: got %v", address, err)
		}
	}
}

// A login is told that the BMC has accepted the credentials before, until it refuses them.
func TestAcceptedCredentialsAreKnown(t *testing.T) {
	t.Parallel()
	var told []bool
	var fail error
	pool := connect.NewPool(connect.PoolOptions{Open: func(_ context.Context, o bmc.Options) (bmc.Machine, error) {
		told = append(told, o.Accepted)

		return idleMachine{world: &world{closed: make(chan struct{}, 1)}}, fail
	}})
	t.Cleanup(func() {
		if err := pool.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	lost := func(context.Context, bmc.Machine) error { return &bmc.Error{Kind: bmc.Unknown, Op: "sending"} }
	for range 2 {
		_ = pool.Do(t.Context(), options("a", "x"), lost)
	}
	_ = pool.Do(t.Context(), options("a", "y"), lost)
	fail = &bmc.Error{Kind: bmc.Auth, Op: "logging in"}
	_ = pool.Do(t.Context(), options("a", "y"), lost)
	fail = nil
	_ = pool.Do(t.Context(), options("a", "x"), lost)
	if want := []bool{false, true, false, true, false}; !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
}
