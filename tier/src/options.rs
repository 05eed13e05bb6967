//! Options of a vault. Values.

use chiplog::options;
use std::fmt;
use std::time::Duration;

options! {
    /// How a vault reaches its store. Options that are not set come from the store's usual environment variables; an option wins
    /// over a variable. `Debug` shows no secret.
    ///
    /// | store | variables |
    /// |---|---|
    /// | S3 | `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION`, `AWS_ENDPOINT_URL`, `AWS_ALLOW_HTTP`; without keys, the role of the machine or container (`AWS_WEB_IDENTITY_TOKEN_FILE`, `AWS_CONTAINER_CREDENTIALS_RELATIVE_URI`, instance metadata). `~/.aws` is not read |
    /// | Google Cloud Storage | `GOOGLE_SERVICE_ACCOUNT` (a file), `GOOGLE_SERVICE_ACCOUNT_KEY`, `GOOGLE_APPLICATION_CREDENTIALS`; without them, the machine's account |
    /// | Azure | `AZURE_STORAGE_ACCOUNT_NAME`, `AZURE_STORAGE_ACCOUNT_KEY`, `AZURE_STORAGE_SAS_KEY`, `AZURE_STORAGE_CLIENT_ID` …; without them, the machine's identity |
    /// | all over HTTP | `HTTPS_PROXY`, `HTTP_PROXY`, `NO_PROXY`; `SSL_CERT_FILE` for certificates of your own authority |
    ///
    /// ```
    /// use chiplog_tier::VaultOptions;
    /// use std::time::Duration;
    /// let options = VaultOptions::default()
    ///     .endpoint("http://127.0.0.1:9000".to_owned())
    ///     .allow_http(true)
    ///     .access_key("me".to_owned())
    ///     .secret_key("hidden".to_owned())
    ///     .timeout(Duration::from_secs(10));
    /// assert!(!format!("{options:?}").contains("hidden"));
    /// ```
    #[derive(Clone)]
    pub struct VaultOptions {
        /// The URL of the service, for S3 of another provider than Amazon, and for emulators; default: the provider's own.
        pub endpoint: Option<String>,
        /// The region of an S3 bucket; default `us-east-1`.
        pub region: Option<String>,
        /// S3: the access key's id. Azure: the name of the storage account.
        pub access_key: Option<String>,
        /// S3: the secret access key. Azure: the account's key. Google Cloud Storage: the service account's key, as JSON.
        pub secret_key: Option<String>,
        /// S3: the session token of temporary credentials.
        pub session_token: Option<String>,
        /// Whether the endpoint may be plain `http://`, which shows objects to the network; default: no.
        pub allow_http: bool,
        /// The time limit of a request with all its attempts, default 30 s, 50 ms to 1 h. A larger call has this for each
        /// 8 MiB, a list for each page. An attempt to which the store answers nothing for half of it, for each 8 MiB that it
        /// sends, is given up, also while bytes go up: with the default, uploads of large objects need 2.5 MB/s, because four
        /// parts go up at a time. Set more on a slower link.
        pub timeout: Duration,
        /// How often a failed request is made again within the time limit, default 8, up to 100. The waits between begin
        /// with 100 ms and grow to 5 s, with jitter.
        pub retries: u32,
    }
}

impl Default for VaultOptions {
    fn default() -> Self {
        Self {
            endpoint: None,
            region: None,
            access_key: None,
            secret_key: None,
            session_token: None,
            allow_http: false,
            timeout: Duration::from_secs(30),
            retries: 8,
        }
    }
}

impl fmt::Debug for VaultOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoint, region, access_key, secret_key, session_token, allow_http, timeout, retries } =
            self;
        let hide = |secret: &Option<String>| secret.as_ref().map(|_| "…");
        f.debug_struct("VaultOptions")
            .field("endpoint", endpoint)
            .field("region", region)
            .field("access_key", access_key)
            .field("secret_key", &hide(secret_key))
            .field("session_token", &hide(session_token))
            .field("allow_http", allow_http)
            .field("timeout", timeout)
            .field("retries", retries)
            .finish()
    }
}

/// Whether a variable says yes, as `object_store` reads it.
pub(crate) fn is_true(text: &str) -> bool {
    ["1", "true", "on", "yes", "y"].iter().any(|yes| text.eq_ignore_ascii_case(yes))
}
