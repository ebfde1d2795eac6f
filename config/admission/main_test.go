package admission_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/test/apiserver"
)

const agents = "stayput:agents"

// shared is a server with the policy.
var shared = apiserver.Shared{Prepare: install} //nolint:gochecknoglobals // one server for the package

func TestMain(m *testing.M) { os.Exit(shared.Main(m)) }

// admin is a client with all rights.
func admin(t *testing.T) client.Client {
	t.Helper()

	server := shared.Server(t)

	return server.Client
}

// install applies the files that an operator applies, and waits until the API server acts on them.
func install(ctx context.Context, server *apiserver.Server) error {
	for _, name := range []string{
		"rbac/nodes/agent_role.yaml", "rbac/nodes/agent_role_binding.yaml",
		"admission/agent_policy.yaml", "admission/agent_policy_binding.yaml",
	} {
		data, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(name)))
		if err != nil {
			return fmt.Errorf("reading %s: %w", name, err)
		}

		decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), len(data))

		for {
			object := &unstructured.Unstructured{}
			if err := decoder.Decode(&object.Object); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return fmt.Errorf("reading %s: %w", name, err)
			}

			if err := server.Client.Create(ctx, object, client.FieldValidation("Strict")); err != nil {
				return fmt.Errorf("creating %s: %w", name, err)
			}
		}
	}

	return waitForPolicy(ctx, server)
}

// waitForPolicy waits until the policy stops an agent that RBAC would let pass.
func waitForPolicy(ctx context.Context, server *apiserver.Server) error {
	probe, err := connect(server, "stayput:agent:probe", "probe", agents, "system:masters")
	if err != nil {
		return err
	}

	const often, long = 100 * time.Millisecond, time.Minute

	err = wait.PollUntilContextTimeout(ctx, often, long, true, func(ctx context.Context) (bool, error) {
		_, err := probe.kube.CoreV1().Namespaces().Patch(ctx, "default", types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"probe":"x"}}}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})

		return apierrors.IsForbidden(err), nil
	})
	if err != nil {
		return fmt.Errorf("waiting for the policy: %w", err)
	}

	return nil
}

// identity is an agent with its clients.
type identity struct {
	node    string
	kube    kubernetes.Interface
	dynamic dynamic.Interface
}

// agent is the agent of the node, in more groups than it should be when they are named.
func agent(t *testing.T, node string, more ...string) *identity {
	t.Helper()

	return user(t, "stayput:agent:"+node, node, append([]string{agents}, more...)...)
}

func user(t *testing.T, name, node string, groups ...string) *identity {
	t.Helper()

	server := shared.Server(t)

	who, err := connect(server, name, node, groups...)
	if err != nil {
		t.Fatal(err)
	}

	return who
}

func connect(server *apiserver.Server, name, node string, groups ...string) (*identity, error) {
	config, err := server.As(name, groups...)
	if err != nil {
		return nil, err
	}

	config.QPS = -1 // the test's own pace

	kube, kubeErr := kubernetes.NewForConfig(config)
	dyn, dynErr := dynamic.NewForConfig(config)

	if err := errors.Join(kubeErr, dynErr); err != nil {
		return nil, fmt.Errorf("making clients for %s: %w", name, err)
	}

	return &identity{node: node, kube: kube, dynamic: dyn}, nil
}
