//! Reload: certificates and tokens, read again while the server runs: periodically and on SIGHUP.
//!
//! Invariants:
//! - Files that cannot be used change nothing: the previous ones stay in use, and the log and the metrics
//!   report it until it is fixed.
//! - Files that belong together are used together or not at all: a new certificate waits for its key.
//! - Files are read twice with a pause before they are used: a file that is still being written is waited
//!   for.
//!
//! Must not know: the parts of TLS.

use super::config::{Auth, Tls};
use crate::common::failure::{Failure, Result};
use chiplog::NodeId;
use chiplog_net::listener::auth::roles::{Access, Tokens};
use chiplog_net::listener::tls::{Identity, ServerTls, Validity};
use chiplog_net::peer::{PeerTls, PeerTransport};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// The counters for metrics. All accesses are relaxed: they order nothing.
#[derive(Debug, Default)]
pub(super) struct Reloads {
    /// Sets of files that were replaced.
    pub(super) done: AtomicU64,
    /// Checks that found unusable files.
    pub(super) failed: AtomicU64,
    /// Sets of files that are unusable now; the previous ones are in use.
    pub(super) broken: AtomicU64,
    /// The certificates in use, by configuration key: the last second of validity of each, since 1970.
    expiries: Mutex<BTreeMap<&'static str, u64>>,
}

impl Reloads {
    /// The key of each certificate in use, and its last second of validity, since 1970.
    pub(super) fn expiries(&self) -> Vec<(String, u64)> {
        let expiries = self.expiries.lock().unwrap_or_else(PoisonError::into_inner);
        expiries.iter().map(|(key, at)| ((*key).to_owned(), *at)).collect()
    }

    /// Records that this certificate, in PEM, is in use now.
    fn uses(&self, key: &'static str, certificate: &[u8]) {
        if let Ok(Validity { not_after, .. }) = Validity::of(certificate) {
            self.expiries.lock().unwrap_or_else(PoisonError::into_inner).insert(key, not_after);
        }
    }
}

/// A set of files that can be reloaded.
trait Reloadable: Send {
    /// Checks whether the files changed, and uses them. `aloud`: also reports what was reported before.
    fn look(&mut self, aloud: bool, reloads: &Reloads);
    fn is_broken(&self) -> bool;
}

/// The pause between two reads that have to agree before their result is used.
const SETTLED: Duration = Duration::from_millis(250);
/// How often files are read that change every time.
const LOOKS_MAX: usize = 20;

type Load<T> = dyn Fn() -> Result<T> + Send;
type Apply<T> = dyn Fn(&T) -> chiplog::Result<()> + Send;

struct Watched<T> {
    name: &'static str,
    load: Box<Load<T>>,
    apply: Box<Apply<T>>,
    used: T,
    /// The error of the files, if they cannot be used.
    trouble: Option<String>,
}

impl<T: PartialEq> Watched<T> {
    /// Reads the files until two reads agree. Blocks meanwhile.
    fn settled(&self) -> Result<T> {
        let mut found = (self.load)();
        if found.as_ref().is_ok_and(|new| *new == self.used) {
            return found;
        }
        for _ in 0..LOOKS_MAX {
            thread::sleep(SETTLED);
            let again = (self.load)();
            let agree = match (&found, &again) {
                (Ok(found), Ok(again)) => found == again,
                (Err(found), Err(again)) => found.to_string() == again.to_string(),
                _ => false,
            };
            if agree {
                return again;
            }
            found = again;
        }
        Err(Failure::usage("the files keep changing"))
    }
}

impl<T: PartialEq + Send> Reloadable for Watched<T> {
    fn look(&mut self, aloud: bool, reloads: &Reloads) {
        let name = self.name;
        let applied = match self.settled() {
            Ok(new) if new == self.used => {
                if self.trouble.take().is_some() {
                    tracing::info!(name, "the files equal those in use again");
                }
                return;
            }
            Ok(new) => (self.apply)(&new).map(|()| new).map_err(|e| e.to_string()),
            Err(failure) => Err(failure.to_string()),
        };
        match applied {
            Ok(new) => {
                (self.used, self.trouble) = (new, None);
                reloads.done.fetch_add(1, Ordering::Relaxed);
                tracing::info!(name, "reloaded; new connections and calls use it");
            }
            Err(why) => {
                reloads.failed.fetch_add(1, Ordering::Relaxed);
                if aloud || self.trouble.as_ref() != Some(&why) {
                    tracing::error!(name, why, "reload failed; still using the previous one");
                }
                self.trouble = Some(why);
            }
        }
    }

