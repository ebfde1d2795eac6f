package powerlease

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

const (
	// tries is how often a lease is read again that another has written in between.
	tries = 3
	// giveBackTimeout is short: a lease that is not given back ends by itself.
	giveBackTimeout = 5 * time.Second
	// The owner of a Lease, see github.com/metal3-io/baremetal-operator/apis.
	ownerVersion, ownerKind = "metal3.io/v1alpha1", "BareMetalHost"
)

// sighting is since when another's lease has been as it is.
type sighting struct {
	uid  types.UID
	spec coordinationv1.LeaseSpec
	at   time.Time
}

// take takes the lease, if no other holds it.
func (l *Leases) take(
	ctx context.Context, host types.NamespacedName, uid types.UID, identity string,
) (*hold, *HeldError, error) {
	if uid == "" {
		return nil, nil, fmt.Errorf("taking the power lease of host %s: %w", host, errNoUID)
	}
	for range tries {
		lease, err := l.read(ctx, host)
		if err != nil {
			return nil, nil, err
		}
		if held := l.heldBy(host, lease, identity); held != nil {
			return nil, held, nil
		}
		// Before the request: others may count from when it was carried out.
		sent := l.options.Clock.Now()
		written, err := l.write(ctx, l.claim(lease, host, uid, identity, sent))
		switch {
		case err == nil:
			l.forget(host)

			return newHold(l, host, identity, written, sent), nil, nil
		case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
			// Another was quicker; or our own write was, whose answer was lost and which was sent again.
		default:
			// It may have been written all the same.
			l.giveBack(ctx, host, identity, nil)

			return nil, nil, fmt.Errorf("taking the power lease %s of host %s: %w", Name(host.Name), host, err)
		}
	}

	return nil, &HeldError{Host: host, Holder: "another, who was quicker each time,"}, nil
}

// read reads the lease, or makes one that does not exist yet.
func (l *Leases) read(ctx context.Context, host types.NamespacedName) (*coordinationv1.Lease, error) {
	ctx, cancel := l.request(ctx)
	defer cancel()
	lease, err := l.leases(host).Get(ctx, Name(host.Name), metav1.GetOptions{})
	switch {
	case err == nil:
		return lease, nil
	case apierrors.IsNotFound(err):
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: host.Namespace, Name: Name(host.Name)}}, nil
	default:
		return nil, fmt.Errorf("reading the power lease %s of host %s: %w", Name(host.Name), host, err)
	}
}

// write writes a lease only if nobody has since it was read.
func (l *Leases) write(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	ctx, cancel := l.request(ctx)
	defer cancel()
	leases := l.options.Leases.Leases(lease.Namespace)
	if lease.ResourceVersion == "" {
		return leases.Create(ctx, lease, metav1.CreateOptions{})
	}

	return leases.Update(ctx, lease, metav1.UpdateOptions{})
}

// claim is the lease with another holder. The owner is set anew: a host may have been made again under its name.
func (l *Leases) claim(
	lease *coordinationv1.Lease, host types.NamespacedName, uid types.UID, identity string, now time.Time,
) *coordinationv1.Lease {
	claimed := lease.DeepCopy()
	claimed.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: ownerVersion, Kind: ownerKind, Name: host.Name, UID: uid, BlockOwnerDeletion: new(false),
	}}
	claimed.Spec = coordinationv1.LeaseSpec{
		HolderIdentity:       &identity,
		LeaseDurationSeconds: new(int32(l.options.Duration / time.Second)), //nolint:gosec // at most 3600
		AcquireTime:          new(metav1.NewMicroTime(now)),
		RenewTime:            new(metav1.NewMicroTime(now)),
		LeaseTransitions:     new(ptr.Deref(lease.Spec.LeaseTransitions, 0) + 1),
	}

	return claimed
}

// heldBy tells whether another holds the lease, which was read just now; nil: it is free, or has ended.
func (l *Leases) heldBy(host types.NamespacedName, lease *coordinationv1.Lease, identity string) *HeldError {
	holder := holderOf(lease)
	if holder == "" || holder == identity {
		l.forget(host)

		return nil
	}
	// After the answer: the holder may have written right before it.
	now := l.options.Clock.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	last, known := l.seen[host]
	if !known || last.uid != lease.UID || !equality.Semantic.DeepEqual(last.spec, lease.Spec) {
		last = sighting{uid: lease.UID, spec: *lease.Spec.DeepCopy(), at: now}
		l.seen[host] = last
	}
	left := l.durationOf(lease) - now.Sub(last.at)
	if left <= 0 {
		return nil
	}
	held := &HeldError{Host: host, Holder: person(holder), Left: left}
	if lease.Spec.AcquireTime != nil {
		held.Since = lease.Spec.AcquireTime.Time
	}

	return held
}

// durationOf is the holder's own: it may have other options, but none that New refuses. What else is written there was
// written by hand, and would keep everybody out for years.
func (l *Leases) durationOf(lease *coordinationv1.Lease) time.Duration {
	if seconds := ptr.Deref(lease.Spec.LeaseDurationSeconds, 0); seconds > 0 {
		return min(time.Duration(seconds)*time.Second, maxDuration)
	}

	return l.options.Duration
}

func (l *Leases) forget(host types.NamespacedName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.seen, host)
}

// giveBack clears the holder's name, if it is still there, also when ctx has ended. lease is nil or what was read last.
func (l *Leases) giveBack(ctx context.Context, host types.NamespacedName, identity string, lease *coordinationv1.Lease) {
	logger := logr.FromContextOrDiscard(ctx)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTimeout)
	defer cancel()
	var err error
	for range tries {
		if lease == nil {
			if lease, err = l.read(ctx, host); err != nil {
				break
			}
		}
		if holderOf(lease) != identity {
			return
		}
		cleared := lease.DeepCopy()
		cleared.Spec.HolderIdentity = nil
		cleared.Spec.RenewTime = new(metav1.NewMicroTime(l.options.Clock.Now()))
		if _, err = l.write(ctx, cleared); err == nil || !apierrors.IsConflict(err) {
			break
		}
		lease = nil
	}
	if err != nil && !apierrors.IsNotFound(err) {
		logger.Info("the power lease of a host was not given back; it ends by itself",
			"host", host, "lease", Name(host.Name), "after", l.options.Duration, "error", err.Error())
	}
}

func holderOf(lease *coordinationv1.Lease) string { return ptr.Deref(lease.Spec.HolderIdentity, "") }
