use std::sync::{Arc, Mutex};

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get as on_get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::*;

/// An API server that knows Secrets of one namespace.
#[derive(Clone, Default)]
struct Secrets(Arc<Mutex<BTreeMap<String, Value>>>);

impl Secrets {
    async fn serve(&self) -> (JoinSet<()>, kube::Client) {
        const LIST: &str = "/api/v1/namespaces/fathom-system/secrets";
        let routes = Router::new()
            .route(LIST, post(create))
            .route(&format!("{LIST}/{{name}}"), on_get(read).put(replace))
            .with_state(self.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, routes).await.unwrap() });
        (tasks, kube::Client::try_from(kube::Config::new(address.parse().unwrap())).unwrap())
    }

    fn damage(&self, name: &str, key: &str) {
        self.0.lock().unwrap().get_mut(name).unwrap()["data"][key] = json!("amFuaw==");
    }

    fn data(&self, name: &str) -> Value {
        self.0.lock().unwrap()[name]["data"].clone()
    }
}

type Answer = (StatusCode, Json<Value>);

fn refused(code: StatusCode, reason: &str) -> Answer {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason,
        "message": reason, "code": code.as_u16()});
    (code, Json(status))
}

async fn read(State(secrets): State<Secrets>, Path(name): Path<String>) -> Answer {
    match secrets.0.lock().unwrap().get(&name) {
        Some(secret) => (StatusCode::OK, Json(secret.clone())),
        None => refused(StatusCode::NOT_FOUND, "NotFound"),
    }
}

async fn create(State(secrets): State<Secrets>, Json(mut secret): Json<Value>) -> Answer {
    let name = secret["metadata"]["name"].as_str().unwrap().to_owned();
    if name == "forbidden" {
        return refused(StatusCode::FORBIDDEN, "Forbidden");
    }
    secret["metadata"]["resourceVersion"] = json!("1");
    secrets.0.lock().unwrap().insert(name, secret.clone());
    (StatusCode::CREATED, Json(secret))
}

async fn replace(
    State(secrets): State<Secrets>,
    Path(name): Path<String>,
    Json(mut secret): Json<Value>,
) -> Answer {
    let mut secrets = secrets.0.lock().unwrap();
    let version = secrets[&name]["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    if secret["metadata"]["resourceVersion"] != version.as_str() || name == "contended" {
        return refused(StatusCode::CONFLICT, "Conflict");
    }
    let next = version.parse::<u32>().unwrap() + 1;
    secret["metadata"]["resourceVersion"] = json!(next.to_string());
    secrets.insert(name, secret.clone());
    (StatusCode::OK, Json(secret))
}

fn settings() -> CertificateSettings {
    CertificateSettings::new("fathom-system".into())
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

const BEGIN: i64 = 1_900_000_000;

#[tokio::test]
async fn secrets_are_made_once_and_then_left_alone() {
    let secrets = Secrets::default();
    let (_server, client) = secrets.serve().await;
    assert_eq!(trusted(&client, &settings()).await.unwrap(), None);
    let issued = ensure(&client, &settings(), at(BEGIN)).await.unwrap();
    assert_eq!(issued.written, [CA_SECRET, TLS_SECRET]);
    let again = ensure(&client, &settings(), at(BEGIN + 60)).await.unwrap();
    assert_eq!((again.written.len(), &again.ca_pem), (0, &issued.ca_pem));
    assert_eq!(trusted(&client, &settings()).await.unwrap(), Some(issued.ca_pem));
}

#[tokio::test]
async fn agents_are_shown_no_key_of_the_ca() {
    let secrets = Secrets::default();
    let (_server, client) = secrets.serve().await;
    ensure(&client, &settings(), at(BEGIN)).await.unwrap();
    let shown = secrets.data(TLS_SECRET);
    let keys: Vec<&String> = shown.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["ca.crt", "state.json", "tls.crt", "tls.key"]);
    let ca_key = secrets.data(CA_SECRET)["ca.key"].as_str().unwrap().to_owned();
    assert!(!shown.to_string().contains(&ca_key));
    assert_eq!(secrets.0.lock().unwrap()[TLS_SECRET]["type"], "kubernetes.io/tls");
}

#[tokio::test]
async fn a_damaged_secret_is_issued_anew() {
    let secrets = Secrets::default();
    let (_server, client) = secrets.serve().await;
    ensure(&client, &settings(), at(BEGIN)).await.unwrap();
    for key in ["tls.crt", "tls.key", "state.json", "ca.crt"] {
        secrets.damage(TLS_SECRET, key);
        let issued = ensure(&client, &settings(), at(BEGIN + 60)).await.unwrap();
        assert_eq!(issued.written, [TLS_SECRET], "{key}");
    }
    for key in ["ca.crt", "ca.key", "state.json"] {
        secrets.damage(CA_SECRET, key);
        let issued = ensure(&client, &settings(), at(BEGIN + 60)).await.unwrap();
        assert_eq!(issued.written, [CA_SECRET, TLS_SECRET], "{key}");
    }
    assert!(ensure(&client, &settings(), at(BEGIN + 60)).await.unwrap().written.is_empty());
}

#[tokio::test]
async fn another_writer_and_a_missing_right_are_told_apart() {
    let secrets = Secrets::default();
    let (_server, client) = secrets.serve().await;
    let contended = CertificateSettings { tls_secret: "contended".into(), ..settings() };
    ensure(&client, &contended, at(BEGIN)).await.unwrap();
    secrets.damage("contended", "tls.crt");
    let conflict = ensure(&client, &contended, at(BEGIN)).await.unwrap_err();
    assert!(matches!(&conflict, CertificateError::Conflict { name } if name == "contended"), "{conflict}");
    let forbidden = CertificateSettings { ca_secret: "forbidden".into(), ..settings() };
    let error = ensure(&client, &forbidden, at(BEGIN)).await.unwrap_err();
    assert_eq!(error.to_string(), "cannot create Secret forbidden");
}

#[tokio::test]
async fn renewal_keeps_the_old_ca_trusted() {
    let secrets = Secrets::default();
    let (_server, client) = secrets.serve().await;
    let first = ensure(&client, &settings(), at(BEGIN)).await.unwrap();
    let later = BEGIN + 250 * 24 * 3_600;
    let renewed = ensure(&client, &settings(), at(later)).await.unwrap();
    let (old, new) = (String::from_utf8(first.ca_pem).unwrap(), String::from_utf8(renewed.ca_pem).unwrap());
    assert!(new.ends_with(&old) && new.len() > old.len());
    assert_eq!(new.matches("BEGIN CERTIFICATE").count(), 2);
}
