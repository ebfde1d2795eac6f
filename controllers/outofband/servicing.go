package outofband

import (
	"context"
	"fmt"

	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// pendingServicing says what baremetal-operator would make a reboot into; "" for nothing. It begins when a host that is
// to be on is off, as it is in the middle of a reboot through our key. A firmware change keeps the machine for tens of
// minutes and several boots, each of which would cost a boot try; and with a DataImage that cannot be attached or
// detached the machine stays off.
func pendingServicing(ctx context.Context, reader client.Reader, host *metal3.BareMetalHost) (string, error) {
	if text, err := pendingFirmware(ctx, reader, host); text != "" || err != nil {
		return text, err
	}
	var image metal3.DataImage
	found, err := beside(ctx, reader, host, &image)
	if err != nil || !found {
		return "", err
	}
	wanted := image.Spec.URL
	if image.DeletionTimestamp != nil {
		wanted = ""
	}
	if wanted == image.Status.AttachedImage.URL {
		return "", nil
	}

	return fmt.Sprintf("BareMetalHost %s/%s has a DataImage that is attached or detached at the next reboot, and the machine stays off "+
		"when that fails; take the change back, or set spec.outOfBand.powerVia of the HostPool to BMC", host.Namespace, host.Name), nil
}

func pendingFirmware(ctx context.Context, reader client.Reader, host *metal3.BareMetalHost) (string, error) {
	var policy metal3.HostUpdatePolicy
	if found, err := beside(ctx, reader, host, &policy); err != nil || !found {
		return "", err
	}
	if policy.Spec.FirmwareSettings == metal3.HostUpdatePolicyOnReboot {
		wanted := host.Spec.Firmware //nolint:staticcheck // hosts that were made before may have it
		if !equality.Semantic.DeepEqual(host.Status.Provisioning.Firmware, wanted) {
			return servicing(host, "spec.firmware of the BareMetalHost"), nil
		}
		var settings metal3.HostFirmwareSettings
		found, err := beside(ctx, reader, host, &settings)
		if err != nil {
			return "", err
		}
		if found && changed(settings.Status.Conditions, settings.Generation,
			string(metal3.FirmwareSettingsChangeDetected), string(metal3.FirmwareSettingsValid)) {
			return servicing(host, "its HostFirmwareSettings"), nil
		}
	}
	if policy.Spec.FirmwareUpdates == metal3.HostUpdatePolicyOnReboot {
		var components metal3.HostFirmwareComponents
		found, err := beside(ctx, reader, host, &components)
		if err != nil {
			return "", err
		}
		if found && changed(components.Status.Conditions, components.Generation,
			string(metal3.HostFirmwareComponentsChangeDetected), string(metal3.HostFirmwareComponentsValid)) {
			return servicing(host, "its HostFirmwareComponents"), nil
		}
	}

	return "", nil
}

func servicing(host *metal3.BareMetalHost, what string) string {
	return fmt.Sprintf("BareMetalHost %s/%s has a firmware change that is due at the next reboot (%s), and Metal3 would service "+
		"the machine instead of rebooting it; take the change back, set its HostUpdatePolicy to onPreparing, or set "+
		"spec.outOfBand.powerVia of the HostPool to BMC", host.Namespace, host.Name, what)
}

// changed reads the conditions as baremetal-operator does. A condition of another generation makes it wait in the middle
// of the reboot, so that counts, too.
func changed(conditions []metav1.Condition, generation int64, change, valid string) bool {
	condition := meta.FindStatusCondition(conditions, change)
	switch {
	case condition == nil:
		return false
	case condition.ObservedGeneration != generation:
		return true
	default:
		return condition.Status == metav1.ConditionTrue && meta.IsStatusConditionTrue(conditions, valid)
	}
}

// beside reads an object that has the host's name. Older releases of Metal3 do not have its kind.
func beside(ctx context.Context, reader client.Reader, host *metal3.BareMetalHost, object client.Object) (bool, error) {
	switch err := reader.Get(ctx, client.ObjectKeyFromObject(host), object); {
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("reading %T %s/%s: %w", object, host.Namespace, host.Name, err)
	default:
		return true, nil
	}
}
