//! When a kubelet has no certificate and can't expect one any more, a new start may find other credentials.

use std::time::Duration;

use ports::WallClock;

use super::rotate::RotationStatus;

/// So long without any certificate, while the server works, is too long.
const WITHOUT: Duration = Duration::from_secs(5 * 60);
const LOOK_AGAIN: Duration = Duration::from_secs(10);

#[derive(thiserror::Error, Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateLoss {
    #[error("there is no valid client certificate, and the server is responsive")]
    NoCertificate,
    #[error("the client certificate has expired, and the server is responsive")]
    Expired,
}

impl RotationStatus {
    /// Ends when the agent should.
    pub async fn wait_until_lost(&self, wall: &dyn WallClock) -> CertificateLoss {
        let (mut held, mut healthy) = (self.held(), self.healthy());
        let mut since = tokio::time::Instant::now();
        loop {
            let end = held.borrow_and_update().as_ref().map(|held| held.not_after);
            let responsive = *healthy.borrow_and_update();
            let now = wall.wall();
            match end {
                Some(end) if now > end && responsive => return CertificateLoss::Expired,
                Some(_) => since = tokio::time::Instant::now(),
                None if responsive && since.elapsed() > WITHOUT => return CertificateLoss::NoCertificate,
                None => {}
            }
            // While all is well the end is far; else any change may be the one.
            let sleep = end.map(|end| end.since(now)).unwrap_or_default().max(LOOK_AGAIN);
            tokio::select! {
                () = tokio::time::sleep(sleep.min(60 * LOOK_AGAIN)) => {}
                Ok(()) = held.changed() => {}
                Ok(()) = healthy.changed() => {}
            }
        }
    }
}
