//! A client of the node's streams that holds many of them: TLS, an upgrade to WebSocket, and frames as the protocol
//! `v4.channel.k8s.io` has them, where the first byte of a message is the number of the stream.

use std::io;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub const STDIN: u8 = 0;
pub const STDOUT: u8 = 1;
pub const STDERR: u8 = 2;
pub const STATUS: u8 = 3;
pub const RESIZE: u8 = 4;
/// Of protocol v5: the message names a stream that has come to its end.
pub const CLOSE: u8 = 255;

/// Opens connections to one port, and believes whoever answers there.
#[derive(Clone)]
pub struct Caller {
    config: Arc<ClientConfig>,
    port: u16,
}

impl Caller {
    pub fn new(port: u16) -> Self {
        Self { config: Arc::new(tls::trusting_everybody().with_no_client_auth()), port }
    }

    pub async fn connect(&self) -> io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        let name = ServerName::try_from("localhost").expect("a name");
        TlsConnector::from(self.config.clone()).connect(name, stream).await
    }

    /// A stream that is upgraded, or what was said instead.
    pub async fn upgrade(&self, path: &str) -> io::Result<Stream> {
        self.upgrade_to("v4.channel.k8s.io", path).await
    }

    /// By one protocol, which has to be the one that is chosen.
    pub async fn upgrade_to(&self, protocol: &str, path: &str) -> io::Result<Stream> {
        let mut wire = self.connect().await?;
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             Sec-WebSocket-Protocol: {protocol}\r\n\r\n"
        );
        wire.write_all(head.as_bytes()).await?;
        wire.flush().await?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(wire.read_u8().await?);
        }
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let chosen = format!("sec-websocket-protocol: {}\r\n", protocol.to_lowercase());
        match answer.starts_with("HTTP/1.1 101") && answer.to_lowercase().contains(&chosen) {
            true => Ok(Stream { wire }),
            false => Err(io::Error::other(answer)),
        }
    }
}

pub struct Stream {
    wire: TlsStream<TcpStream>,
}

impl Stream {
    /// Sends bytes to one of the streams.
    pub async fn send(&mut self, to: u8, bytes: &[u8]) -> io::Result<()> {
        self.send_message(&[&[to], bytes].concat()).await
    }

    /// Sends a message as it is.
    pub async fn send_message(&mut self, bytes: &[u8]) -> io::Result<()> {
        let length = u16::try_from(bytes.len()).expect("a short message");
        let mut frame = vec![0x82];
        match u8::try_from(length).ok().filter(|short| *short < 126) {
            Some(short) => frame.push(0x80 | short),
            None => {
                frame.push(0x80 | 126);
                frame.extend(length.to_be_bytes());
            }
        }
        // A mask of zeros is a mask.
        frame.extend([0; 4]);
        frame.extend(bytes);
        self.wire.write_all(&frame).await?;
        self.wire.flush().await
    }

    /// The next message that says something; `None` when the other side is done.
    pub async fn next(&mut self) -> io::Result<Option<(u8, Vec<u8>)>> {
        loop {
            let mut head = [0; 2];
            if let Err(error) = self.wire.read_exact(&mut head).await {
                // Not every side takes leave.
                return if error.kind() == io::ErrorKind::UnexpectedEof { Ok(None) } else { Err(error) };
            }
            let length = match head[1] & 0x7f {
                126 => usize::from(self.wire.read_u16().await?),
                127 => usize::try_from(self.wire.read_u64().await?).expect("a length"),
                short => usize::from(short),
            };
            let mut message = vec![0; length];
            self.wire.read_exact(&mut message).await?;
            match head[0] & 0x0f {
                8 => return Ok(None),
                1 | 2 if message.len() > 1 => return Ok(Some((message[0], message.split_off(1)))),
                _ => {}
            }
        }
    }

    /// Reads until one of the streams has said so much.
    pub async fn expect(&mut self, from: u8, expect: &[u8]) -> io::Result<()> {
        let mut got = Vec::new();
        while got.len() < expect.len() {
            match self.next().await? {
                Some((stream, bytes)) if stream == from => got.extend(bytes),
                Some((stream, bytes)) => {
                    let said = String::from_utf8_lossy(&bytes).into_owned();
                    return Err(io::Error::other(format!("stream {stream} said: {said}")));
                }
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        if got == expect { Ok(()) } else { Err(io::Error::other(String::from_utf8_lossy(&got).into_owned())) }
    }

    /// All that is said until the end, by stream.
    pub async fn rest(&mut self) -> io::Result<std::collections::BTreeMap<u8, String>> {
        let mut said = std::collections::BTreeMap::<u8, String>::new();
        while let Some((stream, bytes)) = self.next().await? {
            said.entry(stream).or_default().push_str(&String::from_utf8_lossy(&bytes));
        }
        Ok(said)
    }

    /// Reads on until there is nothing more.
    pub async fn until_ended(&mut self) {
        while let Ok(Some(_)) = self.next().await {}
    }
}
