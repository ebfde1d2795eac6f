package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const maxAnswerBytes = 512

var errUnhealthyKubelet = errors.New("it is not healthy")

// ContainerRuntime passes when the container runtime answers a Version call of the CRI on its socket.
type ContainerRuntime struct {
	// Socket is the path of its unix socket.
	Socket string
}

// Name is GateContainerRuntime.
func (ContainerRuntime) Name() GateName { return GateContainerRuntime }

// Check connects and asks for the version.
func (g ContainerRuntime) Check(ctx context.Context, _ Boot) error {
	// A socket has no TLS; file permissions guard it.
	conn, err := grpc.NewClient("unix://"+strings.TrimPrefix(g.Socket, "unix://"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connecting to the container runtime at %s: %w", g.Socket, err)
	}
	defer func() { _ = conn.Close() }() // nothing is left to flush

	if _, err := cri.NewRuntimeServiceClient(conn).Version(ctx, &cri.VersionRequest{}); err != nil {
		return fmt.Errorf("asking the container runtime at %s for its version: %w", g.Socket, err)
	}

	return nil
}

// Kubelet passes when the kubelet answers 200 on /healthz.
type Kubelet struct {
	// Healthz is the URL.
	Healthz string
}

// Name is GateKubelet.
func (Kubelet) Name() GateName { return GateKubelet }

// Check asks once.
func (g Kubelet) Check(ctx context.Context, _ Boot) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, g.Healthz, http.NoBody)
	if err != nil {
		return fmt.Errorf("asking the kubelet at %s: %w", g.Healthz, err)
	}

	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("asking the kubelet at %s: %w", g.Healthz, err)
	}
	defer func() { _ = response.Body.Close() }() // only read

	if response.StatusCode == http.StatusOK {
		return nil
	}

	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes))
	if err != nil {
		return fmt.Errorf("reading the kubelet's answer %s: %w", response.Status, err)
	}

	return fmt.Errorf("asking the kubelet at %s: %w: %s: %s", g.Healthz, errUnhealthyKubelet, response.Status, strings.TrimSpace(string(body)))
}
