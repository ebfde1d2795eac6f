package admission_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stayput-dev/stayput/api/v1alpha1"
)

//nolint:gochecknoglobals // a constant
var nodeUpdates = schema.GroupVersionResource{Group: "stayput.dev", Version: "v1alpha1", Resource: "nodeupdates"}

// attempt is one way to break out. other is the name of another node; own is the agent's.
type attempt func(ctx context.Context, own *identity, other string) error

func patchNode(ctx context.Context, who *identity, name, body string, subresources ...string) error {
	_, err := who.kube.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(body), metav1.PatchOptions{}, subresources...)

	return err
}

func patchUpdate(ctx context.Context, who *identity, name string, kind types.PatchType, body string, subresources ...string) error {
	_, err := who.dynamic.Resource(nodeUpdates).Patch(ctx, name, kind, []byte(body), metav1.PatchOptions{}, subresources...)

	return err
}

func applyUpdate(ctx context.Context, who *identity, name, manager, status string) error {
	body := fmt.Sprintf(`{"apiVersion":"stayput.dev/v1alpha1","kind":"NodeUpdate","metadata":{"name":%q},"status":%s}`, name, status)
	force := true
	_, err := who.dynamic.Resource(nodeUpdates).Patch(ctx, name, types.ApplyPatchType, []byte(body),
		metav1.PatchOptions{FieldManager: manager, Force: &force}, "status")

	return err
}

func ownNode(body string) attempt {
	return func(ctx context.Context, own *identity, _ string) error { return patchNode(ctx, own, own.node, body) }
}

func ownUpdate(kind types.PatchType, body string, subresources ...string) attempt {
	return func(ctx context.Context, own *identity, _ string) error {
		return patchUpdate(ctx, own, own.node, kind, body, subresources...)
	}
}

// writes are refused by the policy alone, even when somebody has bound a stronger role to the agent.
func writes() map[string]attempt {
	all := map[string]attempt{}
	for _, some := range []map[string]attempt{nodeWrites(), nodeMetadataWrites(), updateWrites(), podWrites(), otherWrites()} {
		maps.Copy(all, some)
	}

	return all
}

func nodeWrites() map[string]attempt {
	return map[string]attempt{
		"another node's result": func(ctx context.Context, own *identity, other string) error {
			return patchNode(ctx, own, other, `{"metadata":{"labels":{"node.machine.sapcloud.io/update-result":"successful"}}}`)
		},
		"cordon another node": func(ctx context.Context, own *identity, other string) error {
			return patchNode(ctx, own, other, `{"spec":{"unschedulable":true}}`)
		},
		"cordon its node": ownNode(`{"spec":{"unschedulable":true}}`),
		"taint its node":  ownNode(`{"spec":{"taints":[{"key":"x","effect":"NoExecute"}]}}`),
		"provider ID":     ownNode(`{"spec":{"providerID":"metal3://other"}}`),
		"result and a spec": ownNode(`{"metadata":{"labels":{"node.machine.sapcloud.io/update-result":"failed"}},
			"spec":{"unschedulable":true}}`),
		"condition of its node":  conditionThroughStatus,
		"create a node":          createNode,
		"create a node by apply": applyNode("intruder", "stayput-agent", `{}`),
		"delete its node": func(ctx context.Context, own *identity, _ string) error {
			return own.kube.CoreV1().Nodes().Delete(ctx, own.node, metav1.DeleteOptions{})
		},
		"delete all nodes": func(ctx context.Context, own *identity, _ string) error {
			return own.kube.CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{},
				metav1.ListOptions{LabelSelector: "kubernetes.io/hostname"})
		},
		"as another field manager": func(ctx context.Context, own *identity, other string) error {
			return applyNode(own.node, "stayput-orchestrator", `{"node.machine.sapcloud.io/update-result":"successful"}`)(ctx, own, other)
		},
	}
}

