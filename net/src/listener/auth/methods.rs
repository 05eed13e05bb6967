//! Methods: the role that each method of the services needs, and what it reaches.
//!
//! Both are defined in [`METHODS`] alone, and for plain HTTP in [`requirement`]. CONTRIBUTING.md lists the other places of a new method.
//!
//! Must not know: tokens, connections.

use std::fmt;
use std::str::FromStr;

/// The permissions of a token. Each role includes those before it.
///
/// ```
/// use chiplog_net::listener::auth::roles::Role;
/// assert!(Role::Admin > Role::Append && Role::Append > Role::Read);
/// assert_eq!("append".parse::<Role>().unwrap(), Role::Append);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Role {
    /// Read records and positions, and the state of the cluster.
    Read = 1,
    /// Append, in sessions or without.
    Append = 2,
    /// Discard records; change the cluster.
    Admin = 3,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 3] = [Self::Read, Self::Append, Self::Admin];

    /// The name in token files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Append => "append",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let found = Self::ALL.into_iter().find(|role| role.name() == text);
        found.ok_or_else(|| format!("{text:?} is not a role; use read, append or admin"))
    }
}

/// The logs and servers that a method reaches: it decides about tokens with a scope, a list of prefixes of log names.
///
/// ```
/// use chiplog_net::listener::auth::roles::{METHODS, Needs, Reach, Role};
/// let members = METHODS.iter().find(|(name, _)| *name == "/chiplog.v1.Admin/ChangeMembers");
/// assert_eq!(members.unwrap().1, Needs::Role(Role::Admin, Reach::Server));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The logs that the request names. The service claims each of them from the caller, which refuses those outside its
    /// scope.
    Logs,
    /// The servers and the leader of the log that the request names. Those of the default log and of the system log can be
    /// found with every scope.
    Leaders,
    /// The log of the listener, which the service claims: the default log, which is in no scope, or a named log.
    Port,
    /// All of a server or of a group, or the cluster: for tokens without a scope.
    Server,
    /// No log: for every token.
    NoLog,
}

/// The requirement of a method.
///
/// ```
/// use chiplog_net::listener::auth::roles::{METHODS, Needs, Reach, Role};
/// let needs = |method: &str| METHODS.iter().find(|(name, _)| *name == method).map(|(_, needs)| *needs);
/// assert_eq!(needs("/chiplog.v1.Log/Append"), Some(Needs::Role(Role::Append, Reach::Logs)));
/// assert_eq!(needs("/grpc.health.v1.Health/Check"), Some(Needs::Nothing));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// No token: probes have none, and learn only whether the server is healthy.
    Nothing,
    /// A token of this role, whose scope has what the method reaches.
    Role(Role, Reach),
}

const fn read(reach: Reach) -> Needs {
    Needs::Role(Role::Read, reach)
}

const fn append(reach: Reach) -> Needs {
    Needs::Role(Role::Append, reach)
}

const fn admin(reach: Reach) -> Needs {
    Needs::Role(Role::Admin, reach)
}

/// The role that each method needs, and what it reaches. Discarding destroys data that others rely on: it needs more than
/// appending.
pub const METHODS: &[(&str, Needs)] = &[
    ("/logspec.Log/Append", append(Reach::Port)),
    ("/logspec.Log/Discard", admin(Reach::Port)),
    ("/logspec.Log/Read", read(Reach::Port)),
    ("/logspec.Log/Info", read(Reach::Port)),
    ("/logspec.Log/InfoStream", read(Reach::Port)),
    ("/chiplog.v1.Log/Append", append(Reach::Logs)),
    ("/chiplog.v1.Log/AppendTogether", append(Reach::Logs)),
    ("/chiplog.v1.Log/Read", read(Reach::Logs)),
    ("/chiplog.v1.Log/Discard", admin(Reach::Logs)),
    ("/chiplog.v1.Log/Info", read(Reach::Logs)),
    ("/chiplog.v1.Log/Watch", read(Reach::Logs)),
    ("/chiplog.v1.Log/OpenSession", append(Reach::Logs)),
    ("/chiplog.v1.Log/CloseSession", append(Reach::Logs)),
    ("/chiplog.v1.Log/ServerInfo", read(Reach::Leaders)),
    ("/chiplog.v1.Follow/Follow", read(Reach::Logs)),
    ("/chiplog.v1.Follow/ReadObject", read(Reach::Logs)),
    ("/chiplog.v1.Follow/ObjectSize", read(Reach::Logs)),
    ("/chiplog.v1.Admin/Status", read(Reach::Leaders)),
    ("/chiplog.v1.Admin/Init", admin(Reach::Server)),
    ("/chiplog.v1.Admin/Join", admin(Reach::Server)),
    ("/chiplog.v1.Admin/ChangeMembers", admin(Reach::Server)),
    ("/chiplog.v1.Admin/TransferLeader", admin(Reach::Server)),
    ("/chiplog.v1.Admin/LogOptions", read(Reach::Server)),
    ("/chiplog.v1.Admin/SetLogOptions", admin(Reach::Server)),
    ("/chiplog.v1.Admin/CutObjects", admin(Reach::Server)),
    ("/chiplog.v1.Admin/Scrub", admin(Reach::Server)),
    ("/chiplog.v1.Admin/CreateLog", admin(Reach::Logs)),
    ("/chiplog.v1.Admin/DeleteLog", admin(Reach::Logs)),
    ("/chiplog.v1.Admin/SealLog", admin(Reach::Logs)),
    ("/chiplog.v1.Admin/ListLogs", read(Reach::Logs)),
    ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", read(Reach::NoLog)),
    ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", read(Reach::NoLog)),
    ("/grpc.health.v1.Health/Check", Needs::Nothing),
    ("/grpc.health.v1.Health/Watch", Needs::Nothing),
];

/// The path of objects over plain HTTP. Paths of single ones continue it.
pub(crate) const OBJECTS: &str = "/v1/objects";
/// The path of sealed segments over plain HTTP. Paths of their files continue it.
pub(crate) const SEGMENTS: &str = "/v1/segments";

/// Whether this path is for plain HTTP. All others are for gRPC.
pub(crate) fn is_plain_http(path: &str) -> bool {
    plain_http(path).is_some()
}

/// The path for plain HTTP that this one is, or continues.
fn plain_http(path: &str) -> Option<&'static str> {
    let is_within = |folder: &&str| {
        path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    [OBJECTS, SEGMENTS].into_iter().find(is_within)
}

/// The method at a path, and what it needs. None: there is none. Objects and segments have the records of all logs of a group: they are for
/// tokens without a scope.
pub(crate) fn requirement(path: &str) -> Option<(&'static str, Needs)> {
    if let Some(path) = plain_http(path) {
        return Some((path, read(Reach::Server)));
    }
    METHODS.iter().copied().find(|(method, _)| *method == path)
}
