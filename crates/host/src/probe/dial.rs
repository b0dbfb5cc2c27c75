//! Opens connections, and describes connection failures.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::{TcpStream, lookup_host};

/// `host:port`, with brackets if the host contains colons.
pub fn address(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Connects to the first address of the host that accepts. The error is the complete message.
pub async fn dial(host: &str, port: u16) -> Result<TcpStream, String> {
    let mut first_problem = None;
    for at in resolve(host, port).await? {
        match TcpStream::connect(at).await {
            Ok(stream) => return Ok(stream),
            Err(error) => {
                let shown = if host.is_empty() { address("", port) } else { at.to_string() };
                first_problem.get_or_insert(format!("dial tcp {shown}: connect: {}", os_error_text(&error)));
            }
        }
    }
    Err(first_problem.unwrap_or_else(|| format!("dial tcp: lookup {host}: no such host")))
}

async fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    if host.is_empty() {
        let local: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        return Ok(local.map(|ip| SocketAddr::new(ip, port)).to_vec());
    }
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    match lookup_host((host, port)).await {
        Ok(found) => Ok(found.collect()),
        Err(error) => {
            let unknown = error.to_string().contains("Name or service not known");
            let words = if unknown { "no such host".to_owned() } else { os_error_text(&error) };
            Err(format!("dial tcp: lookup {host}: {words}"))
        }
    }
}

/// The system's error text without number and capital letter.
pub fn os_error_text(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    if error.raw_os_error().is_none() {
        return text.to_owned();
    }
    let mut letters = text.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}
