//! Caller: decides which logs a call may reach, and notes those that it reached: when the scope of its token changes, the
//! call ends unless it may still reach them.
//!
//! ```text
//! access layer ──> Caller, in the request's extensions ──> LogSlot::find, peek, replica: a log is found for a caller alone
//!      └── new tokens ──> rescope
//! ```
//!
//! Invariants:
//! - A log is refused before it is looked up: the answer is the same whether or not it exists.
//! - A call that is still without a log gets the new scope. So no log is claimed by a scope that was replaced.
//!
//! Must not know: tokens, services.

use crate::served::log_names::{DEFAULT_LOG, SYSTEM_LOG};
use crate::served::refusals::{Refusal, Refusals};
use crate::served::scope::Scope;
use crate::wire::status::to_status;
use chiplog::{Error, ErrorKind};
use http::Extensions;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tonic::Status;

/// Tells the holders of different tokens apart.
pub(crate) type Identity = [u8; 32];

/// The caller of one call. Cheap to clone: all clones are the same call. The default is one without a token where none are
/// configured: it may reach everything.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caller {
    call: Option<Arc<Call>>,
}

#[derive(Debug)]
struct Call {
    method: &'static str,
    identity: Identity,
    /// The call is about the servers and the leader of a log. Every client needs to find those of the default log and of
    /// the system log: their leaders know the others, and create logs.
    finds_leaders: bool,
    refusals: Arc<Refusals>,
    reach: Mutex<Reach>,
}

#[derive(Debug)]
struct Reach {
    scope: Scope,
    /// The names of the logs that were claimed.
    claimed: BTreeSet<String>,
    /// The call's answer depends on all of the scope.
    is_answer: bool,
}

impl Caller {
    /// A call by a token that reaches these logs with this method.
    pub(crate) fn new(
        method: &'static str,
        identity: Identity,
        scope: Scope,
        finds_leaders: bool,
        refusals: Arc<Refusals>,
    ) -> Self {
        let reach = Mutex::new(Reach { scope, claimed: BTreeSet::new(), is_answer: false });
        Self { call: Some(Arc::new(Call { method, identity, finds_leaders, refusals, reach })) }
    }

    /// The caller of a request.
    pub(crate) fn of(extensions: &Extensions) -> Self {
        extensions.get::<Self>().cloned().unwrap_or_default()
    }

    /// Whether the caller had to prove that it may call.
    pub(crate) fn is_proven(&self) -> bool {
        self.call.is_some()
    }

    /// The token of the call, for comparison with others. None: no tokens are configured.
    pub(crate) fn identity(&self) -> Option<Identity> {
        self.call.as_ref().map(|call| call.identity)
    }

    /// Counts that the call was refused because others of its token have the token's share.
    pub(crate) fn refused_its_share(&self) {
        self.call.iter().for_each(|call| _ = call.refusals.count(Refusal::CallsOfToken));
    }

    /// Notes that the call reaches a log. Empty: the default log.
    ///
    /// # Errors
    /// PERMISSION_DENIED: the token's scope does not have the log.
    pub(crate) fn claim(&self, log: &str) -> Result<(), Status> {
        let Some(call) = &self.call else { return Ok(()) };
        if call.finds_leaders && matches!(log, "" | DEFAULT_LOG | SYSTEM_LOG) {
            return Ok(());
        }
        let mut reach = call.locked();
        if !reach.scope.has(log) {
            return Err(call.denied(&named(log), &reach.scope));
        }
        if !reach.claimed.contains(log) {
            reach.claimed.insert(log.to_owned());
        }
        Ok(())
    }

    /// Prefixes, in order and disjoint: all names that begin with `prefix` and that the call may list begin with one of
    /// them.
    ///
    /// # Errors
    /// PERMISSION_DENIED: the token's scope has no such name.
    pub(crate) fn claim_names(&self, prefix: &str) -> Result<Vec<String>, Status> {
        let Some(call) = &self.call else { return Ok(vec![prefix.to_owned()]) };
        let mut reach = call.locked();
        let prefixes = reach.scope.below(prefix);
        if prefixes.is_empty() {
            return Err(call.denied(&format!("logs that begin with {prefix:?}"), &reach.scope));
        }
        reach.is_answer = true;
        Ok(prefixes)
    }

