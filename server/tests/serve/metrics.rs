//! Compares the metrics of `/metrics` with docs/metrics.md and with what was done.

use crate::harness::{Server, fed, leader, run, started, three, wait};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A metric's kind and labels, by name.
type Metrics = BTreeMap<String, (String, BTreeSet<String>)>;

/// The metrics that the page lists.
fn documented() -> Metrics {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    let text = std::fs::read_to_string(page).unwrap();
    let code =
        |cell: &str| -> Vec<String> { cell.split('`').skip(1).step_by(2).map(str::to_owned).collect() };
    let mut all = Metrics::new();
    for line in text.lines().filter(|line| line.starts_with("| `chiplog_")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, labels, what] = cells[..] else { panic!("{line}") };
        assert!(!what.is_empty(), "{line}");
        let name = code(name).remove(0);
        let before = all.insert(name.clone(), (kind.to_owned(), code(labels).into_iter().collect()));
        assert!(before.is_none(), "{name} is in the page twice");
    }
    all
}

/// The metrics that a server reports.
fn served(text: &str) -> Metrics {
    let mut all = Metrics::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').unwrap();
        let total = if kind == "counter" { "_total" } else { "" };
        all.insert(format!("{name}{total}"), (kind.to_owned(), BTreeSet::new()));
    }
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        let name = base.filter(|base| all.contains_key(*base)).unwrap_or(name);
        let (_, known) = all.get_mut(name).unwrap_or_else(|| panic!("{line} has no type"));
        let names = labels.trim_end_matches('}').split(',').filter_map(|label| label.split_once('='));
        known.extend(names.map(|(name, _)| name.to_owned()).filter(|name| name != "le"));
    }
    all
}

fn value(text: &str, series: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.and_then(|v| v.parse().ok()).unwrap_or_else(|| panic!("{series}: {text}"))
}

#[test]
fn page_lists_the_metrics_of_a_server() {
    let dir = tempfile::tempdir().unwrap();
    let servers = three(dir.path());
    let all: Vec<&Server> = servers.iter().collect();
    let leads = &servers[leader(&all) as usize - 1];
    let follows = servers.iter().find(|s| s.node != leads.node).unwrap();
    fed(&["append", &leads.client, "--batch", "10"], &"a line\n".repeat(1000)).ok();

    let (code, text) = leads.page("/metrics");
    assert_eq!(code, 200);
    let (mut documented, served) = (documented(), served(&text));
    // Only servers with certificates have it: a test of TLS checks it.
    let expires = documented.remove("chiplog_certificate_expires_timestamp_seconds");
    assert_eq!(expires, Some(("gauge".into(), BTreeSet::from(["certificate".into()]))));
    // Only servers that keep named logs have these: the next test checks them.
    documented.retain(|name, _| !name.starts_with("chiplog_group_"));
    for (name, metric) in &documented {
        assert_eq!(served.get(name), Some(metric), "{name}: left: server, right: page");
    }
    for name in served.keys() {
        assert!(documented.contains_key(name), "{name} is missing in docs/metrics.md");
        let unit = ["_bytes", "_seconds", "_total", "_index", "_entries", "_info"];
        let plain = [
            "ready",
            "connections",
            "reload_broken",
            "streams",
            "segments",
            "sessions",
            "poisoned",
            "damaged_places",
            "damaged_objects",
            "unstored_list",
            "store_failing",
            "queue_appends",
            "copies",
            "answers_waiting",
            "calls",
            "connections_max",
        ];
        let more = ["role", "leader", "term", "peer_active", "peer_connected"];
        let known = plain.iter().chain(&more).any(|plain| name == &format!("chiplog_{plain}"));
        assert!(known || unit.iter().any(|unit| name.ends_with(unit)), "{name} has no unit");
    }

    // They count what was done.
    assert!(value(&text, "chiplog_records_total") >= 1000.0);
    for name in ["sync_seconds", "commit_seconds", "block_bytes"] {
        let count = value(&text, &format!("chiplog_{name}_count"));
        assert!(count >= 1.0, "{name}");
        assert_eq!(value(&text, &format!("chiplog_{name}_bucket{{le=\"+Inf\"}}")), count);
        assert!(value(&text, &format!("chiplog_{name}_sum")) > 0.0);
    }
    assert_eq!(value(&text, "chiplog_block_bytes_sum"), value(&text, "chiplog_written_bytes_total"));
    assert_eq!(value(&text, "chiplog_block_bytes_count"), value(&text, "chiplog_blocks_total"));
    assert!(value(&text, "chiplog_disk_free_bytes") < value(&text, "chiplog_disk_bytes"));
    wait("no append waits", || {
        let text = leads.page("/metrics").1;
        let waits = ["queue_appends", "queue_bytes", "unwritten_bytes", "uncommitted_bytes"];
        let lag = format!("chiplog_peer_lag_entries{{node=\"{}\"}}", follows.node);
        (waits.iter().all(|name| value(&text, &format!("chiplog_{name}")) == 0.0)
            && value(&text, &lag) == 0.0)
            .then_some(())
    });
    // Followers wrote the same blocks and committed none.
    let text = follows.page("/metrics").1;
    assert!(value(&text, "chiplog_block_bytes_count") >= 1.0);
    assert_eq!(value(&text, "chiplog_records_total"), 0.0);
}

