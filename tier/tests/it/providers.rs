//! Requests to the other providers and their answers: there is no server of theirs here.

use crate::scripted_server::{Answer, ScriptedServer};
use chiplog::ErrorKind;
use chiplog::vault::Vault;
use chiplog_tier::{ObjectVault, VaultOptions};
use std::time::Duration;

fn options(server: &ScriptedServer) -> VaultOptions {
    let options = VaultOptions::default().endpoint(server.endpoint().to_owned()).allow_http(true);
    options.timeout(Duration::from_secs(20)).retries(1)
}

fn azure(server: &ScriptedServer) -> ObjectVault {
    let options = options(server).access_key("account".to_owned()).secret_key("a2V5".to_owned());
    ObjectVault::open("az://container/p", options).unwrap()
}

fn google(server: &ScriptedServer) -> ObjectVault {
    // An emulator's account, which needs no token.
    let account = r#"{"private_key": "", "private_key_id": "", "client_email": "", "disable_oauth": true}"#;
    ObjectVault::open("gs://bucket/p", options(server).secret_key(account.to_owned())).unwrap()
}

#[test]
fn azure_gets_its_requests_and_errors() {
    let server = ScriptedServer::start(|n, _| match n {
        0 => Answer::Http(201, "ETag: \"1\"\r\n", Vec::new()),
        1 => Answer::Http(409, "x-ms-error-code: BlobAlreadyExists\r\n", Vec::new()),
        2 => Answer::Http(404, "x-ms-error-code: BlobNotFound\r\n", Vec::new()),
        3 => Answer::Http(201, "ETag: \"1\"\r\n", Vec::new()),
        4 => Answer::Http(404, "x-ms-error-code: ContainerNotFound\r\n", Vec::new()),
        5 => Answer::Http(403, "x-ms-error-code: AuthenticationFailed\r\n", Vec::new()),
        _ => Answer::Http(202, "", Vec::new()),
    });
    let vault = azure(&server);
    vault.put("o/7", &["x".into()]).unwrap();
    assert!(vault.create("root", "x".into()).unwrap()); // 409, nothing there, made
    assert_eq!(vault.put("o/7", &["x".into()]).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(vault.put("o/7", &["x".into()]).unwrap_err().kind(), ErrorKind::PermissionDenied);
    let lines = server.lines();
    assert_eq!(lines[0], "PUT /container/p/o/7");
    assert_eq!(lines[1..4], ["PUT /container/p/root", "HEAD /container/p/root", "PUT /container/p/root"]);
}

#[test]
fn google_gets_its_requests_and_errors() {
    let server = ScriptedServer::start(|n, request| match (n, &*request.method) {
        (1, _) => Answer::code(412, "PreconditionFailed"),
        (2, _) => Answer::code(404, "NoSuchKey"),
        (4, _) => Answer::code(404, "NoSuchBucket"),
        (5, _) => Answer::code(403, "AccessDenied"),
        (_, "DELETE") => Answer::code(404, "NoSuchKey"),
        _ => Answer::put(),
    });
    let vault = google(&server);
    vault.put("o/7", &["x".into()]).unwrap();
    assert!(vault.create("root", "x".into()).unwrap());
    assert_eq!(vault.put("o/7", &["x".into()]).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(vault.put("o/7", &["x".into()]).unwrap_err().kind(), ErrorKind::PermissionDenied);
    vault.delete("o/7").unwrap();
    let lines = server.lines();
    assert_eq!(lines[0], "PUT /bucket/p%2Fo%2F7");
    assert_eq!(lines[1..4], ["PUT /bucket/p%2Froot", "HEAD /bucket/p%2Froot", "PUT /bucket/p%2Froot"]);
}