func nodeMetadataWrites() map[string]attempt {
	return map[string]attempt{
		"candidate label":         ownNode(`{"metadata":{"labels":{"node.machine.sapcloud.io/candidate-for-update":"true"}}}`),
		"selected label":          ownNode(`{"metadata":{"labels":{"node.machine.sapcloud.io/selected-for-update":"true"}}}`),
		"ready label":             ownNode(`{"metadata":{"labels":{"node.machine.sapcloud.io/ready-for-update":"true"}}}`),
		"a role":                  ownNode(`{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`),
		"change somebody's label": ownNode(`{"metadata":{"labels":{"pool":"other"}}}`),
		"remove somebody's label": ownNode(`{"metadata":{"labels":{"pool":null}}}`),
		"attempt annotation":      ownNode(`{"metadata":{"annotations":{"stayput.dev/attempt":"mine"}}}`),
		"cordoned-by annotation":  ownNode(`{"metadata":{"annotations":{"stayput.dev/cordoned-by":"mine"}}}`),
		"scale-down annotation":   ownNode(`{"metadata":{"annotations":{"cluster-autoscaler.kubernetes.io/scale-down-disabled":"true"}}}`),
		"remove somebody's text":  ownNode(`{"metadata":{"annotations":{"team":null}}}`),
		"change somebody's text":  ownNode(`{"metadata":{"annotations":{"team":"x"}}}`),
		"endless text": ownNode(`{"metadata":{"annotations":{"stayput.dev/result-attempt":"` +
			strings.Repeat("x", 5000) + `"}}}`),
		"finalizer":                   ownNode(`{"metadata":{"finalizers":["example.com/stay"]}}`),
		"owner":                       ownNode(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"x","uid":"x"}]}}`),
		"generated name":              ownNode(`{"metadata":{"generateName":"x"}}`),
		"foreign label beside result": ownNode(`{"metadata":{"labels":{"node.machine.sapcloud.io/update-result":"failed","x":"y"}}}`),
	}
}

func updateWrites() map[string]attempt {
	const reset = `{"outOfBand":{"attempt":"a1","phase":"Recovered","reason":"MachineBack","resets":0}}`

	return map[string]attempt{
		"another node's update": func(ctx context.Context, own *identity, other string) error {
			return patchUpdate(ctx, own, other, types.MergePatchType, `{"status":{"phase":"Succeeded"}}`, "status")
		},
		"another node's update by apply": func(ctx context.Context, own *identity, other string) error {
			return applyUpdate(ctx, own, other, v1alpha1.FieldManagerAgent, `{"phase":"Succeeded"}`)
		},
		"its spec":            ownUpdate(types.MergePatchType, `{"spec":{"attempt":"mine"}}`),
		"its labels":          ownUpdate(types.MergePatchType, `{"metadata":{"labels":{"x":"y"}}}`),
		"its finalizers":      ownUpdate(types.MergePatchType, `{"metadata":{"finalizers":["example.com/stay"]}}`),
		"change outOfBand":    ownUpdate(types.MergePatchType, `{"status":{"outOfBand":{"resets":0}}}`, "status"),
		"remove outOfBand":    ownUpdate(types.JSONPatchType, `[{"op":"remove","path":"/status/outOfBand"}]`, "status"),
		"remove whole status": ownUpdate(types.JSONPatchType, `[{"op":"remove","path":"/status"}]`, "status"),
		"outOfBand beside its own": ownUpdate(types.MergePatchType,
			`{"status":{"phase":"Staged","outOfBand":{"phase":"Recovered"}}}`, "status"),
		"outOfBand by apply": func(ctx context.Context, own *identity, _ string) error {
			return applyUpdate(ctx, own, own.node, v1alpha1.FieldManagerAgent, reset)
		},
		"outOfBand as its manager": func(ctx context.Context, own *identity, _ string) error {
			return applyUpdate(ctx, own, own.node, v1alpha1.FieldManagerOutOfBand, reset)
		},
		"drop the BMC rung's fields": func(ctx context.Context, own *identity, _ string) error {
			return applyUpdate(ctx, own, own.node, v1alpha1.FieldManagerOutOfBand, `{"phase":"Staged"}`)
		},
		"create an update": func(ctx context.Context, own *identity, _ string) error {
			object := update("intruder")
			_, err := own.dynamic.Resource(nodeUpdates).Create(ctx, object, metav1.CreateOptions{})

			return err
		},
		"delete its update": func(ctx context.Context, own *identity, _ string) error {
			return own.dynamic.Resource(nodeUpdates).Delete(ctx, own.node, metav1.DeleteOptions{})
		},
	}
}

func podWrites() map[string]attempt {
	del := func(ctx context.Context, own *identity, name string) error {
		return own.kube.CoreV1().Pods("default").Delete(ctx, name, metav1.DeleteOptions{})
	}

	return map[string]attempt{
		"delete another node's pod": func(ctx context.Context, own *identity, other string) error { return del(ctx, own, "pod-of-"+other) },
		"delete a pod of no node":   func(ctx context.Context, own *identity, _ string) error { return del(ctx, own, "pending") },
		"delete all pods": func(ctx context.Context, own *identity, _ string) error {
			return own.kube.CoreV1().Pods("default").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		},
		"evict its own pod": func(ctx context.Context, own *identity, _ string) error {
			return post(ctx, own, "pods", "pod-of-"+own.node, "eviction",
				`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"pod-of-`+own.node+`"}}`)
		},
		"bind a pod": func(ctx context.Context, own *identity, _ string) error {
			return post(ctx, own, "pods", "pending", "binding",
				`{"apiVersion":"v1","kind":"Binding","metadata":{"name":"pending"},"target":{"kind":"Node","name":"`+own.node+`"}}`)
		},
		"exec in its own pod": func(ctx context.Context, own *identity, _ string) error {
			return own.kube.CoreV1().RESTClient().Post().Namespace("default").Resource("pods").Name("pod-of-"+own.node).
				SubResource("exec").Param("command", "id").Param("stdout", "true").Do(ctx).Error()
		},
		"change its own pod": func(ctx context.Context, own *identity, _ string) error {
			_, err := own.kube.CoreV1().Pods("default").Patch(ctx, "pod-of-"+own.node, types.MergePatchType,
				[]byte(`{"metadata":{"labels":{"x":"y"}}}`), metav1.PatchOptions{})

			return err
		},
		"create a pod": func(ctx context.Context, own *identity, _ string) error {
			return post(ctx, own, "pods", "", "", podText("intruder", own.node))
		},
	}
}

func otherWrites() map[string]attempt {
	return map[string]attempt{
		"create a secret": func(ctx context.Context, own *identity, _ string) error {
			return post(ctx, own, "secrets", "", "", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"x"}}`)
		},
		"create an event": func(ctx context.Context, own *identity, _ string) error {
			return post(ctx, own, "events", "", "",
				`{"apiVersion":"v1","kind":"Event","metadata":{"name":"x"},"involvedObject":{"namespace":"default"}}`)
		},
		"token of a service account": func(ctx context.Context, own *identity, _ string) error {
			return post(ctx, own, "serviceaccounts", "powerful", "token",
				`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"audiences":["api"]}}`)
		},
		"a role of its own": func(ctx context.Context, own *identity, _ string) error {
			return create(ctx, own,
				schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"},
				`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"x"},
				"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},
				"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"Group","name":"stayput:agents"}]}`)
		},
		"another certificate": func(ctx context.Context, own *identity, _ string) error {
			return requestCertificate(ctx, own)
		},
		"a host pool": func(ctx context.Context, own *identity, _ string) error {
			return create(ctx, own, schema.GroupVersionResource{Group: "stayput.dev", Version: "v1alpha1", Resource: "hostpools"},
				`{"apiVersion":"stayput.dev/v1alpha1","kind":"HostPool","metadata":{"name":"x","namespace":"default"},
				"spec":{"hostSelector":{"matchLabels":{"a":"b"}},"release":{"os":{"image":"r.example/i:1"}}}}`)
		},
	}
}

