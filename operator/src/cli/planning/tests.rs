use std::path::Path;

use engine_spec::NamedShape;

use super::*;

fn message(file: &Path) -> String {
    format!("{:#}", load(file).unwrap_err())
}

const OBJECT: &str = "\
apiVersion: fathom.dev/v1alpha1
kind: InferenceCluster
metadata: {name: flash}
spec:
  model: {name: NAME, source: {hostPath: model}}
  decode: {gpus: 0}
";

fn folder(name: &str, config: Option<&str>) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cluster.yaml");
    std::fs::write(&file, OBJECT.replace("NAME", name)).unwrap();
    if let Some(config) = config {
        std::fs::create_dir(folder.path().join("model")).unwrap();
        std::fs::write(folder.path().join("model/config.json"), config).unwrap();
    }
    (folder, file)
}

#[test]
fn a_published_name_is_enough_when_the_folder_is_elsewhere() {
    let (_folder, file) = folder("deepseek-v4-flash", None);
    let loaded = load(&file).unwrap();
    assert_eq!(loaded.shape, NamedShape::V4Flash.shape());
    assert!(loaded.engines(&loaded.plan(&[])).unwrap_err().to_string().contains("model folder"));
}

#[test]
fn an_unknown_name_without_a_folder_lists_the_shapes() {
    let (_folder, file) = folder("my-model", None);
    let message = message(&file);
    assert!(message.contains("my-model") && message.contains("V4Flash, V4Pro, Needle"), "{message}");
}

#[test]
fn the_folder_beside_the_file_says_the_shape_and_the_bytes() {
    let config = serde_json::to_value(NamedShape::Needle.shape()).unwrap();
    let mut config = config.as_object().unwrap().clone();
    config.insert("model_type".to_owned(), "deepseek_v4".into());
    let (folder, file) = folder("my-model", Some(&serde_json::to_string(&config).unwrap()));
    std::fs::write(folder.path().join("model/model.safetensors"), [0; 1234]).unwrap();
    let loaded = load(&file).unwrap();
    assert_eq!((loaded.shape, loaded.weight_bytes), (NamedShape::Needle.shape(), Some(1234)));
}

#[test]
fn a_folder_that_is_no_model_is_named() {
    let (folder, file) = folder("deepseek-v4-flash", Some("{}"));
    assert!(message(&file).contains("config.json"), "{}", message(&file));
    std::fs::remove_file(folder.path().join("model/config.json")).unwrap();
    assert!(message(&file).contains("config.json"), "{}", message(&file));
}

#[test]
fn a_folder_that_is_another_model_than_the_shape_names_the_field() {
    let config = serde_json::to_value(NamedShape::Needle.shape()).unwrap();
    let mut config = config.as_object().unwrap().clone();
    config.insert("model_type".to_owned(), "deepseek_v4".into());
    let (_folder, file) = folder("x, shape: V4Flash", Some(&serde_json::to_string(&config).unwrap()));
    let message = message(&file);
    assert!(
        message.contains("V4Flash") && message.contains("vocab_size is 896, expected 129280"),
        "{message}"
    );
}

#[test]
fn a_missing_file_and_a_typo_are_one_line() {
    assert!(message(Path::new("/nowhere/cluster.yaml")).contains("cannot read /nowhere/cluster.yaml"));
    let (_folder, file) = folder("x, shap: V4Flash", None);
    let message = message(&file);
    assert!(message.contains("cluster.yaml: line 5, column") && message.contains("`shap`"), "{message}");
    assert!(!message.contains('\n'), "{message}");
}
