//! A real image registry on loopback, with or without a password, behind a proxy that can hold requests.
//!
//! ```text
//! containerd ──> proxy ──> docker-registry         `ctr images push` goes past the proxy
//! ```
//! The proxy records every request, and holds those that come while it is shut: a pull then stays in progress for as
//! long as a test wants.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::http::get;
use super::machine::start_time;
use super::runtime::{Runtime, hack, run};
use super::waiting::{SLOW, wait};

pub const USER: &str = "puller";
pub const PASSWORD: &str = "open sesame";
/// bcrypt of [`PASSWORD`], as htpasswd writes it.
const HTPASSWD: &str = "puller:$2y$05$abcdefghijklmnopqrstuupx2xBUC4954936wVIjyyPHmUBFu0wCW\n";

pub struct Registry {
    child: Child,
    dir: PathBuf,
    /// Of the registry itself.
    port: u16,
    /// Of the proxy.
    door: u16,
    orders: Sender<Order>,
    needs_password: bool,
}

enum Order {
    /// Holds requests that contain this.
    Shut(String),
    Open,
    Arrived {
        request: String,
        go: Sender<()>,
    },
    Tell(Sender<Seen>),
}

/// The requests that the proxy received.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// `METHOD /path`, in their order.
    pub requests: Vec<String>,
    /// Those that are held now.
    pub held: Vec<String>,
}

impl Seen {
    /// The repositories of the held requests.
    pub fn held_repositories(&self) -> BTreeSet<String> {
        let repository = |request: &String| {
            let path = request.split_once("/v2/")?.1;
            Some(path.split_once("/manifests/").or_else(|| path.split_once("/blobs/"))?.0.to_owned())
        };
        self.held.iter().filter_map(repository).collect()
    }
}

impl Registry {
    /// Pulls need no password.
    #[track_caller]
    pub fn start(runtime: &Runtime) -> Registry {
        Registry::start_as(runtime, false)
    }

    /// Only [`USER`] with [`PASSWORD`] may.
    #[track_caller]
    pub fn start_with_password(runtime: &Runtime) -> Registry {
        Registry::start_as(runtime, true)
    }

    #[track_caller]
    fn start_as(runtime: &Runtime, needs_password: bool) -> Registry {
        let port = runtime.free_port();
        let dir = runtime.dir.join(format!("registry-{port}"));
        fs::create_dir_all(&dir).expect("make the registry's directory");
        let listener = TcpListener::bind(("127.0.0.1", runtime.free_port())).expect("open the door");
        let door = listener.local_addr().expect("the door's address").port();
        let config = dir.join("config.yml");
        fs::write(&config, configuration(&dir, port, needs_password)).expect("configure the registry");
        let program = run(hack("parts").arg("registry"));
        let log = || File::options().create(true).append(true).open(dir.join("log")).expect("open the log");
        let child = Command::new(program.trim())
            .arg("serve")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(log())
            .stderr(log())
            .spawn()
            .expect("start the registry");
        // So that hack/runtime ends it when this test is killed.
        let pid = child.id().to_string();
        let entry = format!("{pid}:{}\n", start_time(&pid).unwrap_or_default());
        fs::write(runtime.dir.join(format!("pids/registry-{port}")), entry).expect("note the registry's pid");
        let registry =
            Registry { child, dir, port, door, orders: start_door(listener, port), needs_password };
        registry.allow_plain_http(runtime);
        registry.wait_up();
        registry
    }

    fn allow_plain_http(&self, runtime: &Runtime) {
        let dir = runtime.dir.join("registry").join(self.address());
        fs::create_dir_all(&dir).expect("make the registry's hosts directory");
        let url = format!("http://{}", self.address());
        let hosts = format!("server = {url:?}\n[host.{url:?}]\ncapabilities = [\"pull\", \"resolve\"]\n");
        fs::write(dir.join("hosts.toml"), hosts).expect("write hosts.toml");
    }

    #[track_caller]
    fn wait_up(&self) {
        let wanted = if self.needs_password { 401 } else { 200 };
        wait("the registry to answer", SLOW, || match get(&format!("127.0.0.1:{}", self.port), "/v2/") {
            Ok(response) if response.status == wanted => Ok(()),
            Ok(response) => Err(format!("{}: {}", response.status, response.text())),
            Err(error) => Err(error.to_string()),
        });
    }

