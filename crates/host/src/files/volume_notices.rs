//! Notices from threads that work on volumes, on their way to the engine.

use async_trait::async_trait;
use model::PodUid;
use model::volume::VolumeNotice;
use ports::VolumeNoticeFeed;
use tokio::sync::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

type Item = (PodUid, VolumeNotice);

#[derive(Debug)]
pub struct HostVolumeNotices {
    // Kept, so that the receiver never sees all senders dropped.
    sender: UnboundedSender<Item>,
    receiver: Mutex<UnboundedReceiver<Item>>,
}

impl Default for HostVolumeNotices {
    fn default() -> Self {
        let (sender, receiver) = unbounded_channel();
        Self { sender, receiver: Mutex::new(receiver) }
    }
}

impl HostVolumeNotices {
    pub(super) fn sender(&self) -> VolumeNoticeSender {
        VolumeNoticeSender(self.sender.clone())
    }
}

#[async_trait]
impl VolumeNoticeFeed for HostVolumeNotices {
    async fn next(&self) -> Item {
        match self.receiver.lock().await.recv().await {
            Some(item) => item,
            None => std::future::pending().await,
        }
    }
}

/// Sends notices.
#[derive(Clone, Debug)]
pub struct VolumeNoticeSender(UnboundedSender<Item>);

impl VolumeNoticeSender {
    pub fn tell(&self, uid: &PodUid, news: VolumeNotice) {
        // The receiver is dropped only while the agent shuts down.
        let _ = self.0.send((uid.clone(), news));
    }
}