// powers are not writes: RBAC alone keeps them from an agent.
func powers() map[string]attempt {
	return map[string]attempt{
		"read secrets": func(ctx context.Context, own *identity, _ string) error {
			_, err := own.kube.CoreV1().Secrets("default").List(ctx, metav1.ListOptions{})

			return err
		},
		"read config maps": func(ctx context.Context, own *identity, _ string) error {
			_, err := own.kube.CoreV1().ConfigMaps("kube-system").List(ctx, metav1.ListOptions{})

			return err
		},
		"read hosts": func(ctx context.Context, own *identity, _ string) error {
			hosts := schema.GroupVersionResource{Group: "metal3.io", Version: "v1alpha1", Resource: "baremetalhosts"}
			_, err := own.dynamic.Resource(hosts).List(ctx, metav1.ListOptions{})

			return err
		},
		"a node's kubelet": func(ctx context.Context, own *identity, other string) error {
			return own.kube.CoreV1().RESTClient().Get().Resource("nodes").Name(other).SubResource("proxy").Do(ctx).Error()
		},
		"be somebody else": func(ctx context.Context, own *identity, _ string) error {
			_, err := own.kube.CoreV1().RESTClient().Get().Resource("nodes").SetHeader("Impersonate-User", "admin").DoRaw(ctx)

			return err
		},
		"be in another group": func(ctx context.Context, own *identity, _ string) error {
			_, err := own.kube.CoreV1().RESTClient().Get().Resource("nodes").
				SetHeader("Impersonate-User", "stayput:agent:"+own.node).SetHeader("Impersonate-Group", "system:masters").DoRaw(ctx)

			return err
		},
		"lift the policy": func(ctx context.Context, own *identity, _ string) error {
			return own.kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(ctx, "stayput-agent", metav1.DeleteOptions{})
		},
	}
}

