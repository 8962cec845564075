use super::*;

const DAY: i64 = 24 * 3_600;
const BEGIN: i64 = 1_900_000_000;

fn settings() -> CertificateSettings {
    CertificateSettings::new("fathom-system".into())
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

/// Both Secrets, as one look after the other leaves them.
#[derive(Default)]
struct Stored {
    authority: Option<AuthorityState>,
    server: Option<ServerState>,
}

impl Stored {
    /// Looks once; which of the two were written.
    fn look(&mut self, settings: &CertificateSettings, now: i64) -> (bool, bool) {
        let renewed = authority(self.authority.as_ref(), settings, at(now)).unwrap();
        let wrote_authority = renewed.is_some();
        self.authority = renewed.or(self.authority.take());
        let renewed = server(self.server.as_ref(), self.authority(), settings, at(now)).unwrap();
        let wrote_server = renewed.is_some();
        self.server = renewed.or(self.server.take());
        (wrote_authority, wrote_server)
    }

    fn authority(&self) -> &AuthorityState {
        self.authority.as_ref().unwrap()
    }

    fn server(&self) -> &ServerState {
        self.server.as_ref().unwrap()
    }

    fn issued_by(&self, place: usize) -> bool {
        hash(&[&self.authority().trusted[place].pem]) == self.server().issuer
    }
}

#[test]
fn what_was_issued_holds_until_two_thirds_of_its_life() {
    let (settings, mut stored) = (settings(), Stored::default());
    assert_eq!(stored.look(&settings, BEGIN), (true, true));
    for day in [0, 1, 59] {
        assert_eq!(stored.look(&settings, BEGIN + day * DAY), (false, false), "day {day}");
    }
    let first = stored.server().clone();
    assert_eq!(stored.look(&settings, BEGIN + 60 * DAY), (false, true));
    assert!(stored.server().certificate != first.certificate && stored.server().key != first.key);
}

#[test]
fn a_new_ca_joins_the_old_and_issues_only_after_it_has_been_trusted_for_a_while() {
    let (settings, mut stored) = (settings(), Stored::default());
    stored.look(&settings, BEGIN);
    let renewal = BEGIN + 365 * DAY / 3 * 2;
    // The server's certificate is due at the very moment at which the CA is renewed.
    stored.server = None;
    assert_eq!(stored.look(&settings, renewal), (true, true));
    assert_eq!(stored.authority().trusted.len(), 2);
    assert!(stored.issued_by(1), "by the old one");
    stored.server = None;
    stored.look(&settings, renewal + DAY);
    assert!(stored.issued_by(0), "by the new one");
    let end_of_old = BEGIN + 365 * DAY;
    stored.look(&settings, end_of_old);
    assert_eq!((stored.authority().trusted.len(), &stored.authority().old_key), (1, &None));
}

/// Callers know the bundle of one look ago; agents show the certificate of one look ago. In three years of looks, whatever
/// the settings, no pair of them disagrees.
#[track_caller]
fn check_years(settings: &CertificateSettings, step: i64) {
    let mut stored = Stored::default();
    stored.look(settings, BEGIN);
    let (mut known, mut shown) = (stored.authority().clone(), stored.server().clone());
    let mut now = BEGIN;
    while now < BEGIN + 3 * 365 * DAY {
        now += step;
        stored.look(settings, now);
        assert!(stored.authority().trusted.len() <= 3);
        for (bundle, server) in [(&known, stored.server()), (stored.authority(), &shown)] {
            assert!(server.life.ends > now, "an ended certificate is shown at {now}");
            let trusted =
                bundle.trusted.iter().any(|ca| hash(&[&ca.pem]) == server.issuer && ca.life.ends > now);
            assert!(trusted, "a certificate that its caller does not trust at {now}");
        }
        (known, shown) = (stored.authority().clone(), stored.server().clone());
    }
}

#[test]
fn at_no_time_does_a_caller_meet_a_certificate_that_it_does_not_trust() {
    check_years(&settings(), DAY);
    let short = CertificateSettings {
        ca_life: Duration::from_secs(40 * 24 * 3_600),
        server_life: Duration::from_secs(30 * 24 * 3_600),
        trusted_before_use: Duration::from_secs(2 * 24 * 3_600),
        ..settings()
    };
    check_years(&short, DAY);
}

#[test]
fn a_certificate_never_outlives_its_ca() {
    let longer = CertificateSettings { server_life: Duration::from_secs(1_000 * 24 * 3_600), ..settings() };
    let mut stored = Stored::default();
    stored.look(&longer, BEGIN);
    assert_eq!(stored.server().life.ends, stored.authority().trusted[0].life.ends);
}

#[test]
fn after_a_long_sleep_everything_is_issued_anew() {
    let (settings, mut stored) = (settings(), Stored::default());
    stored.look(&settings, BEGIN);
    assert_eq!(stored.look(&settings, BEGIN + 400 * DAY), (true, true));
    assert_eq!((stored.authority().trusted.len(), &stored.authority().old_key), (1, &None));
    assert!(stored.issued_by(0));
}

#[test]
fn a_clock_that_went_back_does_not_leave_certificates_of_the_future() {
    let (settings, mut stored) = (settings(), Stored::default());
    stored.look(&settings, BEGIN);
    assert_eq!(stored.look(&settings, BEGIN - DAY), (true, true));
}

#[test]
fn the_next_look_is_when_something_is_due_and_at_least_every_hour() {
    let (settings, mut stored) = (settings(), Stored::default());
    stored.look(&settings, BEGIN);
    let next = |now| next_check(stored.authority(), stored.server.as_ref(), &settings, at(now)).as_secs();
    assert_eq!(next(BEGIN), 3_600);
    assert_eq!(next(BEGIN + 60 * DAY - 7), 7);
    assert!(next(BEGIN + 60 * DAY) <= 3_600);
}

#[test]
fn a_time_that_fits_no_certificate_is_an_error() {
    let endless = CertificateSettings { ca_life: Duration::MAX, ..settings() };
    assert!(matches!(authority(None, &endless, at(BEGIN)), Err(CertificateError::Time { .. })));
}
