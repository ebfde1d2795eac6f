package prometheus

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// interval is between two scrapes, and between two evaluations.
const interval = time.Minute

// sample is one scrape of a metric that is no histogram.
type sample struct {
	milliseconds int64
	value        float64
}

func (s sample) T() int64                      { return s.milliseconds }
func (s sample) F() float64                    { return s.value }
func (s sample) H() *histogram.Histogram       { return nil }
func (s sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample           { return s }

// past is what Prometheus has scraped: each series by its text, as in `metric{label="value"}`, with a value for each
// interval. A negative value stands for a scrape without the series.
type past map[string][]float64

// Querier implements storage.Queryable.
func (p past) Querier(int64, int64) (storage.Querier, error) { return querier{past: p}, nil }

type querier struct{ past past }

func (querier) Close() error { return nil }

func (querier) LabelValues(
	context.Context, string, *storage.LabelHints, ...*labels.Matcher,
) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (querier) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (q querier) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	set := &seriesSet{}
	for _, text := range slices.Sorted(maps.Keys(q.past)) {
		metric, err := parser.ParseMetric(text)
		if err != nil {
			return storage.ErrSeriesSet(err)
		}
		if slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(metric.Get(m.Name)) }) {
			continue
		}
		var samples []chunks.Sample
		for i, value := range q.past[text] {
			if value >= 0 {
				samples = append(samples, sample{(time.Duration(i) * interval).Milliseconds(), value})
			}
		}
		set.series = append(set.series, storage.NewListSeries(metric, samples))
	}

	return set
}

type seriesSet struct {
	series []storage.Series
	next   int
}

func (s *seriesSet) Next() bool {
	s.next++

	return s.next <= len(s.series)
}
func (s *seriesSet) At() storage.Series                { return s.series[s.next-1] }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }

// firing are the alerts that fire at the end of a past: their expressions have held in each interval of their "for".
func firing(t *testing.T, scraped past) []string {
	t.Helper()
	length := 0
	for _, values := range scraped {
		length = max(length, len(values))
	}
	engine := promql.NewEngine(promql.EngineOpts{
		MaxSamples: 1 << 20, Timeout: time.Minute, LookbackDelta: 5 * time.Minute,
	})
	var names []string
	for name, rule := range rules(t) {
		holdFor := time.Duration(0)
		if rule.For != nil {
			parsed, err := time.ParseDuration(string(*rule.For))
			if err != nil {
				t.Fatal(err)
			}
			holdFor = parsed
		}
		end := time.UnixMilli(0).Add(time.Duration(length-1) * interval)
		held := !end.Add(-holdFor).Before(time.UnixMilli(0))
		for at := end.Add(-holdFor); held && !at.After(end); at = at.Add(interval) {
			held = holds(t, engine, scraped, rule.Expr.String(), at)
		}
		if held {
			names = append(names, name)
		}
	}
	slices.Sort(names)

	return names
}

func holds(t *testing.T, engine *promql.Engine, scraped past, expression string, at time.Time) bool {
	t.Helper()
	query, err := engine.NewInstantQuery(t.Context(), scraped, nil, expression, at)
	if err != nil {
		t.Fatal(err)
	}
	defer query.Close()
	vector, err := query.Exec(t.Context()).Vector()
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}

	return len(vector) > 0
}

// steps gives values: each of values for as many scrapes as minutes says.
func steps(minutes []int, values ...float64) []float64 {
	parts := make([][]float64, len(values))
	for i, value := range values {
		parts[i] = slices.Repeat([]float64{value}, minutes[i])
	}

	return slices.Concat(parts...)
}

// counting rises by one every so many minutes, from the first event on.
func counting(minutes, every int) []float64 {
	all := make([]float64, minutes)
	for i := range all {
		all[i] = float64(1 + i/every)
	}

	return all
}

