package powerlease

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"

	"github.com/stayput-dev/stayput/test/apiserver"
)

const (
	user  = "stayput"
	races = 200
)

//nolint:gochecknoglobals // one server for all tests of the package
var shared = &apiserver.Shared{Prepare: prepare}

// TestMain makes more schedules than rapid's hundred, if the command line does not say otherwise. They take some seconds.
func TestMain(m *testing.M) {
	if err := flag.Set("rapid.checks", "1000"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(shared.Main(m))
}

// prepare gives the user the rights that doc.go names, and no other.
func prepare(ctx context.Context, server *apiserver.Server) error {
	meta := metav1.ObjectMeta{Namespace: testHost.Namespace, Name: "leases"}

	return errors.Join(
		server.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: testHost.Namespace}}),
		server.Client.Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get", "create", "update"},
		}}}),
		server.Client.Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: meta,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
		}),
	)
}

// api is a client with the rights of doc.go, and one that may do anything.
func api(t *testing.T) (limited, all coordinationclient.LeasesGetter) {
	t.Helper()
	server := shared.Server(t)
	config, err := server.As(user)
	if err != nil {
		t.Fatal(err)
	}
	made := make([]coordinationclient.LeasesGetter, 0, 2)
	for _, config := range []*rest.Config{config, server.Config} {
		client, err := Client(config)
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, client)
	}

	return made[0], made[1]
}

func hostNamed(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: testHost.Namespace, Name: name}
}

// Two processes, a clock an hour apart, want one host 200 times at once: one gets it each time, never both.
func TestRaces(t *testing.T) {
	t.Parallel()
	client, _ := api(t)
	host := hostNamed("raced")
	actors := []*actor{newActor(t, client, "a", -time.Hour), newActor(t, client, "b", time.Hour)}
	var inside, wins, refusals atomic.Int32
	for race := range races {
		var both, refused sync.WaitGroup
		refused.Add(1)
		gun := make(chan struct{})
		for _, a := range actors {
			both.Go(func() {
				<-gun
				err := a.TryDo(t.Context(), host, testUID, func(context.Context) error {
					if inside.Add(1) > 1 {
						t.Errorf("race %d: both act", race)
						refused.Done()
					}
					wins.Add(1)
					refused.Wait()
					inside.Add(-1)

					return nil
				})
				if isHeld(err) {
					refusals.Add(1)
					refused.Done()
				} else if err != nil {
					t.Errorf("race %d: %v", race, err)
					refused.Done()
				}
			})
		}
		close(gun)
		both.Wait()
		if t.Failed() {
			return
		}
	}
	if wins.Load() != races || refusals.Load() != races {
		t.Errorf("%d won, %d were refused", wins.Load(), refusals.Load())
	}
}

// What another process left, and what happens to a Lease under way, at an API server that is not ours.
func TestAPIServer(t *testing.T) {
	t.Parallel()
	client, all := api(t)
	t.Run("killed", func(t *testing.T) {
		t.Parallel()
		host := hostNamed("killed")
		killed, b := newActor(t, client, "killed", time.Hour), newActor(t, client, "b", -time.Hour)
		use := killed.hold(t, host)
		if _, err := b.tryHold(t.Context(), host); !isHeld(err) {
			t.Fatal(err)
		}
		b.clock.Step(time.Minute - time.Second)
		if _, err := b.tryHold(t.Context(), host); !isHeld(err) {
			t.Fatal(err)
		}
		b.clock.Step(time.Second)
		follower := b.hold(t, host)
		killed.clock.Step(time.Minute)
		if _, lost := errors.AsType[*LostError](<-use.done); !lost {
			t.Error("the killed one does not know")
		}
		if err := follower.finish(); err != nil || Check(follower.ctx) == nil {
			t.Error(err)
		}
	})
	t.Run("deleted", func(t *testing.T) {
		t.Parallel()
		host := hostNamed("deleted")
		a := newActor(t, client, "a", 0)
		use := a.hold(t, host)
		if err := all.Leases(host.Namespace).Delete(t.Context(), Name(host.Name), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		a.clock.Step(10 * time.Second)
		if lost, ok := errors.AsType[*LostError](<-use.done); !ok || lost.Why != "it was deleted" {
			t.Errorf("got %+v", lost)
		}
		if lease, err := client.Leases(host.Namespace).Get(t.Context(), Name(host.Name), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("made again: %+v, %v", lease, err)
		}
	})
	t.Run("changed", func(t *testing.T) {
		t.Parallel()
		host := hostNamed("changed")
		a := newActor(t, client, "a", 0)
		use := a.hold(t, host)
		lease, err := all.Leases(host.Namespace).Get(t.Context(), Name(host.Name), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		lease.Labels = map[string]string{"changed-at": lease.ResourceVersion} // another one in each run
		if _, err := all.Leases(host.Namespace).Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		updates := make(chan error, 2)
		a.gate.set(func(_ context.Context, verb string, do func() (*coordinationv1.Lease, error)) (*coordinationv1.Lease, error) {
			lease, err := do()
			if verb == "update" {
				updates <- err
			}

			return lease, err
		})
		a.clock.Step(10 * time.Second)
		if err := <-updates; !apierrors.IsConflict(err) {
			t.Errorf("got %v", err)
		}
		// A renewal is noted before the next one is sent.
		for _, step := range []time.Duration{time.Second, 10 * time.Second} {
			a.clock.Step(step)
			if err := <-updates; err != nil {
				t.Errorf("renewing: %v", err)
			}
		}
		a.gate.set(nil)
		a.clock.Step(39 * time.Second)
		if err := Check(use.ctx); err != nil {
			t.Error(err)
		}
		if err := use.finish(); err != nil {
			t.Fatal(err)
		}
		lease, err = client.Leases(host.Namespace).Get(t.Context(), Name(host.Name), metav1.GetOptions{})
		if err != nil || holderOf(lease) != "" {
			t.Errorf("%+v, %v", lease, err)
		}
	})
}

// The fields of a Lease are those that kube-apiserver keeps, and its owner is the host that is there now.
func TestTheOwnerIsTheHost(t *testing.T) {
	t.Parallel()
	client, _ := api(t)
	server := shared.Server(t)
	name := hostNamed("owner")
	leases, err := New(Options{Leases: client, Holder: "a"})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		host := &metal3.BareMetalHost{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
		if err := server.Client.Create(t.Context(), host); err != nil {
			t.Fatal(err)
		}
		err := leases.Do(t.Context(), name, host.UID, func(ctx context.Context) error {
			lease, err := client.Leases(name.Namespace).Get(ctx, Name(name.Name), metav1.GetOptions{})
			if err != nil {
				return err
			}
			if owners := lease.OwnerReferences; len(owners) != 1 || owners[0].UID != host.UID || *owners[0].BlockOwnerDeletion {
				t.Errorf("owners %+v", owners)
			}

			return Check(ctx)
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := server.Client.Delete(t.Context(), host); err != nil {
			t.Fatal(err)
		}
	}
}
