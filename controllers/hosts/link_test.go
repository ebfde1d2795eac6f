package hosts

import (
	"fmt"
	"strings"
	"testing"

	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

func host(name, hostname string) metal3.BareMetalHost {
	h := metal3.BareMetalHost{ObjectMeta: metav1.ObjectMeta{Namespace: "metal", Name: name, UID: types.UID("uid-" + name)}}
	if hostname != "" {
		h.Status.HardwareDetails = &metal3.HardwareDetails{Hostname: hostname}
	}

	return h
}

func consumed(h metal3.BareMetalHost) metal3.BareMetalHost {
	h.Spec.ConsumerRef = &corev1.ObjectReference{
		Kind: "Metal3Machine", Name: "m-" + h.Name, Namespace: "capi", APIVersion: "infrastructure.cluster.x-k8s.io/v1beta1",
	}

	return h
}

func node(name, providerID string) corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name + ".example"}},
		Spec:       corev1.NodeSpec{ProviderID: providerID},
	}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	consumers := map[types.NamespacedName]string{{Namespace: "capi", Name: "m-h1"}: "n1"}
	for name, tt := range map[string]struct {
		hosts []metal3.BareMetalHost
		nodes []corev1.Node
		want  string
	}{
		"providerID":        {[]metal3.BareMetalHost{host("h1", "")}, []corev1.Node{node("n1", "metal3://metal/h1/m")}, "h1=n1/ProviderID"},
		"legacy providerID": {[]metal3.BareMetalHost{host("h1", "")}, []corev1.Node{node("n1", "metal3://uid-h1")}, "h1=n1/ProviderID"},
		"other namespace":   {[]metal3.BareMetalHost{host("h1", "")}, []corev1.Node{node("n1", "metal3://other/h1/m")}, "h1:NoNode"},
		"empty legacy id": {
			[]metal3.BareMetalHost{{ObjectMeta: metav1.ObjectMeta{Name: "h1"}}},
			[]corev1.Node{node("n1", "metal3://")},
			"h1:NoNode",
		},
		"two parts":     {[]metal3.BareMetalHost{host("h1", "")}, []corev1.Node{node("n1", "metal3://metal/h1")}, "h1:NoNode"},
		"another cloud": {[]metal3.BareMetalHost{host("h1", "")}, []corev1.Node{node("n1", "aws:///metal/h1/m")}, "h1:NoNode"},
		"consumer":      {[]metal3.BareMetalHost{consumed(host("h1", ""))}, []corev1.Node{node("n1", "")}, "h1=n1/Consumer"},
		"consumer, other machine": {
			[]metal3.BareMetalHost{consumed(host("h1", ""))},
			[]corev1.Node{node("n1", "metal3://metal/h9/m")},
			"h1:NoNode",
		},
		"hostname is node name":   {[]metal3.BareMetalHost{host("h1", "n1")}, []corev1.Node{node("n1", "")}, "h1=n1/Hostname"},
		"hostname is label":       {[]metal3.BareMetalHost{host("h1", "n1.example")}, []corev1.Node{node("n1", "")}, "h1=n1/Hostname"},
		"hostname, other machine": {[]metal3.BareMetalHost{host("h1", "n1")}, []corev1.Node{node("n1", "metal3://metal/h9/m")}, "h1:NoNode"},
		"providerID beats hostname": {
			[]metal3.BareMetalHost{host("h1", "n2")},
			[]corev1.Node{node("n1", "metal3://metal/h1/m"), node("n2", "")},
			"h1=n1/ProviderID",
		},
		"two nodes, one host": {
			[]metal3.BareMetalHost{host("h1", "")},
			[]corev1.Node{node("n2", "metal3://metal/h1/m"), node("n1", "metal3://uid-h1")},
			"h1:Ambiguous",
		},
		"two hosts, one node": {
			[]metal3.BareMetalHost{host("h2", "n1"), host("h1", "n1")}, []corev1.Node{node("n1", "")}, "h1:Ambiguous h2:Ambiguous",
		},
		"weak and strong claim to one node": {
			[]metal3.BareMetalHost{consumed(host("h1", "")), host("h2", "n1")}, []corev1.Node{node("n1", "")}, "h1:Ambiguous h2:Ambiguous",
		},
		"localhost is nobody": {
			[]metal3.BareMetalHost{host("h1", "localhost.localdomain"), host("h2", "localhost.localdomain")},
			[]corev1.Node{node("n1", "")},
			"h1:NoNode h2:NoNode",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, link := range Resolve(World{Hosts: tt.hosts, Nodes: tt.nodes, Consumers: consumers}) {
				if link.Problem != "" {
					got = append(got, fmt.Sprintf("%s:%s", link.Host, link.Problem))
					if link.Message == "" || link.Node != "" {
						t.Errorf("a problem needs a message and no node: %+v", link)
					}

					continue
				}
				got = append(got, fmt.Sprintf("%s=%s/%s", link.Host, link.Node, link.By))
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("got %q, want %q", strings.Join(got, " "), tt.want)
			}
		})
	}
}

