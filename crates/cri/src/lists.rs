//! Lists that come in parts, with the gate `CRIListStreaming`: an answer has 16 MiB at most, a stream of answers has not.
//!
//! ```text
//!   asked for, and not refused on this connection? ──yes──> stream of parts, put together
//!                        | no                                   | Unimplemented, which is remembered
//!                        +────────> one answer <────────────────+
//! ```
//!
//! A service that lacks one of the streams is asked for none of them until its connection is made anew: another runtime may
//! be there then.

use prost::Message;
use tonic::{Response, Status, Streaming};

use crate::endpoint::MAX_MESSAGE;

/// A runtime that never ends its list must not take all memory. Far more than the list of any node has.
const MAX_LIST: usize = 16 * MAX_MESSAGE;
/// An entry takes more room in memory than on the wire, an empty one a hundred times as much.
const MAX_ENTRIES: usize = 200_000;

/// Puts the parts together. A stream that breaks off gives nothing: what is missing can't be told.
pub(crate) async fn collect<P: Message, T>(
    mut stream: Streaming<P>,
    items: impl Fn(P) -> Vec<T>,
) -> Result<Response<Vec<T>>, Status> {
    let (mut all, mut bytes) = (Vec::new(), 0_usize);
    while let Some(part) = stream.message().await? {
        bytes = bytes.saturating_add(part.encoded_len());
        if bytes > MAX_LIST {
            let message = format!("the streamed list has more than {MAX_LIST} bytes");
            return Err(Status::resource_exhausted(message));
        }
        all.extend(items(part));
        if all.len() > MAX_ENTRIES {
            return Err(Status::resource_exhausted(format!(
                "the streamed list has more than {MAX_ENTRIES} entries"
            )));
        }
    }
    Ok(Response::new(all))
}

/// `list!(service, line, deadline, "Stream" stream(request) field, "List" list(request) field)`: the entries, from the
/// stream where [`CallTarget::streams`](crate::call::CallTarget) requests it and the service supports it.
macro_rules! list {
    (
        $service:expr, $line:expr, $deadline:expr,
        $stream_name:literal $stream:ident($stream_request:expr) $parts:ident,
        $list_name:literal $list:ident($list_request:expr) $items:ident
    ) => {{
        let streamed = match $line.streams {
            None => None,
            Some(refusal) => {
                let mut service = $service.clone();
                let send = |request| async move {
                    let stream = service.$stream(request).await?.into_inner();
                    $crate::lists::collect(stream, |part| part.$parts).await
                };
                let answer = $crate::call::call($stream_name, $line, $deadline, $stream_request, send).await;
                refusal.or_note($stream_name, answer)
            }
        };
        match streamed {
            Some(entries) => entries,
            None => {
                let mut service = $service.clone();
                let send = |request| async move { service.$list(request).await };
                let answer = $crate::call::call($list_name, $line, $deadline, $list_request, send).await;
                answer.map(|answer| answer.$items)
            }
        }
    }};
}
pub(crate) use list;
