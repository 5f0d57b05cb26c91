package main

import (
	"slices"
)

// outcome is what one policy did in one world.
type outcome struct {
	workload, policy string
	replicas         int

	hits          float64 // share of prompt tokens found in a cache
	p50, p95, p99 float64 // time to the first token, seconds
	mean          float64
	load          float64 // work of the busiest engine / mean; work is what the units say: computed prompt and output
	requests      float64 // the same of requests
	itl           float64 // mean time per output token, ms
	preempted     int
	busy          float64 // share of time the engines computed, mean
	queued        int     // requests that waited in the gateway's queue
	missed, wrong float64 // shares of prompt tokens that were cached and not foretold, and foretold and not cached
}

func (s *simulation) outcome() outcome {
	o := outcome{workload: s.name, replicas: s.replicas}
	ttft := make([]float64, 0, len(s.jobs))
	var tokens int
	var decoding, end float64
	for _, j := range s.jobs {
		t := (j.firstMS - s.due(j)) / 1000
		if j.queued {
			o.queued++
		}
		ttft = append(ttft, t)
		o.mean += t / float64(len(s.jobs))
		tokens += j.output - 1
		decoding += j.doneMS - j.firstMS
		end = max(end, j.doneMS)
	}
	slices.Sort(ttft)
	o.p50, o.p95, o.p99 = quantile(ttft, 0.5), quantile(ttft, 0.95), quantile(ttft, 0.99)
	o.itl = decoding / float64(max(1, tokens))
	var prompted, cached int
	var work, requests []float64
	for _, b := range s.engineList {
		prompted += b.prompted
		cached += b.cached
		o.preempted += b.preempted
		o.busy += b.busyMS / end / float64(len(s.engineList))
		work = append(work, float64(10*(b.prompted-b.cached)+40*b.generated))
		requests = append(requests, float64(b.requests))
	}
	o.hits = float64(cached) / float64(prompted)
	for _, j := range s.jobs {
		o.missed += float64(max(0, j.found-j.foretold)) / float64(prompted)
		o.wrong += float64(max(0, j.foretold-j.found)) / float64(prompted)
	}
	o.load, o.requests = maxOverMean(work), maxOverMean(requests)
	return o
}

// quantile of a sorted list.
func quantile(sorted []float64, q float64) float64 { return sorted[int(q*float64(len(sorted)-1)+0.5)] }

func maxOverMean(values []float64) float64 {
	var sum float64
	for _, v := range values {
		sum += v
	}
	return slices.Max(values) * float64(len(values)) / sum
}
