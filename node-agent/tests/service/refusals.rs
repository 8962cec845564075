use node_agent_proto::v1::node_facts_client::NodeFactsClient;
use node_agent_proto::v1::{GetRequest, WatchRequest};
use tonic::transport::Endpoint;
use tonic::{Code, Request};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use crate::rig::{Authority, Rig, with_token};

#[tokio::test]
async fn a_caller_without_the_operators_token_is_refused_with_the_reason() {
    let authority = Authority::new();
    let rig = Rig::start(&authority).await;
    let mut client = rig.client(&authority).await;

    let none = client.get(Request::new(GetRequest {})).await.unwrap_err();
    assert_eq!((none.code(), none.message().contains("found none")), (Code::Unauthenticated, true));
    assert_eq!(rig.reviews(), 0, "nothing to review");

    let audience = client.get(with_token(GetRequest {}, "other-audience")).await.unwrap_err();
    assert_eq!(audience.code(), Code::Unauthenticated);
    assert!(audience.message().contains("for audience \"fathom-node-agent\": token audiences"), "{audience}");

    let account = client.watch(with_token(WatchRequest::default(), "other-account")).await.unwrap_err();
    assert_eq!(account.code(), Code::PermissionDenied);
    assert!(account.message().contains("found one of system:serviceaccount:default:default"), "{account}");

    client.get(with_token(GetRequest {}, "good")).await.expect("the right one is still served");
}

#[tokio::test]
async fn a_token_is_reviewed_once_for_many_calls() {
    let authority = Authority::new();
    let rig = Rig::start(&authority).await;
    let mut client = rig.client(&authority).await;
    for _ in 0..20 {
        client.get(with_token(GetRequest {}, "good")).await.unwrap();
    }
    let calls = (0..20).map(|_| {
        let mut client = client.clone();
        async move { client.get(with_token(GetRequest {}, "other-account")).await.unwrap_err().code() }
    });
    let mut tasks: tokio::task::JoinSet<Code> = calls.collect();
    while let Some(code) = tasks.join_next().await {
        assert_eq!(code.unwrap(), Code::PermissionDenied);
    }
    // At most as many at once as the agent allows.
    assert!((2..=5).contains(&rig.reviews()), "{}", rig.reviews());
}

#[tokio::test]
async fn plaintext_and_another_ca_are_refused_and_the_right_caller_is_served() {
    let authority = Authority::new();
    let rig = Rig::start(&authority).await;
    let plain = Endpoint::from_shared(format!("http://{}", rig.grpc)).unwrap();
    let refused = match plain.connect().await {
        Ok(channel) => NodeFactsClient::new(channel).get(with_token(GetRequest {}, "good")).await.is_err(),
        Err(_) => true,
    };
    assert!(refused);
    assert!(rig.channel(&Authority::new().pem).await.is_err());
    rig.client(&authority).await.get(with_token(GetRequest {}, "good")).await.unwrap();
}

#[tokio::test]
async fn health_needs_no_token_and_tells_no_facts() {
    let authority = Authority::new();
    let rig = Rig::start(&authority).await;
    let mut health = HealthClient::new(rig.channel(&authority.pem).await.unwrap());
    let request = HealthCheckRequest { service: "fathom.node.v1.NodeFacts".into() };
    let answer = health.check(request).await.unwrap().into_inner();
    assert_eq!(answer.status(), tonic_health::pb::health_check_response::ServingStatus::Serving);
    assert_eq!(rig.reviews(), 0);
}

#[tokio::test]
async fn reflection_names_the_services_to_whoever_asks() {
    let authority = Authority::new();
    let rig = Rig::start(&authority).await;
    let mut reflection = ServerReflectionClient::new(rig.channel(&authority.pem).await.unwrap());
    let list = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let answers = reflection.server_reflection_info(tokio_stream::iter([list])).await.unwrap();
    let answer = answers.into_inner().message().await.unwrap().unwrap().message_response;
    let Some(MessageResponse::ListServicesResponse(listed)) = answer else { panic!("{answer:?}") };
    let names: Vec<String> = listed.service.into_iter().map(|service| service.name).collect();
    for expected in ["fathom.node.v1.NodeFacts", "grpc.health.v1.Health"] {
        assert!(names.iter().any(|name| name == expected), "{names:?}");
    }
}
