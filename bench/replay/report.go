package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"strconv"
)

const tableHead = "  policy              replicas   hits   TTFT p50     p95     p99    ITL   load  requests  queued"

// line is a row below tableHead: shares of prompt tokens, seconds, ms, max/mean.
func (o outcome) line() string {
	return fmt.Sprintf("  %-18s %9d  %5.3f  %9.3f %7.3f %7.3f %6.1f %6.2f %9.2f %7d", o.policy, o.replicas, o.hits, o.p50, o.p95,
		o.p99, o.itl, o.load, o.requests, o.queued)
}

// writeCSV writes all outcomes, one a line.
func writeCSV(path string, all []outcome) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := csv.NewWriter(f)
	rows := [][]string{{"workload", "policy", "replicas", "hits", "ttft_p50_s", "ttft_p95_s", "ttft_p99_s", "ttft_mean_s", "itl_ms",
		"load_max_over_mean", "requests_max_over_mean", "busy", "preempted", "queued", "foretold_and_not_cached", "cached_and_not_foretold"}}
	for _, o := range all {
		row := []string{o.workload, o.policy, strconv.Itoa(o.replicas)}
		for _, v := range []float64{o.hits, o.p50, o.p95, o.p99, o.mean, o.itl, o.load, o.requests, o.busy, float64(o.preempted),
			float64(o.queued), o.wrong, o.missed} {
			row = append(row, strconv.FormatFloat(v, 'g', 5, 64))
		}
		rows = append(rows, row)
	}
	return errors.Join(w.WriteAll(rows), f.Close())
}