    fn is_broken(&self) -> bool {
        self.trouble.is_some()
    }
}

/// All sets of files that can be reloaded.
#[derive(Default)]
pub(super) struct Reloader {
    things: Vec<Box<dyn Reloadable>>,
    reloads: Arc<Reloads>,
}

impl Reloader {
    pub(super) fn reloads(&self) -> &Arc<Reloads> {
        &self.reloads
    }

    /// The TLS of the listener for clients, if configured.
    pub(super) fn clients(&mut self, tls: &Tls) -> Result<Option<Arc<ServerTls>>> {
        let (Some(certificate), Some(key)) = (tls.certificate.clone(), tls.key.clone()) else {
            return Ok(None);
        };
        let authority = tls.client_authority.clone();
        let load = move || {
            let authority = authority.as_ref().map(|file| read("tls.client_authority", file)).transpose()?;
            let certificate = read("tls.certificate", &certificate)?;
            Ok(Identity { certificate, key: read("tls.key", &key)?, authority })
        };
        let used = load()?;
        let server = ServerTls::new(&used)
            .map_err(|e| Failure::usage(format!("tls.certificate, tls.key and tls.client_authority: {e}")))?;
        self.reloads.uses("tls.certificate", &used.certificate);
        let apply = {
            let (server, reloads) = (server.clone(), self.reloads.clone());
            move |new: &Identity| {
                server.replace(new)?;
                reloads.uses("tls.certificate", &new.certificate);
                Ok(())
            }
        };
        self.watch("tls for clients", load, apply, used);
        Ok(Some(server))
    }

    /// Loads the certificates between replicas, if configured, and checks that they work together and belong
    /// to this node. `node` 0: the number is not known yet.
    pub(super) fn peers(tls: &Tls, node: u64) -> Result<Option<PeerTls>> {
        let Some(used) = load_peers(tls).transpose()? else { return Ok(None) };
        let PeerTls { certificate, key, authority } = used.clone();
        let identity = Identity { certificate, key, authority: Some(authority) };
        ServerTls::new(&identity).map_err(|e| {
            Failure::usage(format!("tls.peer_certificate, tls.peer_key and tls.peer_authority: {e}"))
        })?;
        if node > 0 {
            let wrong = |e| Failure::usage(format!("tls.peer_certificate and tls.peer_authority: {e}"));
            used.check(NodeId(node)).map_err(wrong)?;
        }
        Ok(Some(used))
    }

    /// Watches them, once the transport of this node uses them.
    pub(super) fn watch_peers(
        &mut self,
        tls: &Tls,
        node: NodeId,
        used: PeerTls,
        transport: Arc<PeerTransport>,
    ) {
        self.reloads.uses("tls.peer_certificate", &used.certificate);
        let (tls, reloads) = (tls.clone(), self.reloads.clone());
        let gone = || Failure::usage("tls between replicas is not configured");
        let load = move || load_peers(&tls).unwrap_or_else(|| Err(gone()));
        self.watch(
            "tls between replicas",
            load,
            move |new: &PeerTls| {
                new.check(node)?;
                transport.replace_tls(new.clone())?;
                reloads.uses("tls.peer_certificate", &new.certificate);
                Ok(())
            },
            used,
        );
    }

    /// The authorization of calls.
    pub(super) fn access(
        &mut self,
        auth: &Auth,
        refusals: Arc<chiplog_net::served::refusals::Refusals>,
    ) -> Result<Arc<Access>> {
        let Some(file) = auth.tokens.clone() else { return Ok(Arc::new(Access::new(None, refusals))) };
        let load = move || {
            let text =
                fs::read_to_string(&file).map_err(|e| Failure::option_file("auth.tokens", &file, &e))?;
            text.parse::<Tokens>().map_err(|e| Failure::usage(format!("{}: {e}", file.display())))
        };
        let used = load()?;
        let access = Arc::new(Access::new(Some(used.clone()), refusals));
        let apply = {
            let access = access.clone();
            move |new: &Tokens| {
                access.replace(new.clone());
                Ok(())
            }
        };
        self.watch("tokens", load, apply, used);
        Ok(access)
    }

