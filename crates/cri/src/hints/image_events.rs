//! Images that arrive in containerd by another way than our own pulls (an operator's import, a pull by hand).
//!
//! CRI has no event for them; containerd's own stream does, in every version. It stands beside either source of
//! container events: a runtime that has no such stream just gives no such hint, and whoever waits for an image tries
//! again at its back-off's end.

use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use ports::Hint;
use prost::Message;
use tokio::time::Instant;
use tonic::transport::Channel;

use crate::containerd::events_client::EventsClient;
use crate::containerd::{Envelope, ImageChange, SubscribeRequest};
use crate::endpoint::MAX_MESSAGE;
use crate::pb;
use crate::pb::image_service_client::ImageServiceClient;

const TOPICS: [&str; 2] = ["/images/create", "/images/update"];
/// containerd's CRI part takes note of the image a moment after the event.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
const VISIBLE_WITHIN: Duration = Duration::from_secs(5);

/// Never ends: when there is nothing to listen to, it is silent.
pub(super) fn hints(channel: Channel) -> BoxStream<'static, Hint> {
    let images = ImageServiceClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE);
    let events = async move {
        let mut events = EventsClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
        let filters = TOPICS.map(|topic| format!(r#"namespace=="k8s.io",topic=="{topic}""#)).into();
        let answer = events.subscribe(SubscribeRequest { filters }).await;
        match answer {
            Ok(answer) => answer.into_inner().filter_map(|event| async { event.ok() }).boxed(),
            Err(_) => stream::empty().boxed(),
        }
    };
    stream::once(events)
        .flatten()
        .filter_map(|envelope: Envelope| async move { name(&envelope) })
        .then(move |image| {
            let images = images.clone();
            async move {
                until_visible(images, image).await;
                Hint::Images
            }
        })
        .chain(stream::pending())
        .boxed()
}

fn name(envelope: &Envelope) -> Option<String> {
    let change = ImageChange::decode(envelope.event.as_ref()?.value.as_slice()).ok()?;
    // The digest's own name follows the tag's, and tells nothing new.
    Some(change.name).filter(|name| !name.is_empty() && !name.starts_with("sha256:"))
}

async fn until_visible(mut images: ImageServiceClient<Channel>, image: String) {
    let give_up = Instant::now() + VISIBLE_WITHIN;
    while Instant::now() < give_up {
        let spec = pb::ImageSpec { image: image.clone(), ..Default::default() };
        let question = images.image_status(pb::ImageStatusRequest { image: Some(spec), verbose: false });
        match tokio::time::timeout_at(give_up, question).await {
            Ok(Ok(answer)) if answer.get_ref().image.is_none() => tokio::time::sleep(BETWEEN_LOOKS).await,
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_people_use_are_hinted() {
        let check = |image: &str, expect: Option<&str>| {
            let value = ImageChange { name: image.into() }.encode_to_vec();
            let event = Some(prost_types::Any { type_url: String::new(), value });
            let envelope = Envelope { namespace: "k8s.io".into(), topic: TOPICS[0].into(), event };
            assert_eq!(name(&envelope).as_deref(), expect, "{image}");
        };
        check("host.test/a:1", Some("host.test/a:1"));
        check("sha256:abc", None);
        check("", None);
    }
}
