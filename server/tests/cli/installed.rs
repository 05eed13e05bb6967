//! `make install-server`: the files that `server/install.sh` installs below a prefix.

use std::fs;
use std::path::Path;
use std::process::Command;

#[test]
fn server_is_installed_with_all_its_files() {
    let dest = tempfile::tempdir().unwrap();
    let install = || {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("install.sh");
        let mut command = Command::new(script);
        let done =
            command.args([env!("CARGO_BIN_EXE_chiplog"), "/opt/chiplog"]).arg(dest.path()).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    install();
    let at = |path: &str| dest.path().join(path);
    for path in [
        "opt/chiplog/share/man/man1/chiplog.1",
        "opt/chiplog/share/man/man1/chiplog-member-add.1",
        "opt/chiplog/share/bash-completion/completions/chiplog",
        "opt/chiplog/share/zsh/site-functions/_chiplog",
        "opt/chiplog/share/fish/vendor_completions.d/chiplog.fish",
        "opt/chiplog/share/chiplog/alerts.yml",
        "opt/chiplog/share/chiplog/dashboard.json",
        "opt/chiplog/share/doc/chiplog/LICENSE",
    ] {
        assert!(fs::metadata(at(path)).unwrap().len() > 0, "{path}");
    }
    let unit = fs::read_to_string(at("opt/chiplog/lib/systemd/system/chiplog.service")).unwrap();
    assert!(
        unit.contains("ExecStart=/opt/chiplog/bin/chiplog serve") && !unit.contains("/usr/bin/chiplog"),
        "{unit}"
    );
    let program = at("opt/chiplog/bin/chiplog");
    let said = Command::new(&program).arg("--version").output().unwrap().stdout;
    assert!(String::from_utf8_lossy(&said).starts_with("chiplog "));
    assert!(
        fs::metadata(&program).unwrap().len() < fs::metadata(env!("CARGO_BIN_EXE_chiplog")).unwrap().len()
    );

    // A file that an operator wrote is kept.
    let config = at("etc/chiplog/chiplog.toml");
    assert!(fs::read_to_string(&config).unwrap().contains("[listen]"));
    fs::write(&config, "node = 7\n").unwrap();
    install();
    assert_eq!(fs::read_to_string(&config).unwrap(), "node = 7\n");
}
