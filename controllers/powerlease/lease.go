package powerlease

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

const (
	// DefaultDuration outlives a connection that died without a word: client-go notices that after 45 s (30 s of
	// silence and 15 s for a ping, k8s.io/apimachinery/pkg/util/net).
	DefaultDuration = time.Minute
	// minDuration keeps the parts of a duration long enough for an API server that is busy.
	minDuration = 12 * time.Second
	maxDuration = time.Hour
)

// The parts of a duration. Two renewals and more may fail before the lease cannot be proven any more.
const (
	partMargin  = 6  // the use ends so much before others may take over
	partRenew   = 6  // from one renewal to the next
	partRequest = 6  // the longest wait for one answer of the API server
	partRetry   = 12 // from a renewal that failed to the next
	partPoll    = 30 // from one look at another's lease to the next
	partTick    = 60 // from one look at the own clock to the next
)

const (
	namePrefix    = "stayput-power-"
	maxNameLength = 253 // of an object whose name is a DNS subdomain
	hashLength    = 10
	randomLength  = 10
	randomMark    = " #"
)

var (
	errNoClient = errors.New("no client was given")
	errNoHolder = errors.New("no holder was given; name the actor so that a person knows whom to ask")
	errDuration = errors.New("the duration must be whole seconds")
	errNoUID    = errors.New("the BareMetalHost's UID is not known; read the BareMetalHost first")
)

// Options are what New needs.
type Options struct {
	// Leases reaches the cluster of the BareMetalHosts; Client makes one.
	Leases coordinationclient.LeasesGetter
	// Holder tells a person who acts, as in "stayput-controller/stayput-controller-5f7c" or "stayput CLI of anna@desk".
	Holder string
	// Duration is how long a lease outlives a holder that was killed. Whole seconds from 12 s to 1 h; 0 is 60 s.
	Duration time.Duration
	// Clock is nil for the machine's.
	Clock clock.WithTicker
	// Waiting is called by Do, once, when another holds the lease. nil: nothing is called.
	Waiting func(holder string)
}

// Leases take the hosts' power leases for one actor. They remember since when others' leases have not changed, so one
// Leases serves the whole life of a process. Safe for concurrent use, also for one host.
type Leases struct {
	options Options

	mu   sync.Mutex
	seen map[types.NamespacedName]sighting
}

// New checks the options. It asks no API server.
func New(options Options) (*Leases, error) {
	if options.Duration == 0 {
		options.Duration = DefaultDuration
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	switch d := options.Duration; {
	case options.Leases == nil:
		return nil, fmt.Errorf("preparing power leases: %w", errNoClient)
	case strings.TrimSpace(options.Holder) == "":
		return nil, fmt.Errorf("preparing power leases: %w", errNoHolder)
	case d < minDuration, d > maxDuration, d%time.Second != 0:
		return nil, fmt.Errorf("preparing power leases of %s: %w from %s to %s", d, errDuration, minDuration, maxDuration)
	}

	return &Leases{options: options, seen: map[types.NamespacedName]sighting{}}, nil
}

// Client makes a client for Options.Leases. It has no client-side rate limit: a renewal that queues behind other requests
// would lose the lease.
func Client(config *rest.Config) (coordinationclient.LeasesGetter, error) {
	own := rest.CopyConfig(config)
	own.QPS, own.RateLimiter = -1, nil
	made, err := coordinationclient.NewForConfig(own)
	if err != nil {
		return nil, fmt.Errorf("making a client for leases: %w", err)
	}

	return made, nil
}

// Do runs use while the host's power lease is held. It waits for the lease as long as ctx lives; a lease whose holder was
// killed is taken over. When ctx ends before, the error is a *HeldError and ctx's.
//
// use's context ends with ctx, and as soon as the lease cannot be proven held any more; use must return then. When use
// fails and the lease was lost, the error is a *LostError that wraps use's. The lease is given back when use has returned,
// also when ctx has ended.
func (l *Leases) Do(ctx context.Context, host types.NamespacedName, uid types.UID, use func(ctx context.Context) error) error {
	identity := l.identity()
	for told := false; ; told = true {
		taken, held, err := l.take(ctx, host, uid, identity)
		if err != nil {
			return err
		}
		if held == nil {
			return taken.run(ctx, use)
		}
		if !told && l.options.Waiting != nil {
			l.options.Waiting(held.Holder)
		}
		timer := l.options.Clock.NewTimer(l.part(partPoll))
		select {
		case <-ctx.Done():
			timer.Stop()

			return fmt.Errorf("%w: %w", held, context.Cause(ctx))
		case <-timer.C():
		}
	}
}

// TryDo is Do for who comes again later: when another holds the lease it returns a *HeldError at once. A holder that was
// killed is noticed by several tries, the first and the last of which are at least its lease's duration apart.
func (l *Leases) TryDo(ctx context.Context, host types.NamespacedName, uid types.UID, use func(ctx context.Context) error) error {
	taken, held, err := l.take(ctx, host, uid, l.identity())
	if err != nil {
		return err
	}
	if held != nil {
		return held
	}

	return taken.run(ctx, use)
}

// Name is the name of a host's Lease.
func Name(host string) string {
	if len(namePrefix)+len(host) <= maxNameLength {
		return namePrefix + host
	}
	sum := sha256.Sum256([]byte(host))
	cut := host[:maxNameLength-len(namePrefix)-1-hashLength]

	return namePrefix + strings.TrimRight(cut, ".-") + "-" + hex.EncodeToString(sum[:])[:hashLength]
}

// identity names one operation: two of the same actor exclude each other, too.
func (l *Leases) identity() string {
	return l.options.Holder + randomMark + rand.Text()[:randomLength]
}

// person is who an identity stands for.
func person(identity string) string {
	if at := strings.LastIndex(identity, randomMark); at > 0 && at == len(identity)-len(randomMark)-randomLength {
		return identity[:at]
	}

	return identity
}

func (l *Leases) part(of int) time.Duration { return l.options.Duration / time.Duration(of) }

func (l *Leases) leases(host types.NamespacedName) coordinationclient.LeaseInterface {
	return l.options.Leases.Leases(host.Namespace)
}

// request bounds the wait for one answer of the API server.
func (l *Leases) request(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, l.part(partRequest))
}
