//! Missing log: when servers that say that there is no such log are believed.
//!
//! One server that has just started can still have no log of the name, or the one that had the name before. So it takes more servers than half
//! of the addresses that were asked. Some of these can be second names of a server, or names that nothing answers to any more. So it can
//! also be more than half of the servers that the answers name, if they are more than the addresses that no answer knows: a cluster that was
//! emptied and made again, while its other servers are silent, does not decide. Each server counts once, by its number.

use crate::wire::proto::v1::ServerInfoResponse;
use std::collections::BTreeSet;

/// The answers of one round that say that there is no such log.
#[derive(Debug, Default)]
pub(super) struct MissingLog {
    /// The numbers of the servers that say so.
    servers: BTreeSet<u64>,
    /// The numbers of all servers that they name.
    named: BTreeSet<u64>,
    /// The addresses of these, and of all that say so, copies among them.
    addresses: BTreeSet<String>,
    /// How many copies say so.
    copies: usize,
}

impl MissingLog {
    /// The server at `address` says so.
    pub(super) fn note(&mut self, address: &str, info: &ServerInfoResponse) {
        self.addresses.insert(address.to_owned());
        if info.follows {
            self.copies += 1;
            return;
        }
        self.servers.insert(info.node);
        self.named.insert(info.node);
        self.named.extend(info.servers.iter().map(|server| server.node));
        self.addresses.extend(info.servers.iter().map(|server| server.address.clone()));
    }

    /// Whether there is no such log, by the answers of the servers at these addresses. Copies count if no server says anything about it.
    pub(super) fn is_believed(&self, asked: &BTreeSet<String>) -> bool {
        if self.servers.is_empty() {
            return 2 * self.copies > asked.len();
        }
        let count = self.servers.len();
        let silent = self.named.len() - count;
        let unknown = asked.difference(&self.addresses).count();
        2 * count > asked.len() || count > silent.max(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::proto::v1::Server;

    /// Whether servers with these numbers are believed, of a cluster of three at addresses `a1` to `a3`, if these addresses were asked.
    fn believed(say: &[(u64, &str)], asked: &[&str]) -> bool {
        let mut missing = MissingLog::default();
        for (node, address) in say {
            let server = |node| Server { node, address: format!("a{node}"), ..Server::default() };
            let servers = (1..=3).map(server).collect();
            missing.note(address, &ServerInfoResponse { node: *node, servers, ..Default::default() });
        }
        missing.is_believed(&asked.iter().map(|address| (*address).to_owned()).collect())
    }

    /// All servers started again, and the first one that listened had the log that had the name before: the client gave up.
    #[test]
    fn most_servers_say_that_there_is_no_log() {
        let all = ["a1", "a2", "a3"];
        assert!(!believed(&[], &all));
        assert!(!believed(&[(1, "a1")], &all));
        assert!(believed(&[(1, "a1"), (2, "a2")], &all));
        assert!(believed(&[(1, "a1")], &["a1"]), "the client was given one server");
    }

    /// A client that was given a second name of a server counted it as another server: it waited until its time-out.
    #[test]
    fn addresses_are_no_servers() {
        let all = ["a1", "a2", "a3", "alias"];
        assert!(believed(&[(1, "a1"), (2, "a2")], &all), "nothing answers at the fourth address");
        assert!(!believed(&[(1, "a1"), (1, "alias")], &all), "one server at two addresses");
        assert!(believed(&[(1, "a1"), (1, "alias"), (3, "a3")], &all));
    }

    /// One of the servers was emptied and made a cluster of its own, and the others are silent.
    #[test]
    fn a_new_cluster_of_one_is_not_believed() {
        let mut missing = MissingLog::default();
        missing.note("a1", &ServerInfoResponse { node: 1, ..Default::default() });
        let asked = |all: &[&str]| all.iter().map(|address| (*address).to_owned()).collect();
        assert!(!missing.is_believed(&asked(&["a1", "a2", "a3"])));
        assert!(missing.is_believed(&asked(&["a1"])));
    }

    #[test]
    fn copies_beside_servers_do_not_count() {
        let asked: BTreeSet<String> = ["a1", "c1", "c2"].map(str::to_owned).into();
        let mut missing = MissingLog::default();
        for address in ["c1", "c2"] {
            missing.note(address, &ServerInfoResponse { follows: true, ..Default::default() });
        }
        missing.note("a1", &ServerInfoResponse { node: 1, ..Default::default() });
        assert!(missing.is_believed(&asked));
    }

    #[test]
    fn copies_count_if_no_server_answers() {
        let mut missing = MissingLog::default();
        let asked: BTreeSet<String> = ["c1", "c2", "c3"].map(str::to_owned).into();
        for address in ["c1", "c2"] {
            assert!(!missing.is_believed(&asked));
            missing.note(address, &ServerInfoResponse { follows: true, ..Default::default() });
        }
        assert!(missing.is_believed(&asked));
    }
}
