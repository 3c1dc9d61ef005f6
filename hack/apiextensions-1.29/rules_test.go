// Package rules tries the rules in our definitions with the API machinery of Kubernetes 1.29, in which an update runs all of
// them again: ratcheting is off there.
package rules

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/yaml"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/registry/rest"
)

const repository = "../.."

var (
	scheme = runtime.NewScheme()
	codecs = serializer.NewCodecFactory(scheme)
)

func init() {
	install.Install(scheme)
}

// rule is an entry of the table in crates/api/src/validate, as the example `admission --json` prints it.
type rule struct {
	Kind         string
	ID           string
	Field        string
	Holds        string
	Remedy       string
	Moment       string
	InDefinition bool
	Good, Bad    []map[string]any
}

func (r rule) name() string    { return r.Kind + " " + r.ID }
func (r rule) message() string { return r.Holds + "; " + r.Remedy }

// kind is a definition as the API server uses it.
type kind struct {
	definition *apiextensions.CustomResourceDefinition
	structural *structuralschema.Structural
	object     rest.RESTCreateUpdateStrategy
	status     rest.RESTUpdateStrategy
}

func definitions(t *testing.T) map[string]*kind {
	files, err := filepath.Glob(filepath.Join(repository, "charts/slurm-operator-crds/templates/*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	kinds := map[string]*kind{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		object, _, err := codecs.UniversalDeserializer().Decode(text, nil, nil)
		if err != nil {
			t.Fatal(file, err)
		}
		external := object.(*apiextensionsv1.CustomResourceDefinition)
		scheme.Default(external)
		definition := &apiextensions.CustomResourceDefinition{}
		if err := scheme.Convert(external, definition, nil); err != nil {
			t.Fatal(file, err)
		}
		kinds[definition.Spec.Names.Kind] = serve(t, definition)
	}
	return kinds
}

func serve(t *testing.T, definition *apiextensions.CustomResourceDefinition) *kind {
	version := definition.Spec.Versions[0]
	props := definition.Spec.Validation.OpenAPIV3Schema
	structural, err := structuralschema.NewStructural(props)
	if err != nil {
		t.Fatal(err)
	}
	validator, _, err := validation.NewSchemaValidator(props)
	if err != nil {
		t.Fatal(err)
	}
	status := props.Properties["status"]
	statusValidator, _, err := validation.NewSchemaValidator(&status)
	if err != nil {
		t.Fatal(err)
	}
	names := definition.Spec.Names
	gvk := schema.GroupVersionKind{Group: definition.Spec.Group, Version: version.Name, Kind: names.Kind}
	strategy := customresource.NewStrategy(
		scheme, true, gvk, validator, statusValidator, structural,
		definition.Spec.Subresources.Status, definition.Spec.Subresources.Scale,
	)
	return &kind{definition, structural, strategy, customresource.NewStatusStrategy(strategy)}
}

func rules(t *testing.T) []rule {
	command := exec.Command("cargo", "run", "--quiet", "--package", "slurm-operator-api", "--example", "admission", "--", "--json")
	command.Dir = repository
	command.Stderr = os.Stderr
	text, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	var rules []rule
	if err := json.Unmarshal(text, &rules); err != nil {
		t.Fatal(err)
	}
	return rules
}

// stored returns an object as the API server has it after it was created or read: with defaults.
func (k *kind) stored(example map[string]any) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(normal(example))}
	object.SetNamespace("slurm")
	object.SetResourceVersion("1")
	object.SetUID("u")
	defaulting.Default(object.Object, k.structural)
	return object
}

// normal converts numbers to the types that the decoder of the API server uses.
func normal(example map[string]any) map[string]any {
	text, _ := json.Marshal(example)
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(text); err != nil {
		panic(err)
	}
	return object.Object
}

func (k *kind) create(object *unstructured.Unstructured) field.ErrorList {
	object = object.DeepCopy()
	k.object.PrepareForCreate(context.Background(), object)
	return k.object.Validate(context.Background(), object)
}

func (k *kind) update(old, object *unstructured.Unstructured) field.ErrorList {
	object = object.DeepCopy()
	k.object.PrepareForUpdate(context.Background(), object, old)
	return k.object.ValidateUpdate(context.Background(), object, old)
}

