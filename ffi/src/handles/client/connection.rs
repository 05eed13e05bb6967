//! Connecting to servers: their addresses, a token, TLS. For clients and followers.

use crate::abi::error::invalid;
use crate::abi::pointers::{bytes_of, text, text_or_none};
use chiplog::Result;
use chiplog_net::client::{ClientTls, Secret};
use std::ffi::{c_char, c_void};

/// # Safety
/// `token` is NULL or a C string.
pub(crate) unsafe fn secret(token: *const c_char) -> Result<Option<Secret>> {
    let token = text_or_none(token, "token")?;
    Ok((!token.is_empty()).then(|| token.into()))
}

type Pem = (*const c_void, usize);

/// # Safety
/// Each is as [`bytes_of`] requires.
pub(crate) unsafe fn tls(authority: Pem, certificate: Pem, key: Pem) -> Result<Option<ClientTls>> {
    if authority.0.is_null() {
        return match (certificate.0.is_null(), key.0.is_null()) {
            (true, true) => Ok(None),
            (false, _) => Err(invalid("tls_certificate is set without tls_authority: set both")),
            _ => Err(invalid("tls_key is set without tls_authority: set both")),
        };
    }
    match (certificate.0.is_null(), key.0.is_null()) {
        (false, true) => return Err(invalid("tls_certificate is set without tls_key: set both")),
        (true, false) => return Err(invalid("tls_key is set without tls_certificate: set both")),
        _ => {}
    }
    let given_certificate = certificate.0;
    let pem = |(data, length): Pem, name: &str| {
        bytes_of(data, length, || (name.to_owned(), format!("{name}_length"))).map(<[u8]>::to_vec)
    };
    let (authority, certificate, key) =
        (pem(authority, "tls_authority")?, pem(certificate, "tls_certificate")?, pem(key, "tls_key")?);
    let has_identity = !given_certificate.is_null();
    if authority.is_empty() || has_identity && (certificate.is_empty() || key.is_empty()) {
        return Err(invalid("tls_authority, tls_certificate or tls_key is empty"));
    }
    Ok(Some(ClientTls { authority, identity: has_identity.then_some((certificate, key)) }))
}

/// # Safety
/// `servers` is NULL or points to `count` C strings.
pub(crate) unsafe fn addresses(servers: *const *const c_char, count: usize) -> Result<Vec<String>> {
    if count == 0 || servers.is_null() {
        return Err(invalid("no address of a server: pass at least one host:port"));
    }
    (0..count).map(|n| text(*servers.add(n), "a server's address").map(str::to_owned)).collect()
}
