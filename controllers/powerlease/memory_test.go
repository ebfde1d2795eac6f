package powerlease

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	clocktesting "k8s.io/utils/clock/testing"
)

var (
	errAPI      = errors.New("the API server does not answer")
	errConflict = errors.New("it was changed")
)

//nolint:gochecknoglobals // what nobody changes
var (
	testHost  = types.NamespacedName{Namespace: "metal", Name: "host-1"}
	testStart = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
)

const testUID = types.UID("8c5a1d9e-uid-of-host-1")

// memory is an API server for Leases: get, create, and update with compare-and-swap. It answers as kube-apiserver does,
// which TestAPIServer shows.
type memory struct {
	mu      sync.Mutex
	version int
	leases  map[types.NamespacedName]*coordinationv1.Lease
}

func newMemory() *memory { return &memory{leases: map[types.NamespacedName]*coordinationv1.Lease{}} }

func (m *memory) Leases(namespace string) coordinationclient.LeaseInterface {
	return &memoryLeases{memory: m, namespace: namespace}
}

// remove deletes a Lease, as a person or the garbage collector does.
func (m *memory) remove(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.leases, key)
}

// edit changes a Lease behind everybody's back.
func (m *memory) edit(key types.NamespacedName, change func(lease *coordinationv1.Lease)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.version++
	change(m.leases[key])
	m.leases[key].ResourceVersion = strconv.Itoa(m.version)
}

func (m *memory) lease(key types.NamespacedName) *coordinationv1.Lease {
	m.mu.Lock()
	defer m.mu.Unlock()

	return m.leases[key].DeepCopy()
}

// memoryLeases has no other verbs: they would panic.
type memoryLeases struct {
	coordinationclient.LeaseInterface

	memory    *memory
	namespace string
}

func (c *memoryLeases) Get(_ context.Context, name string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	lease := c.memory.lease(types.NamespacedName{Namespace: c.namespace, Name: name})
	if lease == nil {
		return nil, apierrors.NewNotFound(coordinationv1.Resource("leases"), name)
	}

	return lease, nil
}

func (c *memoryLeases) Create(
	_ context.Context, lease *coordinationv1.Lease, _ metav1.CreateOptions,
) (*coordinationv1.Lease, error) {
	m, key := c.memory, types.NamespacedName{Namespace: c.namespace, Name: lease.Name}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.leases[key] != nil {
		return nil, apierrors.NewAlreadyExists(coordinationv1.Resource("leases"), lease.Name)
	}
	m.version++
	created := lease.DeepCopy()
	created.ResourceVersion, created.UID = strconv.Itoa(m.version), types.UID(strconv.Itoa(m.version))
	m.leases[key] = created

	return created.DeepCopy(), nil
}

func (c *memoryLeases) Update(
	_ context.Context, lease *coordinationv1.Lease, _ metav1.UpdateOptions,
) (*coordinationv1.Lease, error) {
	m, key := c.memory, types.NamespacedName{Namespace: c.namespace, Name: lease.Name}
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.leases[key]
	if old == nil || old.UID != lease.UID || lease.ResourceVersion != "" && old.ResourceVersion != lease.ResourceVersion {
		return nil, apierrors.NewConflict(coordinationv1.Resource("leases"), lease.Name, errConflict)
	}
	m.version++
	updated := lease.DeepCopy()
	updated.ResourceVersion = strconv.Itoa(m.version)
	m.leases[key] = updated

	return updated.DeepCopy(), nil
}

// gate stands between one actor and the API server. through decides about each request: it calls do, or not, and may
// answer otherwise.
type gate struct {
	coordinationclient.LeaseInterface

	behind coordinationclient.LeasesGetter
	mu     sync.Mutex
	// through is nil for an API server that works.
	through func(ctx context.Context, verb string, do func() (*coordinationv1.Lease, error)) (*coordinationv1.Lease, error)
}

func (g *gate) set(
	through func(ctx context.Context, verb string, do func() (*coordinationv1.Lease, error)) (*coordinationv1.Lease, error),
) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.through = through
}

func (g *gate) pass(ctx context.Context, verb string, do func() (*coordinationv1.Lease, error)) (*coordinationv1.Lease, error) {
	g.mu.Lock()
	through := g.through
	g.mu.Unlock()
	if through == nil {
		return do()
	}

	return through(ctx, verb, do)
}

// refuse lets nothing through.
func refuse(context.Context, string, func() (*coordinationv1.Lease, error)) (*coordinationv1.Lease, error) {
	return nil, errAPI
}

func (g *gate) Leases(namespace string) coordinationclient.LeaseInterface {
	return &gateLeases{gate: g, behind: g.behind.Leases(namespace)}
}

type gateLeases struct {
	coordinationclient.LeaseInterface

	gate   *gate
	behind coordinationclient.LeaseInterface
}

func (c *gateLeases) Get(ctx context.Context, name string, options metav1.GetOptions) (*coordinationv1.Lease, error) {
	return c.gate.pass(ctx, "get", func() (*coordinationv1.Lease, error) { return c.behind.Get(ctx, name, options) })
}

func (c *gateLeases) Create(
	ctx context.Context, lease *coordinationv1.Lease, options metav1.CreateOptions,
) (*coordinationv1.Lease, error) {
	return c.gate.pass(ctx, "create", func() (*coordinationv1.Lease, error) { return c.behind.Create(ctx, lease, options) })
}

func (c *gateLeases) Update(
	ctx context.Context, lease *coordinationv1.Lease, options metav1.UpdateOptions,
) (*coordinationv1.Lease, error) {
	return c.gate.pass(ctx, "update", func() (*coordinationv1.Lease, error) { return c.behind.Update(ctx, lease, options) })
}

// actor is one process: its own clock, its own memory, its own way to the API server.
type actor struct {
	*Leases

	clock *clocktesting.FakeClock
	gate  *gate
}

func newActor(t *testing.T, behind coordinationclient.LeasesGetter, holder string, skew time.Duration) *actor {
	t.Helper()
	a := &actor{clock: clocktesting.NewFakeClock(testStart.Add(skew)), gate: &gate{behind: behind}}
	leases, err := New(Options{Leases: a.gate, Holder: holder, Clock: a.clock})
	if err != nil {
		t.Fatal(err)
	}
	a.Leases = leases

	return a
}

// held is a use that goes on until it is told to end, or its context ends.
type held struct {
	ctx  context.Context //nolint:containedctx // the tests look at it from outside
	end  context.CancelFunc
	done chan error
}

// hold takes the lease and holds it.
func (a *actor) hold(t *testing.T, host types.NamespacedName) *held {
	t.Helper()
	h, err := a.tryHold(t.Context(), host)
	if err != nil {
		t.Fatal(err)
	}

	return h
}

func (a *actor) tryHold(ctx context.Context, host types.NamespacedName) (*held, error) {
	told, end := context.WithCancel(context.Background())
	h := &held{end: end, done: make(chan error, 1)}
	begun := make(chan context.Context, 1)
	go func() {
		h.done <- a.TryDo(ctx, host, testUID, func(ctx context.Context) error {
			begun <- ctx
			select {
			case <-told.Done():
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	select {
	case h.ctx = <-begun:
		return h, nil
	case err := <-h.done:
		end()

		return nil, err
	}
}

// finish ends the use and gives what TryDo gave.
func (h *held) finish() error {
	h.end()

	return <-h.done
}
