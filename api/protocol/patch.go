package protocol

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// change collects what a JSON merge patch of a Node shall set and remove. A nil value removes.
type change struct {
	node        *corev1.Node
	labels      map[string]*string
	annotations map[string]*string
	// unschedulable is nil for no change.
	unschedulable *bool
}

func newChange(node *corev1.Node) *change {
	return &change{node: node, labels: map[string]*string{}, annotations: map[string]*string{}}
}

func (c *change) setLabel(key, value string)      { set(c.labels, c.node.Labels, key, value) }
func (c *change) setAnnotation(key, value string) { set(c.annotations, c.node.Annotations, key, value) }

func (c *change) dropLabels(keys ...string)      { drop(c.labels, c.node.Labels, keys) }
func (c *change) dropAnnotations(keys ...string) { drop(c.annotations, c.node.Annotations, keys) }

func (c *change) setUnschedulable(value bool) {
	if c.node.Spec.Unschedulable != value {
		c.unschedulable = &value
	}
}

func set(changes map[string]*string, present map[string]string, key, value string) {
	if old, found := present[key]; !found || old != value {
		changes[key] = &value
	}
}

func drop(changes map[string]*string, present map[string]string, keys []string) {
	for _, key := range keys {
		if _, found := present[key]; found {
			changes[key] = nil
		}
	}
}

// patch is bound to the node as it was read: if the node has changed since, the API server answers 409 Conflict and
// nothing happens.
func (c *change) patch() *Patch {
	if len(c.labels) == 0 && len(c.annotations) == 0 && c.unschedulable == nil {
		return nil
	}

	metadata := map[string]any{}
	if version := c.node.ResourceVersion; version != "" {
		metadata["resourceVersion"] = version
	}

	if len(c.labels) > 0 {
		metadata["labels"] = c.labels
	}

	if len(c.annotations) > 0 {
		metadata["annotations"] = c.annotations
	}

	body := map[string]any{"metadata": metadata}

	if c.unschedulable != nil {
		spec := map[string]any{"unschedulable": nil}
		if *c.unschedulable {
			spec["unschedulable"] = true
		}

		body["spec"] = spec
	}

	return &Patch{Type: types.MergePatchType, Data: encode(body)}
}

// conditionPatch replaces every condition of the type by this one. Within the API server a strategic merge applies the
// delete directive to all entries of the type before it merges the new one, so that duplicates are healed and the
// conditions of other writers, the kubelet's above all, are left alone.
func conditionPatch(resourceVersion string, condition corev1.NodeCondition) *Patch {
	body := map[string]any{
		"status": map[string]any{
			"conditions": []any{
				map[string]any{"$patch": "delete", "type": condition.Type},
				condition,
			},
		},
	}
	if resourceVersion != "" {
		body["metadata"] = map[string]any{"resourceVersion": resourceVersion}
	}

	return &Patch{Subresource: "status", Type: types.StrategicMergePatchType, Data: encode(body)}
}

// encode cannot fail on maps of strings and on a NodeCondition; if it ever does, the program is wrong.
func encode(body map[string]any) []byte {
	data, err := json.Marshal(body)
	if err != nil {
		panic(fmt.Sprintf("encoding a patch of strings: %v", err))
	}

	return data
}