    fn watch<T: PartialEq + Send + 'static>(
        &mut self,
        name: &'static str,
        load: impl Fn() -> Result<T> + Send + 'static,
        apply: impl Fn(&T) -> chiplog::Result<()> + Send + 'static,
        used: T,
    ) {
        let (load, apply) = (Box::new(load), Box::new(apply));
        self.things.push(Box::new(Watched { name, load, apply, used, trouble: None }));
    }

    fn look(&mut self, aloud: bool) {
        self.things.iter_mut().for_each(|thing| thing.look(aloud, &self.reloads));
        let broken = self.things.iter().filter(|thing| thing.is_broken()).count();
        self.reloads.broken.store(broken as u64, Ordering::Relaxed);
    }

    /// Checks the files periodically and on request, until the server ends.
    pub(super) async fn run(
        mut self,
        every: Option<Duration>,
        request: Arc<Notify>,
        mut ending: watch::Receiver<bool>,
    ) {
        loop {
            let due = async {
                match every {
                    Some(time) => tokio::time::sleep(time).await,
                    None => std::future::pending().await,
                }
            };
            let aloud = tokio::select! {
                () = due => false,
                () = request.notified() => true,
                _ = ending.wait_for(|e| *e) => return,
            };
            if aloud {
                tracing::info!(things = self.things.len(), "reload of certificates and tokens requested");
            }
            let looking = tokio::task::spawn_blocking(move || {
                self.look(aloud);
                self
            });
            match looking.await {
                Ok(this) => self = this,
                Err(_) => {
                    tracing::error!("the reload panicked: certificates and tokens stay as they are");
                    return;
                }
            }
        }
    }
}

fn load_peers(tls: &Tls) -> Option<Result<PeerTls>> {
    let (certificate, key, authority) =
        (tls.peer_certificate.as_ref()?, tls.peer_key.as_ref()?, tls.peer_authority.as_ref()?);
    let all = || {
        let certificate = read("tls.peer_certificate", certificate)?;
        let (key, authority) = (read("tls.peer_key", key)?, read("tls.peer_authority", authority)?);
        Ok(PeerTls { certificate, key, authority })
    };
    Some(all())
}

/// Reads the file that a key names.
fn read(key: &str, path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|e| Failure::option_file(key, path, &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_files_are_counted_and_change_nothing() {
        let (file, applied) = (Arc::new(Mutex::new(Some(1))), Arc::new(Mutex::new(Vec::new())));
        let mut reloader = Reloader::default();
        let load = {
            let file = file.clone();
            move || file.lock().unwrap().ok_or_else(|| Failure::usage("unreadable"))
        };
        let apply = {
            let applied = applied.clone();
            move |new: &i32| {
                if *new < 0 {
                    return Err(chiplog::Error::new(chiplog::ErrorKind::InvalidArgument, "negative"));
                }
                applied.lock().unwrap().push(*new);
                Ok(())
            }
        };
        reloader.watch("a number", load, apply, 1);
        let reloads = reloader.reloads().clone();
        for (found, done, failed, broken) in [
            (Some(1), 0, 0, 0),
            (Some(2), 1, 0, 0),
            (Some(2), 1, 0, 0),
            (None, 1, 1, 1),
            (Some(-1), 1, 2, 1),
            (Some(2), 1, 2, 0), // unchanged
            (Some(-1), 1, 3, 1),
            (Some(3), 2, 3, 0),
        ] {
            *file.lock().unwrap() = found;
            reloader.look(false);
            let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
            assert_eq!(
                (read(&reloads.done), read(&reloads.failed), read(&reloads.broken)),
                (done, failed, broken)
            );
        }
        assert_eq!(*applied.lock().unwrap(), [2, 3]);
    }

    /// A file that was still being written was used incompletely: a file of tokens that ended after a line
    /// was in use until the next check.
    #[test]
    fn file_still_being_written_is_waited_for() {
        let found = ["a", "a b", "unreadable", "a b c", "a b c"];
        let (looks, applied) = (Arc::new(Mutex::new(found.into_iter())), Arc::new(Mutex::new(Vec::new())));
        let mut reloader = Reloader::default();
        let load = {
            let looks = looks.clone();
            move || match looks.lock().unwrap().next() {
                Some("unreadable") => Err(Failure::usage("unreadable")),
                Some(text) => Ok(text.to_owned()),
                None => Ok("a b c".to_owned()),
            }
        };
        let apply = {
            let applied = applied.clone();
            move |new: &String| {
                applied.lock().unwrap().push(new.clone());
                Ok(())
            }
        };
        reloader.watch("a text", load, apply, "old".to_owned());
        reloader.look(false);
        reloader.look(false);
        let reloads = reloader.reloads();
        let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
        assert_eq!((read(&reloads.done), read(&reloads.failed), read(&reloads.broken)), (1, 0, 0));
        assert_eq!(*applied.lock().unwrap(), ["a b c"]);
    }
}