func conditionThroughStatus(ctx context.Context, own *identity, _ string) error {
	return patchNode(ctx, own, own.node,
		`{"status":{"conditions":[{"type":"InPlaceUpdate","status":"True","reason":"ReadyForUpdate"}]}}`, "status")
}

func createNode(ctx context.Context, own *identity, _ string) error {
	_, err := own.kube.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "intruder"}}, metav1.CreateOptions{})

	return err
}

func applyNode(name, manager, labels string) attempt {
	return func(ctx context.Context, own *identity, _ string) error {
		force := true
		body := fmt.Sprintf(`{"apiVersion":"v1","kind":"Node","metadata":{"name":%q,"labels":%s}}`, name, labels)
		_, err := own.kube.CoreV1().Nodes().Patch(ctx, name, types.ApplyPatchType, []byte(body),
			metav1.PatchOptions{FieldManager: manager, Force: &force})

		return err
	}
}

func post(ctx context.Context, own *identity, resource, name, subresource, body string) error {
	request := own.kube.CoreV1().RESTClient().Post().Namespace("default").Resource(resource).
		SetHeader("Content-Type", "application/json").Body([]byte(body))
	if name != "" {
		request = request.Name(name).SubResource(subresource)
	}

	return request.Do(ctx).Error()
}

func create(ctx context.Context, own *identity, resource schema.GroupVersionResource, body string) error {
	object := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(body), &object.Object); err != nil {
		return err
	}

	var err error
	if object.GetNamespace() == "" {
		_, err = own.dynamic.Resource(resource).Create(ctx, object, metav1.CreateOptions{})
	} else {
		_, err = own.dynamic.Resource(resource).Namespace(object.GetNamespace()).Create(ctx, object, metav1.CreateOptions{})
	}

	return err
}

// requestCertificate asks for the client certificate of another node's agent.
func requestCertificate(ctx context.Context, own *identity) error {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return err
	}

	subject := pkix.Name{CommonName: "stayput:agent:other", Organization: []string{agents}}

	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
	if err != nil {
		return err
	}

	csr := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "intruder"}}
	csr.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request})
	csr.Spec.SignerName = certificatesv1.KubeAPIServerClientSignerName
	csr.Spec.Usages = []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth}
	_, err = own.kube.CertificatesV1().CertificateSigningRequests().Create(ctx, csr, metav1.CreateOptions{})

	return err
}

func podText(name, node string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":"default"},
		"spec":{"nodeName":%q,"terminationGracePeriodSeconds":0,"containers":[{"name":"c","image":"i"}]}}`, name, node)
}

func update(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "stayput.dev/v1alpha1", "kind": "NodeUpdate", "metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"door":    map[string]any{"kind": "HostPool", "namespace": "metal", "name": "gpu", "host": "host"},
			"attempt": "a1",
			"release": map[string]any{"os": map[string]any{
				"image": "r.example/os@sha256:" + strings.Repeat("a", 64), "version": "1.1.0",
			}},
		},
	}}
}
