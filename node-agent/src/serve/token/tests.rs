use k8s_openapi::api::authentication::v1::UserInfo;

use super::*;

/// Never asked: these tests judge and remember.
fn tokens() -> Tokens {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let nowhere = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let client = kube::Client::try_from(nowhere).unwrap();
    Tokens::new(client, "fathom-node-agent".into(), ("fathom-system", "fathom-operator"))
}

const ACCOUNT: &str = "system:serviceaccount:fathom-system:fathom-operator";

fn status(username: &str, audiences: &[&str]) -> TokenReviewStatus {
    TokenReviewStatus {
        authenticated: Some(true),
        audiences: Some(audiences.iter().map(|name| (*name).to_owned()).collect()),
        user: Some(UserInfo { username: Some(username.into()), ..UserInfo::default() }),
        error: None,
    }
}

#[tokio::test]
async fn only_the_exact_account_with_a_token_for_this_audience_is_admitted() {
    let tokens = tokens();
    let judge = |status| tokens.judge(status).map_err(|refusal| Status::from(refusal).code());
    assert_eq!(judge(status(ACCOUNT, &["fathom-node-agent"])), Ok(()));
    let denied = Err(tonic::Code::PermissionDenied);
    for other in [&format!("{ACCOUNT}2"), "system:serviceaccount:other:fathom-operator", "admin", ""] {
        assert_eq!(judge(status(other, &["fathom-node-agent"])), denied, "{other}");
    }
    let unknown = Err(tonic::Code::Unauthenticated);
    assert_eq!(judge(status(ACCOUNT, &["https://kubernetes.default.svc"])), unknown);
    assert_eq!(judge(status(ACCOUNT, &[])), unknown);
    assert_eq!(judge(TokenReviewStatus::default()), unknown);
    let refused = TokenReviewStatus { authenticated: Some(false), ..status(ACCOUNT, &["fathom-node-agent"]) };
    assert_eq!(judge(refused), unknown);
}

#[tokio::test]
async fn a_verdict_is_remembered_for_a_bounded_time_and_a_refusal_for_less() {
    let (tokens, now) = (tokens(), Instant::now());
    let refusal = Refusal::Invalid { audience: "a".into(), reason: "b".into() };
    tokens.remember("good", Ok(()), now);
    tokens.remember("bad", Err(refusal.clone()), now);
    assert_eq!(tokens.recall("good", now + BELIEVED - Duration::from_millis(1)), Some(Ok(())));
    assert_eq!(tokens.recall("good", now + BELIEVED), None);
    assert_eq!(tokens.recall("bad", now), Some(Err(refusal)));
    assert_eq!(tokens.recall("bad", now + REFUSED), None);
    assert_eq!(tokens.recall("unheard of", now), None);
}

#[tokio::test]
async fn strangers_with_many_tokens_push_out_each_other_and_not_the_good_one() {
    let (tokens, now) = (tokens(), Instant::now());
    tokens.remember("good", Ok(()), now);
    for number in 0..2 * MAX_REMEMBERED {
        let refusal = Refusal::Invalid { audience: "a".into(), reason: "b".into() };
        tokens.remember(&format!("bad-{number}"), Err(refusal), now);
    }
    assert_eq!(tokens.remembered.lock().unwrap().len(), MAX_REMEMBERED);
    assert_eq!(tokens.recall("good", now), Some(Ok(())));
}

#[test]
fn a_call_carries_one_bearer_token() {
    let mut metadata = MetadataMap::new();
    assert!(bearer(&metadata).unwrap_err().message().contains("found none"));
    for wrong in ["", "Bearer", "Bearer ", "Basic abc", "bearer abc"] {
        metadata.insert("authorization", wrong.parse().unwrap());
        assert_eq!(bearer(&metadata).unwrap_err().code(), tonic::Code::Unauthenticated, "{wrong:?}");
    }
    metadata.insert("authorization", format!("Bearer {}", "a".repeat(MAX_TOKEN_BYTES + 1)).parse().unwrap());
    assert!(bearer(&metadata).is_err());
    metadata.insert("authorization", "Bearer abc".parse().unwrap());
    assert_eq!(bearer(&metadata).unwrap(), "abc");
}
