package main

import (
	"context"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// printHeld prints which CPUs, devices and claims the kubelet says each container has.
func printHeld(ctx context.Context, o options) error {
	conn, err := grpc.NewClient("unix://"+filepath.Join(o.kubeletDir, "pod-resources/kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	held, err := api.NewPodResourcesListerClient(conn).List(ctx, &api.ListPodResourcesRequest{})
	if err != nil {
		return err
	}
	raw, err := protojson.MarshalOptions{Indent: "  "}.Marshal(held)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(append(raw, '\n'))
	return err
}
