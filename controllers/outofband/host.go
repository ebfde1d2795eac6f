package outofband

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/bmc"
)

// Keys of the credentials Secret (baremetal-operator's API).
const (
	secretUsername = "username"
	secretPassword = "password"
)

// viewHost says what a host allows. The NodeUpdate, which names the host, is in the Nodes' cluster, whose
// administrators need not be those of the hosts: only a host that the pool itself selects is acted on.
func viewHost(pool *v1alpha1.HostPool, host *metal3.BareMetalHost, path v1alpha1.PowerPath) HostView {
	view := HostView{UID: host.UID, KeepPowered: host.Spec.DisablePowerOff, ViaMetal3: viaMetal3(host, path)}
	selector, err := metav1.LabelSelectorAsSelector(&pool.Spec.HostSelector)
	switch {
	case err != nil:
		view.NotFound = fmt.Sprintf("spec.hostSelector of HostPool %s/%s is invalid: %v", pool.Namespace, pool.Name, err)
	case !selector.Matches(labels.Set(host.Labels)):
		view.NotFound = fmt.Sprintf("BareMetalHost %s/%s is not selected by HostPool %s; restore its labels",
			host.Namespace, host.Name, pool.Name)
	case host.Spec.BMC.Address == "":
		view.NotFound = fmt.Sprintf("BareMetalHost %s/%s has no spec.bmc.address; set it", host.Namespace, host.Name)
	default:
		view.Busy = hostBusy(host)
	}
	if view.Busy == "" && !view.ViaMetal3 && has(host, ownRebootAnnotation) {
		view.Busy = fmt.Sprintf("BareMetalHost %s/%s is kept off by Stayput's own annotation %s, which is taken off it",
			host.Namespace, host.Name, ownRebootAnnotation)
	}

	return view
}

// viaMetal3 tells whether Metal3 switches the power of a host. It does not of a detached one, which it has let go; and
// of one with spec.disablePowerOff, whose BMC takes a ForceRestart that Metal3 does not mind, our key makes it reboot
// the machine again and again: baremetal-operator takes only the annotation without a key off after the reboot.
func viaMetal3(host *metal3.BareMetalHost, path v1alpha1.PowerPath) bool {
	return path == v1alpha1.PowerViaMetal3 && !detached(host) && !host.Spec.DisablePowerOff
}

// detached tells whether Metal3 has let the host go, as it was asked.
func detached(host *metal3.BareMetalHost) bool {
	return has(host, metal3.DetachedAnnotation) && host.Status.OperationalStatus == metal3.OperationalStatusDetached
}

// hostBusy says who else may be acting on a host, in words; empty: nobody. Ironic or another controller that works on
// a machine must not have it reset under its hands.
func hostBusy(host *metal3.BareMetalHost) string {
	name := fmt.Sprintf("BareMetalHost %s/%s ", host.Namespace, host.Name)
	state := host.Status.Provisioning.State
	switch {
	case host.DeletionTimestamp != nil:
		return name + "is being deleted"
	case state != metal3.StateProvisioned && state != metal3.StateExternallyProvisioned:
		return fmt.Sprintf("%sis in state %q; it must be provisioned or externally provisioned", name, state)
	case deployChanged(host):
		return name + "is about to be deprovisioned, since what spec says it shall run (image, customDeploy) is not what was provisioned"
	case has(host, metal3.PausedAnnotation):
		return name + "is paused; remove annotation " + metal3.PausedAnnotation
	case has(host, metal3.DetachedAnnotation) && !detached(host):
		return name + "is being detached from Metal3, which has not let it go yet"
	case !host.Spec.Online:
		return name + "has spec.online false, which keeps it off; set it to true"
	}
	if state := operationBusy(host); state != "" {
		return name + state
	}
	if annotation := rebootedByAnother(host); annotation != "" {
		return name + "is rebooted by another (annotation " + annotation + ")"
	}

	return ""
}

// deployChanged tells whether baremetal-operator will deprovision a provisioned host when it looks at it next
// (provisioningCancelled of v0.13.2).
func deployChanged(host *metal3.BareMetalHost) bool {
	if host.Status.Provisioning.State != metal3.StateProvisioned {
		return false
	}
	image, method := "", ""
	if host.Spec.Image != nil {
		image = host.Spec.Image.URL
	}
	if host.Spec.CustomDeploy != nil {
		method = host.Spec.CustomDeploy.Method
	}
	imageBefore, methodBefore := host.Status.Provisioning.Image.URL, ""
	if host.Status.Provisioning.CustomDeploy != nil {
		methodBefore = host.Status.Provisioning.CustomDeploy.Method
	}
	anotherImage := imageBefore != "" && image != imageBefore
	switch {
	case method != "":
		return anotherImage || (methodBefore != "" && method != methodBefore)
	case methodBefore != "":
		return true
	default:
		return anotherImage || image == ""
	}
}

// operationBusy is the part of hostBusy that Metal3 tells as the host's operational status.
func operationBusy(host *metal3.BareMetalHost) string {
	switch host.Status.OperationalStatus {
	case metal3.OperationalStatusOK, "":
		return ""
	case metal3.OperationalStatusDetached:
		if detached(host) {
			return ""
		}

		return "is being attached to Metal3 again"
	case metal3.OperationalStatusServicing:
		return "is being serviced (firmware)"
	case metal3.OperationalStatusError:
		return fmt.Sprintf("has error %q: %s", host.Status.ErrorType, host.Status.ErrorMessage)
	default:
		return fmt.Sprintf("has operational status %q", host.Status.OperationalStatus)
	}
}

// rebootedByAnother is the annotation with which somebody else asked Metal3 for a reboot, "" for none.
func rebootedByAnother(host *metal3.BareMetalHost) string {
	// In order: a text that changes is one more event.
	for _, annotation := range slices.Sorted(maps.Keys(host.Annotations)) {
		reboot := annotation == metal3.RebootAnnotationPrefix ||
			strings.HasPrefix(annotation, metal3.RebootAnnotationPrefix+"/")
		if reboot && annotation != ownRebootAnnotation {
			return annotation
		}
	}

	return ""
}

func has(host *metal3.BareMetalHost, annotation string) bool {
	_, ok := host.Annotations[annotation]

	return ok
}

// credentials reads the Secret as baremetal-operator does: white space around both values does not count.
func credentials(secret *corev1.Secret) bmc.Credentials {
	return bmc.Credentials{
		Username: strings.TrimSpace(string(secret.Data[secretUsername])),
		Password: strings.TrimSpace(string(secret.Data[secretPassword])),
	}
}