func TestNoNodeIsEverLinkedTwice(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		names := []string{"a", "b", "c"}
		ids := []string{"", "metal3://metal/a/m", "metal3://metal/b/m", "metal3://uid-a", "metal3://uid-c", "metal3://metal/x/m"}
		var world World
		for _, name := range names {
			h := host(name, rapid.SampledFrom([]string{"", "n1", "n2", "n3"}).Draw(t, "hostname"))
			if rapid.Bool().Draw(t, "consumed") {
				h = consumed(h)
			}
			world.Hosts = append(world.Hosts, h)
		}
		for _, name := range []string{"n1", "n2", "n3"} {
			world.Nodes = append(world.Nodes, node(name, rapid.SampledFrom(ids).Draw(t, "providerID")))
		}
		world.Consumers = map[types.NamespacedName]string{}
		for _, name := range names {
			machine := types.NamespacedName{Namespace: "capi", Name: "m-" + name}
			world.Consumers[machine] = rapid.SampledFrom([]string{"", "n1", "n2"}).Draw(t, "consumer")
		}
		seen := map[string]string{}
		for _, link := range Resolve(world) {
			if link.Node == "" {
				continue
			}
			if other, twice := seen[link.Node]; twice {
				t.Fatalf("node %s is linked to %s and %s", link.Node, other, link.Host)
			}
			seen[link.Node] = link.Host
		}
	})
}

func TestConsumersFollowsMachines(t *testing.T) {
	t.Parallel()
	object := func(apiVersion, kind, name string, rest map[string]any) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: rest}
		u.SetAPIVersion(apiVersion)
		u.SetKind(kind)
		u.SetNamespace("capi")
		u.SetName(name)

		return u
	}
	consumer := object("infrastructure.cluster.x-k8s.io/v1beta1", "Metal3Machine", "m-h1", map[string]any{})
	consumer.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "Machine", Name: "machine", UID: "u"}})
	machine := object("cluster.x-k8s.io/v1beta2", "Machine", "machine", map[string]any{
		"status": map[string]any{"nodeRef": map[string]any{"name": "n1"}},
	})
	reader := fake.NewClientBuilder().WithScheme(runtime.NewScheme()).WithObjects(consumer, machine).Build()
	hosts := []metal3.BareMetalHost{consumed(host("h1", "")), consumed(host("gone", "")), host("free", "")}

	got, err := Consumers(t.Context(), reader, hosts, nil)
	if err != nil {
		t.Fatal(err)
	}
	if key := (types.NamespacedName{Namespace: "capi", Name: "m-h1"}); len(got) != 1 || got[key] != "n1" {
		t.Errorf("got %v, want only m-h1 -> n1", got)
	}
}
