package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const (
	systemNamespace = "fathom-system"
	account         = "fathom-operator"
	audience        = "fathom-node-agent"
	secretName      = "fathom-node-agent-tls"
)

// Fathom's operator, with node agents that report a scene.
type fathom struct {
	settings settings
	template string
}

func (f *fathom) name() string { return "fathom" }

func (f *fathom) start(ctx context.Context, m *machine) (*process, error) {
	token := filepath.Join(m.folder, "token")
	if err := f.issueToken(ctx, m, token); err != nil {
		return nil, err
	}
	kubeconfig, err := m.kubeconfig("fathom-operator")
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(2)
	if err != nil {
		return nil, err
	}
	http := fmt.Sprintf("127.0.0.1:%d", ports[0])
	operator, err := m.launch("fathom-operator", filepath.Join(f.settings.Binaries, "fathom-operator"), []string{"KUBECONFIG=" + kubeconfig},
		"--engine-image", "fathom.dev/fathom-engine:0.1.0", "--namespace", systemNamespace, "--pod-name", "bench",
		"--http", http, "--plan-listen", fmt.Sprintf("127.0.0.1:%d", ports[1]), "--agent-token-file", token)
	if err != nil {
		return nil, err
	}
	operator.user = "fathom-operator"
	if err := f.startAgents(ctx, m); err != nil {
		return nil, err
	}
	return operator, until(ctx, "the operator", time.Minute, func() error { return ready("http://" + http + "/readyz") })
}

func (f *fathom) issueToken(ctx context.Context, m *machine, path string) error {
	accounts := m.typed.CoreV1().ServiceAccounts(systemNamespace)
	made := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}
	if _, err := accounts.Create(ctx, made, metav1.CreateOptions{}); err != nil {
		return err
	}
	seconds := int64(3600)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences: []string{audience}, ExpirationSeconds: &seconds,
	}}
	issued, err := accounts.CreateToken(ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(issued.Status.Token), 0o600)
}

// One agent a node, each at a loopback address of its own, in a Pod object that says so.
func (f *fathom) startAgents(ctx context.Context, m *machine) error {
	tls := filepath.Join(m.folder, "agent-tls")
	if err := os.MkdirAll(tls, 0o700); err != nil {
		return err
	}
	kubeconfig, err := m.kubeconfig("agent")
	if err != nil {
		return err
	}
	if err := until(ctx, "the operator to issue certificates", time.Minute, func() error {
		secret, err := m.typed.CoreV1().Secrets(systemNamespace).Get(ctx, secretName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, name := range []string{"tls.crt", "tls.key"} {
			if err := os.WriteFile(filepath.Join(tls, name), secret.Data[name], 0o600); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	for i := range f.settings.Nodes {
		node, address := fmt.Sprintf("bench-%d", i), fmt.Sprintf("127.0.0.%d", i+2)
		if err := addNode(ctx, m, node, address); err != nil {
			return err
		}
		// Address, not port: agents have the same port everywhere.
		if _, err := m.launch("agent-"+node, filepath.Join(f.settings.Binaries, "fathom-node-agent"), []string{"KUBECONFIG=" + kubeconfig},
			"--node", node, "--facts", filepath.Join(f.settings.Root, "node-agent/testdata/story"),
			"--grpc", address+":9443", "--http", address+":9101", "--tls-dir", tls,
			"--audience", audience, "--allow-account", systemNamespace+":"+account); err != nil {
			return err
		}
		if err := until(ctx, "agent "+node, time.Minute, func() error { return ready("http://" + address + ":9101/readyz") }); err != nil {
			return err
		}
	}
	return nil
}

// A Node that is Ready, and the Pod of its agent.
func addNode(ctx context.Context, m *machine, name, address string) error {
	core := m.typed.CoreV1()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}}}
	node, err := core.Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	now := metav1.Now()
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Bench", LastHeartbeatTime: now, LastTransitionTime: now}}
	if _, err := core.Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		return err
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "agent-" + name, Labels: map[string]string{"app.kubernetes.io/name": "fathom", "app.kubernetes.io/component": "node-agent"}},
		Spec:       corev1.PodSpec{NodeName: name, Containers: []corev1.Container{{Name: "agent", Image: "none"}}},
	}
	pod, err = core.Pods(systemNamespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now}},
	}
	_, err = core.Pods(systemNamespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return err
}

// The first object's children become the twin's template: both make the same.
func (f *fathom) learned(ctx context.Context, m *machine, first *seen) error {
	type template struct {
		Name, Namespace, UID string
		Children             []map[string]any
	}
	learned := template{Name: first.name, Namespace: namespace, UID: first.uid}
	for name, kind := range first.children {
		child, err := m.dynamic.Resource(kind).Namespace(namespace).Get(ctx, filepath.Base(name), metav1.GetOptions{})
		if err != nil {
			return err
		}
		learned.Children = append(learned.Children, asApplied(child))
	}
	text, err := json.Marshal(learned)
	if err != nil {
		return err
	}
	return os.WriteFile(f.template, text, 0o600)
}

// Without what the API server added.
func asApplied(child *unstructured.Unstructured) map[string]any {
	object := child.DeepCopy().Object
	delete(object, "status")
	metadata := object["metadata"].(map[string]any)
	for _, field := range []string{"managedFields", "resourceVersion", "uid", "creationTimestamp", "generation"} {
		delete(metadata, field)
	}
	unstructured.RemoveNestedField(object, "metadata", "annotations", "fathom.dev/applied")
	if address, _, _ := unstructured.NestedString(object, "spec", "clusterIP"); child.GetKind() == "Service" && address != "None" {
		unstructured.RemoveNestedField(object, "spec", "clusterIP")
		unstructured.RemoveNestedField(object, "spec", "clusterIPs")
	}
	return object
}

// The controller-runtime operator beside which Fathom's is measured.
type twin struct {
	settings settings
	template string
}

func (t *twin) name() string { return "twin" }

func (t *twin) start(ctx context.Context, m *machine) (*process, error) {
	kubeconfig, err := m.kubeconfig("twin")
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	address := fmt.Sprintf("127.0.0.1:%d", ports[0])
	process, err := m.launch("twin", t.settings.Twin, []string{"KUBECONFIG=" + kubeconfig}, "--template", t.template, "--ready", address)
	if err != nil {
		return nil, err
	}
	process.user = "twin"
	return process, until(ctx, "the twin", time.Minute, func() error { return ready("http://" + address + "/readyz") })
}

func (t *twin) learned(context.Context, *machine, *seen) error { return nil }

func ready(url string) error {
	answer, err := http.Get(url)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, answer.Status)
	}
	return nil
}
