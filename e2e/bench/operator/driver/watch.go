package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
)

// Kinds that an operator makes for an object.
var childKinds = []schema.GroupVersionResource{
	{Version: "v1", Resource: "pods"},
	{Version: "v1", Resource: "configmaps"},
	{Version: "v1", Resource: "services"},
	{Version: "v1", Resource: "serviceaccounts"},
	{Group: "apps", Version: "v1", Resource: "deployments"},
	{Group: "apps", Version: "v1", Resource: "controllerrevisions"},
	{Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"},
	{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"},
}

// The children of one object, as they appeared.
type seen struct {
	name, uid string
	children  map[string]schema.GroupVersionResource // "resource/name"
	last      time.Time
	complete  time.Time
}

type watch struct {
	mutex   sync.Mutex
	byOwner map[string]*seen
	wanted  int
}

func watchChildren(ctx context.Context, m *machine) (*watch, error) {
	client, err := metadata.NewForConfig(m.config("driver"))
	if err != nil {
		return nil, err
	}
	w := &watch{byOwner: map[string]*seen{}}
	factory := metadatainformer.NewFilteredSharedInformerFactory(client, 0, namespace, nil)
	for _, kind := range childKinds {
		_, err := factory.ForResource(kind).Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(object any) { w.add(kind, object.(*metav1.PartialObjectMetadata)) },
		})
		if err != nil {
			return nil, err
		}
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return w, ctx.Err()
}

func (w *watch) add(kind schema.GroupVersionResource, child *metav1.PartialObjectMetadata) {
	now := time.Now()
	owner := metav1.GetControllerOf(child)
	if owner == nil {
		return
	}
	w.mutex.Lock()
	defer w.mutex.Unlock()
	found := w.byOwner[string(owner.UID)]
	if found == nil {
		found = &seen{children: map[string]schema.GroupVersionResource{}}
		w.byOwner[string(owner.UID)] = found
	}
	found.children[kind.Resource+"/"+child.Name] = kind
	found.last = now
	if w.wanted > 0 && len(found.children) == w.wanted {
		found.complete = now
	}
}

// A copy of what is known of an object, or nil.
func (w *watch) of(uid string) *seen {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	found := w.byOwner[uid]
	if found == nil {
		return nil
	}
	copied := *found
	copied.children = make(map[string]schema.GroupVersionResource, len(found.children))
	for name, kind := range found.children {
		copied.children[name] = kind
	}
	return &copied
}

func (w *watch) expect(children int) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.wanted = children
}

// Waits until every object has all its children.
func (w *watch) complete(ctx context.Context, uids []string, children int, limit time.Duration) error {
	deadline := time.Now().Add(limit)
	for {
		missing, example := 0, ""
		w.mutex.Lock()
		for _, uid := range uids {
			if found := w.byOwner[uid]; found == nil || found.complete.IsZero() {
				missing++
				example = uid
			}
		}
		w.mutex.Unlock()
		if missing == 0 {
			return nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			have := 0
			if found := w.of(example); found != nil {
				have = len(found.children)
			}
			return fmt.Errorf("%d of %d objects lack children; one has %d of %d", missing, len(uids), have, children)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
