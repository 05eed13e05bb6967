//! Opening a vault: options, and what is refused.

use chiplog::ErrorKind;
use chiplog_tier::{ObjectVault, VaultOptions};
use std::time::Duration;

#[test]
fn wrong_options_are_named() {
    let options = VaultOptions::default;
    let http = "http://127.0.0.1:9";
    let cases = [
        (options().timeout(Duration::ZERO), "timeout"),
        (options().timeout(Duration::from_secs(9_999)), "timeout"),
        (options().retries(101), "retries"),
        (options().access_key("key".to_owned()), "secret_key"),
        (options().endpoint(http.to_owned()), "allow_http"),
        (options().endpoint("127.0.0.1:9".to_owned()), "endpoint"),
        (options().endpoint("ftp://host".to_owned()), "endpoint"),
        (options().endpoint("https://key:hidden@host".to_owned()), "endpoint"),
    ];
    for location in ["s3://bucket/p", "gs://bucket", "az://container/p"] {
        for (options, named) in &cases {
            let error = ObjectVault::open(location, options.clone()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            let text = error.to_string();
            assert!(text.contains(named) && !text.contains("hidden"), "{text}");
        }
    }
}

#[test]
fn wrong_locations_are_refused() {
    for location in ["", "bucket", "s3://", "ftp://bucket", "s3://b//p", "s3://b/\u{7f}"] {
        let error = ObjectVault::open(location, VaultOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{location}: {error}");
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = ObjectVault::open(file.path().to_str().unwrap(), VaultOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(error.to_string().contains(file.path().to_str().unwrap()), "{error}");
}

#[test]
fn all_providers_open_without_a_request() {
    let options = VaultOptions::default().access_key("account".to_owned()).secret_key("a2V5".to_owned());
    ObjectVault::open("s3://bucket/p", options.clone()).unwrap();
    ObjectVault::open("s3://bucket--use1-az4--x-s3/p", options.clone()).unwrap();
    ObjectVault::open("az://container/p", options).unwrap();
    ObjectVault::open("gs://bucket/p", VaultOptions::default()).unwrap();
}

#[test]
fn no_secret_is_shown() {
    let options = VaultOptions::default()
        .access_key("key".to_owned())
        .secret_key("hidden".to_owned())
        .session_token("hidden".to_owned());
    let vault = ObjectVault::open("s3://bucket/p", options.clone()).unwrap();
    let shown = format!("{options:?} {vault:?} {vault:#?}");
    assert!(shown.contains("s3://bucket/p") && shown.contains("\"key\""), "{shown}");
    assert!(!shown.contains("hidden"), "{shown}");
}
