package prometheus

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	client "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/promql/parser"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	"github.com/stayput-dev/stayput/controllers/clusters"
	"github.com/stayput-dev/stayput/controllers/outofband"
	"github.com/stayput-dev/stayput/controllers/pool"
	"github.com/stayput-dev/stayput/test/apiserver"
)

func read(t *testing.T, file string, object any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, object); err != nil {
		t.Fatalf("reading %s: %v", file, err)
	}
}

// rules are all alerts by their names.
func rules(t *testing.T) map[string]monitoringv1.Rule {
	t.Helper()
	var file monitoringv1.PrometheusRule
	read(t, "rules.yaml", &file)
	all := map[string]monitoringv1.Rule{}
	for _, group := range file.Spec.Groups {
		for _, rule := range group.Rules {
			if _, twice := all[rule.Alert]; twice || rule.Alert == "" {
				t.Errorf("alert %q is there twice, or has no name", rule.Alert)
			}
			all[rule.Alert] = rule
		}
	}
	if len(all) == 0 {
		t.Fatal("rules.yaml has no alerts")
	}

	return all
}

// registered are the labels of each metric that the controller's program registers.
func registered(t *testing.T) map[string][]string {
	t.Helper()
	scheme, err := apiserver.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	// Nothing is asked of the API server before the manager is started.
	mgr, err := ctrl.NewManager(&rest.Config{Host: "https://127.0.0.1:1"}, ctrl.Options{
		Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		t.Fatal(err)
	}
	registry, err := clusters.New(mgr, clusters.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := pool.SetupWithManager(mgr, registry, nil); err != nil {
		t.Fatal(err)
	}
	if err := outofband.SetupWithManager(mgr, registry, outofband.Options{}); err != nil {
		t.Fatal(err)
	}
	collector, ok := metrics.Registry.(client.Collector)
	if !ok {
		t.Fatalf("controller-runtime's registry %T does not describe its metrics", metrics.Registry)
	}

	return described(t, collector)
}

// described reads what a description prints: it has no getters.
func described(t *testing.T, collector client.Collector) map[string][]string {
	t.Helper()
	descriptions := make(chan *client.Desc)
	go func() {
		defer close(descriptions)
		collector.Describe(descriptions)
	}()
	form := regexp.MustCompile(`^Desc\{fqName: "([^"]+)".*variableLabels: \{([^}]*)\}\}$`)
	all := map[string][]string{}
	for description := range descriptions {
		match := form.FindStringSubmatch(description.String())
		if match == nil {
			t.Fatalf("cannot read %s", description)
		}
		all[match[1]] = strings.FieldsFunc(match[2], func(r rune) bool { return r == ',' })
	}

	return all
}

func TestAlertsUseWhatTheControllerExports(t *testing.T) {
	t.Parallel()
	known := registered(t)
	for name, rule := range rules(t) {
		expression, err := parser.ParseExpr(rule.Expr.String())
		if err != nil {
			t.Errorf("%s: %v", name, err)

			continue
		}
		selectors := 0
		parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
			if selector, ok := node.(*parser.VectorSelector); ok {
				selectors++
				checkSelector(t, name, selector, known)
			}
			if aggregation, ok := node.(*parser.AggregateExpr); ok {
				checkGrouping(t, name, aggregation, known)
			}

			return nil
		})
		if selectors == 0 {
			t.Errorf("%s looks at no metric", name)
		}
	}
}

func checkSelector(t *testing.T, alert string, selector *parser.VectorSelector, known map[string][]string) {
	t.Helper()
	names, ok := known[selector.Name]
	if !ok {
		t.Errorf("%s: the controller has no metric %q", alert, selector.Name)

		return
	}
	for _, matcher := range selector.LabelMatchers {
		if matcher.Name != "__name__" && !slices.Contains(names, matcher.Name) {
			t.Errorf("%s: %s has the labels %s, not %q", alert, selector.Name, names, matcher.Name)
		}
	}
}

// checkGrouping sees to it that every metric below an aggregation has the labels that are kept.
func checkGrouping(t *testing.T, alert string, aggregation *parser.AggregateExpr, known map[string][]string) {
	t.Helper()
	parser.Inspect(aggregation.Expr, func(node parser.Node, _ []parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok {
			for _, label := range aggregation.Grouping {
				if !slices.Contains(known[selector.Name], label) {
					t.Errorf("%s: %s has no label %q to keep", alert, selector.Name, label)
				}
			}
		}

		return nil
	})
}

func TestAlertsSayWhatAPersonNeeds(t *testing.T) {
	t.Parallel()
	for name, rule := range rules(t) {
		if severity := rule.Labels["severity"]; severity != "critical" && severity != "warning" {
			t.Errorf("%s: severity %q", name, severity)
		}
		for _, annotation := range []string{"summary", "description", "runbook_url"} {
			if rule.Annotations[annotation] == "" {
				t.Errorf("%s has no %s", name, annotation)
			}
		}
	}
}

// The monitor must find the pods and the port of config/manager, and must leave the label namespace to the metrics.
func TestTheMonitorFindsTheController(t *testing.T) {
	t.Parallel()
	var monitor monitoringv1.PodMonitor
	read(t, "pod_monitor.yaml", &monitor)
	var deployment struct {
		Metadata struct{ Namespace string }
		Spec     struct {
			Template struct {
				Metadata struct{ Labels map[string]string }
				Spec     struct {
					Containers []struct{ Ports []struct{ Name string } }
				}
			}
		}
	}
	text, err := os.ReadFile("../manager/deployment.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &deployment); err != nil {
		t.Fatal(err)
	}
	if monitor.Namespace != deployment.Metadata.Namespace {
		t.Errorf("the monitor is in namespace %q, the controller in %q", monitor.Namespace, deployment.Metadata.Namespace)
	}
	for key, value := range monitor.Spec.Selector.MatchLabels {
		if got := deployment.Spec.Template.Metadata.Labels[key]; got != value {
			t.Errorf("the monitor wants label %s=%s, the pods have %q", key, value, got)
		}
	}
	if len(monitor.Spec.PodMetricsEndpoints) != 1 || len(monitor.Spec.Selector.MatchLabels) == 0 {
		t.Fatalf("want one endpoint of selected pods: %+v", monitor.Spec)
	}
	endpoint := monitor.Spec.PodMetricsEndpoints[0]
	if !slices.ContainsFunc(deployment.Spec.Template.Spec.Containers[0].Ports, func(port struct{ Name string }) bool {
		return endpoint.Port != nil && port.Name == *endpoint.Port
	}) {
		t.Errorf("the controller has no port %v", endpoint.Port)
	}
	if !endpoint.HonorLabels {
		t.Error("without honorLabels the pools' label namespace becomes exported_namespace")
	}
}