/// A series for each group, none for a log.
#[test]
fn groups_of_named_logs_have_metrics() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::new(1, dir.path());
    server.start(&["--init", "--set", "groups=1"]);
    let series = |name: &str| format!("chiplog_group_{name}{{group=\"1\"}}");
    wait("the group is there", || server.page("/metrics").1.contains(&series("leader")).then_some(()));
    let names: Vec<String> = (0..20).map(|n| format!("tenant-{n}")).collect();
    let create: Vec<&str> =
        ["logs", "create", &server.client].into_iter().chain(names.iter().map(String::as_str)).collect();
    run(&create).ok();
    fed(&["append", &format!("{}/tenant-7", server.client)], "a line\n").ok();
    let text = server.page("/metrics").1;
    let own = |metrics: Metrics| -> Metrics {
        metrics.into_iter().filter(|(name, _)| name.starts_with("chiplog_group_")).collect()
    };
    assert_eq!(own(served(&text)), own(documented()));
    let expected =
        [("logs", 20.0), ("leader", 1.0), ("voters", 1.0), ("poisoned", 0.0), ("queue_bytes", 0.0)];
    for (name, want) in expected {
        assert_eq!(value(&text, &series(name)), want, "{name}");
    }
    assert!(value(&text, &series("appends_total")) >= 1.0);
    assert!(!text.contains("tenant"), "no series of a single log");
    assert_eq!(text.lines().filter(|line| line.starts_with("chiplog_group_term")).count(), 2);
}

#[test]
fn alerts_and_dashboard_use_existing_metrics() {
    let documented = documented();
    for file in ["alerts.yml", "dashboard.json"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/monitoring").join(file);
        let text = std::fs::read_to_string(path).unwrap();
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let named: BTreeSet<&str> =
            text.split(|c| !word(c)).filter(|name| name.starts_with("chiplog_")).collect();
        assert!(named.len() > 10, "{file}: {named:?}");
        for name in named {
            let base = name.strip_suffix("_bucket").unwrap_or(name);
            assert!(documented.contains_key(base), "{file} names {name}");
        }
    }
}

#[test]
fn streams_and_connections_are_counted_while_they_are_open() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::new(1, dir.path());
    server.start(&["--init"]);
    let open =
        |stream: &str| value(&server.page("/metrics").1, &format!("chiplog_streams{{stream=\"{stream}\"}}"));
    let connections = || value(&server.page("/metrics").1, "chiplog_connections");
    let mut append = started(&["append", &server.client]);
    let mut reads: Vec<_> = (0..3).map(|_| started(&["read", &server.client, "--follow"])).collect();
    std::io::Write::write_all(append.stdin.as_mut().unwrap(), b"line\n").unwrap();
    wait("they are open", || (open("append") == 1.0 && open("read") == 3.0).then_some(()));
    assert!(connections() >= 4.0);
    for child in &reads {
        kill_process(Pid::from_child(child), Signal::KILL).unwrap();
    }
    for child in &mut reads {
        child.wait().unwrap();
    }
    wait("the readers are gone", || (open("read") == 0.0).then_some(()));
    assert_eq!(open("append"), 1.0);
    drop(append.stdin.take());
    assert!(append.wait().unwrap().success());
    wait("all are gone", || (open("append") == 0.0 && connections() == 0.0).then_some(()));
}
