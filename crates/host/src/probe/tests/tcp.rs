use model::probe::{NetworkCheck, ProbeOutcome};

use super::{BRIEF, PATIENT, ask, deserted, mute, shown};

fn tcp(host: &str, port: u16) -> NetworkCheck {
    NetworkCheck::Tcp { host: host.into(), port }
}

#[tokio::test]
async fn a_connection_is_enough() {
    let port = mute().await;
    for host in ["127.0.0.1", "localhost", ""] {
        assert_eq!(ask(tcp(host, port), PATIENT).await, ProbeOutcome::Success, "{host}");
    }
}

#[tokio::test]
async fn nobody_there() {
    let port = deserted().await;
    let refused = ask(tcp("127.0.0.1", port), PATIENT).await;
    assert_eq!(shown(&refused, port), "bad: dial tcp @: connect: connection refused");
    let refused = ask(tcp("::1", port), PATIENT).await;
    assert_eq!(shown(&refused, port), format!("bad: dial tcp [::1]:{port}: connect: connection refused"));
}

/// A listener whose queue is full takes no further connection, and says nothing about it.
#[tokio::test]
async fn no_answer_at_all() {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
    rustix::net::bind(&socket, &std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let listener = std::net::TcpListener::from(socket);
    let port = listener.local_addr().unwrap().port();
    let mut held = Vec::new();
    for _ in 0..16 {
        let connecting = tokio::net::TcpStream::connect(("127.0.0.1", port));
        match tokio::time::timeout(BRIEF, connecting).await {
            Ok(Ok(stream)) => held.push(stream),
            _ => break,
        }
    }
    let outcome = ask(tcp("127.0.0.1", port), BRIEF).await;
    assert_eq!(shown(&outcome, port), "bad: dial tcp @: i/o timeout");
}
