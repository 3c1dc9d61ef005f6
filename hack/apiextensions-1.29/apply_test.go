package rules

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/managedfields/managedfieldstest"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// release applies an object of a chart as Helm does: server-side, with one field manager.
type release struct {
	t       *testing.T
	kind    *kind
	name    string
	manager managedfieldstest.TestFieldManager
}

func newRelease(t *testing.T, name string) *release {
	kind := definitions(t)[name]
	definition := &apiextensionsv1.CustomResourceDefinition{}
	if err := scheme.Convert(kind.definition, definition, nil); err != nil {
		t.Fatal(err)
	}
	version := definition.Spec.Versions[0].Name
	openAPI, err := builder.BuildOpenAPIV3(definition, version, builder.Options{})
	if err != nil {
		t.Fatal(err)
	}
	converter, err := managedfields.NewTypeConverter(openAPI.Components.Schemas, false)
	if err != nil {
		t.Fatal(err)
	}
	gvk := schema.GroupVersionKind{Group: definition.Spec.Group, Version: version, Kind: name}
	return &release{t, kind, name, managedfieldstest.NewTestFieldManager(converter, gvk)}
}

// upgrade returns what the API server has against the object after the apply.
func (r *release) upgrade(spec map[string]any) field.ErrorList {
	r.t.Helper()
	object := &unstructured.Unstructured{Object: normal(map[string]any{
		"apiVersion": r.manager.APIVersion(),
		"kind":       r.name,
		"metadata":   map[string]any{"name": "slurm", "namespace": "slurm"},
		"spec":       spec,
	})}
	if err := r.manager.Apply(object, "helm", false); err != nil {
		r.t.Fatal(err)
	}
	live := r.manager.Live().(*unstructured.Unstructured)
	return r.kind.create(live)
}

// upstreamSpec returns the spec that upstream's chart renders, of which the tests of our chart have a copy.
func upstreamSpec(t *testing.T, kind string) map[string]any {
	text, err := os.ReadFile(filepath.Join(repository, "charts/slurm/tests/upstream_test.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var suite struct {
		Tests []struct {
			It      string
			Asserts []struct {
				Equal struct{ Value map[string]any }
			}
		}
	}
	if err := yaml.Unmarshal(text, &suite); err != nil {
		t.Fatal(err)
	}
	for _, test := range suite.Tests {
		if test.It == "renders the "+kind+" of upstream" {
			return test.Asserts[0].Equal.Value
		}
	}
	t.Fatalf("no copy of the %s", kind)
	return nil
}

func withSchedule(spec map[string]any, schedule any) map[string]any {
	spec, strategy := maps.Clone(spec), maps.Clone(spec["updateStrategy"].(map[string]any))
	delete(strategy, "scheduledUpdate")
	if schedule != nil {
		strategy["scheduledUpdate"] = schedule
	}
	spec["updateStrategy"] = strategy
	return spec
}

// Why our chart has an empty map wherever upstream's chart has one, and leaves a map out that has just lost its last field.
func TestAnEmptyMapCannotReplaceItsFields(t *testing.T) {
	upstream := upstreamSpec(t, "NodeSet")
	withField := withSchedule(upstream, map[string]any{"duration": "30m"})
	withoutMap := withSchedule(upstream, nil)
	for _, upgrades := range []struct {
		what    string
		specs   []map[string]any
		refused bool // the last of them
	}{
		{"a field after the empty map", []map[string]any{upstream, withField}, false},
		{"the empty map after a field", []map[string]any{upstream, withField, upstream}, true},
		{"no map after a field", []map[string]any{withField, withoutMap}, false},
		{"the empty map after no map", []map[string]any{withField, withoutMap, upstream}, false},
	} {
		release := newRelease(t, "NodeSet")
		for i, spec := range upgrades.specs {
			refused := upgrades.refused && i == len(upgrades.specs)-1
			if errors := release.upgrade(spec); (len(errors) > 0) != refused {
				t.Errorf("%s: want refused %v in step %d: %v", upgrades.what, refused, i, errors)
			}
		}
	}
}

// Our chart renders the same specs, so that each chart can follow the other.
func TestUpstreamsObjectsAreAcceptedTwice(t *testing.T) {
	for _, kind := range []string{"Controller", "RestApi", "Accounting", "LoginSet", "NodeSet"} {
		release := newRelease(t, kind)
		for range []int{1, 2} {
			if errors := release.upgrade(upstreamSpec(t, kind)); len(errors) > 0 {
				t.Errorf("%s: %v", kind, errors)
			}
		}
	}
}
