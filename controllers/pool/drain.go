package pool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubectl/pkg/drain"

	"github.com/stayput-dev/stayput/api/v1alpha1"
)

// drainPassTimeout bounds one eviction pass. A pass only asks for evictions; it never waits for pods to end.
const drainPassTimeout = 30 * time.Second

// maxNamed bounds how many pods a message names.
const maxNamed = 3

// drainPass asks for the eviction of every pod that a drain removes. It tells how many pods are left, and what blocks
// them in words, "" when they are only ending. It keeps no state: the next pass, of this process or another, goes on.
func drainPass(
	ctx context.Context, kube kubernetes.Interface, node string, settings v1alpha1.DrainSettings,
) (left int, blocked string, err error) {
	ctx, cancel := context.WithTimeout(ctx, drainPassTimeout)
	defer cancel()
	helper := &drain.Helper{
		Ctx: ctx, Client: kube, GracePeriodSeconds: -1, IgnoreAllDaemonSets: true,
		Force: settings.DeleteUnmanagedPods, DeleteEmptyDirData: settings.DeletePodsWithLocalStorage,
		Out: io.Discard, ErrOut: io.Discard,
	}
	list, problems := helper.GetPodsForDeletion(node)
	if list == nil {
		return 0, "", fmt.Errorf("listing the pods of node %s: %w", node, errors.Join(problems...))
	}
	pods := list.Pods()
	left = len(pods)
	var reasons []string
	for _, problem := range problems {
		left++
		reasons = append(reasons, explain(problem.Error()))
	}
	for i := range pods {
		if pods[i].DeletionTimestamp != nil {
			continue
		}
		reason, err := evict(ctx, kube, &pods[i])
		if err != nil {
			return left, "", err
		}
		if reason != "" {
			reasons = append(reasons, reason)
		}
	}
	if len(reasons) > maxNamed {
		reasons = append(reasons[:maxNamed], fmt.Sprintf("and %d more", len(reasons)-maxNamed))
	}

	return left, strings.Join(reasons, "; "), nil
}

// explain puts our settings in place of kubectl's options, which the drain library names.
func explain(problem string) string {
	return strings.NewReplacer(
		"(use --delete-emptydir-data to override)", "(delete them, or set spec.drain.deletePodsWithLocalStorage)",
		"(use --force to override)", "(delete them, or set spec.drain.deleteUnmanagedPods)",
	).Replace(problem)
}

// evict asks once for one eviction. It returns what forbids it for now, in words. It goes around the typed client,
// which waits and tries again ten times when the server answers 429 with Retry-After, as it does for a budget: that
// would hold up the pass for minutes (k8s.io/client-go rest.Request.MaxRetries).
func evict(ctx context.Context, kube kubernetes.Interface, pod *corev1.Pod) (string, error) {
	eviction := &policyv1.Eviction{
		TypeMeta:      metav1.TypeMeta{APIVersion: policyv1.SchemeGroupVersion.String(), Kind: drain.EvictionKind},
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))},
	}
	err := kube.CoreV1().RESTClient().Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).
		SubResource("eviction").Body(eviction).MaxRetries(0).Do(ctx).Error()
	switch {
	case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err): // done, gone, or another pod by now
		return "", nil
	case apierrors.IsTooManyRequests(err):
		return fmt.Sprintf("PodDisruptionBudget %s does not allow the eviction of pod %s/%s",
			budgetsOf(ctx, kube, pod), pod.Namespace, pod.Name), nil
	case apierrors.IsForbidden(err) && apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return fmt.Sprintf("pod %s/%s waits for its namespace to end", pod.Namespace, pod.Name), nil
	default:
		return "", fmt.Errorf("evicting pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
}

// budgetsOf names the PodDisruptionBudgets that select the pod; the API server does not.
func budgetsOf(ctx context.Context, kube kubernetes.Interface, pod *corev1.Pod) string {
	list, err := kube.PolicyV1().PodDisruptionBudgets(pod.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "(unknown)"
	}
	var names []string
	for i := range list.Items {
		selector, err := metav1.LabelSelectorAsSelector(list.Items[i].Spec.Selector)
		if err == nil && selector.Matches(labels.Set(pod.Labels)) {
			names = append(names, pod.Namespace+"/"+list.Items[i].Name)
		}
	}
	if len(names) == 0 {
		return "(unknown)"
	}

	return strings.Join(names, ", ")
}