    /// `host:port`, as image names have it.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.door)
    }

    /// Puts an image of the runtime's into the registry. Gives the name to pull it by, which the runtime does not know.
    #[track_caller]
    pub fn push(&self, runtime: &Runtime, local: &str, name: &str) -> String {
        let remote = format!("127.0.0.1:{}/{name}", self.port);
        let login = format!("{USER}:{PASSWORD}");
        let mut args = vec!["images", "push", "--plain-http"];
        if self.needs_password {
            args.extend(["--user", &login]);
        }
        args.extend([remote.as_str(), local]);
        runtime.ctr(&args);
        format!("{}/{name}", self.address())
    }

    pub fn shut(&self) {
        self.shut_for("");
    }

    /// Holds only requests that contain this, such as `/blobs/`: a pull stops in the middle.
    pub fn shut_for(&self, part: &str) {
        self.orders.send(Order::Shut(part.to_owned())).expect("the door");
    }

    /// Releases the held requests, and lets later ones pass.
    pub fn open(&self) {
        self.orders.send(Order::Open).expect("the door");
    }

    pub fn seen(&self) -> Seen {
        let (tell, told) = channel();
        self.orders.send(Order::Tell(tell)).expect("the door");
        told.recv().expect("what the door saw")
    }

    /// How often the registry served the manifest of a tag, by its own log.
    pub fn served(&self, name: &str, tag: &str) -> usize {
        let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        let request = format!("\"HEAD /v2/{name}/manifests/{tag} HTTP/1.1\" 200 ");
        log.lines().filter(|line| line.contains(&request)).count()
    }

    /// A `config.json` of Docker's with the login for this registry.
    pub fn docker_config(&self, password: &str) -> String {
        let login = serde_json::json!({ "username": USER, "password": password });
        serde_json::json!({ "auths": { self.address(): login } }).to_string()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn configuration(dir: &std::path::Path, port: u16, needs_password: bool) -> String {
    let htpasswd = dir.join("htpasswd");
    fs::write(&htpasswd, HTPASSWD).expect("write the password's file");
    let auth = match needs_password {
        true => format!("auth:\n  htpasswd:\n    realm: test\n    path: {}\n", htpasswd.display()),
        false => String::new(),
    };
    let store = dir.join("store");
    format!(
        "version: 0.1\nlog:\n  level: warn\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: 127.0.0.1:{port}\n{auth}",
        store.display()
    )
}

// ---- the proxy --------------------------------------------------------------------------------------------------

fn start_door(listener: TcpListener, port: u16) -> Sender<Order> {
    let (orders, inbox) = channel();
    thread::spawn(move || keep_door(&inbox));
    let own = orders.clone();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let orders = own.clone();
            thread::spawn(move || {
                // The client may have given up: that is no failure here.
                let _ = pass(client, port, &orders);
            });
        }
    });
    orders
}

fn keep_door(inbox: &Receiver<Order>) {
    let mut shut: Option<String> = None;
    let mut requests = Vec::new();
    let mut waiting: Vec<(String, Sender<()>)> = Vec::new();
    while let Ok(order) = inbox.recv() {
        match order {
            Order::Shut(part) => shut = Some(part),
            Order::Open => shut = None,
            Order::Arrived { request, go } => {
                requests.push(request.clone());
                waiting.push((request, go));
            }
            Order::Tell(to) => {
                let held = waiting.iter().map(|(request, _)| request.clone()).collect();
                let _ = to.send(Seen { requests: requests.clone(), held });
            }
        }
        let held = |request: &String| shut.as_ref().is_some_and(|part| request.contains(part));
        for (_, go) in waiting.extract_if(.., |(request, _)| !held(request)) {
            let _ = go.send(());
        }
    }
}

/// One request and its answer; then the connection ends.
fn pass(mut client: TcpStream, port: u16, orders: &Sender<Order>) -> io::Result<()> {
    let head = read_head(&mut client)?;
    let text = String::from_utf8_lossy(&head).into_owned();
    let request = text.split(" HTTP/").next().unwrap_or_default().to_owned();
    let (go, may_go) = channel();
    if orders.send(Order::Arrived { request, go }).is_err() || may_go.recv().is_err() {
        return Ok(());
    }
    let mut server = TcpStream::connect(("127.0.0.1", port))?;
    let kept = text.lines().filter(|line| !line.to_ascii_lowercase().starts_with("connection:"));
    let kept: Vec<&str> = kept.filter(|line| !line.is_empty()).collect();
    write!(server, "{}\r\nConnection: close\r\n\r\n", kept.join("\r\n"))?;
    io::copy(&mut server, &mut client)?;
    client.shutdown(Shutdown::Both)
}

fn read_head(client: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if client.read(&mut byte)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.push(byte[0]);
        // Some runtimes try TLS first, and go on without it when they are answered in clear.
        if !head[0].is_ascii_uppercase() {
            let _ = client.read(&mut [0; 4096])?;
            client.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\n")?;
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(head)
}
