//! Methods: the role that each method of the services needs.
//!
//! The role of a method is defined in [`METHODS`] alone. CONTRIBUTING.md lists the other places of a new method.
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

/// The requirement of a method.
///
/// ```
/// use chiplog_net::listener::auth::roles::{METHODS, Needs, Role};
/// let needs = |method: &str| METHODS.iter().find(|(name, _)| *name == method).map(|(_, needs)| *needs);
/// assert_eq!(needs("/logspec.Log/Append"), Some(Needs::Role(Role::Append)));
/// assert_eq!(needs("/grpc.health.v1.Health/Check"), Some(Needs::Nothing));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// No token: probes have none, and learn only whether the server is healthy.
    Nothing,
    /// A token of this role.
    Role(Role),
}

const READ: Needs = Needs::Role(Role::Read);
const APPEND: Needs = Needs::Role(Role::Append);
const ADMIN: Needs = Needs::Role(Role::Admin);

/// The role that each method needs. Discarding destroys data that others rely on: it needs more than appending.
pub const METHODS: &[(&str, Needs)] = &[
    ("/logspec.Log/Append", APPEND),
    ("/logspec.Log/Discard", ADMIN),
    ("/logspec.Log/Read", READ),
    ("/logspec.Log/Info", READ),
    ("/logspec.Log/InfoStream", READ),
    ("/chiplog.v1.Log/Append", APPEND),
    ("/chiplog.v1.Log/Read", READ),
    ("/chiplog.v1.Log/Discard", ADMIN),
    ("/chiplog.v1.Log/Info", READ),
    ("/chiplog.v1.Log/Watch", READ),
    ("/chiplog.v1.Log/OpenSession", APPEND),
    ("/chiplog.v1.Log/CloseSession", APPEND),
    ("/chiplog.v1.Log/ServerInfo", READ),
    ("/chiplog.v1.Follow/Follow", READ),
    ("/chiplog.v1.Admin/Status", READ),
    ("/chiplog.v1.Admin/Init", ADMIN),
    ("/chiplog.v1.Admin/Join", ADMIN),
    ("/chiplog.v1.Admin/ChangeMembers", ADMIN),
    ("/chiplog.v1.Admin/TransferLeader", ADMIN),
    ("/chiplog.v1.Admin/LogOptions", READ),
    ("/chiplog.v1.Admin/SetLogOptions", ADMIN),
    ("/chiplog.v1.Admin/Scrub", ADMIN),
    ("/chiplog.v1.Admin/CreateLog", ADMIN),
    ("/chiplog.v1.Admin/DeleteLog", ADMIN),
    ("/chiplog.v1.Admin/SealLog", ADMIN),
    ("/chiplog.v1.Admin/ListLogs", READ),
    ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", READ),
    ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", READ),
    ("/grpc.health.v1.Health/Check", Needs::Nothing),
    ("/grpc.health.v1.Health/Watch", Needs::Nothing),
];
