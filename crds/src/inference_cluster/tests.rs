use std::path::Path;

use serde_json::Value;

use super::*;

const GENERATED: &str = "# Generated: run the tests of fathom-crds with UPDATE_EXPECT=1 to write it anew.";

fn yaml() -> String {
    let text = serde_saphyr::to_string(&crd()).unwrap();
    format!("{GENERATED}\n{text}")
}

/// The chart's template: the same definition, kept when the release goes.
fn chart_template() -> String {
    let mut crd = crd();
    let keep = ("helm.sh/resource-policy".to_owned(), "keep".to_owned());
    crd.metadata.annotations.get_or_insert_default().extend([keep]);
    let text = serde_saphyr::to_string(&crd).unwrap();
    // A09.
    assert!(!text.contains("{{"), "Helm would take part of the definition for a template");
    format!("{{{{- if .Values.crds.install }}}}\n{GENERATED}\n{text}{{{{- end }}}}\n")
}

fn spec_schema() -> Value {
    let mut crd = serde_json::to_value(crd()).unwrap();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].take()
}

/// A06.
#[test]
fn the_committed_definition_is_what_the_types_say() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("yaml/fathom.dev_inferenceclusters.yaml");
    expect_test::expect_file![path].assert_eq(&yaml());
}

#[test]
fn the_chart_installs_the_same_definition() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = path.join("../charts/fathom/templates/crds/fathom.dev_inferenceclusters.yaml");
    expect_test::expect_file![path].assert_eq(&chart_template());
}

/// A06, A07: structural, and no rule over anything unbounded.
#[test]
fn every_field_is_documented_and_every_list_and_string_of_the_spec_is_bounded() {
    let mut missing = Vec::new();
    walk(&spec_schema(), "spec", &mut missing);
    assert!(missing.is_empty(), "{missing:#?}");
}

fn walk(schema: &Value, path: &str, missing: &mut Vec<String>) {
    if schema["description"].as_str().is_none_or(str::is_empty) {
        missing.push(format!("{path}: description"));
    }
    match schema["type"].as_str() {
        Some("string") if schema["enum"].is_null() && schema["maxLength"].is_null() => {
            missing.push(format!("{path}: maxLength"));
        }
        Some("array") if schema["maxItems"].is_null() => missing.push(format!("{path}: maxItems")),
        Some("object") if schema["properties"].is_null() && schema["maxProperties"].is_null() => {
            missing.push(format!("{path}: maxProperties"));
        }
        None => missing.push(format!("{path}: type")),
        _ => {}
    }
    for forbidden in ["oneOf", "anyOf", "allOf"] {
        if !schema[forbidden].is_null() {
            missing.push(format!("{path}: {forbidden} is not structural here"));
        }
    }
    if let Some(format) = schema["format"].as_str().filter(|format| format.starts_with("uint")) {
        missing.push(format!("{path}: the API server warns about format {format}"));
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        walk(property, &format!("{path}.{name}"), missing);
    }
    if schema["items"]["type"] == "object" {
        for (name, property) in schema["items"]["properties"].as_object().into_iter().flatten() {
            walk(property, &format!("{path}[].{name}"), missing);
        }
    }
}

/// A06: a null is kept where the definition allows it; elsewhere the API server puts the default in its place.
#[test]
fn an_enum_that_may_be_left_out_may_also_be_null() {
    let mut enums = Vec::new();
    find_enums(&spec_schema(), "/spec", &mut enums);
    assert!(enums.len() >= 10, "{enums:?}");
    let story = crate::read(include_str!("../../examples/story.yaml")).unwrap();
    let story = serde_json::to_value(story).unwrap();
    for (parent, name, schema) in enums {
        let with = |value: Option<&Value>| {
            let mut object = story.clone();
            let fields = object.pointer_mut(&parent).and_then(Value::as_object_mut).unwrap();
            fields.remove(&name);
            fields.extend(value.map(|value| (name.clone(), value.clone())));
            serde_json::from_value::<InferenceCluster>(object)
                .unwrap_or_else(|error| panic!("{parent}/{name} as {value:?}: {error}"))
        };
        let kept = if schema["nullable"] == true { &Value::Null } else { &schema["default"] };
        assert!(schema["nullable"] == true || !kept.is_null(), "{parent}/{name} has no default");
        assert_eq!(with(None), with(Some(kept)), "{parent}/{name}");
    }
}

/// Where a field is, its name, its schema; fields of lists are left out.
fn find_enums(schema: &Value, parent: &str, found: &mut Vec<(String, String, Value)>) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        if !property["enum"].is_null() {
            found.push((parent.to_owned(), name.clone(), property.clone()));
        }
        find_enums(property, &format!("{parent}/{name}"), found);
    }
}

#[test]
fn every_rule_is_in_the_definition() {
    let text = serde_json::to_string(&crd()).unwrap();
    let cel = rules::ROOT.iter().map(|r| r.cel).chain(rules::SPEC.iter().map(|r| r.cel));
    let cel = cel.chain(rules::SOURCE.iter().map(|r| r.cel)).chain(rules::HOST_CACHE.iter().map(|r| r.cel));
    for rule in cel {
        let quoted = serde_json::to_string(rule).unwrap();
        assert!(text.contains(&quoted), "{rule}");
    }
    assert!(text.contains("self.startsWith('/')"));
}

/// A08.
#[test]
fn the_definition_fits_the_annotation_of_kubectl_apply() {
    let bytes = serde_json::to_string(&crd()).unwrap().len();
    assert!(bytes < 200_000, "{bytes}");
}

#[test]
fn the_examples_are_accepted() {
    for name in ["needle-local.yaml", "story.yaml"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name);
        let text = std::fs::read_to_string(&path).unwrap();
        crate::read(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}
