package pool

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/stayput-dev/stayput/api/v1alpha1"
)

// Metrics are the package's Prometheus metrics.
type Metrics struct {
	nodes    *prometheus.GaugeVec
	halted   *prometheus.GaugeVec
	silent   *prometheus.GaugeVec
	attempts *prometheus.CounterVec
	steps    *prometheus.HistogramVec
	errors   *prometheus.CounterVec
}

// The first bucket of a step is 15 seconds, the last 4.3 hours: staging and POST take minutes, a drain may take hours.
const (
	firstStepBucket = 15
	stepBuckets     = 11
)

// NewMetrics registers the metrics, with controller-runtime's registry when registerer is nil.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	if registerer == nil {
		registerer = metrics.Registry
	}
	pool := []string{"namespace", "pool"}
	m := &Metrics{
		nodes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "stayput_pool_nodes", Help: "Nodes of a pool by the phase of their last attempt; NeedsHuman also where the BMC rung has ended it.",
		}, append(slices.Clone(pool), "phase")),
		halted: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "stayput_pool_halted", Help: "1 while the rollout of a pool is halted by a failed release.",
		}, pool),
		silent: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "stayput_pool_silent_agents", Help: "Nodes of a pool whose agent owes an answer for longer than spec.reboot.silentAfter.",
		}, pool),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stayput_attempts_total", Help: "Attempts that were closed, by outcome.",
		}, append(slices.Clone(pool), "outcome")),
		steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "stayput_step_seconds", Help: "How long the steps of closed attempts took.",
			Buckets: prometheus.ExponentialBuckets(firstStepBucket, 2, stepBuckets),
		}, append(slices.Clone(pool), "step")),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stayput_pool_errors_total", Help: "Passes over a pool that failed, by kind.",
		}, append(slices.Clone(pool), "kind")),
	}
	for _, collector := range []prometheus.Collector{m.nodes, m.halted, m.silent, m.attempts, m.steps, m.errors} {
		if err := registerer.Register(collector); err != nil {
			return nil, err
		}
	}

	return m, nil
}

// phases are the values of the label phase.
func phases() []v1alpha1.Phase {
	return []v1alpha1.Phase{
		v1alpha1.PhaseIdle, v1alpha1.PhaseStaging, v1alpha1.PhaseStaged, v1alpha1.PhaseArming, v1alpha1.PhaseRebooting,
		v1alpha1.PhaseProving, v1alpha1.PhaseReporting, v1alpha1.PhaseSucceeded, v1alpha1.PhaseRolledBack,
		v1alpha1.PhaseRefused, v1alpha1.PhaseNeedsHuman,
	}
}

func (m *Metrics) observe(pool *v1alpha1.HostPool, decision Decision) {
	count := map[v1alpha1.Phase]float64{}
	for _, node := range decision.Nodes {
		phase := node.Phase
		if node.Wait == WaitHuman {
			phase = v1alpha1.PhaseNeedsHuman // also where the BMC rung ended the attempt, whose agent said another
		}
		count[phase]++
	}
	for _, phase := range phases() {
		m.nodes.WithLabelValues(pool.Namespace, pool.Name, string(phase)).Set(count[phase])
	}
	halted := 0.0
	if decision.Halted {
		halted = 1
	}
	m.halted.WithLabelValues(pool.Namespace, pool.Name).Set(halted)
	m.silent.WithLabelValues(pool.Namespace, pool.Name).Set(float64(decision.silent()))
}

// closed counts an attempt that was closed, and its steps as far as the agent's record tells them.
func (m *Metrics) closed(pool *v1alpha1.HostPool, update *v1alpha1.NodeUpdate, outcome Outcome) {
	m.attempts.WithLabelValues(pool.Namespace, pool.Name, string(outcome)).Inc()
	step := func(name string, from, to time.Time) {
		if !from.IsZero() && to.After(from) {
			m.steps.WithLabelValues(pool.Namespace, pool.Name, name).Observe(to.Sub(from).Seconds())
		}
	}
	for i := range update.Status.History {
		attempt := &update.Status.History[i]
		if attempt.ID != update.Spec.Attempt {
			continue
		}
		begun, ready, rebooted, back := recordOf(update).begunAt, attempt.ReadyAt, attempt.RebootedAt, attempt.BackAt
		step("total", attempt.StartedAt.Time, timeOf(attempt.EndedAt))
		step("stage-and-wait", attempt.StartedAt.Time, begun)
		step("drain", begun, timeOf(ready))
		step("reboot", timeOf(rebooted), timeOf(back))
		step("outage", begun, timeOf(attempt.EndedAt))
	}
}

func (m *Metrics) failed(pool *v1alpha1.HostPool, kind string) {
	m.errors.WithLabelValues(pool.Namespace, pool.Name, kind).Inc()
}

func (m *Metrics) forget(namespace, name string) {
	labels := prometheus.Labels{"namespace": namespace, "pool": name}
	m.nodes.DeletePartialMatch(labels)
	m.halted.DeletePartialMatch(labels)
	m.silent.DeletePartialMatch(labels)
}

func timeOf(t *metav1.Time) time.Time {
	if t == nil {
		return time.Time{}
	}

	return t.Time
}
