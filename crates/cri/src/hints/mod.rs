//! `ports::RuntimeEvents`: the runtime's own notifications, from the better of two sources.
//!
//! ```text
//!       cannot connect, or connection lost (Everything): wait 100 ms .. 1 s
//!        +--------------------------------------------------------+
//!        v                                                        |
//!    connecting --Version--> subscribing --answered--> listening --+
//!        ^                       |        (Everything)   (hints)
//!        +-----------------------+
//!          both sources refused: wait 1 s .. 30 s
//! ```
//!
//! **CRI `GetContainerEvents`** names the pod, and is sent after the runtime has stored the new state, so a list that
//! follows shows it. containerd 1.6 does not have it. containerd 1.7 has one queue for all subscribers, and a
//! subscriber that has gone takes one more event along: after a restart of ours the first event would be lost. From 2.0
//! on each subscriber gets every event.
//!
//! **containerd's own events**, on the same socket, reach every subscriber in every version. They come early: its
//! CRI part shows an exit 20 to 300 ms after the event (measured with 1.6 and 1.7), so each is held until the
//! state can be seen ([`containerd_events`]).
//!
//! So containerd before 2.0 is listened to by its own events, everything else by CRI's, and the other source is
//! the fallback when the first is refused. Both were seen to be prompt: a few milliseconds after the change shows.

mod containerd_events;
mod cri_events;
mod image_events;

use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use ports::{Hint, HintStream, RuntimeEvents};
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::endpoint::{EndpointError, MAX_MESSAGE, Socket};
use crate::pb;
use crate::pb::runtime_service_client::RuntimeServiceClient;

/// Deadline of the Version call.
const VERSION_DEADLINE: Duration = Duration::from_secs(10);
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// Connecting to a socket without a listener is cheap, and pods may be waiting, so the delay is short.
const LONGEST_DELAY_WHEN_AWAY: Duration = Duration::from_secs(1);
const SHORTEST_DELAY_WHEN_REFUSED: Duration = Duration::from_secs(1);
const LONGEST_DELAY_WHEN_REFUSED: Duration = Duration::from_secs(30);
/// Longer than the measured time from a containerd event until CRI shows the change.
const SHOWN_AFTER: Duration = Duration::from_secs(1);
/// A subscription that lasted this long counts as good, even without events.
const GOOD_AFTER: Duration = Duration::from_secs(10);

/// Hints from the runtime at one socket. Each stream has its own connection.
#[derive(Clone, Debug)]
pub struct RuntimeHints {
    socket: Socket,
}

impl RuntimeHints {
    pub fn new(endpoint: &str) -> Result<Self, EndpointError> {
        Ok(Self { socket: Socket::parse(endpoint)? })
    }
}

