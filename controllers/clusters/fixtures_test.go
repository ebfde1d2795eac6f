package clusters

import (
	"context"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/stayput-dev/stayput/test/apiserver"
)

func startServer(t *testing.T) *apiserver.Server {
	t.Helper()
	server, err := apiserver.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})

	return server
}

// requests is a queue that a test can read.
type requests struct {
	workqueue.TypedRateLimitingInterface[string]
}

// next is the next request, "" when there is none now.
func (r requests) next() string {
	if r.Len() == 0 {
		return ""
	}
	item, _ := r.Get()
	r.Done(item)

	return item
}

func startRegistry(t *testing.T, home *apiserver.Server) (*Registry, requests) {
	t.Helper()
	scheme, err := apiserver.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	mgr, err := ctrl.NewManager(home.Config, ctrl.Options{
		Scheme: scheme, Cache: CacheOptions(scheme), Metrics: metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		t.Fatal(err)
	}
	registry, err := New(mgr, Options{ProbeInterval: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := mgr.Add(registry); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	queue := requests{workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())}
	source := Subscribe(registry, func(_ context.Context, key Key, object client.Object) []string {
		if object == nil {
			return []string{key.String() + " -"}
		}

		return []string{key.String() + " " + object.GetName()}
	})
	if err := source.Start(ctx, queue); err != nil {
		t.Fatal(err)
	}
	if err := source.WaitForSync(ctx); err != nil {
		t.Fatal(err)
	}

	return registry, queue
}

// gate is a proxy to an API server, with its own credentials, that can be shut.
type gate struct {
	down  atomic.Bool
	proxy *httputil.ReverseProxy
}

func newGate(t *testing.T, config *rest.Config) *gate {
	t.Helper()
	target, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport = transport
	proxy.FlushInterval = -1

	return &gate{proxy: proxy}
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if g.down.Load() {
		panic(http.ErrAbortHandler)
	}
	g.proxy.ServeHTTP(w, r)
}
