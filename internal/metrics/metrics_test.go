package metrics

import (
	"encoding/json"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// filled returns the series with one value of each.
func filled(t *testing.T) *Set {
	t.Helper()
	s := New("1.2.3")
	values := reflect.ValueOf(s).Elem()
	for i := range values.NumField() {
		if !values.Type().Field(i).IsExported() {
			continue
		}
		switch series := values.Field(i).Interface().(type) {
		case *prometheus.GaugeVec:
			series.WithLabelValues(labels(t, series)...).Set(1)
		case *prometheus.CounterVec:
			series.WithLabelValues(labels(t, series)...).Inc()
		case *prometheus.HistogramVec:
			series.WithLabelValues(labels(t, series)...).Observe(1)
		case prometheus.Gauge, prometheus.Counter:
		default:
			t.Fatalf("%s is of type %T", values.Type().Field(i).Name, series)
		}
	}
	return s
}

var variableLabels = regexp.MustCompile(`variableLabels: \{(.*)\}`)

// labels returns a value for each label.
func labels(t *testing.T, c prometheus.Collector) []string {
	t.Helper()
	descriptions := make(chan *prometheus.Desc, 1)
	c.Describe(descriptions)
	found := variableLabels.FindStringSubmatch((<-descriptions).String())
	if found == nil {
		t.Fatal("a description without labels")
	}
	return strings.Split(found[1], ",")
}

func TestNames(t *testing.T) {
	problems, err := testutil.GatherAndLint(filled(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems {
		t.Errorf("%s: %s", problem.Metric, problem.Text)
	}
	bad := prometheus.NewRegistry()
	bad.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "gputune_restores"}))
	if problems, err := testutil.GatherAndLint(bad); err != nil || len(problems) == 0 {
		t.Errorf("a wrong name passes: %v, %v", problems, err)
	}
}

// names returns all names of series, those of histograms' parts included.
func names(t *testing.T, s *Set) map[string]bool {
	t.Helper()
	families, err := s.Gather()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, family := range families {
		known[family.GetName()] = true
		if family.GetMetric()[0].GetHistogram() != nil {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				known[family.GetName()+suffix] = true
			}
		}
	}
	return known
}

// The dashboard shows series that there are, and all of them.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("../../conf/grafana-dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	known := names(t, filled(t))
	shown := map[string]bool{}
	for _, panel := range board.Panels {
		if len(panel.Targets) == 0 {
			t.Errorf("panel %q shows nothing", panel.Title)
		}
		for _, target := range panel.Targets {
			for _, name := range regexp.MustCompile(`gputune_\w+`).FindAllString(target.Expr, -1) {
				shown[name] = true
				if !known[name] {
					t.Errorf("panel %q: there is no series %s", panel.Title, name)
				}
			}
		}
	}
	for name := range known {
		base := strings.TrimSuffix(name, "_bucket")
		if base == "gputune_program_duration_seconds" {
			continue // by its parts
		}
		if !shown[name] {
			t.Errorf("no panel shows %s", name)
		}
	}
}

func TestOut(t *testing.T) {
	s := filled(t)
	answer := httptest.NewRecorder()
	s.Handler().ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.Code != 200 {
		t.Fatal(answer.Code, err)
	}
	for _, want := range []string{"gputune_jobs_holding 0\n", `gputune_build_info{goversion="go`, "process_resident_memory_bytes "} {
		if !strings.Contains(string(body), want) {
			t.Errorf("no %q in\n%s", want, body)
		}
	}
	path := filepath.Join(t.TempDir(), "gputune.prom")
	if err := s.Write(path); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(text), `version="1.2.3"`) || strings.Contains(string(text), "process_") {
		t.Errorf("%v\n%s", err, text)
	}
}
