package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The children of one object as text, with the marks of the object they were taken from.
type template struct {
	Name, Namespace, UID string
	Children             []json.RawMessage
}

func readTemplate(path string) (*template, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	read := &template{}
	if err := json.Unmarshal(text, read); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if read.Name == "" || read.UID == "" || len(read.Children) == 0 {
		return nil, fmt.Errorf("%s: name, uid and children are needed", path)
	}
	return read, nil
}

// The kinds of the children, each once.
func (t *template) kinds() []schema.GroupVersionKind {
	var kinds []schema.GroupVersionKind
	seen := map[schema.GroupVersionKind]bool{}
	for _, text := range t.Children {
		child := &unstructured.Unstructured{}
		if err := json.Unmarshal(text, child); err != nil {
			continue
		}
		if kind := child.GroupVersionKind(); !seen[kind] {
			seen[kind] = true
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// The same children for another object: name, namespace and uid replaced wherever they stand.
func (t *template) children(cluster *unstructured.Unstructured) ([]*unstructured.Unstructured, error) {
	marks := strings.NewReplacer(t.UID, string(cluster.GetUID()), t.Name, cluster.GetName(), t.Namespace, cluster.GetNamespace())
	children := make([]*unstructured.Unstructured, 0, len(t.Children))
	for _, text := range t.Children {
		text := marks.Replace(string(text))
		child := &unstructured.Unstructured{}
		if err := json.Unmarshal([]byte(text), child); err != nil {
			return nil, err
		}
		annotations := child.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		hash := sha256.Sum256([]byte(text))
		annotations[applied] = hex.EncodeToString(hash[:8])
		child.SetAnnotations(annotations)
		children = append(children, child)
	}
	return children, nil
}
