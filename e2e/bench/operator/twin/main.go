// The twin: an ordinary operator, as kubebuilder's book writes one, on controller-runtime. It makes the children that
// its template lists by server-side apply, owns them, and reports a condition. It plans nothing.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

func main() {
	templateFile := flag.String("template", "", "children of one object, as JSON")
	workers := flag.Int("workers", 16, "objects reconciled at once")
	ready := flag.String("ready", "127.0.0.1:8082", "address of /readyz")
	flag.Parse()
	if err := run(*templateFile, *workers, *ready); err != nil {
		fmt.Fprintln(os.Stderr, "twin:", err)
		os.Exit(1)
	}
}

func run(templateFile string, workers int, ready string) error {
	log.SetLogger(zap.New())
	template, err := readTemplate(templateFile)
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return err
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	// The API server's own fairness limits, not client-go's default of 20 calls a second.
	config.QPS = -1
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:  scheme,
		Metrics: metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		return err
	}
	reconciler := &reconciler{client: manager.GetClient(), template: template}
	cluster := &unstructured.Unstructured{}
	cluster.SetGroupVersionKind(clusterKind)
	builder := ctrl.NewControllerManagedBy(manager).Named("twin").For(cluster).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers})
	for _, kind := range template.kinds() {
		object, err := scheme.New(kind)
		if err != nil {
			return fmt.Errorf("kind %s: %w", kind, err)
		}
		builder = builder.Owns(asObject(object))
	}
	if err := builder.Complete(reconciler); err != nil {
		return err
	}
	ctx := ctrl.SetupSignalHandler()
	go serveReady(ctx, ready, func() bool { return manager.GetCache().WaitForCacheSync(ctx) })
	return manager.Start(ctx)
}

func serveReady(ctx context.Context, address string, synced func() bool) {
	server := &http.Server{Addr: address, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !synced() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})}
	go func() { <-ctx.Done(); _ = server.Close() }()
	if err := server.ListenAndServe(); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "twin:", err)
	}
}
