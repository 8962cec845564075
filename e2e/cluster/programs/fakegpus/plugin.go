package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const socketName = "fakegpus.sock"

// plugin offers the scene's GPUs; one that left the scene turns unhealthy, as with the real plugin.
type plugin struct {
	api.UnimplementedDevicePluginServer
	mu      sync.Mutex
	devices []*api.Device
	changed chan struct{}
}

func runPlugin(ctx context.Context, o options) error {
	p := &plugin{changed: make(chan struct{})}
	watch := make(chan error, 1)
	go func() { watch <- watchScene(ctx, o.scene, p.set) }()
	folder := filepath.Join(o.kubeletDir, "device-plugins")
	for {
		select {
		case err := <-watch:
			return err
		default:
		}
		if err := p.serve(ctx, folder); err != nil {
			log.Printf("%v; trying again", err)
		}
		select {
		case err := <-watch:
			return err
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func (p *plugin) set(gpus []gpu) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := map[string]gpu{}
	for _, g := range gpus {
		now[g.uuid] = g
	}
	var devices []*api.Device
	for _, old := range p.devices {
		if _, there := now[old.ID]; !there {
			devices = append(devices, &api.Device{ID: old.ID, Topology: old.Topology, Health: api.Unhealthy})
		}
	}
	for _, g := range gpus {
		device := &api.Device{ID: g.uuid, Health: api.Healthy}
		if g.numa >= 0 {
			device.Topology = &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: g.numa}}}
		}
		devices = append(devices, device)
	}
	p.devices = devices
	close(p.changed)
	p.changed = make(chan struct{})
	return nil
}

// serve registers and answers until the kubelet starts anew: it empties the folder then, our socket included.
func (p *plugin) serve(ctx context.Context, folder string) error {
	path := filepath.Join(folder, socketName)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, p)
	go server.Serve(listener)
	defer server.Stop()
	conn, err := grpc.NewClient("unix://"+filepath.Join(folder, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	request := &api.RegisterRequest{Version: api.Version, Endpoint: socketName, ResourceName: "nvidia.com/gpu", Options: &api.DevicePluginOptions{}}
	if _, err := api.NewRegistrationClient(conn).Register(ctx, request); err != nil {
		return fmt.Errorf("registering with the kubelet: %w", err)
	}
	log.Printf("registered")
	for ctx.Err() == nil {
		if _, err := os.Stat(path); err != nil {
			return errors.New("the kubelet started anew")
		}
		time.Sleep(250 * time.Millisecond)
	}
	return nil
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	for {
		p.mu.Lock()
		devices, changed := p.devices, p.changed
		p.mu.Unlock()
		if err := stream.Send(&api.ListAndWatchResponse{Devices: devices}); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	response := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		ids := slices.Sorted(slices.Values(container.DevicesIds))
		log.Printf("allocate %v", ids)
		response.ContainerResponses = append(response.ContainerResponses, &api.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(ids, ",")},
		})
	}
	return response, nil
}
