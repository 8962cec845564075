package main

import (
	"context"
	"fmt"
	"sort"
	"sync"
	"time"
)

type load struct {
	name, prefix string
	count        int
	rate         float64 // 0: all at once
}

// Creates the objects on time, whatever the answers, then waits for the last child.
func apply(ctx context.Context, m *machine, w *watch, p *process, l load, children int) (result, error) {
	mark := m.auditMark()
	cpuBefore := p.cpu()
	began := time.Now()
	due := make([]time.Time, l.count)
	uids := make([]string, l.count)
	errs := make([]error, l.count)
	var late time.Duration
	var group sync.WaitGroup
	// Enough creators that a slow answer delays no later object.
	slots := make(chan struct{}, 64)
	for i := range l.count {
		due[i] = began
		if l.rate > 0 {
			due[i] = began.Add(time.Duration(float64(i) / l.rate * float64(time.Second)))
		}
		time.Sleep(time.Until(due[i]))
		slots <- struct{}{}
		late = max(late, time.Since(due[i]))
		group.Add(1)
		go func() {
			defer group.Done()
			defer func() { <-slots }()
			uids[i], errs[i] = m.create(ctx, fmt.Sprintf("%s-%d", l.prefix, i))
		}()
	}
	group.Wait()
	for i, err := range errs {
		if err != nil {
			return result{}, fmt.Errorf("object %d: %w", i, err)
		}
	}
	if err := w.complete(ctx, uids, children, 2*time.Minute); err != nil {
		return result{}, fmt.Errorf("%w; the last object's status: %s", err, m.status(ctx, fmt.Sprintf("%s-%d", l.prefix, l.count-1)))
	}
	times := make([]time.Duration, l.count)
	for i, uid := range uids {
		times[i] = w.of(uid).complete.Sub(due[i])
	}
	sort.Slice(times, func(a, b int) bool { return times[a] < times[b] })
	// Status writes follow the last child.
	time.Sleep(3 * time.Second)
	calls, err := m.calls(mark, p.user)
	if err != nil {
		return result{}, err
	}
	return result{
		Load: l.name, Objects: l.count, Children: children, LateStarts: late,
		P50: times[len(times)/2], P99: times[len(times)*99/100], Max: times[len(times)-1],
		PeakRSS: p.peakRSS(), CPU: p.cpu() - cpuBefore,
		Calls: calls,
	}, nil
}
