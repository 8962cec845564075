package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

const driverName = "gpu.nvidia.com"

// driver prepares claims on the GPUs that were published last.
type driver struct {
	node, cdiDir string

	mu   sync.Mutex
	gpus map[string]gpu
}

func runDriver(ctx context.Context, o options) error {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	data := filepath.Join(o.kubeletDir, "plugins", driverName)
	for _, folder := range []string{data, o.cdiDir} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}
	d := &driver{node: o.node, cdiDir: o.cdiDir}
	helper, err := kubeletplugin.Start(ctx, d,
		kubeletplugin.DriverName(driverName), kubeletplugin.NodeName(o.node), kubeletplugin.KubeClient(client),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(o.kubeletDir, "plugins_registry")),
		kubeletplugin.PluginDataDirectoryPath(data))
	if err != nil {
		return err
	}
	defer helper.Stop()
	return watchScene(ctx, o.scene, func(gpus []gpu) error {
		return helper.PublishResources(ctx, d.publish(gpus))
	})
}

// publish makes the node's one slice. Like the real driver's, whole GPUs carry no NUMA node.
func (d *driver) publish(gpus []gpu) resourceslice.DriverResources {
	byName := map[string]gpu{}
	slice := resourceslice.Slice{Devices: []resourceapi.Device{}}
	for _, g := range gpus {
		byName[g.name] = g
		slice.Devices = append(slice.Devices, g.device())
	}
	d.mu.Lock()
	d.gpus = byName
	d.mu.Unlock()
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{d.node: {Slices: []resourceslice.Slice{slice}}}}
}

func (g gpu) device() resourceapi.Device {
	text := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &s} }
	version := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{VersionValue: &s} }
	attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		"type": text("gpu"), "uuid": text(g.uuid), "productName": text(g.product), "brand": text("Nvidia"),
		"architecture": text("Blackwell"), "cudaComputeCapability": version("12.0.0"),
		"driverVersion": version("580.95.5"), "cudaDriverVersion": version("13.0.0"), "pcieBusID": text(g.busID),
	}
	if g.pcieRoot != "" {
		attributes[deviceattribute.StandardDeviceAttributePCIeRoot] = text(g.pcieRoot)
	}
	memory := resourceapi.DeviceCapacity{Value: *resource.NewQuantity(g.memory, resource.BinarySI)}
	return resourceapi.Device{
		Name: g.name, Attributes: attributes,
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": memory},
	}
}

func (d *driver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		results[claim.UID] = d.prepare(claim)
		log.Printf("prepare %s/%s: %d devices, error: %v", claim.Namespace, claim.Name, len(results[claim.UID].Devices), results[claim.UID].Err)
	}
	return results, nil
}

// cdiFile is what little of the Container Device Interface is needed: one device per request of the claim.
type cdiFile struct {
	Version string      `json:"cdiVersion"`
	Kind    string      `json:"kind"`
	Devices []cdiDevice `json:"devices"`
}
type cdiDevice struct {
	Name  string `json:"name"`
	Edits struct {
		Env []string `json:"env"`
	} `json:"containerEdits"`
}

func (d *driver) prepare(claim *resourceapi.ResourceClaim) kubeletplugin.PrepareResult {
	d.mu.Lock()
	defer d.mu.Unlock()
	uuids := map[string][]string{}
	var result kubeletplugin.PrepareResult
	file := cdiFile{Version: "0.6.0", Kind: driverName + "/claim"}
	for _, given := range claim.Status.Allocation.Devices.Results {
		if given.Driver != driverName || given.Pool != d.node {
			continue
		}
		g, there := d.gpus[given.Device]
		if !there {
			return kubeletplugin.PrepareResult{Err: fmt.Errorf("device %s of pool %s is allocated but not there any more", given.Device, given.Pool)}
		}
		uuids[given.Request] = append(uuids[given.Request], g.uuid)
		result.Devices = append(result.Devices, kubeletplugin.Device{
			Requests: []string{given.Request}, PoolName: d.node, DeviceName: g.name,
			CDIDeviceIDs: []string{file.Kind + "=" + cdiName(claim.UID, given.Request)},
		})
	}
	for request, list := range uuids {
		device := cdiDevice{Name: cdiName(claim.UID, request)}
		device.Edits.Env = []string{"NVIDIA_VISIBLE_DEVICES=" + strings.Join(list, ",")}
		file.Devices = append(file.Devices, device)
	}
	result.Err = d.writeCDI(claim.UID, file)
	return result
}

// A subrequest is called "request/subrequest"; CDI names have no '/'.
func cdiName(claim types.UID, request string) string {
	return fmt.Sprintf("%s-%s", claim, strings.ReplaceAll(request, "/", "-"))
}

func (d *driver) cdiPath(claim types.UID) string {
	return filepath.Join(d.cdiDir, fmt.Sprintf("%s-%s.json", driverName, claim))
}

func (d *driver) writeCDI(claim types.UID, file cdiFile) error {
	raw, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(d.cdiPath(claim)+".new", raw, 0o644); err != nil {
		return err
	}
	return os.Rename(d.cdiPath(claim)+".new", d.cdiPath(claim))
}

func (d *driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		err := os.Remove(d.cdiPath(claim.UID))
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		results[claim.UID] = err
	}
	return results, nil
}

func (d *driver) HandleError(_ context.Context, err error, message string) {
	log.Printf("%s: %v", message, err)
}