func TestAlertsFireWhenTheyShould(t *testing.T) {
	t.Parallel()
	const (
		leads   = `leader_election_master_status{name="controller.stayput.dev",pod="a"}`
		stands  = `leader_election_master_status{name="controller.stayput.dev",pod="b"}`
		halted  = `stayput_pool_halted{namespace="metal",pool="gpu",pod="a"}`
		silent  = `stayput_outofband_silent_machines{pod="a"}`
		drained = `stayput_attempts_total{namespace="metal",pool="gpu",pod="a",outcome="DrainTimeout"}`
		errors  = `stayput_pool_errors_total{namespace="metal",pool="gpu",pod="a",kind="api"}`
		clashes = `stayput_pool_errors_total{namespace="metal",pool="gpu",pod="a",kind="conflict"}`
		refused = `stayput_outofband_bmc_errors_total{kind="Auth",pod="a"}`
		absent  = -1
	)
	nodes := func(phase string) string {
		return `stayput_pool_nodes{namespace="metal",pool="gpu",pod="a",phase="` + phase + `"}`
	}
	for name, tt := range map[string]struct {
		scraped past
		want    []string
	}{
		"all is well": {past{
			halted: {0, 0, 0}, nodes("NeedsHuman"): {0, 0, 0}, nodes("Refused"): {0, 0, 0}, silent: {0, 0, 0},
			`stayput_attempts_total{namespace="metal",pool="gpu",pod="a",outcome="Succeeded"}`: {1, 2, 3},
		}, nil},
		"halted":                {past{halted: {0, 1, 1}}, []string{"StayputRolloutHalted"}},
		"halted a moment ago":   {past{halted: {0, 0, 1}}, nil},
		"a node needs a person": {past{nodes("NeedsHuman"): {2, 2}}, []string{"StayputNodeNeedsHuman"}},
		"an agent is silent": {past{
			`stayput_pool_silent_agents{namespace="metal",pool="gpu",pod="a"}`: steps([]int{6}, 1),
		}, []string{"StayputAgentSilent"}},
		"a node refuses":                     {past{nodes("Refused"): steps([]int{12}, 1)}, []string{"StayputNodeRefused"}},
		"the first drain that fails":         {past{drained: steps([]int{200, 10}, absent, 1)}, []string{"StayputDrainTimedOut"}},
		"the second one":                     {past{drained: steps([]int{400, 10}, 1, 2)}, []string{"StayputDrainTimedOut"}},
		"one that failed long ago":           {past{drained: steps([]int{400}, 1)}, nil},
		"a machine comes back after a reset": {past{silent: steps([]int{20, 20}, 1, 0)}, nil},
		"a machine does not come back":       {past{silent: steps([]int{31}, 1)}, []string{"StayputMachineSilent"}},
		"nothing moves": {past{
			nodes("Rebooting"): steps([]int{130}, 1), nodes("Succeeded"): steps([]int{130}, 3),
		}, []string{"StayputRolloutStuck"}},
		"one after the other": {past{
			nodes("Rebooting"): steps([]int{130}, 1), nodes("Succeeded"): steps([]int{60, 70}, 3, 4),
		}, nil},
		"staged and waiting":          {past{nodes("Staged"): steps([]int{500}, 4)}, nil},
		"passes keep failing, seldom": {past{errors: counting(90, 17)}, []string{"StayputPoolErrors"}},
		"a single failure":            {past{errors: steps([]int{30, 28}, 1, 2)}, nil},
		"writers in each other's way": {past{clashes: counting(90, 1)}, nil},
		"a BMC refuses the login":     {past{refused: counting(90, 15)}, []string{"StayputBMCErrors"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			length := 0
			for _, values := range tt.scraped {
				length = max(length, len(values))
			}
			tt.scraped[leads], tt.scraped[stands] = steps([]int{length}, 1), steps([]int{length}, 0)
			if got := firing(t, tt.scraped); !slices.Equal(got, tt.want) {
				t.Errorf("firing: %s, want %s", strings.Join(got, ", "), strings.Join(tt.want, ", "))
			}
		})
	}
	for name, scraped := range map[string]past{
		"nobody leads": {stands: steps([]int{10}, 0)}, "nothing is scraped": {leads: steps([]int{10, 15}, 1, absent)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := firing(t, scraped); !slices.Equal(got, []string{"StayputControllerAbsent"}) {
				t.Errorf("firing: %s", got)
			}
		})
	}
}
