//! Giving a large volume to its group, and telling of it while it lasts.

use std::path::{Path, PathBuf};
use std::time::Duration;

use model::PodUid;
use model::volume::GroupOwnership;
use ports::FilesError;

use super::lanes::{Lane, Lanes};
use super::ownership::{self, Access};
use super::steps::Pulse;

const FIRST_WORD: Duration = Duration::from_secs(30);
const NEXT_WORDS: Duration = Duration::from_secs(60);
const ADVICE: &str = "https://kubernetes.io/docs/tasks/configure-pod-container/security-context/#configure-volume-permission-and-ownership-change-policy-for-pods";

pub async fn give_to_group(
    lanes: &Lanes,
    uid: &PodUid,
    volume: &str,
    path: PathBuf,
    to: GroupOwnership,
    tell: &(dyn Fn(String) + Send + Sync),
) -> Result<(), FilesError> {
    let name = shown(uid, &path);
    let counted = Pulse::default();
    let inner = counted.clone();
    let work = move |outer: &Pulse| {
        let access = if to.read_only { Access::ReadOnly } else { Access::ReadWrite };
        let each = || {
            inner.beat();
            outer.beat();
        };
        match to.on_root_mismatch {
            true => ownership::apply_on_root_mismatch(&path, to.group, access, &each),
            false => ownership::apply(&path, to.group, access, &each),
        }
    };
    let what = format!("giving volume {volume:?} to its group");
    let walk = lanes.run(uid, Lane::Volume(volume), what, work);
    tokio::select! {
        result = walk => result,
        () = tell_of(&name, &counted, tell) => Ok(()),
    }
}

/// Never ends.
async fn tell_of(name: &str, counted: &Pulse, tell: &(dyn Fn(String) + Send + Sync)) {
    tokio::time::sleep(FIRST_WORD).await;
    tell(format!(
        "Setting volume ownership for {name} is taking longer than expected, consider using OnRootMismatch - {ADVICE}"
    ));
    loop {
        tokio::time::sleep(NEXT_WORDS).await;
        tell(format!("Setting volume ownership for {name}, processed {} files.", counted.beats()));
    }
}

/// `<uid>/volumes/<plugin>/<volume>`, without where the node keeps its pods.
fn shown(uid: &PodUid, path: &Path) -> String {
    let whole = path.display().to_string();
    whole.split_once("/pods/").map_or_else(|| format!("{uid}: {whole}"), |(_, inner)| inner.to_owned())
}
