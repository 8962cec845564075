// The driver: 1,000 objects against a real API server without kubelets, at a fixed rate whatever the answers (open
// loop), first for Fathom's operator, then for the twin; one table of both.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

type settings struct {
	Programs string // folder with etcd, kube-apiserver
	Binaries string // folder with fathom-operator, fathom-node-agent
	Twin     string
	Root     string // the repository
	Objects  int
	Rate     float64
	Burst    int
	Nodes    int
	Only     string
	Template string
}

func main() {
	s := settings{}
	flag.StringVar(&s.Programs, "programs", "", "folder with etcd and kube-apiserver")
	flag.StringVar(&s.Binaries, "binaries", "", "folder with fathom-operator and fathom-node-agent")
	flag.StringVar(&s.Twin, "twin", "", "the twin")
	flag.StringVar(&s.Root, "root", ".", "the repository")
	flag.IntVar(&s.Objects, "objects", 1000, "objects at the fixed rate")
	flag.Float64Var(&s.Rate, "rate", 20, "objects a second")
	flag.IntVar(&s.Burst, "burst", 100, "objects at once, afterwards")
	flag.IntVar(&s.Nodes, "nodes", 4, "nodes, each with an agent of its own")
	flag.StringVar(&s.Only, "only", "", "fathom or twin: leave the other out")
	flag.StringVar(&s.Template, "template", "", "where the children are kept that Fathom made and the twin copies (-only twin needs it)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, s); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s settings) error {
	folder, err := os.MkdirTemp("", "fathom-bench-")
	if err != nil {
		return err
	}
	template := s.Template
	if template == "" {
		template = filepath.Join(folder, "template.json")
	}
	var results []result
	for _, subject := range []subject{&fathom{settings: s, template: template}, &twin{settings: s, template: template}} {
		if s.Only != "" && s.Only != subject.name() {
			continue
		}
		measured, err := measure(ctx, s, filepath.Join(folder, subject.name()), subject)
		if err != nil {
			return fmt.Errorf("%s: %w (logs are in %s)", subject.name(), err, folder)
		}
		results = append(results, measured...)
	}
	print(os.Stdout, s, results)
	if err := goals(os.Stdout, results); err != nil {
		return err
	}
	return os.RemoveAll(folder)
}
