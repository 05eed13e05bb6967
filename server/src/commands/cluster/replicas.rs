//! Text that `status` and `top` share.

use std::fmt::Write as _;

/// The log and its leader, as text. `answered`: whether any server answered.
pub(crate) fn title(log_id: Option<&str>, leader: Option<u64>, answered: bool) -> (String, String) {
    let none = if answered { "no leader" } else { "leader unknown" };
    let leader = leader.map_or(none.into(), |n| format!("node {n} leads"));
    let unknown = if answered { "not made yet" } else { "unknown" };
    (format!("log {}", log_id.unwrap_or(unknown)), leader)
}

/// The problems of replicas, one per line: why a node takes no appends, why it does not answer.
pub(crate) fn complaints<'a>(
    replicas: impl IntoIterator<Item = (Option<u64>, &'a Option<String>, &'a Option<String>)>,
) -> String {
    let mut out = String::new();
    for (node, poison, error) in replicas {
        for what in [poison, error].into_iter().flatten() {
            _ = writeln!(out, "{}: {what}", node.map_or("a server".into(), |n| format!("node {n}")));
        }
    }
    out
}

pub(crate) fn number(n: Option<u64>) -> String {
    n.map_or("-".into(), |n| n.to_string())
}

pub(crate) fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".into() } else { text.into() }
}
