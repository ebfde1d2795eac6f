package outofband

import (
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/bmc"
)

// metrics of the BMC rung.
type metrics struct {
	actions *prometheus.CounterVec
	errors  *prometheus.CounterVec
	silent  prometheus.Gauge

	mu   sync.Mutex
	down map[Request]bool
}

func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		actions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stayput_outofband_power_actions_total",
			Help: "Power actions that BMCs accepted, or may have accepted, by action.",
		}, []string{"action"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stayput_outofband_bmc_errors_total",
			Help: "Errors on the way to a BMC, by kind.",
		}, []string{"kind"}),
		silent: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "stayput_outofband_silent_machines",
			Help: "Machines that are about to reboot, were told to, or are back and not done, and are silent past their deadline.",
		}),
		down: map[Request]bool{},
	}
	for _, collector := range []prometheus.Collector{m.actions, m.errors, m.silent} {
		if err := registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("registering metrics of the BMC rung: %w", err)
		}
	}
	for _, action := range []bmc.Action{
		bmc.ActionOn, bmc.ActionForceOff, bmc.ActionForceRestart, bmc.ActionShutdown, bmc.ActionSoftRestart, bmc.ActionPowerCycle,
	} {
		m.actions.WithLabelValues(string(action))
	}

	return m, nil
}

// observe counts a machine as silent or not. status is nil when nothing is to be done for it.
func (m *metrics) observe(request Request, status *v1alpha1.OutOfBandStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	silent := status != nil && status.Phase != v1alpha1.OutOfBandWatching && status.Phase != v1alpha1.OutOfBandRecovered
	if silent {
		m.down[request] = true
	} else {
		delete(m.down, request)
	}
	m.silent.Set(float64(len(m.down)))
}
