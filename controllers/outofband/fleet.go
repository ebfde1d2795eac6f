package outofband

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/api/protocol"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/controllers/powerlease"
)

// alone implements effects.
func (s *session) alone(ctx context.Context, act func(ctx context.Context) error) (Problem, error) {
	begun := false
	err := s.leases.TryDo(ctx, client.ObjectKeyFromObject(s.host), s.host.UID, func(ctx context.Context) error {
		begun = true

		return act(ctx)
	})
	if err == nil || begun {
		return Problem{}, err
	}
	if held, ok := errors.AsType[*powerlease.HeldError](err); ok {
		return Problem{Reason: v1alpha1.OutOfBandPowerInUse, Text: held.Error()}, nil
	}
	if apierrors.IsForbidden(err) {
		return Problem{
			Reason: v1alpha1.OutOfBandPowerInUse, Text: err.Error() + "; give the controller the rights of config/rbac",
		}, nil
	}

	return Problem{}, err
}

// permit implements effects.
func (s *session) permit(ctx context.Context, w World) (Problem, error) {
	peers, err := s.peers(ctx)
	if err != nil {
		return Problem{}, err
	}
	// Without any sign of the machine it is not known who fell silent with it.
	if text := brake(peers, s.request.Node, w.LastSign, w.Settings.MaxSilent); text != "" && !w.LastSign.IsZero() {
		return Problem{Reason: v1alpha1.OutOfBandPoolSilent, Text: text}, nil
	}
	if wait := s.pace.wait(s.clock.Now()); wait > 0 {
		return Problem{Reason: v1alpha1.OutOfBandPowerLimited, Text: fmt.Sprintf(
			"the controller sends no more power actions in this minute (--max-power-actions-per-minute); the next reset may begin in %s",
			wait.Round(time.Second))}, nil
	}

	return Problem{}, nil
}

// peers are the pool's Nodes, by the cache: how many of thousands are silent need not be known to the second.
func (s *session) peers(ctx context.Context) ([]peer, error) {
	var updates v1alpha1.NodeUpdateList
	if err := s.writer.List(ctx, &updates); err != nil {
		return nil, fmt.Errorf("listing the NodeUpdates of HostPool %s/%s: %w", s.pool.Namespace, s.pool.Name, err)
	}
	var peers []peer
	for i := range updates.Items {
		update := &updates.Items[i]
		if door := update.Spec.Door; door.Namespace != s.pool.Namespace || door.Name != s.pool.Name {
			continue
		}
		var node corev1.Node
		switch err := s.writer.Get(ctx, client.ObjectKey{Name: update.Name}, &node); {
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, fmt.Errorf("reading Node %s: %w", update.Name, err)
		default:
			peers = append(peers, peer{Node: update.Name, LostAt: lostAt(&node), Excused: watched(update.Status.Phase) || node.Spec.Unschedulable})
		}
	}

	return peers, nil
}

// lostAt is when the node controller saw that the kubelet does not renew its Lease any more; zero: it does.
func lostAt(node *corev1.Node) time.Time {
	ready := protocol.ReadyCondition(node)
	if ready == nil || ready.Status != corev1.ConditionUnknown {
		return time.Time{}
	}

	return ready.LastTransitionTime.Time
}

// answers implements effects.
func (s *session) answers(ctx context.Context) bool {
	port := s.kubeletPort
	if port == 0 {
		port = defaultKubeletPort
	}

	return s.options.Answers(ctx, s.request.Node, s.addresses, port)
}

const (
	// defaultKubeletPort is the kubelet's (--port of kubelet).
	defaultKubeletPort = 10250
	answerTimeout      = 3 * time.Second
)

// kubeletAnswers tells whether the kubelet of a Node answers at any of its addresses. That something accepts or refuses
// a connection tells nothing: a proxy or a firewall may do that for a machine that is dead. So it must show a
// certificate with the Node's name, which only tells that its operating system lives: nothing secret is sent.
func kubeletAnswers(ctx context.Context, node string, addresses []string, port int32) bool {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	found := make(chan bool, len(addresses))
	for _, address := range addresses {
		go func() { found <- isKubelet(ctx, node, net.JoinHostPort(address, strconv.Itoa(int(port)))) }()
	}
	for range addresses {
		if <-found {
			return true
		}
	}

	return false
}

func isKubelet(ctx context.Context, node, hostPort string) bool {
	named := false
	dialer := tls.Dialer{Config: &tls.Config{
		InsecureSkipVerify: true, //nolint:gosec // most kubelets sign their own certificate; a machine is asked a question, and told nothing
		VerifyConnection: func(state tls.ConnectionState) error {
			named = len(state.PeerCertificates) > 0 && isNamed(state.PeerCertificates[0].Subject.CommonName, node)

			return nil
		},
	}}
	connection, err := dialer.DialContext(ctx, "tcp", hostPort)
	if err != nil {
		return false
	}
	_ = connection.Close()

	return named
}

// isNamed knows the names of a kubelet's serving certificates: of one that the cluster signed (the signer
// kubernetes.io/kubelet-serving), and of one that the kubelet has made itself (client-go, util/cert).
func isNamed(common, node string) bool {
	return common == "system:node:"+node || strings.HasPrefix(common, node+"@")
}

// maxAddresses bounds how many of a Node's addresses are asked: the Node writes them.
const maxAddresses = 4

// addressesOf are the addresses at which a Node's kubelet listens.
func addressesOf(node *corev1.Node) []string {
	var addresses []string
	for _, address := range node.Status.Addresses {
		if address.Type == corev1.NodeInternalIP && len(addresses) < maxAddresses {
			addresses = append(addresses, address.Address)
		}
	}

	return addresses
}
