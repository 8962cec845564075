package main

import (
	"context"
	"fmt"
	"os"
	"time"
)

// An operator under measurement.
type subject interface {
	name() string
	// Starts it; the process is ended by `machine.close`.
	start(ctx context.Context, m *machine) (*process, error)
	// What it does with the first object's children, after which an object is complete.
	learned(ctx context.Context, m *machine, first *seen) error
}

type result struct {
	Subject, Load string
	Objects       int
	Children      int
	P50, P99, Max time.Duration
	PeakRSS       int64
	CPU           time.Duration
	Calls         map[string]int
	LateStarts    time.Duration
}

// The namespace is part of the twin's template, so its name occurs nowhere else.
const namespace = "fathom-bench-objects"

func measure(ctx context.Context, s settings, folder string, subject subject) ([]result, error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	machine, err := startMachine(ctx, s, folder)
	if err != nil {
		return nil, err
	}
	defer machine.close()
	process, err := subject.start(ctx, machine)
	if err != nil {
		return nil, err
	}
	watch, err := watchChildren(ctx, machine)
	if err != nil {
		return nil, err
	}
	first, err := settle(ctx, machine, watch, "template-object")
	if err != nil {
		return nil, err
	}
	if err := subject.learned(ctx, machine, first); err != nil {
		return nil, err
	}
	watch.expect(len(first.children))
	var results []result
	loads := []load{
		{name: fmt.Sprintf("%.0f/s", s.Rate), prefix: "steady", count: s.Objects, rate: s.Rate},
		{name: "burst", prefix: "burst", count: s.Burst},
	}
	for _, load := range loads {
		if load.count == 0 {
			continue
		}
		measured, err := apply(ctx, machine, watch, process, load, len(first.children))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", load.name, err)
		}
		measured.Subject = subject.name()
		results = append(results, measured)
	}
	return results, nil
}

// Creates one object and waits until its children have been the same for a while.
func settle(ctx context.Context, m *machine, w *watch, name string) (*seen, error) {
	const quiet, limit = 3 * time.Second, 60 * time.Second
	uid, err := m.create(ctx, name)
	if err != nil {
		return nil, err
	}
	deadline := time.Now().Add(limit)
	for time.Now().Before(deadline) {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
		if found := w.of(uid); found != nil && len(found.children) > 2 && time.Since(found.last) > quiet {
			found.name, found.uid = name, uid
			return found, nil
		}
	}
	return nil, fmt.Errorf("the first object has no children after %s: %s", limit, m.status(ctx, name))
}
