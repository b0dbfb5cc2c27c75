//! Ends the agent when it has had no valid client certificate for five minutes although the API server answers, so that
//! a restart can bootstrap again.

use std::time::Duration;

use ports::WallClock;

use super::rotate::RotationStatus;

/// How long the agent may be without a valid certificate while the server answers.
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
    /// Returns when the agent should end.
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
            // While the certificate is valid the end is far away; otherwise any change may end the wait.
            let sleep = end.map(|end| end.since(now)).unwrap_or_default().max(LOOK_AGAIN);
            tokio::select! {
                () = tokio::time::sleep(sleep.min(60 * LOOK_AGAIN)) => {}
                Ok(()) = held.changed() => {}
                Ok(()) = healthy.changed() => {}
            }
        }
    }
}