impl RuntimeEvents for RuntimeHints {
    fn hints(&self) -> HintStream {
        let listener = HintListener::new(self.socket.clone());
        stream::unfold(listener, |mut listener| async move {
            let hint = listener.next().await;
            Some((hint, listener))
        })
        .boxed()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HintSource {
    Cri,
    Containerd,
}

type Hints = BoxStream<'static, Result<Hint, Status>>;

/// An active event stream.
struct Subscription {
    source: HintSource,
    hints: Hints,
    since: Instant,
    is_good: bool,
}

/// Why there is no subscription.
#[derive(Debug)]
enum SubscribeFailure {
    /// The runtime does not answer.
    Unreachable(Status),
    /// The runtime answers, but offers no event stream.
    NoEventSource,
}

struct HintListener {
    socket: Socket,
    subscription: Option<Subscription>,
    /// Sources that this runtime has refused. Cleared when the connection is lost.
    refused: Vec<HintSource>,
    delay: Duration,
}

impl HintListener {
    fn new(socket: Socket) -> Self {
        Self { socket, subscription: None, refused: Vec::new(), delay: Duration::ZERO }
    }

    async fn next(&mut self) -> Hint {
        loop {
            if let Some(hint) = self.listen().await {
                return hint;
            }
            tokio::time::sleep(self.delay).await;
            match self.subscribe().await {
                Ok(subscription) => {
                    let socket = self.socket.path().display();
                    tracing::debug!(%socket, source = ?subscription.source, "listening to the runtime");
                    self.subscription = Some(subscription);
                    return Hint::Everything;
                }
                Err(failure) => self.fail(failure),
            }
        }
    }

    /// The next hint. When the subscription is lost, that is a hint as well (`Hint::Everything`). `None` if there is no
    /// subscription, or if it was refused.
    async fn listen(&mut self) -> Option<Hint> {
        let subscription = self.subscription.as_mut()?;
        match subscription.hints.next().await {
            Some(Ok(hint)) => {
                subscription.is_good = true;
                Some(hint)
            }
            ended => {
                let source = subscription.source;
                let was_good = subscription.is_good || subscription.since.elapsed() >= GOOD_AFTER;
                self.subscription = None;
                let error = ended.and_then(Result::err);
                let socket = self.socket.path().display();
                tracing::debug!(%socket, ?source, ?error, "lost the runtime's events");
                self.delay = match was_good {
                    true => FIRST_DELAY,
                    false => next_delay(self.delay).min(LONGEST_DELAY_WHEN_REFUSED),
                };
                match error {
                    Some(status) if is_refusal(&status) => {
                        self.refused.push(source);
                        None
                    }
                    // The loss of the connection may be the only sign that the runtime went away, so everything is
                    // observed again.
                    _ => {
                        self.refused.clear();
                        Some(Hint::Everything)
                    }
                }
            }
        }
    }

    async fn subscribe(&mut self) -> Result<Subscription, SubscribeFailure> {
        let channel = self.socket.channel(Vec::new());
        let mut runtime = RuntimeServiceClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE);
        let version = ask_version(&mut runtime).await.map_err(SubscribeFailure::Unreachable)?;
        for source in preference(&version.runtime_name, &version.runtime_version) {
            if self.refused.contains(&source) {
                continue;
            }
            let aside =
                stream::select(image_events::hints(channel.clone()), delayed_full_hint(source)).boxed();
            let hints = with_others(open(source, channel.clone()), aside);
            match confirm(hints, ask_version(&mut runtime)).await {
                Ok(hints) => {
                    return Ok(Subscription { source, hints, since: Instant::now(), is_good: false });
                }
                Err(status) if is_refusal(&status) => self.refused.push(source),
                Err(status) => return Err(SubscribeFailure::Unreachable(status)),
            }
        }
        Err(SubscribeFailure::NoEventSource)
    }

    fn fail(&mut self, failure: SubscribeFailure) {
        let socket = self.socket.path().display();
        self.refused.clear();
        self.delay = match failure {
            SubscribeFailure::Unreachable(status) => {
                tracing::debug!(%socket, error = ?status, "the runtime does not answer");
                next_delay(self.delay).min(LONGEST_DELAY_WHEN_AWAY)
            }
            SubscribeFailure::NoEventSource => {
                tracing::debug!(%socket, "the runtime has no events for us");
                next_delay(self.delay).clamp(SHORTEST_DELAY_WHEN_REFUSED, LONGEST_DELAY_WHEN_REFUSED)
            }
        };
    }
}

fn next_delay(delay: Duration) -> Duration {
    (delay * 2).max(FIRST_DELAY)
}

/// The sources in order of preference. Only containerd has two.
fn preference(name: &str, version: &str) -> [HintSource; 2] {
    let digits = version.trim_start_matches('v').split('.').next().unwrap_or_default();
    let is_old = digits.parse::<u32>().is_ok_and(|major| major < 2);
    match name == "containerd" && is_old {
        true => [HintSource::Containerd, HintSource::Cri],
        false => [HintSource::Cri, HintSource::Containerd],
    }
}

/// An event that containerd sent just before we subscribed may become visible in CRI only after our first list. A
/// second full hint after one second covers that.
fn delayed_full_hint(source: HintSource) -> BoxStream<'static, Hint> {
    let look = async {
        tokio::time::sleep(SHOWN_AFTER).await;
        Hint::Everything
    };
    match source {
        HintSource::Containerd => stream::once(look).boxed(),
        HintSource::Cri => stream::empty().boxed(),
    }
}

/// Merges both streams; the result ends when `hints` ends.
fn with_others(hints: Hints, others: BoxStream<'static, Hint>) -> Hints {
    let ended = stream::once(async { None });
    let first = hints.map(Some).chain(ended);
    stream::select(first, others.map(|hint| Some(Ok(hint))))
        .take_while(|hint| std::future::ready(hint.is_some()))
        .filter_map(std::future::ready)
        .boxed()
}

fn open(source: HintSource, channel: Channel) -> Hints {
    match source {
        HintSource::Cri => cri_events::hints(channel),
        HintSource::Containerd => containerd_events::hints(channel),
    }
}

/// A server sends nothing before the first event. So a subscription is confirmed by the answer to a call that was made
/// after it on the same connection. A later refusal still ends the stream.
async fn confirm(
    mut hints: Hints,
    question: impl Future<Output = Result<pb::VersionResponse, Status>>,
) -> Result<Hints, Status> {
    tokio::select! {
        biased;
        first = hints.next() => match first {
            Some(Ok(hint)) => Ok(stream::iter([Ok(hint)]).chain(hints).boxed()),
            Some(Err(status)) => Err(status),
            None => Err(Status::unavailable("the event stream ended")),
        },
        answer = question => answer.map(|_| hints),
    }
}

async fn ask_version(runtime: &mut RuntimeServiceClient<Channel>) -> Result<pb::VersionResponse, Status> {
    let mut request = Request::new(pb::VersionRequest { version: crate::runtime::KUBE_API_VERSION.into() });
    request.set_timeout(VERSION_DEADLINE);
    match tokio::time::timeout(VERSION_DEADLINE, runtime.version(request)).await {
        Ok(answer) => answer.map(|a| a.into_inner()),
        Err(_) => Err(Status::deadline_exceeded("no answer to Version")),
    }
}

/// Whether the server refused, and did not just go away. A status from the transport has a source.
fn is_refusal(status: &Status) -> bool {
    std::error::Error::source(status).is_none()
        && !matches!(status.code(), Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_complete_source_comes_first() {
        let check =
            |name, version, expect| assert_eq!(preference(name, version)[0], expect, "{name} {version}");
        check("containerd", "1.6.20~ds1", HintSource::Containerd);
        check("containerd", "v1.7.24", HintSource::Containerd);
        check("containerd", "2.1.9+unknown", HintSource::Cri);
        check("containerd", "v2.0.0-rc.1", HintSource::Cri);
        check("containerd", "", HintSource::Cri);
        check("cri-o", "1.33.0", HintSource::Cri);
    }
}