func (k *kind) updateStatus(old *unstructured.Unstructured) field.ErrorList {
	object := withStatus(old)
	k.status.PrepareForUpdate(context.Background(), object, old)
	return k.status.ValidateUpdate(context.Background(), object, old)
}

func withStatus(object *unstructured.Unstructured) *unstructured.Unstructured {
	object = object.DeepCopy()
	status := map[string]any{"observedGeneration": int64(1)}
	switch object.GetKind() {
	case "NodeSet":
		status["nodeSetHash"], status["selector"] = "", ""
	case "LoginSet":
		status["selector"] = ""
	}
	object.Object["status"] = status
	return object
}

func withFinalizer(object *unstructured.Unstructured) *unstructured.Unstructured {
	object = object.DeepCopy()
	object.SetFinalizers([]string{"slinky.slurm.net/test"})
	return object
}

func refuses(t *testing.T, what string, rule rule, errors field.ErrorList) {
	t.Helper()
	if len(errors) == 0 {
		t.Errorf("%s: %s was accepted", rule.name(), what)
		return
	}
	for _, problem := range errors {
		if strings.Contains(problem.Detail, rule.message()) {
			return
		}
	}
	t.Errorf("%s: %s was refused without its message: %v", rule.name(), what, errors)
}

func accepts(t *testing.T, what string, rule rule, errors field.ErrorList) {
	t.Helper()
	if len(errors) > 0 {
		t.Errorf("%s: %s was refused: %v", rule.name(), what, errors)
	}
}

// The API server of this release compiles every rule, and their estimated cost is within its limits.
func TestDefinitionsAreValid(t *testing.T) {
	for name, kind := range definitions(t) {
		for _, problem := range crdvalidation.ValidateCustomResourceDefinition(context.Background(), kind.definition) {
			t.Errorf("%s: %v", name, problem)
		}
		t.Logf("%s: estimated cost of %d rules is %d of %d", name, len(kind.structural.XValidations), kind.cost(t), crdvalidation.StaticEstimatedCRDCostLimit)
	}
}

// cost is the sum of the estimated costs of all rules, which are rules of the whole object.
func (k *kind) cost(t *testing.T) (sum uint64) {
	environment := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
	declared := model.SchemaDeclType(k.structural, true)
	results, err := cel.Compile(k.structural, declared, celconfig.PerCallLimit, environment, cel.NewExpressionsEnvLoader())
	if err != nil {
		t.Fatal(err)
	}
	for _, result := range results {
		sum += result.MaxCost
	}
	return sum
}

func TestExamplesOfRules(t *testing.T) {
	kinds := definitions(t)
	for _, rule := range rules(t) {
		kind := kinds[rule.Kind]
		good := kind.stored(rule.Good[0])
		for _, example := range rule.Good {
			object := kind.stored(example)
			accepts(t, "a good object", rule, kind.create(object))
			if rule.Moment == "Change" {
				accepts(t, "a good change", rule, kind.update(withStatus(good), object))
			}
		}
		for _, example := range rule.Bad {
			object := kind.stored(example)
			what := "the object " + describe(example)
			switch {
			case !rule.InDefinition && rule.Moment == "Change":
				accepts(t, what, rule, kind.update(good, object))
			case !rule.InDefinition:
				accepts(t, what, rule, kind.create(object))
			case rule.Moment == "Change":
				refuses(t, what, rule, kind.update(good, object))
				refuses(t, what, rule, kind.update(withStatus(good), object))
			case isKeyword(rule, kind.create(object)):
			default:
				refuses(t, what, rule, kind.create(object))
				object.SetName(good.GetName())
				if rule.Moment == "Always" && rule.Field != "metadata.name" && len(kind.create(object)) > 0 {
					refuses(t, "a change to "+what, rule, kind.update(withStatus(good), object))
				}
			}
		}
	}
}