    /// Whether the call may learn about the whole server.
    pub(crate) fn may_see_everything(&self) -> bool {
        let Some(call) = &self.call else { return true };
        let mut reach = call.locked();
        reach.is_answer = true;
        reach.scope.is_everything()
    }

    /// The token has this scope from now on.
    ///
    /// # Errors
    /// PERMISSION_DENIED: the call has reached a log that is not in it, or its answer depends on the old one.
    pub(crate) fn rescope(&self, scope: Scope) -> Result<(), Status> {
        let Some(call) = &self.call else { return Ok(()) };
        let mut reach = call.locked();
        let old = std::mem::replace(&mut reach.scope, scope);
        if reach.is_answer && reach.scope != old {
            return Err(
                call.refused(format!("{}: the scope of this token has changed; call again", call.method))
            );
        }
        match reach.claimed.iter().find(|log| !reach.scope.has(log)) {
            Some(log) => Err(call.denied(&named(log), &reach.scope)),
            None => Ok(()),
        }
    }
}

impl Call {
    fn locked(&self) -> MutexGuard<'_, Reach> {
        self.reach.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn denied(&self, logs: &str, scope: &Scope) -> Status {
        self.refused(format!(
            "{} of {logs}: this token reaches only named logs that begin with {scope}; use one of these, or another token",
            self.method
        ))
    }

    fn refused(&self, what: String) -> Status {
        self.refusals.count(Refusal::PermissionDenied);
        to_status(&Error::new(ErrorKind::PermissionDenied, what), None)
    }
}

/// A log in a message.
fn named(log: &str) -> String {
    format!("log {:?}", if log.is_empty() { DEFAULT_LOG } else { log })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    fn scope(prefix: &str) -> Scope {
        Scope::of([prefix]).unwrap()
    }

    fn caller(finds_leaders: bool) -> (Caller, Arc<Refusals>) {
        let refusals = Arc::<Refusals>::default();
        (Caller::new("/a/B", [1; 32], scope("a"), finds_leaders, refusals.clone()), refusals)
    }

    #[test]
    fn log_outside_the_scope_is_refused_by_name_and_counted() {
        let (caller, refusals) = caller(false);
        caller.claim("a").unwrap();
        for (log, shown) in
            [("b", "\"b\""), ("", "\"default\""), ("default", "\"default\""), (SYSTEM_LOG, "_")]
        {
            let status = caller.claim(log).unwrap_err();
            assert_eq!(status.code(), Code::PermissionDenied);
            let text = status.message();
            assert!(
                text.contains(shown) && text.contains("/a/B") && text.contains("begin with a;"),
                "{text}"
            );
        }
        assert_eq!(caller.claim_names("").unwrap(), ["a"]);
        assert!(caller.claim_names("b").is_err() && !caller.may_see_everything());
        assert_eq!(refusals.read(Refusal::PermissionDenied), 5);
        assert!(Caller::default().claim("").is_ok() && Caller::default().may_see_everything());
    }

    #[test]
    fn leaders_of_the_logs_of_every_server_can_be_found() {
        let (caller, _) = caller(true);
        for log in ["", "default", SYSTEM_LOG, "a1"] {
            caller.claim(log).unwrap();
        }
        for log in ["b", "_group-1"] {
            assert!(caller.claim(log).is_err(), "{log}");
        }
        caller.rescope(scope("a1")).unwrap();
    }

    #[test]
    fn call_ends_with_the_scope_that_had_its_log() {
        let (caller, refusals) = caller(false);
        caller.rescope(scope("b")).unwrap(); // it is still without a log
        assert!(caller.claim("a1").is_err(), "the scope was replaced");
        caller.claim("b1").unwrap();
        caller.rescope(scope("b1")).unwrap();
        caller.rescope(Scope::default()).unwrap();
        assert!(caller.rescope(scope("b2")).unwrap_err().message().contains("\"b1\""));
        assert!(caller.claim("b1").is_err(), "the call has ended, and claims nothing more");
        assert_eq!(refusals.read(Refusal::PermissionDenied), 3);
    }

    #[test]
    fn answer_of_an_old_scope_is_not_sent() {
        let (caller, _) = caller(false);
        caller.claim_names("").unwrap();
        caller.rescope(scope("a")).unwrap();
        assert_eq!(caller.rescope(scope("a1")).unwrap_err().code(), Code::PermissionDenied);
    }
}
