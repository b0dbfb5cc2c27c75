//! Servers that are in the way: one that only fails, and one between the agent and the real API server.

// These live beside real processes, in real time.
#![allow(clippy::disallowed_methods)]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tokio::sync::Mutex;

/// What comes between.
#[derive(Clone, Copy)]
pub enum Between {
    /// Every piece arrives so much later.
    Delay(Duration),
    /// Connections end so soon after they began.
    Cut(Duration),
    /// Nothing: connections are only counted.
    Nothing,
    /// Watches whose request line has this text fall silent after their first bookmark. For plain HTTP/1.1.
    Silence(&'static str),
}

/// A way to another server on loopback. It ends with the test's process.
pub struct Proxy {
    port: u16,
    connections: Arc<AtomicUsize>,
    away: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    /// To `https://127.0.0.1:<port>`, or to `127.0.0.1:<port>`.
    pub fn start(server: &str, between: Between) -> Proxy {
        let behind: SocketAddr = server.trim_start_matches("https://").parse().expect("an address");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let connections = Arc::new(AtomicUsize::new(0));
        let (away, open) = (Arc::new(AtomicBool::new(false)), Arc::<Mutex<Vec<TcpStream>>>::default());
        let (counted, is_away, kept) = (connections.clone(), away.clone(), open.clone());
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                counted.fetch_add(1, Ordering::Relaxed);
                kept.blocking_lock().push(client.try_clone().expect("a socket"));
                if is_away.load(Ordering::SeqCst) {
                    let _ = client.shutdown(Shutdown::Both);
                    continue;
                }
                let Ok(server) = TcpStream::connect(behind) else { continue };
                join(client, server, between);
            }
        });
        Proxy { port, connections, away, open }
    }

    /// Ends all connections, and every new one at once, until the end of the test.
    pub fn go_away(&self) {
        self.away.store(true, Ordering::SeqCst);
        for client in &*self.open.blocking_lock() {
            let _ = client.shutdown(Shutdown::Both);
        }
    }

    pub fn server(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

fn join(client: TcpStream, server: TcpStream, between: Between) {
    if let Between::Silence(what) = between {
        return silence(client, server, what);
    }
    let pairs = [
        (client.try_clone().expect("a socket"), server.try_clone().expect("a socket")),
        (server.try_clone().expect("a socket"), client.try_clone().expect("a socket")),
    ];
    for (from, to) in pairs {
        thread::spawn(move || pass(from, to, between));
    }
    if let Between::Cut(after) = between {
        thread::spawn(move || {
            thread::sleep(after);
            let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
        });
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, between: Between) {
    let mut room = [0; 16 * 1024];
    while let Ok(size @ 1..) = from.read(&mut room) {
        if let Between::Delay(time) = between {
            thread::sleep(time);
        }
        if to.write_all(&room[..size]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// A client sends its next request only after the answer to the last one, so what comes from the server after a request
/// went through is the answer to it.
fn silence(client: TcpStream, server: TcpStream, what: &'static str) {
    let silent = Arc::new(AtomicBool::new(false));
    let (from, to) = (client.try_clone().expect("a socket"), server.try_clone().expect("a socket"));
    let watched = silent.clone();
    thread::spawn(move || pass_requests(from, to, what, &watched));
    thread::spawn(move || pass_answers(server, client, &silent));
}

fn pass_requests(mut from: TcpStream, mut to: TcpStream, what: &str, silent: &AtomicBool) {
    let mut room = [0; 16 * 1024];
    while let Ok(size @ 1..) = from.read(&mut room) {
        let text = String::from_utf8_lossy(&room[..size]);
        let line = text.lines().next().unwrap_or_default();
        if line.contains(what) && line.contains("watch=true") {
            silent.store(true, Ordering::SeqCst);
        }
        if to.write_all(&room[..size]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

fn pass_answers(mut from: TcpStream, mut to: TcpStream, silent: &AtomicBool) {
    let mut room = [0; 16 * 1024];
    let mut has_bookmark = false;
    while let Ok(size @ 1..) = from.read(&mut room) {
        if !has_bookmark && to.write_all(&room[..size]).is_err() {
            break;
        }
        let bookmark = br#""BOOKMARK""#;
        has_bookmark |= silent.load(Ordering::SeqCst)
            && room[..size].windows(bookmark.len()).any(|part| part == bookmark);
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// Answers every request with 500, and counts them.
pub struct Broken {
    pub url: String,
    requests: Arc<AtomicUsize>,
}

impl Broken {
    pub fn start() -> Broken {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = requests.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let counted = counted.clone();
                thread::spawn(move || refuse(client, &counted));
            }
        });
        Broken { url, requests }
    }

    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

/// One request per connection: the answer says so.
fn refuse(mut client: TcpStream, counted: &AtomicUsize) {
    const ANSWER: &str = "HTTP/1.1 500 Internal Server Error\r\nContent-Type: text/plain\r\n\
                          Content-Length: 13\r\nConnection: close\r\n\r\netcd is gone.";
    let mut head = Vec::new();
    let mut room = [0; 4096];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        match client.read(&mut room) {
            Ok(size @ 1..) => head.extend_from_slice(&room[..size]),
            _ => return,
        }
    }
    counted.fetch_add(1, Ordering::Relaxed);
    let _ = client.write_all(ANSWER.as_bytes());
    let _ = client.shutdown(Shutdown::Write);
    // What is left of the request, so that the answer is not lost to a reset.
    let _ = client.set_read_timeout(Some(Duration::from_secs(1)));
    while matches!(client.read(&mut room), Ok(1..)) {}
}

/// The same kubeconfig with another text in the place of one, under another name.
pub fn altered(kubeconfig: &Path, name: &str, from: &str, to: &str) -> PathBuf {
    let text = std::fs::read_to_string(kubeconfig).expect("a kubeconfig");
    assert!(text.contains(from), "no {from} in {text}");
    let path = kubeconfig.with_file_name(format!("{name}.kubeconfig"));
    std::fs::write(&path, text.replace(from, to)).expect("write a kubeconfig");
    path
}
