package main

import (
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// gpu is one whole GPU that a workload could be given.
type gpu struct {
	name     string // in the pool: gpu-N, N its place in nvml.yaml
	uuid     string
	product  string
	busID    string // 0000:18:00.0
	pcieRoot string // pci0000:15
	memory   int64
	numa     int64 // -1: unknown, as the kernel says it
}

type nvmlFile struct {
	Devices []struct {
		UUID, Name, PCI, MIG string
		Memory               struct{ Total int64 }
	}
}

func nvmlPath(scene string) string { return filepath.Join(scene, "nvml.yaml") }

func changedAt(scene string) (time.Time, error) {
	info, err := os.Stat(nvmlPath(scene))
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

// readScene leaves out, with a line in the log, what NVIDIA's programs would not offer as a whole GPU.
func readScene(scene string) ([]gpu, error) {
	raw, err := os.ReadFile(nvmlPath(scene))
	if err != nil {
		return nil, err
	}
	var file nvmlFile
	if err := yaml.Unmarshal(raw, &file); err != nil {
		return nil, fmt.Errorf("%s: %w", nvmlPath(scene), err)
	}
	var gpus []gpu
	for i, d := range file.Devices {
		_, busID, _ := strings.Cut(strings.ToLower(d.PCI), ":")
		g := gpu{name: fmt.Sprintf("gpu-%d", i), uuid: d.UUID, product: d.Name, busID: "0000:" + busID, memory: d.Memory.Total, numa: -1}
		link, err := os.Readlink(filepath.Join(scene, "root/sys/bus/pci/devices", g.busID))
		if err != nil || d.UUID == "" || d.Memory.Total == 0 || d.MIG == "On" {
			log.Printf("not offered: device %d (uuid %q, pci %q, mig %q): %v", i, d.UUID, d.PCI, d.MIG, err)
			continue
		}
		chain := strings.Split(strings.TrimLeft(link, "./"), "/")
		if len(chain) > 1 && chain[0] == "devices" {
			g.pcieRoot = chain[1]
		}
		if text, err := os.ReadFile(filepath.Join(scene, "root/sys/bus/pci/devices", g.busID, "numa_node")); err == nil {
			if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil {
				g.numa = n
			}
		}
		gpus = append(gpus, g)
	}
	return gpus, nil
}