// Objects that were stored before a rule existed.
func TestStoredObjectsAreNotFrozen(t *testing.T) {
	kinds := definitions(t)
	for _, rule := range rules(t) {
		kind := kinds[rule.Kind]
		if rule.Moment == "Change" || !rule.InDefinition {
			continue
		}
		for index, example := range rule.Bad {
			stored := kind.stored(example)
			if isKeyword(rule, kind.create(stored)) {
				continue
			}
			what := describe(example)
			accepts(t, "the first status of "+what, rule, kind.updateStatus(stored))
			seen := withStatus(stored)
			accepts(t, "a status of "+what, rule, kind.updateStatus(seen))
			accepts(t, "a finalizer for "+what, rule, kind.update(seen, withFinalizer(seen)))
			accepts(t, "the removal of the finalizer of "+what, rule, kind.update(withFinalizer(seen), seen))
			labelled := seen.DeepCopy()
			labelled.SetLabels(map[string]string{"a": "b"})
			accepts(t, "a label for "+what, rule, kind.update(seen, labelled))
			for other := range rule.Bad {
				worse := kind.stored(rule.Bad[other])
				if other == index || worse.GetName() != stored.GetName() || rule.Moment == "Creation" {
					continue
				}
				refuses(t, "a change from "+what+" to "+describe(rule.Bad[other]), rule, kind.update(seen, worse))
			}
			better := kind.stored(rule.Good[0])
			better.SetName(stored.GetName())
			if errors := kind.update(seen, better); !onlyImmutable(errors) {
				accepts(t, "the correction of "+what, rule, errors)
			}
		}
	}
}

// Objects that upstream's charts make, from users' documents, and with every field.
func TestManifestsAreAccepted(t *testing.T) {
	kinds := definitions(t)
	folder := filepath.Join(repository, "crates/api/tests")
	given, _ := filepath.Glob(filepath.Join(folder, "given/*.yaml"))
	full, _ := filepath.Glob(filepath.Join(folder, "manifests/*.yaml"))
	if len(given) == 0 || len(full) != len(kinds) {
		t.Fatal(given, full)
	}
	for _, file := range append(given, full...) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		decoder := yaml.NewYAMLToJSONDecoder(bytes.NewReader(text))
		for {
			var object map[string]any
			if err := decoder.Decode(&object); err == io.EOF {
				break
			} else if err != nil {
				t.Fatal(file, err)
			}
			kind := kinds[object["kind"].(string)]
			for _, problem := range kind.create(kind.stored(object)) {
				// The manifest with every field of a Partition has all of those that exclude each other.
				if !strings.Contains(problem.Detail, "cannot be set beside") {
					t.Errorf("%s: %v", file, problem)
				}
			}
		}
	}
}

// Upstream accepts objects without a spec.
func TestObjectsWithoutSpecAreNotFrozen(t *testing.T) {
	for name, kind := range definitions(t) {
		stored := kind.stored(map[string]any{
			"apiVersion": "slinky.slurm.net/" + kind.definition.Spec.Versions[0].Name,
			"kind":       name,
			"metadata":   map[string]any{"name": "a", "namespace": "b"},
		})
		all := rule{Kind: name, ID: "without spec"}
		if _, hasDefault := stored.Object["spec"]; !hasDefault && len(kind.create(stored)) != 1 {
			t.Errorf("%s: a new object without a spec: %v", name, kind.create(stored))
		}
		accepts(t, "the first status", all, kind.updateStatus(stored))
		seen := withStatus(stored)
		accepts(t, "the removal of a finalizer", all, kind.update(withFinalizer(seen), seen))
	}
}

// isKeyword tells whether a keyword of the schema refuses an example, not an expression: a keyword that upstream has too.
func isKeyword(rule rule, errors field.ErrorList) bool {
	if len(errors) == 0 {
		return false
	}
	for _, problem := range errors {
		if strings.Contains(problem.Detail, rule.message()) {
			return false
		}
	}
	return true
}

// onlyImmutable tells whether nothing but an immutable field was changed. The remedy is another object.
func onlyImmutable(errors field.ErrorList) bool {
	for _, problem := range errors {
		if problem.Type != field.ErrorTypeForbidden {
			return false
		}
	}
	return true
}

func describe(example map[string]any) string {
	text, _ := json.Marshal(example["spec"])
	return string(text)
}
