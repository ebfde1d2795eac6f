package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

var errConflict = errors.New("the node has changed since it was read")

// apply does to a node what the API server does with a patch: the resourceVersion is a condition and grows, metadata
// and spec belong to the main resource, status to its subresource. The strategic merge is the API server's own code.
func apply(node *corev1.Node, patch *Patch) (*corev1.Node, error) {
	var head struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(patch.Data, &head); err != nil {
		return nil, fmt.Errorf("reading the patch: %w", err)
	}

	if seen := head.Metadata.ResourceVersion; seen != "" && seen != node.ResourceVersion {
		return nil, errConflict
	}

	patched, err := merge(node, patch)
	if err != nil {
		return nil, err
	}

	next := node.DeepCopy()
	if patch.Subresource == "status" {
		next.Status = patched.Status
	} else {
		next.ObjectMeta = patched.ObjectMeta
		next.Spec = patched.Spec
	}

	version, err := strconv.Atoi(node.ResourceVersion)
	if err != nil {
		return nil, fmt.Errorf("reading the resourceVersion: %w", err)
	}

	next.ResourceVersion = strconv.Itoa(version + 1)

	return next, nil
}

func merge(node *corev1.Node, patch *Patch) (*corev1.Node, error) {
	original, err := json.Marshal(node)
	if err != nil {
		return nil, fmt.Errorf("encoding the node: %w", err)
	}

	var merged []byte

	switch patch.Type {
	case types.StrategicMergePatchType:
		merged, err = strategicpatch.StrategicMergePatch(original, patch.Data, corev1.Node{})
	case types.MergePatchType:
		merged, err = mergeJSON(original, patch.Data)
	default:
		err = fmt.Errorf("unexpected patch type %s", patch.Type) //nolint:err113 // a test's own failure
	}

	if err != nil {
		return nil, fmt.Errorf("merging %s: %w", patch.Data, err)
	}

	patched := &corev1.Node{}
	if err := json.Unmarshal(merged, patched); err != nil {
		return nil, fmt.Errorf("decoding the node: %w", err)
	}

	return patched, nil
}

// mergeJSON is RFC 7386.
func mergeJSON(original, patch []byte) ([]byte, error) {
	var target, change map[string]any
	if err := errors.Join(json.Unmarshal(original, &target), json.Unmarshal(patch, &change)); err != nil {
		return nil, err
	}

	return json.Marshal(mergeObject(target, change))
}

func mergeObject(target, change map[string]any) map[string]any {
	if target == nil {
		target = map[string]any{}
	}

	for key, value := range change {
		switch value := value.(type) {
		case nil:
			delete(target, key)
		case map[string]any:
			inner, _ := target[key].(map[string]any)
			target[key] = mergeObject(inner, value)
		default:
			target[key] = value
		}
	}

	return target
}
