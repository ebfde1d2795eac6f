package health

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stayput-dev/stayput/api/v1alpha1"
)

// GateName names a gate; the names are those of the fields of v1alpha1.HealthSettings.
type GateName string

// The gates.
const (
	GateAPIServer        GateName = "apiServer"
	GateContainerRuntime GateName = "containerRuntime"
	GateKubelet          GateName = "kubelet"
	GateNodeReady        GateName = "nodeReady"
)

// The defaults of v1alpha1.HealthSettings.
const (
	defaultDeadline          = 5 * time.Minute
	defaultNodeReadyDeadline = 10 * time.Minute
)

// Boot is what a gate may compare with.
type Boot struct {
	// ID is the running kernel's boot ID.
	ID string
	// Version is the version that the trial is of, "" when the trial was lost: then any version passes.
	Version string
}

// Gate is one look at the health of the machine.
type Gate interface {
	// Name is which gate it is.
	Name() GateName
	// Check looks once. Nil means that the gate has passed; it is not looked at again. It heeds the context's deadline.
	Check(ctx context.Context, boot Boot) error
}

// Deadline is how long a gate may take, from the start of the boot gate.
func Deadline(settings v1alpha1.HealthSettings, gate GateName) time.Duration {
	switch gate {
	case GateAPIServer:
		return orDefault(settings.APIServer, defaultDeadline)
	case GateContainerRuntime:
		return orDefault(settings.ContainerRuntime, defaultDeadline)
	case GateKubelet:
		return orDefault(settings.Kubelet, defaultDeadline)
	case GateNodeReady:
		return orDefault(settings.NodeReady, defaultNodeReadyDeadline)
	default:
		return defaultDeadline
	}
}

func orDefault(value metav1.Duration, fallback time.Duration) time.Duration {
	if value.Duration <= 0 {
		return fallback
	}

	return value.Duration
}
