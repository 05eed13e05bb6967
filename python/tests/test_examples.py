"""The examples and the README's programs run."""

import socket
import subprocess
import sys
from pathlib import Path

import chiplog
import pytest
import readme
from conftest import EXAMPLES, PATIENCE

from servers import Servers, program


@pytest.mark.parametrize("name", ["view", "asyncio_producer", "numpy_batches"])
def test_example(name: str) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=5 * PATIENCE)
    assert done.returncode == 0, done.stderr
    print(done.stdout)


@pytest.mark.parametrize("path", readme.READMES)
def test_the_readme(path: Path, tmp_path: Path) -> None:
    readme.run(path, tmp_path)


def make_certificates(dir: Path) -> None:
    """Makes an authority, `clients.pem`, and what it signed for a server at 127.0.0.1, as docs/security.md does."""
    key = "ecparam -name prime256v1 -genkey -noout -out"
    authority = "-addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign"
    for command in [
        f"{key} clients-ca.key",
        f"req -x509 -new -key clients-ca.key -days 2 -subj /CN=clients {authority} -out clients.pem",
        f"{key} server.key",
        "req -new -key server.key -subj /CN=server -addext subjectAltName=IP:127.0.0.1 -out server.csr",
        "x509 -req -in server.csr -CA clients.pem -CAkey clients-ca.key -CAcreateserial -days 2"
        " -copy_extensions copy -out server.pem",
    ]:
        subprocess.run(["openssl", *command.split()], cwd=dir, check=True, capture_output=True)


def test_the_readme_with_servers(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    token = [program(), "token", "--role", "append", "--out", "app.token"]
    line = subprocess.run(token, cwd=tmp_path, check=True, capture_output=True).stdout
    (tmp_path / "tokens").write_bytes(line)
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        client, peer = (f"127.0.0.1:{s.getsockname()[1]}" for s in (one, other))
    serve = [program(), "serve", "--node", "1", "--data", "data", "--init", "--listen-http", ""]
    serve += ["--listen-client", client, "--listen-peer", peer, "--set", "log.segment_bytes=4MiB"]
    serve += ["--set", "tls.certificate=server.pem", "--set", "tls.key=server.key", "--set", "auth.tokens=tokens"]
    server = subprocess.Popen(serve, cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        readme.run(readme.PYTHON / "README.md", tmp_path, client)
    finally:
        server.kill()
        server.wait()


def test_a_view_reports_discarded_records(servers: Servers, client: chiplog.Client, tmp_path: Path) -> None:
    """It accepted records behind the gap."""
    with client.producer() as producer:
        producer.append(b"gone")
        last = producer.append(b"there")
    client.discard(last)
    view = EXAMPLES.parents[1] / "examples" / "view-python" / "view.py"
    command = [sys.executable, str(view), "--cluster", ",".join(servers.clients), "--until", "1"]
    command += ["--dir", str(tmp_path / "copy"), "--db", str(tmp_path / "view.db")]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, timeout=5 * PATIENCE)
        assert done.returncode == 1 and "the log begins behind record 1" in done.stderr, done
