package pool

import (
	"time"

	"github.com/stayput-dev/stayput/api/v1alpha1"
)

// Annotations on a NodeUpdate, about its spec.attempt. They are written with the field manager of its spec.
const (
	// AnnotationBegunAt is when the attempt took the node out of service (RFC 3339): it is written before the node is
	// selected and cordoned, and the drain's deadline counts from it.
	AnnotationBegunAt = "stayput.dev/begun-at"
	// AnnotationOfferedAt is when the attempt was offered.
	AnnotationOfferedAt = v1alpha1.AnnotationOfferedAt
	// AnnotationToldAt is when the node was told to go (RFC 3339): it is written just before, since the label of GEP-0031
	// has no time, and the agent's time to go counts from it.
	AnnotationToldAt = "stayput.dev/told-at"
	// AnnotationSilentSince is since when the agent owes an answer (RFC 3339). It is there while the agent counts as
	// silent, and so that it is told once.
	AnnotationSilentSince = "stayput.dev/agent-silent-since"
	// AnnotationClosedAs is the Outcome with which the attempt was closed; absent while it is open.
	AnnotationClosedAs = "stayput.dev/closed-as"
	// AnnotationClosedAt is when (RFC 3339).
	AnnotationClosedAt = "stayput.dev/closed-at"
	// AnnotationClosedReason is why, one of v1alpha1.Reason or of this package's reasons.
	AnnotationClosedReason = "stayput.dev/closed-reason"
)

// Finalizer on a HostPool: its NodeUpdates are taken back before it goes.
const Finalizer = "stayput.dev/hostpool"

// RetryDelay is how long a node waits for the next offer of a release after an attempt that ended through no fault of
// the release.
const RetryDelay = 30 * time.Minute

// Outcome is how an attempt ended; see the package's documentation for what follows from each.
type Outcome string

// The outcomes.
const (
	Succeeded    Outcome = "Succeeded"
	RolledBack   Outcome = "RolledBack"
	Refused      Outcome = "Refused"
	NeedsHuman   Outcome = "NeedsHuman"
	DrainTimeout Outcome = "DrainTimeout"
	Withdrawn    Outcome = "Withdrawn"
)

// record is what the annotations of a NodeUpdate say.
type record struct {
	offeredAt    time.Time
	begunAt      time.Time
	toldAt       time.Time
	silentSince  time.Time
	closedAs     Outcome
	closedAt     time.Time
	closedReason string
}

func recordOf(update *v1alpha1.NodeUpdate) record {
	if update == nil {
		return record{}
	}

	return record{
		offeredAt:    parseTime(update.Annotations[AnnotationOfferedAt]),
		begunAt:      parseTime(update.Annotations[AnnotationBegunAt]),
		toldAt:       parseTime(update.Annotations[AnnotationToldAt]),
		silentSince:  parseTime(update.Annotations[AnnotationSilentSince]),
		closedAs:     Outcome(update.Annotations[AnnotationClosedAs]),
		closedAt:     parseTime(update.Annotations[AnnotationClosedAt]),
		closedReason: update.Annotations[AnnotationClosedReason],
	}
}

// atOnce tells whether the same release may be offered again without a delay: the attempt was taken back, or the release
// was to blame, so that it was poisoned and a person has lifted that since.
func (r record) atOnce() bool {
	switch r.closedAs {
	case Withdrawn, RolledBack, NeedsHuman:
		return true
	case Refused:
		return imageIsToBlame(v1alpha1.Reason(r.closedReason))
	default:
		return false
	}
}

func (r record) annotations() map[string]string {
	annotations := map[string]string{}
	for name, at := range map[string]time.Time{
		AnnotationOfferedAt: r.offeredAt, AnnotationBegunAt: r.begunAt, AnnotationToldAt: r.toldAt,
		AnnotationSilentSince: r.silentSince,
	} {
		if !at.IsZero() {
			annotations[name] = at.UTC().Format(time.RFC3339)
		}
	}
	if r.closedAs != "" {
		annotations[AnnotationClosedAs] = string(r.closedAs)
		annotations[AnnotationClosedAt] = r.closedAt.UTC().Format(time.RFC3339)
		annotations[AnnotationClosedReason] = r.closedReason
	}

	return annotations
}

// parseTime is the zero time for what is not a time: a hand that garbles the annotation makes the deadline count as
// passed long ago, the attempt as not begun, or the agent as not asked; the first two only release the node.
func parseTime(text string) time.Time {
	parsed, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}
	}

	return parsed
}
