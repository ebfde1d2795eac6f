package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/test/lab"
)

const (
	workloadNamespace = "default"
	workloadLabel     = "app"
	// serviceName is a Deployment with a pod on each machine, which a drain has to evict; its budget has its name.
	serviceName = "service"
	// everywhereName is a DaemonSet, whose pods a drain leaves alone, so that they must be made anew after the update.
	everywhereName = "everywhere"
	// podsWait is how long pods may take to start on an emulated machine that has just booted.
	podsWait = 5 * time.Minute
)

// workload are the parts of the workload, each of which has a pod on each machine.
func workload() []string { return []string{serviceName, everywhereName} }

// errNotServing means that pods do not run that should.
var errNotServing = errors.New("the workload does not run")

// StartWorkload makes what runs on the machines while they are updated, and returns when it runs on all of them.
func StartWorkload(ctx context.Context, running *lab.Lab) error {
	machines, err := running.Nodes()
	if err != nil {
		return err
	}

	objects := []client.Object{
		&appsv1.Deployment{
			ObjectMeta: workloadMeta(serviceName),
			Spec: appsv1.DeploymentSpec{
				Replicas: new(int32(len(machines))), //nolint:gosec // a lab has few machines
				Selector: workloadSelector(serviceName), Template: workloadPod(serviceName),
			},
		},
		&appsv1.DaemonSet{
			ObjectMeta: workloadMeta(everywhereName),
			Spec: appsv1.DaemonSetSpec{
				Selector: workloadSelector(everywhereName), Template: workloadPod(everywhereName),
			},
		},
	}

	for _, object := range objects {
		if err := running.Client.Create(ctx, object); err != nil {
			return fmt.Errorf("making %s: %w", client.ObjectKeyFromObject(object), err)
		}
	}

	ctx, cancel := context.WithTimeout(ctx, podsWait)
	defer cancel()

	return (&Run{Lab: running, Scenario: Scenario{Machines: machines}}).waitServing(ctx, nil)
}

func workloadMeta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: workloadNamespace, Name: name, Labels: map[string]string{workloadLabel: name}}
}

func workloadSelector(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{workloadLabel: name}}
}

// workloadPod is a pod that does nothing and ends at once. No two of a kind share a machine, so that one that was
// evicted waits until its machine is back, and the other machine is as it was.
func workloadPod(name string) corev1.PodTemplateSpec {
	apart := corev1.PodAffinityTerm{LabelSelector: workloadSelector(name), TopologyKey: corev1.LabelHostname}

	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{workloadLabel: name}},
		Spec: corev1.PodSpec{
			Containers:                    []corev1.Container{{Name: name, Image: lab.PodImage}},
			AutomountServiceAccountToken:  new(false),
			EnableServiceLinks:            new(false),
			TerminationGracePeriodSeconds: new(int64(1)),
			Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{apart},
			}},
			// A machine that reboots keeps its pod: what takes it off must be the drain or the agent.
			Tolerations: []corev1.Toleration{
				{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
				{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
			},
		},
	}
}

// forbidEvictions makes a budget that allows no pod of the service to be evicted, and allowEvictions takes it away.
func forbidEvictions(ctx context.Context, run *Run) error {
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: workloadMeta(serviceName),
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: new(intstr.FromInt32(0)), Selector: workloadSelector(serviceName),
		},
	}
	if err := run.Lab.Client.Create(ctx, budget); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("making the budget: %w", err)
	}

	return nil
}

func allowEvictions(ctx context.Context, run *Run) error {
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: workloadMeta(serviceName)}
	if err := run.Lab.Client.Delete(ctx, budget); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting the budget: %w", err)
	}

	return nil
}

// podList is what is known of the workload's pods.
type podList []corev1.Pod

func (r *Run) pods(ctx context.Context) (podList, error) {
	var list corev1.PodList
	if err := r.Lab.Client.List(ctx, &list, client.InNamespace(workloadNamespace)); err != nil {
		return nil, fmt.Errorf("listing the pods of the workload: %w", err)
	}

	return list.Items, nil
}

// notServing says which machine lacks a pod of the workload that runs, "" when none does.
func (p podList) notServing(machines []string) string {
	for _, machine := range machines {
		for _, name := range workload() {
			serves := slices.ContainsFunc(p, func(pod corev1.Pod) bool {
				return pod.Spec.NodeName == machine && pod.Labels[workloadLabel] == name && pod.DeletionTimestamp == nil && podReady(&pod)
			})
			if !serves {
				return fmt.Sprintf("no pod of %s is ready on %s", name, machine)
			}
		}
	}

	return ""
}

func podReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// on are the UIDs of the pods on a machine. Mirror pods aside: they stand for files on the machine.
func (p podList) on(machine string) []string {
	var uids []string

	for index := range p {
		if _, mirror := p[index].Annotations[corev1.MirrorPodAnnotationKey]; p[index].Spec.NodeName == machine && !mirror {
			uids = append(uids, string(p[index].UID))
		}
	}

	return uids
}

// stale are the pods of before that are still on the machine.
func (p podList) stale(machine string, before []string) []string {
	var names []string

	for index := range p {
		if p[index].Spec.NodeName == machine && slices.Contains(before, string(p[index].UID)) {
			names = append(names, p[index].Name)
		}
	}

	return names
}

// notServing says what is wrong with the workload on the scenario's machines: a pod that does not run, or one of before,
// by machine, that is there still. A lab without a workload, as that of the demonstration, has nothing wrong with it.
func (r *Run) notServing(ctx context.Context, before map[string][]string) (string, error) {
	var deployment appsv1.Deployment

	err := r.Lab.Client.Get(ctx, client.ObjectKey{Namespace: workloadNamespace, Name: serviceName}, &deployment)
	if apierrors.IsNotFound(err) {
		return "", nil
	}

	if err != nil {
		return "", fmt.Errorf("looking for the workload: %w", err)
	}

	pods, err := r.pods(ctx)
	if err != nil {
		return "", err
	}

	for machine, uids := range before {
		if stale := pods.stale(machine, uids); len(stale) > 0 {
			return fmt.Sprintf("%v of before the update are still on %s", stale, machine), nil
		}
	}

	return pods.notServing(r.Scenario.Machines), nil
}

// waitServing returns when nothing is wrong with the workload.
func (r *Run) waitServing(ctx context.Context, before map[string][]string) error {
	for {
		trouble, err := r.notServing(ctx, before)
		if err == nil && trouble == "" {
			return nil
		}

		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %s: %w", errNotServing, trouble, errors.Join(err, ctx.Err()))
		case <-time.After(observeInterval):
		}
	}
}

// checkPods proves that the workload runs again, and after a success with new pods only.
func (r *Run) checkPods(ctx context.Context, world *World) error {
	ctx, cancel := context.WithTimeout(ctx, podsWait)
	defer cancel()

	before := map[string][]string{}

	for name, snapshot := range r.before {
		record := r.record(world, name)
		if record != nil && record.Phase == v1alpha1.PhaseSucceeded {
			before[name] = snapshot.Pods
		}
	}

	return r.waitServing(ctx, before)
}
