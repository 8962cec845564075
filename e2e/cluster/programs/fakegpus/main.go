// GPUs that do not exist, offered to Kubernetes as NVIDIA's programs offer real ones.
//
//	fakegpus dra     a DRA driver (gpu.nvidia.com): publishes the scene's GPUs, prepares claims
//	fakegpus plugin  a device plugin (nvidia.com/gpu) with NUMA hints
//	fakegpus held    prints as JSON what the kubelet's PodResources API says
//
// In: a scene folder (nvml.yaml and root/), read again whenever nvml.yaml changes, so that a test can take a GPU away.
// Never: gives a container anything but an environment variable.
package main

import (
	"context"
	"flag"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"
)

type options struct {
	node, scene, kubeletDir, cdiDir, kubeconfig string
}

func main() {
	if len(os.Args) < 2 {
		log.Fatal("usage: fakegpus dra|plugin|held [flags]")
	}
	var o options
	flags := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	flags.StringVar(&o.node, "node", "", "name of this node")
	flags.StringVar(&o.scene, "scene", "/var/lib/fathom-scene", "folder of the scene")
	flags.StringVar(&o.kubeletDir, "kubelet-dir", "/var/lib/kubelet", "root folder of the kubelet")
	flags.StringVar(&o.cdiDir, "cdi-dir", "/etc/cdi", "where the container runtime looks for CDI files")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "/var/lib/kubelet/kubeconfig", "the kubelet's own: it may write its node's slices")
	flags.Parse(os.Args[2:])

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	programs := map[string]func(context.Context, options) error{"dra": runDriver, "plugin": runPlugin, "held": printHeld}
	run, known := programs[os.Args[1]]
	if !known {
		log.Fatalf("fakegpus %s: there are dra, plugin and held", os.Args[1])
	}
	if err := run(ctx, o); err != nil {
		log.Fatalf("fakegpus %s: %v", os.Args[1], err)
	}
}

// watchScene calls changed with the GPUs now and after each change of the file, until ctx ends.
func watchScene(ctx context.Context, scene string, changed func([]gpu) error) error {
	var last time.Time
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		if at, err := changedAt(scene); err == nil && !at.Equal(last) {
			gpus, err := readScene(scene)
			if err == nil {
				err = changed(gpus)
			}
			if err != nil && last.IsZero() {
				return err
			}
			log.Printf("scene read: %d GPUs, error: %v", len(gpus), err)
			last = at
		} else if err != nil && last.IsZero() {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
