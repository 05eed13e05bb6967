//! TLS: servers and clients that know each other by certificates, and those that do not.

use crate::harness::{Server, chiplog, run, wait};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

/// An authority, and what it signs for 127.0.0.1.
struct Authority {
    dir: PathBuf,
}

impl Authority {
    fn new(dir: &Path, name: &str) -> Self {
        let dir = dir.join(name);
        fs::create_dir(&dir).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        fs::write(dir.join("authority.pem"), certificate.pem()).unwrap();
        let leaf_key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let leaf = leaf.signed_by(&leaf_key, &Issuer::new(params, key)).unwrap();
        fs::write(dir.join("leaf.pem"), leaf.pem()).unwrap();
        fs::write(dir.join("leaf.key"), leaf_key.serialize_pem()).unwrap();
        Self { dir }
    }

    fn file(&self, name: &str) -> String {
        self.dir.join(name).to_str().unwrap().to_owned()
    }

    /// What a server says to use its certificates for clients, and those of `peers` between replicas.
    fn settings(&self, peers: &Self) -> Vec<String> {
        let keys = [
            ("tls.certificate", self.file("leaf.pem")),
            ("tls.key", self.file("leaf.key")),
            ("tls.client_authority", self.file("authority.pem")),
            ("tls.peer_certificate", peers.file("leaf.pem")),
            ("tls.peer_key", peers.file("leaf.key")),
            ("tls.peer_authority", peers.file("authority.pem")),
        ];
        keys.iter().flat_map(|(key, file)| ["--set".to_owned(), format!("{key}={file}")]).collect()
    }

    /// What a client says.
    fn client(&self) -> [String; 6] {
        let flag = |flag: &str| flag.to_owned();
        [
            flag("--tls-authority"),
            self.file("authority.pem"),
            flag("--tls-certificate"),
            self.file("leaf.pem"),
            flag("--tls-key"),
            self.file("leaf.key"),
        ]
    }
}

/// A copy that runs until it is dropped.
struct Copy(Child);

impl Drop for Copy {
    fn drop(&mut self) {
        self.0.kill().and_then(|()| self.0.wait()).unwrap();
    }
}

/// Starts a copy, and says where it listens.
fn copy(dir: &str, cluster: &str, authority: &Authority, more: &[String]) -> (Copy, String) {
    let mut command = chiplog();
    command.args(["follow", dir, "--cluster", cluster, "--json"]).args(authority.client()).args(more);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let opened: serde_json::Value = serde_json::from_str(&line).unwrap();
    (Copy(child), opened["listen"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn only_those_with_certificates_get_in() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, other) = (Authority::new(dir.path(), "ours"), Authority::new(dir.path(), "other"));
    let with = |authority: &Authority, args: &[&str]| {
        let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).chain(authority.client()).collect();
        run(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let mut servers: Vec<Server> = (1..=3).map(|node| Server::new(node, dir.path())).collect();
    for (n, server) in servers.iter_mut().enumerate() {
        // Of the third, the other replicas do not trust the certificate.
        let settings = ours.settings(if n == 2 { &other } else { &ours });
        server.spawn(&settings.iter().map(String::as_str).collect::<Vec<_>>());
        wait("the server answers", || {
            let shown = with(&ours, &["status", &server.client, "--json"]).json();
            (shown["replicas"][0]["role"] == "waiting").then_some(())
        });
    }
    let [first, second, third] = &servers[..] else { unreachable!() };
    with(&ours, &["member", "init", &first.client]).ok();
    with(&ours, &["member", "add", &second.client, "--cluster", &first.client, "--promote"]).ok();
    let shown = with(&ours, &["status", &second.client, "--json"]).ok().json();
    assert_eq!(shown["replicas"].as_array().unwrap().len(), 2, "{shown}");

    // So do the commands that work on a directory as well.
    let cluster = format!("{},{}", first.client, second.client);
    with(&ours, &["append", &cluster, "--lines", &ours.file("leaf.pem")]).ok();
    let read = with(&ours, &["read", &cluster]).ok();
    assert_eq!(read.out, fs::read_to_string(ours.file("leaf.pem")).unwrap());
    assert_eq!(run(&["info", &cluster]).code, 5, "without certificates");

    // And so does a copy, in both directions: it is fed, and feeds another one.
    let copies = [dir.path().join("copy"), dir.path().join("second")].map(|p| p.to_str().unwrap().to_owned());
    let listening = [
        ["--listen", "127.0.0.1:0"].map(str::to_owned),
        ["--listen-certificate".to_owned(), ours.file("leaf.pem")],
        ["--listen-key".to_owned(), ours.file("leaf.key")],
        ["--listen-authority".to_owned(), ours.file("authority.pem")],
    ];
    let (first_copy, at) = copy(&copies[0], &cluster, &ours, listening.as_flattened());
    let (second_copy, _) = copy(&copies[1], &at, &ours, &[]);
    for copied in &copies {
        wait("the copy has it", || (run(&["read", copied]).out == read.out).then_some(()));
    }
    let bare = ["--cluster", &at, "--tls-authority", &ours.file("authority.pem")];
    let none = run(&[&["follow", dir.path().join("none").to_str().unwrap()][..], &bare].concat());
    assert_eq!(none.code, 5, "without a certificate: {}", none.err);
    drop((first_copy, second_copy));

    // Neither without certificates nor with those of another authority.
    assert_eq!(run(&["status", &first.client, "--json"]).json()["replicas"][0]["role"], "unreachable");
    let authority = ours.file("authority.pem");
    let bare = run(&["status", &first.client, "--json", "--tls-authority", &authority]).json();
    assert_eq!(bare["replicas"][0]["role"], "unreachable", "a client without a certificate: {bare}");
    let foreign = with(&other, &["status", &first.client, "--json"]).json();
    assert_eq!(foreign["replicas"][0]["role"], "unreachable");

    // A peer that is not trusted gets nothing: it does not catch up, and cannot vote.
    with(&ours, &["member", "add", &third.client, "--cluster", &first.client]).ok();
    let refused = with(&ours, &["member", "promote", "3", "--cluster", &first.client, "--timeout", "2"]);
    assert_eq!(refused.code, 5, "{}", refused.err);
    let shown = with(&ours, &["status", &third.client, "--json"]).json();
    assert_eq!(shown["replicas"][0]["last_raft"], 0, "{shown}");
}
