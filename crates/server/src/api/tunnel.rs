//! SPDY inside of WebSocket messages, taken out of them: forwarded ports.
//!
//! ```text
//!   client ══ WebSocket messages ══> us ══ their bytes, which are SPDY ══> runtime
//! ```

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;
use tokio_util::codec::FramedRead;

use super::splice::{BUFFER_BYTES, StreamEnd, splice};
use super::websocket::{self, WebSocketEvent};

/// Carries bytes until both sides are done, one breaks, or nothing passes for `idle`.
pub(super) async fn tunnel(
    client: impl AsyncRead + AsyncWrite + Unpin,
    runtime: impl AsyncRead + AsyncWrite + Unpin,
    idle: Duration,
) -> StreamEnd {
    let (near, far) = tokio::io::duplex(BUFFER_BYTES);
    let (ended, ()) = tokio::join!(splice(near, runtime, idle), unwrap_messages(client, far));
    ended
}

/// Between the messages of a client and plain bytes.
async fn unwrap_messages(client: impl AsyncRead + AsyncWrite + Unpin, plain: DuplexStream) {
    let (from_client, mut to_client) = tokio::io::split(client);
    let (mut plain_out, mut plain_in) = tokio::io::split(plain);
    // One is enough: only the last ping has to be answered.
    let (pings, mut asked) = mpsc::channel::<Bytes>(1);
    let inward = async move {
        let mut pieces = FramedRead::new(from_client, websocket::WebSocketDecoder::default());
        while let Some(Ok(piece)) = pieces.next().await {
            match piece {
                WebSocketEvent::Data { bytes, .. } if plain_in.write_all(&bytes).await.is_err() => break,
                WebSocketEvent::Data { .. } => {}
                WebSocketEvent::Ping(payload) => drop(pings.try_send(payload)),
                WebSocketEvent::Close => break,
            }
        }
        // The runtime may still send something.
        let _ = plain_in.shutdown().await;
        std::future::pending::<()>().await;
    };
    let outward = async move {
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let frame = tokio::select! {
                read = plain_out.read(&mut buffer) => match read {
                    Ok(length) if length > 0 => websocket::message(&[], &buffer[..length]),
                    _ => break,
                },
                Some(payload) = asked.recv() => websocket::pong(&payload),
            };
            if to_client.write_all(&frame).await.is_err() || to_client.flush().await.is_err() {
                return;
            }
        }
        let _ = to_client.write_all(&websocket::close()).await;
        let _ = to_client.shutdown().await;
    };
    // When the runtime has closed, the rest of the client's input is not read.
    tokio::select! {
        () = inward => {}
        () = outward => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::websocket::masked;
    use super::*;
    use tokio::io::duplex;

    const HOUR: Duration = Duration::from_secs(3600);

    #[tokio::test(start_paused = true)]
    async fn bytes_pass_both_ways_and_the_end_is_told() {
        let (mut client, near) = duplex(1 << 20);
        let (far, mut runtime) = duplex(1 << 20);
        let script = async {
            client.write_all(&masked(0x82, b"spdy ")).await.unwrap();
            client.write_all(&masked(0x89, b"ping")).await.unwrap();
            client.write_all(&masked(0x82, &[7; 70_000])).await.unwrap();
            let mut got = vec![0; 70_005];
            runtime.read_exact(&mut got).await.unwrap();
            assert_eq!((&got[..5], got[5..].iter().all(|byte| *byte == 7)), (&b"spdy "[..], true));
            let mut pong = [0; 6];
            client.read_exact(&mut pong).await.unwrap();
            assert_eq!(&pong, b"\x8a\x04ping");
            // The client is done; the answer still comes.
            client.write_all(&masked(0x88, &[3, 232])).await.unwrap();
            assert_eq!(runtime.read(&mut [0; 8]).await.unwrap(), 0);
            runtime.write_all(b"answer").await.unwrap();
            drop(runtime);
            let mut said = Vec::new();
            client.read_to_end(&mut said).await.unwrap();
            assert_eq!(said, b"\x82\x06answer\x88\x02\x03\xe8");
        };
        let (ended, ()) = tokio::join!(tunnel(near, far, HOUR), script);
        assert_eq!(ended, StreamEnd::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_ends_it_for_both() {
        let (mut client, near) = duplex(1024);
        let (far, mut runtime) = duplex(1024);
        let script = async {
            let mut said = Vec::new();
            client.read_to_end(&mut said).await.unwrap();
            assert_eq!(said, b"\x88\x02\x03\xe8");
            assert_eq!(runtime.read(&mut [0; 8]).await.unwrap(), 0);
        };
        let (ended, ()) = tokio::join!(tunnel(near, far, Duration::from_secs(60)), script);
        assert_eq!(ended, StreamEnd::Idle);
    }
}
