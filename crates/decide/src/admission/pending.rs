//! Pods whose admission waits for something, in the order of their arrival.

use model::PodUid;

#[derive(Clone, PartialEq, Debug, Default)]
pub struct PendingAdmissions {
    /// Critical pods that wait until others have released their resources. Each of them counts for those behind it.
    pub(crate) room: Vec<PodUid>,
    /// Pods that would be refused for node affinity, and wait for the answer of the reading that is under way.
    pub(crate) node_requested: Vec<PodUid>,
    /// The Node is being read. It goes on although none of these pods may be left.
    pub(crate) node_reading: bool,
    /// The same, but the reading began before they were refused: it may have missed the change that admits them.
    pub(crate) node_next: Vec<PodUid>,
}

impl PendingAdmissions {
    /// The pod no longer waits.
    pub(crate) fn remove(&mut self, uid: &PodUid) {
        for waiting in [&mut self.room, &mut self.node_requested, &mut self.node_next] {
            waiting.retain(|other| other != uid);
        }
    }

    pub(crate) fn waiting_for_room(&self) -> &[PodUid] {
        &self.room
    }

    /// The pods that wait at the place of this one and behind it: what is reserved for them does not count for it.
    pub(crate) fn from(&self, uid: &PodUid) -> &[PodUid] {
        let at = self.room.iter().position(|waiting| waiting == uid).unwrap_or(self.room.len());
        &self.room[at..]
    }

    /// How many pods wait for something.
    pub fn len(&self) -> usize {
        self.room.len() + self.node_requested.len() + self.node_next.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
