//! Makes keys and certificates.
//! In: who issues, how long it holds. Out: PEM. Never: a certificate that is good for more than its purpose.

use std::time::Duration;

use node_agent_proto::SERVER_NAME;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

use super::CertificateError;
use super::decide::Life;

/// Clocks of nodes differ.
const EARLIER: i64 = 300;

/// Certificate and key of a new CA.
pub(super) fn authority(life: Life) -> Result<(String, String), CertificateError> {
    let key = KeyPair::generate()?;
    let mut params = params(Vec::new(), life)?;
    // Two CAs at a time are told apart by their names too.
    params.distinguished_name.push(DnType::CommonName, format!("{SERVER_NAME} CA {}", life.begins));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
}

/// Certificate and key of the agents.
pub(super) fn server(ca: &str, ca_key: &str, life: Life) -> Result<(String, String), CertificateError> {
    let issuer = Issuer::from_ca_cert_pem(ca, KeyPair::from_pem(ca_key)?)?;
    let key = KeyPair::generate()?;
    let mut params = params(vec![SERVER_NAME.to_owned()], life)?;
    params.distinguished_name.push(DnType::CommonName, SERVER_NAME);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    Ok((params.signed_by(&key, &issuer)?.pem(), key.serialize_pem()))
}

fn params(names: Vec<String>, life: Life) -> Result<CertificateParams, CertificateError> {
    let time = |seconds: i64| {
        let since = u64::try_from(seconds).ok().filter(|&since| since < YEAR_9999);
        let since = since.ok_or(CertificateError::Time { seconds })?;
        Ok::<_, CertificateError>(date_time_ymd(1970, 1, 1) + Duration::from_secs(since))
    };
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.not_before = time(life.begins - EARLIER)?;
    params.not_after = time(life.ends)?;
    Ok(params)
}

/// Dates of certificates have four digits for the year.
const YEAR_9999: u64 = 253_370_764_800;
