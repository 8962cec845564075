package main

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var clusterKind = schema.GroupVersionKind{Group: "fathom.dev", Version: "v1alpha1", Kind: "InferenceCluster"}

const (
	manager = "twin"
	// The hash of what was applied: an unchanged child costs no call, as in the operator.
	applied = "fathom.dev/applied"
)

type reconciler struct {
	client   client.Client
	template *template
}

func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	cluster := &unstructured.Unstructured{}
	cluster.SetGroupVersionKind(clusterKind)
	if err := r.client.Get(ctx, request.NamespacedName, cluster); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if cluster.GetDeletionTimestamp() != nil {
		return ctrl.Result{}, nil
	}
	children, err := r.template.children(cluster)
	if err != nil {
		return ctrl.Result{}, err
	}
	for _, child := range children {
		if err := r.apply(ctx, child); err != nil {
			return ctrl.Result{}, err
		}
	}
	return ctrl.Result{}, r.report(ctx, cluster)
}

func (r *reconciler) apply(ctx context.Context, child *unstructured.Unstructured) error {
	object, err := r.client.Scheme().New(child.GroupVersionKind())
	if err != nil {
		return err
	}
	live := asObject(object)
	err = r.client.Get(ctx, client.ObjectKeyFromObject(child), live)
	if err == nil && live.GetAnnotations()[applied] == child.GetAnnotations()[applied] {
		return nil
	}
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	return r.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(child), client.FieldOwner(manager), client.ForceOwnership)
}

// Writes the status when it differs.
func (r *reconciler) report(ctx context.Context, cluster *unstructured.Unstructured) error {
	// The time of the object's creation keeps the condition the same from reconcile to reconcile.
	condition := map[string]any{
		"type": "Progressing", "status": "True", "reason": "AsExpected", "message": "children are applied",
		"observedGeneration": cluster.GetGeneration(),
		"lastTransitionTime": cluster.GetCreationTimestamp().UTC().Format("2006-01-02T15:04:05Z"),
	}
	want := map[string]any{"observedGeneration": cluster.GetGeneration(), "conditions": []any{condition}}
	have, _, err := unstructured.NestedMap(cluster.Object, "status")
	if err != nil {
		return fmt.Errorf("status of %s: %w", cluster.GetName(), err)
	}
	if equality.Semantic.DeepEqual(have, want) {
		return nil
	}
	before := cluster.DeepCopy()
	cluster.Object["status"] = want
	return client.IgnoreNotFound(r.client.Status().Patch(ctx, cluster, client.MergeFrom(before)))
}

func asObject(object runtime.Object) client.Object { return object.(client.Object) }
