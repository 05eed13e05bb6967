//! Targets with a log's name: which commands take one, and how the others refuse it. No server runs.

use crate::harness::{Ran, command, finish, is_error, run};

/// Runs a command whose servers are in the environment.
fn with_servers(args: &[&str], servers: &str) -> Ran {
    finish(command(args).env("CHIPLOG_SERVERS", servers).spawn().unwrap())
}

#[test]
fn commands_without_named_logs_refuse_a_name() {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("copy");
    let copy = copy.to_str().unwrap();
    for args in [
        &["verify", "log1:7411/orders"][..],
        &["follow", copy, "--from", "log1:7411/orders"],
        &["member", "promote", "2", "--cluster", "log1:7411/orders"],
        &["member", "add", "log2:7411", "--cluster", "log1:7411/orders"],
        &["logs", "list", "log1:7411/orders"],
        &["logs", "create", "log1:7411/orders", "users"],
    ] {
        let refused = run(args).fails(2);
        assert!(refused.err.contains("log1:7411"), "{args:?}: {}", refused.err);
        assert!(refused.err.contains("orders"), "{args:?}: {}", refused.err);
    }
    let refused = run(&["logs", "create", "log1:7411", ""]).fails(2);
    assert!(refused.err.contains("1 to 249 of the characters"), "{}", refused.err);
    let refused = with_servers(&["member", "promote", "2"], "log1:7411/orders").fails(2);
    assert!(refused.err.contains("give log1:7411"), "{}", refused.err);
    for args in [&["dump", "log1:7411/orders"][..], &["doctor", "log1:7411/orders"]] {
        let refused = run(args).fails(2);
        assert!(refused.err.contains("./log1:7411/orders"), "{args:?}: {}", refused.err);
    }
    assert!(!dir.path().join("copy").exists());
}

#[test]
fn wrong_names_and_servers_are_usage_errors() {
    for (target, words) in [
        ("log1:7411/", "ends with a slash"),
        ("log1:7411/a b", "is not the name of a log"),
        ("log1:7411/orders/x", "is not the name of a log"),
        ("log1:7411/orders,log2:7411", "after all servers"),
        ("log1:7411,log2/orders", "log2"),
        ("logs/log1:7411", "has no port"),
    ] {
        for command in ["info", "status"] {
            let refused = run(&[command, target]).fails(2);
            assert!(refused.err.contains(words), "{command} {target}: {}", refused.err);
        }
    }
    let refused = run(&["status", "log1:7411", "log2:7411/orders"]).fails(2);
    assert!(refused.err.contains("different logs"), "{}", refused.err);
}

#[test]
fn logs_needs_servers_and_names() {
    for (args, words) in [
        (&["logs"][..], "Usage"),
        (&["logs", "create"], "NAME"),
        (&["logs", "create", "orders"], "give HOST:PORT"),
        (&["logs", "create", "orders", "users"], "orders is not a server"),
        (&["logs", "create", "log1:7411"], "give the names of the logs"),
        (&["logs", "create", "log1:7411", "a:b"], "is not the name of a log"),
        (&["logs", "create", "log1:7411", "users", "--beside", "a:b"], "is not the name of a log"),
        (&["logs", "seal", "./log", "orders"], "is not a server"),
        (&["logs", "list", "./log"], "is not a server"),
        (&["logs", "list"], "HOST:PORT"),
    ] {
        let refused = run(args).fails(2);
        assert!(refused.err.contains(words), "{args:?}: {}", refused.err);
        assert!(refused.out.is_empty(), "{args:?}");
    }
    is_error(&run(&["logs", "create", "log1:7411", "a:b", "--json"]), "invalid_argument", 9);
}

#[test]
fn servers_in_the_environment_may_name_a_log() {
    // The port is closed, so each command ends as if its servers were down.
    let nowhere = "127.0.0.1:9/orders";
    let silent = with_servers(&["status"], nowhere).fails(5);
    assert!(String::from_utf8_lossy(&silent.out).contains("127.0.0.1:9"), "{}", silent.text());
    let refused = with_servers(&["logs", "list"], nowhere).fails(2);
    assert!(refused.err.contains("come after the servers"), "{}", refused.err);
    let refused = with_servers(&["logs", "create", "users"], nowhere).fails(2);
    assert!(refused.err.contains("come after the servers"), "{}", refused.err);
}

/// The errors did not say what to do.
#[test]
fn errors_of_paths_and_hosts_say_what_to_give() {
    let dir = tempfile::tempdir().unwrap();
    for path in ["./log", dir.path().to_str().unwrap()] {
        let refused = run(&["status", path]).fails(2);
        for words in ["is a path", "give HOST:PORT", &format!("`chiplog info {path}`")] {
            assert!(refused.err.contains(words), "{words}: {}", refused.err);
        }
    }
    let file = dir.path().join("missing.toml").display().to_string();
    for args in [&["serve", "--config", &file][..], &["config", "check", &file]] {
        let refused = run(args).fails(2);
        for words in [&*file, "--config or CHIPLOG_CONFIG", "`chiplog config show"] {
            assert!(refused.err.contains(words), "{words}: {}", refused.err);
        }
    }
    let silent = run(&["status", "no-such-host.invalid:7411"]).fails(5);
    assert!(silent.text().contains("check the name of the host"), "{}", silent.text());
    let data = dir.path().join("data").display().to_string();
    let serve = ["serve", "--node", "1", "--data", &data, "--listen-client", "no-such-host.invalid:7411"];
    let refused = run(&serve).fails(1);
    assert!(refused.err.contains("give an address of this machine"), "{}", refused.err);
}
