package main

import (
	"fmt"
	"io"
	"sort"
	"strings"
	"text/tabwriter"
	"time"
)

func print(out io.Writer, s settings, results []result) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "operator\tload\tobjects\tchildren\tP50 ms\tP99 ms\tmax ms\tpeak RSS MiB\tCPU ms/object\twrites/object\treads/object\tstarted late ms\t")
	for _, r := range results {
		wrote, read := perObject(r)
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%s\t%s\t%s\t%.1f\t%.1f\t%.2f\t%.2f\t%s\t\n",
			r.Subject, r.Load, r.Objects, r.Children, ms(r.P50), ms(r.P99), ms(r.Max), float64(r.PeakRSS)/(1<<20),
			float64(r.CPU.Microseconds())/1000/float64(r.Objects), wrote, read, ms(r.LateStarts))
	}
	table.Flush()
	fmt.Fprintf(out, "\nFrom the moment an object is due to the moment a watcher has seen its last child; %d nodes; etcd and API server on\nthe same machine, restarted for each. The twin plans nothing: it copies the children that Fathom made. Peak RSS is of\nthe run so far.\n", s.Nodes)
	for _, r := range results {
		fmt.Fprintf(out, "%s %s, calls an object: %s\n", r.Subject, r.Load, breakdown(r))
	}
	for _, load := range loadsOf(results) {
		if f, t := find(results, "fathom", load), find(results, "twin", load); f != nil && t != nil {
			fmt.Fprintf(out, "%s: Fathom / twin: P50 %.2f, P99 %.2f, RSS %.2f, CPU %.2f\n", load,
				ratio(f.P50, t.P50), ratio(f.P99, t.P99), float64(f.PeakRSS)/float64(t.PeakRSS), ratio(f.CPU, t.CPU))
		}
	}
}

// What is aimed at with the fixed rate on two quiet cores.
const (
	goalP99 = 250 * time.Millisecond
	goalRSS = 64 << 20
	// The memory limit in the chart's values, of which 60 % is the most that normal use may take (A76).
	limitRSS = 256 << 20
	mostRSS  = limitRSS * 6 / 10
)

// goals says which are met. Times depend on the machine; memory does not, so what comes near the limit is an error.
func goals(out io.Writer, results []result) error {
	// The first load is the fixed rate; bursts have no goal.
	for _, load := range loadsOf(results)[:min(len(results), 1)] {
		r := find(results, "fathom", load)
		if r == nil {
			continue
		}
		met := map[bool]string{true: "met", false: "MISSED"}
		fmt.Fprintf(out, "goal P99 <= %s ms: %s; goal RSS <= %d MiB: %s\n", ms(goalP99), met[r.P99 <= goalP99],
			goalRSS>>20, met[r.PeakRSS <= goalRSS])
		if r.PeakRSS > mostRSS {
			return fmt.Errorf("the operator used %.1f MiB, of a limit of %d", float64(r.PeakRSS)/(1<<20), limitRSS>>20)
		}
	}
	return nil
}

func perObject(r result) (wrote, read float64) {
	for what, count := range r.Calls {
		if writes(what) {
			wrote += float64(count) / float64(r.Objects)
		} else {
			read += float64(count) / float64(r.Objects)
		}
	}
	return wrote, read
}

// The most frequent calls first; what is rarer than one in fifty objects is no part of an object's cost.
func breakdown(r result) string {
	var names []string
	for what, count := range r.Calls {
		if count*50 >= r.Objects {
			names = append(names, what)
		}
	}
	sort.Slice(names, func(a, b int) bool {
		if r.Calls[names[a]] != r.Calls[names[b]] {
			return r.Calls[names[a]] > r.Calls[names[b]]
		}
		return names[a] < names[b]
	})
	parts := make([]string, len(names))
	for i, what := range names {
		parts[i] = fmt.Sprintf("%s %.2f", what, float64(r.Calls[what])/float64(r.Objects))
	}
	return strings.Join(parts, ", ")
}

func ms(d time.Duration) string { return fmt.Sprint(d.Milliseconds()) }

func ratio(a, b time.Duration) float64 { return float64(a) / float64(max(b, 1)) }

func loadsOf(results []result) []string {
	var loads []string
	for _, r := range results {
		if len(loads) == 0 || loads[len(loads)-1] != r.Load {
			loads = append(loads, r.Load)
		}
	}
	return loads[:min(len(loads), 2)]
}

func find(results []result, subject, load string) *result {
	for i := range results {
		if results[i].Subject == subject && results[i].Load == load {
			return &results[i]
		}
	}
	return nil
}
