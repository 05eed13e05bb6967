//! Logs: which log to use if servers report several. Pure.

use crate::wire::proto::v1::ServerInfoResponse;
use std::collections::BTreeSet;

/// Returns the log to use, of those that these servers report; each answer comes with the address that gave it. None:
/// they report at most one log, or it is unclear which one to use.
///
/// A server whose directory was lost, and that was made a new cluster, answers at an address that members of the old
/// log list, and lists none of them. Its log is not chosen.
pub(crate) fn meant_log(info: &[(&str, &ServerInfoResponse)]) -> Option<String> {
    let logs: BTreeSet<&str> =
        info.iter().map(|(_, t)| t.log_id.as_str()).filter(|l| !l.is_empty()).collect();
    if logs.len() < 2 {
        return None;
    }
    let is_usurper = |log: &str| {
        logs.iter().any(|other| *other != log && lists(info, other, log) && !lists(info, log, other))
    };
    let mut meant = logs.iter().filter(|log| !is_usurper(log));
    meant.next().filter(|_| meant.next().is_none()).map(|log| (*log).to_owned())
}

/// Whether the members of `log` include a server that has `other`.
fn lists(info: &[(&str, &ServerInfoResponse)], log: &str, other: &str) -> bool {
    let servers = || info.iter().filter(|(_, t)| t.log_id == log).flat_map(|(_, t)| &t.servers);
    let listed = |address: &str| servers().any(|s| s.address == address);
    let own = |t: &ServerInfoResponse| t.servers.iter().any(|s| s.node == t.node && listed(&s.address));
    info.iter().filter(|(_, t)| t.log_id == other).any(|(address, t)| listed(address) || own(t))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::proto::v1::Server;

    /// The answer of node `node` of this log, which lists these nodes.
    fn info(log: &str, node: u64, lists: &[u64]) -> ServerInfoResponse {
        let server = |n: &u64| Server { node: *n, address: format!("h{n}:1"), ..Server::default() };
        let servers = lists.iter().map(server).collect();
        ServerInfoResponse { log_id: log.into(), node, servers, ..ServerInfoResponse::default() }
    }

    #[test]
    fn log_at_a_members_address_is_not_chosen() {
        let (first, third) = (info("a", 1, &[1, 2, 3]), info("b", 3, &[3]));
        for address in ["h3:1", "alias:1"] {
            let both = [(address, &third), ("h1:1", &first)];
            assert_eq!(meant_log(&both).as_deref(), Some("a"), "{address}");
        }
        // A new majority was formed: what is left of the old log is still chosen.
        let (second, third) = (info("b", 2, &[2, 3]), info("b", 3, &[2, 3]));
        let all = [("h2:1", &second), ("h3:1", &third), ("h1:1", &first)];
        assert_eq!(meant_log(&all).as_deref(), Some("a"));
    }

    #[test]
    fn unrelated_logs_leave_the_choice_open() {
        let (first, other) = (info("a", 1, &[1, 2, 3]), info("b", 7, &[7]));
        assert_eq!(meant_log(&[("h1:1", &first), ("h7:1", &other)]), None);
        assert_eq!(meant_log(&[("h1:1", &first)]), None);
        let older = info("", 2, &[1, 2, 3]);
        assert_eq!(meant_log(&[("h1:1", &first), ("h2:1", &older)]), None);
    }
}
