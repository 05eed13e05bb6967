//! How a server is reached: the options of a `ServerVault`. Shows no secret.
//!
//! Must not know: the network.

use chiplog::options;
use std::fmt;
use std::time::Duration;

options! {
    /// How a [`ServerVault`](crate::ServerVault) reaches its server. `Debug` shows no secret.
    ///
    /// ```
    /// use chiplog_tier::ServerVaultOptions;
    /// let options = ServerVaultOptions::default().token("secret".to_owned());
    /// assert!(!format!("{options:?}").contains("secret"));
    /// ```
    #[derive(Clone)]
    pub struct ServerVaultOptions {
        /// The authority that has signed the server's certificate (PEM); default: those of the machine.
        pub authority: Option<Vec<u8>>,
        /// This client's certificate and its key (PEM), if the server requires one.
        pub identity: Option<(Vec<u8>, Vec<u8>)>,
        /// A token of the role `read` without a scope, if the server requires one.
        pub token: Option<String>,
        /// Send the token also to other machines without TLS; default: no.
        pub token_in_plain_text: bool,
        /// How long a call may go without a byte that arrives, with all its attempts, default 30 s, 50 ms to 1 h.
        pub timeout: Duration,
    }
}

impl Default for ServerVaultOptions {
    fn default() -> Self {
        Self {
            authority: None,
            identity: None,
            token: None,
            token_in_plain_text: false,
            timeout: Duration::from_secs(30),
        }
    }
}

impl fmt::Debug for ServerVaultOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerVaultOptions")
            .field("has_token", &self.token.is_some())
            .field("token_in_plain_text", &self.token_in_plain_text)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
