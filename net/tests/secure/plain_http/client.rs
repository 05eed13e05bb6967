//! A client of HTTP/1 that checks nothing of what it asks, and what it makes of answers; requests over HTTP/2.

use crate::support::{PATIENCE, Served};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tonic::body::Body;
use tonic::codegen::Service as _;
use tonic::transport::Channel;

/// An answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) code: u16,
    headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    /// All of the body came.
    pub(super) is_whole: bool,
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    #[track_caller]
    pub(super) fn is(self, code: u16, part: &str) -> Self {
        assert!(self.code == code && self.text().contains(part), "{part:?} is wanted: {self:?}");
        self
    }
}

/// A client of HTTP/1 with one connection.
pub(super) struct Client<T> {
    pub(super) io: T,
}

impl Client<TcpStream> {
    pub(super) async fn of(server: &Served) -> Self {
        Self { io: TcpStream::connect(&server.address).await.unwrap() }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> Client<T> {
    pub(super) async fn ask(&mut self, method: &str, path: &str, headers: &[&str]) -> Answer {
        self.send(method, path, headers).await;
        tokio::time::timeout(PATIENCE, self.answer(method == "HEAD")).await.expect("no answer")
    }

    pub(super) async fn get(&mut self, path: &str, headers: &[&str]) -> Answer {
        self.ask("GET", path, headers).await
    }

    pub(super) async fn send(&mut self, method: &str, path: &str, headers: &[&str]) {
        let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
        self.send_to("Host: 127.0.0.1:7411\r\n", method, path, &headers).await;
    }

    /// With these headers, or none, for the host.
    pub(super) async fn send_to(&mut self, host: &str, method: &str, path: &str, headers: &str) {
        let request = format!("{method} {path} HTTP/1.1\r\n{host}{headers}\r\n");
        self.io.write_all(request.as_bytes()).await.unwrap();
    }

    pub(super) async fn line(&mut self) -> Option<String> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            line.push(self.io.read_u8().await.ok()?);
        }
        Some(String::from_utf8(line).unwrap().trim_end().to_owned())
    }

    pub(super) async fn exactly(&mut self, bytes: usize, body: &mut Vec<u8>) -> bool {
        let end = body.len() + bytes;
        while body.len() < end {
            let left = (end - body.len()).min(1 << 16);
            let mut piece = vec![0; left];
            match self.io.read(&mut piece).await {
                Ok(n @ 1..) => body.extend_from_slice(&piece[..n]),
                _ => return false,
            }
        }
        true
    }

    pub(super) async fn answer(&mut self, is_head: bool) -> Answer {
        let first = self.line().await.expect("the connection ended");
        let code = first.split(' ').nth(1).unwrap().parse().unwrap();
        let mut headers = Vec::new();
        while let Some((name, value)) = self.line().await.unwrap().split_once(": ") {
            headers.push((name.to_lowercase(), value.to_owned()));
        }
        let mut answer = Answer { code, headers, body: Vec::new(), is_whole: true };
        let length = answer.header("content-length").map(|length| length.parse().unwrap());
        if is_head || code == 304 {
            return answer;
        }
        if let Some(length) = length {
            answer.is_whole = self.exactly(length, &mut answer.body).await;
            return answer;
        }
        assert_eq!(answer.header("transfer-encoding"), Some("chunked"));
        loop {
            let Some(size) = self.line().await else { break };
            let size = usize::from_str_radix(&size, 16).unwrap();
            let came = self.exactly(size, &mut answer.body).await && self.line().await.is_some();
            if !came || size == 0 {
                answer.is_whole = came;
                return answer;
            }
        }
        answer.is_whole = false;
        answer
    }

    /// Whether the server closes the connection, without sending more.
    pub(super) async fn ends(&mut self) -> bool {
        let mut byte = [0];
        let reading = self.io.read(&mut byte);
        matches!(tokio::time::timeout(PATIENCE, reading).await.expect("it stays open"), Ok(0) | Err(_))
    }
}

/// The lines of a list that are objects, each as (name, bytes, checksum).
pub(super) fn listed(text: &str) -> Vec<(String, u64, String)> {
    let field = |line: &str, name: &str| {
        let rest = line.split_once(&format!("\"{name}\":")).unwrap().1;
        rest.split([',', '}']).next().unwrap().trim_matches('"').to_owned()
    };
    let lines = text.lines().filter(|line| line.starts_with("{\"name\""));
    lines.map(|l| (field(l, "name"), field(l, "bytes").parse().unwrap(), field(l, "crc32c"))).collect()
}

/// A connection that holds little of an answer that is not read.
pub(super) async fn few_bytes_at_a_time(server: &Served) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(server.address.parse().unwrap()).await.unwrap()
}

/// An answer over HTTP/2, as clients of gRPC speak it.
pub(super) async fn over_http2(
    channel: &mut Channel,
    request: http::Request<Body>,
) -> Result<http::Response<Body>, tonic::transport::Error> {
    std::future::poll_fn(|context| channel.poll_ready(context)).await?;
    channel.call(request).await
}
