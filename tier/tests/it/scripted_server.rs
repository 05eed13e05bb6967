//! An HTTP server whose answers are a function of the test: also silence, half an answer, and closed connections.

use chiplog_tier::{ObjectVault, VaultOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// Path and query.
    pub(crate) target: String,
    /// The lines of its headers.
    pub(crate) headers: Vec<String>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    /// The value of a header.
    pub(crate) fn header(&self, wanted: &str) -> Option<&str> {
        self.headers.iter().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case(wanted).then(|| value.trim())
        })
    }
}

pub(crate) enum Answer {
    /// Status, headers, body. The length of the body is added unless the headers have it.
    Http(u16, &'static str, Vec<u8>),
    /// A body of which a byte comes after each wait.
    Trickle(Duration),
    /// None, and the connection stays open.
    Silence,
    /// None, and the connection is closed.
    Close,
}

impl Answer {
    pub(crate) fn status(status: u16) -> Self {
        Self::Http(status, "", Vec::new())
    }

    pub(crate) fn code(status: u16, code: &str) -> Self {
        let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>m</Message></Error>");
        Self::Http(status, "Content-Type: application/xml\r\n", body.into_bytes())
    }

    pub(crate) fn put() -> Self {
        Self::Http(200, "ETag: \"1\"\r\n", Vec::new())
    }
}

pub(crate) struct ScriptedServer {
    endpoint: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl ScriptedServer {
    /// Starts a server. The script gets each request and its number, from 0.
    pub(crate) fn start(script: impl Fn(usize, &Request) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (script, seen) = (Arc::new(script), requests.clone());
        thread::spawn(move || {
            for socket in listener.incoming() {
                let (script, seen) = (script.clone(), seen.clone());
                thread::spawn(move || serve(socket.unwrap(), &*script, &seen));
            }
        });
        Self { endpoint, requests }
    }

    /// A vault over this server, in `s3://bucket/p`.
    pub(crate) fn vault(&self, timeout: Duration, retries: u32) -> ObjectVault {
        let options = VaultOptions::default()
            .endpoint(self.endpoint.clone())
            .allow_http(true)
            .access_key("key".to_owned())
            .secret_key("secret".to_owned())
            .timeout(timeout)
            .retries(retries);
        ObjectVault::open("s3://bucket/p", options).unwrap()
    }

    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Method and target of all requests.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.requests.lock().unwrap().iter().map(|r| format!("{} {}", r.method, r.target)).collect()
    }
}

fn serve(
    socket: TcpStream,
    script: &(impl Fn(usize, &Request) -> Answer + ?Sized),
    seen: &Mutex<Vec<Request>>,
) {
    let mut reader = BufReader::new(socket);
    while let Some(request) = read_request(&mut reader) {
        let number = {
            let mut seen = seen.lock().unwrap();
            seen.push(request.clone());
            seen.len() - 1
        };
        match script(number, &request) {
            Answer::Http(status, headers, body) => {
                let length = if headers.contains("Content-Length") {
                    String::new()
                } else {
                    format!("Content-Length: {}\r\n", body.len())
                };
                let is_early = headers.contains("Connection: close");
                let mut answer = format!("HTTP/1.1 {status} x\r\n{headers}{length}\r\n").into_bytes();
                if request.method != "HEAD" {
                    answer.extend(body);
                }
                if reader.get_mut().write_all(&answer).is_err() || is_early {
                    return;
                }
            }
            Answer::Trickle(wait) => {
                let mut answer = b"HTTP/1.1 200 x\r\nContent-Length: 1000000\r\n\r\n".to_vec();
                while reader.get_mut().write_all(&answer).is_ok() {
                    thread::sleep(wait);
                    answer = b" ".to_vec();
                }
                return;
            }
            Answer::Silence => {
                thread::sleep(Duration::from_secs(60));
                return;
            }
            Answer::Close => return,
        }
    }
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line == "\r\n" {
            break;
        }
        head.push(line);
    }
    let first = head.remove(0);
    let mut words = first.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut request = Request { method, target, headers: head, body: Vec::new() };
    let length = request.header("content-length").map(|length| length.parse::<usize>().unwrap());
    request.body.resize(length.unwrap_or(0), 0);
    reader.read_exact(&mut request.body).ok()?;
    Some(request)
}
