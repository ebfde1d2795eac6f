package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of every object in this package.
var GroupVersion = schema.GroupVersion{Group: "stayput.dev", Version: "v1alpha1"} //nolint:gochecknoglobals // a struct cannot be a constant

// AddToScheme registers the package's objects with a scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &HostPool{}, &HostPoolList{}, &NodeUpdate{}, &NodeUpdateList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)

	return nil
}
