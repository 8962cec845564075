package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"
)

// etcd and an API server of their own, without controllers, scheduler and kubelets: nothing but the operator acts.
type machine struct {
	settings  settings
	folder    string
	server    string
	authority *authority
	processes []*process
	objects   dynamic.ResourceInterface
	typed     kubernetes.Interface
	dynamic   dynamic.Interface
	example   map[string]any
}

var clusters = schema.GroupVersionResource{Group: "fathom.dev", Version: "v1alpha1", Resource: "inferenceclusters"}

const auditPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules: [{level: Metadata}]
`

func startMachine(ctx context.Context, s settings, folder string) (*machine, error) {
	m := &machine{settings: s, folder: folder}
	if err := m.boot(ctx); err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

func (m *machine) boot(ctx context.Context) error {
	ports, err := freePorts(3)
	if err != nil {
		return err
	}
	m.server = fmt.Sprintf("https://127.0.0.1:%d", ports[2])
	if m.authority, err = newAuthority(m.folder); err != nil {
		return err
	}
	policy := filepath.Join(m.folder, "audit-policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		return err
	}
	etcd := fmt.Sprintf("http://127.0.0.1:%d", ports[0])
	if _, err := m.launch("etcd", m.program("etcd"), nil, "--data-dir", filepath.Join(m.folder, "etcd-data"),
		"--unsafe-no-fsync", "--log-level", "warn", "--listen-client-urls", etcd, "--advertise-client-urls", etcd,
		"--listen-peer-urls", fmt.Sprintf("http://127.0.0.1:%d", ports[1])); err != nil {
		return err
	}
	pki := m.authority
	if _, err := m.launch("kube-apiserver", m.program("kube-apiserver"), nil, "--etcd-servers", etcd,
		"--bind-address", "127.0.0.1", "--secure-port", fmt.Sprint(ports[2]),
		"--client-ca-file", pki.file("ca.crt"), "--tls-cert-file", pki.file("server.crt"), "--tls-private-key-file", pki.file("server.key"),
		"--service-account-issuer", "https://bench", "--service-account-key-file", pki.file("server.key"),
		"--service-account-signing-key-file", pki.file("server.key"), "--service-cluster-ip-range", "10.96.0.0/16",
		// No controller makes default accounts, and no kubelet ever reports a node.
		"--authorization-mode", "AlwaysAllow", "--disable-admission-plugins", "ServiceAccount,TaintNodesByCondition",
		"--feature-gates", "ImageVolume=true",
		"--audit-policy-file", policy, "--audit-log-path", m.auditLog()); err != nil {
		return err
	}
	config := m.config("driver")
	config.QPS, config.Burst = 1000, 1000
	if m.typed, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	if m.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return err
	}
	m.objects = m.dynamic.Resource(clusters).Namespace(namespace)
	if err := until(ctx, "the API server", time.Minute, func() error {
		return m.typed.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	}); err != nil {
		return err
	}
	return m.furnish(ctx)
}

// Definition, namespaces, and the object that is made a thousand times.
func (m *machine) furnish(ctx context.Context) error {
	definition, err := readYAML(filepath.Join(m.settings.Root, "crds/yaml/fathom.dev_inferenceclusters.yaml"))
	if err != nil {
		return err
	}
	kind := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	if _, err := m.dynamic.Resource(kind).Create(ctx, definition, metav1.CreateOptions{}); err != nil {
		return err
	}
	for _, name := range []string{namespace, systemNamespace} {
		object := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name},
		}}
		spaces := schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
		if _, err := m.dynamic.Resource(spaces).Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	example, err := readYAML(filepath.Join(m.settings.Root, "crds/examples/needle.yaml"))
	if err != nil {
		return err
	}
	m.example = example.Object["spec"].(map[string]any)
	m.example["placement"] = map[string]any{"mode": "Unmanaged"}
	return until(ctx, "the definition to be served", time.Minute, func() error {
		_, err := m.objects.List(ctx, metav1.ListOptions{})
		return err
	})
}

// Creates an object; its uid.
func (m *machine) create(ctx context.Context, name string) (string, error) {
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "fathom.dev/v1alpha1", "kind": "InferenceCluster",
		"metadata": map[string]any{"name": name}, "spec": m.example,
	}}
	made, err := m.objects.Create(ctx, object, metav1.CreateOptions{FieldManager: "driver"})
	if err != nil {
		return "", err
	}
	return string(made.GetUID()), nil
}

// What an object says of itself, for messages.
func (m *machine) status(ctx context.Context, name string) string {
	found, err := m.objects.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	text, err := json.Marshal(found.Object["status"])
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func (m *machine) config(user string) *rest.Config {
	certificate, key := m.authority.client(user)
	return &rest.Config{Host: m.server, TLSClientConfig: rest.TLSClientConfig{
		CAData: m.authority.pem, CertData: certificate, KeyData: key,
	}}
}

// A kubeconfig file for a program.
func (m *machine) kubeconfig(user string) (string, error) {
	certificate, key := m.authority.client(user)
	config := clientcmdapi.NewConfig()
	config.Clusters["bench"] = &clientcmdapi.Cluster{Server: m.server, CertificateAuthorityData: m.authority.pem}
	config.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: certificate, ClientKeyData: key}
	config.Contexts["bench"] = &clientcmdapi.Context{Cluster: "bench", AuthInfo: user, Namespace: systemNamespace}
	config.CurrentContext = "bench"
	path := filepath.Join(m.folder, user+".kubeconfig")
	return path, clientcmd.WriteToFile(*config, path)
}

func (m *machine) program(name string) string { return filepath.Join(m.settings.Programs, name) }

func (m *machine) close() {
	for i := len(m.processes) - 1; i >= 0; i-- {
		m.processes[i].end()
	}
}

func readYAML(path string) (*unstructured.Unstructured, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, &object.Object); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return object, nil
}

func until(ctx context.Context, what string, limit time.Duration, check func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := check()
		if err == nil || apierrors.IsAlreadyExists(err) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waited %s for %s: %w", limit, what, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}
