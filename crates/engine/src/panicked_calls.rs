//! The outcome of a call that panicked: for each effect whose event is awaited, the event that reports the failure.

use std::collections::BTreeMap;

use decide::action::CallFailure;
use decide::effect::ApiCall;
use decide::event::{ApiCallResult, ApiFailure, ApiFailureKind, Event, RuntimeCheck};
use decide::image_pull::PullKey;
use model::disk_usage::PodDiskUsage;
use model::eviction::FigureGroup;
use model::log_rotation::LogCall;
use model::observed::Scope;
use model::volume::VolumeSetup;
use model::{ContainerId, Mono, PodUid};

fn refused(message: String) -> CallFailure {
    CallFailure { unreachable: false, message }
}

pub(crate) fn observe(scope: Scope) -> impl FnOnce(String) -> Option<Event> {
    move |message| Some(Event::ObserveFailed { scope, message })
}

pub(crate) fn check_runtime(message: String) -> Option<Event> {
    Some(Event::RuntimeChecked(RuntimeCheck::Failed { message }))
}

pub(crate) fn inspect(image: String) -> impl FnOnce(String) -> Option<Event> {
    move |message| {
        Some(Event::ImageInspected { image, result: Err(refused(message)), history: Default::default() })
    }
}

pub(crate) fn ask_plugins(pull: PullKey, for_access: bool) -> impl FnOnce(String) -> Option<Event> {
    move |_| Some(Event::CredentialPluginsAnswered { pull, for_access, account: None })
}

pub(crate) fn pull(pull: PullKey) -> impl FnOnce(String) -> Option<Event> {
    move |message| Some(Event::ImagePulled { pull, result: Err(refused(message)) })
}

pub(crate) fn list_images(message: String) -> Option<Event> {
    Some(Event::ImagesListed(Err(refused(message))))
}

pub(crate) fn remove_image(image: String) -> impl FnOnce(String) -> Option<Event> {
    move |message| Some(Event::ImageRemoved { image, result: Err(refused(message)) })
}

pub(crate) fn read_user_ids(_: String) -> Option<Event> {
    Some(Event::UserIdsRead { ids: Vec::new(), unlisted: true })
}

pub(crate) fn update_reserved_cgroups(message: String) -> Option<Event> {
    Some(Event::ReservedCgroupsWritten { results: vec![Err(message)] })
}

pub(crate) fn read_node(message: String) -> Option<Event> {
    Some(Event::NodeRead(Err(message)))
}

pub(crate) fn sweep(message: String) -> Option<Event> {
    Some(Event::SweepEnded { problems: vec![message] })
}

pub(crate) fn update_volume(uid: PodUid, volume: Box<VolumeSetup>) -> impl FnOnce(String) -> Option<Event> {
    move |message| Some(Event::VolumeUpdated { uid, volume, result: Err(message) })
}

pub(crate) fn measure_disk_usage(uid: PodUid) -> impl FnOnce(String) -> Option<Event> {
    move |message| Some(Event::DiskMeasured { uid, result: Err::<PodDiskUsage, _>(message) })
}

pub(crate) fn log(id: ContainerId, call: &LogCall) -> impl FnOnce(String) -> Option<Event> + use<> {
    let call = call.clone();
    move |message| Some(Event::LogCallEnded { id, result: call.failed(message) })
}

pub(crate) fn node_figures(group: FigureGroup, at: Mono) -> impl FnOnce(String) -> Option<Event> {
    move |message| Some(Event::NodeFiguresRead { group, at, result: Err(message) })
}

pub(crate) fn memory_pressure(message: String) -> Option<Event> {
    Some(Event::MemoryRunsShort { result: Err(message) })
}

pub(crate) fn pod_figures(call: u64) -> impl FnOnce(String) -> Option<Event> {
    move |_| Some(Event::PodFiguresRead { call, pods: BTreeMap::new() })
}

pub(crate) fn api(call: &ApiCall) -> impl FnOnce(String) -> Option<Event> + use<> {
    let call = call.clone();
    move |message| {
        let failure = ApiFailure { kind: ApiFailureKind::Refused, retry_after: None, message };
        Some(Event::ApiAnswered(match call {
            ApiCall::PatchStatus { uid, pod, .. } => {
                ApiCallResult::StatusPatched { uid, object: pod.uid, result: Err(failure) }
            }
            ApiCall::DeletePod { uid, .. } => ApiCallResult::PodDeleted { uid, result: Err(failure) },
            ApiCall::CreateMirror { full_name, .. } => {
                ApiCallResult::MirrorCreated { full_name, result: Err(failure) }
            }
            ApiCall::DeleteMirror { full_name, uid, .. } => {
                ApiCallResult::MirrorDeleted { full_name, uid, result: Err(failure) }
            }
        }))
    }
}
