//! `make install-server`: the files that `server/install.sh` installs below a prefix. `make deb`: the files of the package.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use toml::{Table, Value};

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[test]
fn server_is_installed_with_all_its_files() {
    let dest = tempfile::tempdir().unwrap();
    let install = || {
        let mut command = Command::new(source("install.sh"));
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

/// Every file below a directory, named from there.
fn files_below(root: &Path) -> BTreeSet<String> {
    let (mut files, mut directories) = (BTreeSet::new(), vec![root.to_owned()]);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else {
                files.insert(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    files
}

/// The values of a directive of a unit, without those of comments.
fn directive<'a>(unit: &'a str, name: &str) -> Vec<&'a str> {
    unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('=')).collect()
}

#[test]
fn debian_package_lists_the_files_that_the_unit_names() {
    let out = tempfile::tempdir().unwrap();
    let mut command = Command::new(source("package.sh"));
    let done = command.arg(env!("CARGO_BIN_EXE_chiplog")).arg(out.path()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(fs::metadata(out.path().join("chiplog.debug")).unwrap().len() > 0);
    let root = out.path().join("root");

    // Each line of the list takes files that are there, to the path that they have below the root; and no file is left.
    let manifest: Table = fs::read_to_string(source("Cargo.toml")).unwrap().parse().unwrap();
    let deb = &manifest["package"]["metadata"]["deb"];
    let mut left = files_below(&root);
    let mut packaged = BTreeSet::new();
    for asset in deb["assets"].as_array().unwrap() {
        let field = |at: usize| asset[at].as_str().unwrap();
        let pattern = field(0).strip_prefix("../target/deb/root/").unwrap();
        let (directory, name) = pattern.rsplit_once('/').unwrap();
        assert_eq!(format!("{directory}/"), field(1), "{pattern}");
        let taken = left.extract_if(.., |path| match name.split_once('*') {
            Some((_, end)) => path.rsplit_once('/').unwrap().0 == directory && path.ends_with(end),
            None => path == pattern,
        });
        let taken: Vec<String> = taken.collect();
        assert!(!taken.is_empty(), "the list has {pattern}, and there is no such file");
        packaged.extend(taken.into_iter().map(|path| format!("/{path}")));
    }
    assert_eq!(left, BTreeSet::new(), "files that the list leaves out");
    for path in [
        "/usr/share/man/man1/chiplog-serve.1",
        "/usr/share/doc/chiplog/LICENSE",
        "/usr/share/doc/chiplog/THIRD-PARTY.txt",
        "/usr/share/doc/chiplog/alerts.yml",
        "/usr/share/doc/chiplog/dashboard.json",
    ] {
        assert!(packaged.contains(path), "{path}");
    }

    // The unit's program and configuration are in the package; its user and directory are those that postinst creates.
    let unit = fs::read_to_string(root.join("usr/lib/systemd/system/chiplog.service")).unwrap();
    let commands = [directive(&unit, "ExecStart"), directive(&unit, "ExecStartPre")].concat();
    assert_eq!(commands.len(), 2, "{unit}");
    for command in commands {
        assert!(packaged.contains(command.split(' ').next().unwrap()), "{command}");
        let configuration = command.split(' ').find(|word| word.ends_with(".toml")).unwrap();
        assert!(packaged.contains(configuration), "{command}");
    }
    // A minimal Debian has no /bin/kill.
    assert_eq!(directive(&unit, "ExecReload"), ["/bin/sh -c \"kill -HUP $MAINPID\""]);
    assert_eq!(directive(&unit, "DynamicUser"), Vec::<&str>::new());
    let (user, group) = (directive(&unit, "User"), directive(&unit, "Group"));
    let data = format!("/var/lib/{}", directive(&unit, "StateDirectory")[0]);
    let scripts = source(deb["maintainer-scripts"].as_str().unwrap());
    let postinst = fs::read_to_string(scripts.join("postinst")).unwrap();
    for line in [
        format!(
            "useradd --system --user-group --home-dir {data} --no-create-home --shell /usr/sbin/nologin {}",
            user[0]
        ),
        format!("install --directory --owner {} --group {} --mode 0700 {data}", user[0], group[0]),
    ] {
        assert!(postinst.lines().any(|written| written.trim() == line), "{line}: not in\n{postinst}");
    }

    // The example names that directory, changes no default, and lacks the server's number alone.
    let example = root.join("etc/chiplog/chiplog.toml");
    let written: Table = fs::read_to_string(&example).unwrap().parse().unwrap();
    assert_eq!(written["data"], Value::String(data));
    let chiplog = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_chiplog"));
        command.args(arguments).env_clear().output().unwrap()
    };
    let example = example.to_str().unwrap();
    assert_eq!(chiplog(&["config", "show", example]).stdout, chiplog(&["config", "show"]).stdout);
    assert_eq!(chiplog(&["config", "check", example]).status.code(), Some(2));
    assert_eq!(chiplog(&["config", "check", example, "--node", "1"]).status.code(), Some(0));
}

#[test]
fn maintainer_scripts_are_valid_shell() {
    for script in ["postinst", "prerm", "postrm"] {
        let path = source("debian").join(script);
        let done = Command::new("sh").arg("-n").arg(&path).output().unwrap();
        assert!(done.status.success(), "{script}: {}", String::from_utf8_lossy(&done.stderr));
        assert!(fs::read_to_string(&path).unwrap().contains("\nset -e\n"), "{script}");
    }
}
