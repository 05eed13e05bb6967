//! Logs: which log is meant, where servers tell of several. Pure.

use crate::wire::proto::v1::ServerInfoResponse;
use std::collections::BTreeSet;

/// The log that is meant, of those that these servers, each with the address at which it answered, tell of. None: they tell of
/// one at most, or nothing says which is meant.
///
/// A server whose directory was lost, and which was made a cluster of its own, stands where the members of the log that it had
/// list it, and lists none of them: its log is not meant.
pub(crate) fn meant_log(told: &[(&str, &ServerInfoResponse)]) -> Option<String> {
    let logs: BTreeSet<&str> =
        told.iter().map(|(_, t)| t.log_id.as_str()).filter(|l| !l.is_empty()).collect();
    if logs.len() < 2 {
        return None;
    }
    let is_usurper = |log: &str| {
        logs.iter().any(|other| *other != log && lists(told, other, log) && !lists(told, log, other))
    };
    let mut meant = logs.iter().filter(|log| !is_usurper(log));
    meant.next().filter(|_| meant.next().is_none()).map(|log| (*log).to_owned())
}

/// Whether the members of `log` list a server of `other`.
fn lists(told: &[(&str, &ServerInfoResponse)], log: &str, other: &str) -> bool {
    let servers = || told.iter().filter(|(_, t)| t.log_id == log).flat_map(|(_, t)| &t.servers);
    let listed = |address: &str| servers().any(|s| s.address == address);
    let own = |t: &ServerInfoResponse| t.servers.iter().any(|s| s.node == t.node && listed(&s.address));
    told.iter().filter(|(_, t)| t.log_id == other).any(|(address, t)| listed(address) || own(t))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::proto::v1::Server;

    /// Node `node` of this log, which lists these nodes.
    fn told(log: &str, node: u64, lists: &[u64]) -> ServerInfoResponse {
        let server = |n: &u64| Server { node: *n, address: format!("h{n}:1"), ..Server::default() };
        let servers = lists.iter().map(server).collect();
        ServerInfoResponse { log_id: log.into(), node, servers, ..ServerInfoResponse::default() }
    }

    #[test]
    fn log_in_the_place_of_a_member_is_not_meant() {
        let (first, third) = (told("a", 1, &[1, 2, 3]), told("b", 3, &[3]));
        for address in ["h3:1", "alias:1"] {
            let both = [(address, &third), ("h1:1", &first)];
            assert_eq!(meant_log(&both).as_deref(), Some("a"), "{address}");
        }
        // A majority was made again: what is left of the old log is meant all the same.
        let (second, third) = (told("b", 2, &[2, 3]), told("b", 3, &[2, 3]));
        let all = [("h2:1", &second), ("h3:1", &third), ("h1:1", &first)];
        assert_eq!(meant_log(&all).as_deref(), Some("a"));
    }

    #[test]
    fn nothing_tells_of_logs_that_do_not_know_each_other() {
        let (first, other) = (told("a", 1, &[1, 2, 3]), told("b", 7, &[7]));
        assert_eq!(meant_log(&[("h1:1", &first), ("h7:1", &other)]), None);
        assert_eq!(meant_log(&[("h1:1", &first)]), None);
        let older = told("", 2, &[1, 2, 3]);
        assert_eq!(meant_log(&[("h1:1", &first), ("h2:1", &older)]), None);
    }
}
