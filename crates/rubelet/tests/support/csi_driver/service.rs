//! The driver's side: what it does when it is asked.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use plugins::test_server::csi as pb;
use plugins::test_server::registration as reg;
use rustix::mount::UnmountFlags;
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};

use crate::support::dead_server::DeadServer;
use pb::node_server::{Node, NodeServer};
use reg::registration_server::{Registration, RegistrationServer};

/// How often a call that hangs looks whether it still is to.
const LOOK: Duration = Duration::from_millis(20);

#[derive(Clone)]
struct Service {
    dir: Arc<PathBuf>,
    settings: Arc<Value>,
}

pub fn serve(dir: &Path) -> ! {
    let settings: Value = serde_json::from_slice(&fs::read(dir.join("settings.json")).unwrap()).unwrap();
    let service = Service { dir: Arc::new(dir.to_owned()), settings: Arc::new(settings) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async move {
        let listen = |key: &str| {
            let path = PathBuf::from(service.settings[key].as_str().unwrap());
            let _ = fs::remove_file(&path);
            UnixListenerStream::new(UnixListener::bind(path).unwrap())
        };
        let csi = Server::builder()
            .add_service(NodeServer::new(service.clone()))
            .serve_with_incoming(listen("socket"));
        let csi = tokio::spawn(csi);
        let registration = Server::builder()
            .add_service(RegistrationServer::new(service.clone()))
            .serve_with_incoming(listen("registration"));
        registration.await.unwrap();
        csi.await.unwrap().unwrap();
    });
    std::process::exit(0)
}

impl Service {
    fn note(&self, call: &str, volume: &str, done: bool, more: &Value) {
        let mut line = json!({"call": call, "volume": volume, "done": done});
        crate::support::cluster_node::merge(&mut line, more.clone());
        self.write(&line);
    }

    fn write(&self, line: &Value) {
        let mut file = fs::OpenOptions::new().create(true).append(true).open(self.dir.join("calls")).unwrap();
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// Of this volume, or of all.
    fn fault(&self, call: &str, volume: &str) -> Option<String> {
        let faults = self.dir.join("faults");
        let of_one = fs::read_to_string(faults.join(format!("{call}.{volume}")));
        of_one.or_else(|_| fs::read_to_string(faults.join(call))).ok()
    }

    /// Carries a call out, with the fault that is set for it.
    async fn perform(
        &self,
        call: &str,
        volume: &str,
        more: Value,
        work: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), Status> {
        self.note(call, volume, false, &more);
        let mut end = Ended { service: self, call, volume, hung: false };
        let fault = self.fault(call, volume).unwrap_or_default();
        if let Some(code) = fault.strip_prefix("fail ") {
            return Err(Status::new(Code::from_i32(code.trim().parse().unwrap()), "as the test wants it"));
        }
        let hangs = |when: &'static str| self.fault(call, volume).is_some_and(|fault| fault == when);
        while hangs("before") {
            end.hangs();
            tokio::time::sleep(LOOK).await;
        }
        work().map_err(Status::internal)?;
        self.note(call, volume, true, &more);
        while hangs("after") {
            end.hangs();
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// A test may change it.
    fn most_volumes(&self) -> i64 {
        let said = fs::read_to_string(self.dir.join("most-volumes")).unwrap_or_default();
        said.trim().parse().unwrap_or(7)
    }

    fn data(&self, volume: &str) -> PathBuf {
        self.dir.join("volumes").join(volume)
    }

    fn bind(&self, from: &Path, to: &Path) -> Result<(), String> {
        if is_mounted(to) {
            return Ok(());
        }
        run("mount", &["--bind", from.to_str().unwrap(), to.to_str().unwrap()])
    }

    /// The loop device of a volume, made when it is first asked for.
    fn device(&self, volume: &str) -> Result<PathBuf, String> {
        let file = self.dir.join(format!("volumes/{volume}.img"));
        let note = self.dir.join(format!("volumes/{volume}.loop"));
        if let Ok(device) = fs::read_to_string(&note) {
            return Ok(device.into());
        }
        let image = fs::File::create(&file).map_err(|error| error.to_string())?;
        image.set_len(1 << 20).map_err(|error| error.to_string())?;
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&file).output();
        let made = made.map_err(|error| error.to_string())?;
        let device = String::from_utf8_lossy(&made.stdout).trim().to_owned();
        if device.is_empty() {
            return Err(format!("losetup: {}", String::from_utf8_lossy(&made.stderr)));
        }
        // A test that was killed may have left it read-only.
        run("blockdev", &["--setrw", &device])?;
        fs::write(note, &device).map_err(|error| error.to_string())?;
        Ok(device.into())
    }

    fn drop_device(&self, volume: &str) -> Result<(), String> {
        let note = self.dir.join(format!("volumes/{volume}.loop"));
        let Ok(device) = fs::read_to_string(&note) else { return Ok(()) };
        run("losetup", &["--detach", &device])?;
        fs::remove_file(note).map_err(|error| error.to_string())
    }
}

/// Notes that a call is over, in whatever way: also when whoever asked has hung up.
struct Ended<'a> {
    service: &'a Service,
    call: &'a str,
    volume: &'a str,
    hung: bool,
}

impl Ended<'_> {
    /// Notes it, the first time.
    fn hangs(&mut self) {
        if !std::mem::replace(&mut self.hung, true) {
            self.service.write(&json!({"call": self.call, "volume": self.volume, "hangs": true}));
        }
    }
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        let line = json!({"call": self.call, "volume": self.volume, "ended": true, "hung": self.hung});
        self.service.write(&line);
    }
}

fn is_mounted(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    table.lines().any(|line| line.split(' ').nth(4) == real.to_str())
}

fn unmount(path: &Path) -> Result<(), String> {
    if is_mounted(path) {
        let gone = rustix::mount::unmount(path, UnmountFlags::NOFOLLOW);
        gone.map_err(|error| format!("unmounting {}: {error}", path.display()))?;
    }
    Ok(())
}

/// Stays mounted for as long as this process lives. When it ends everybody gets an error.
fn mount_dead_server(at: &Path) -> rustix::io::Result<()> {
    std::mem::forget(DeadServer::mount(at)?);
    Ok(())
}

fn run(program: &str, args: &[&str]) -> Result<(), String> {
    let done = Command::new(program).args(args).output().map_err(|error| error.to_string())?;
    match done.status.success() {
        true => Ok(()),
        false => Err(format!("{program} {args:?}: {}", String::from_utf8_lossy(&done.stderr))),
    }
}

/// What it is to be mounted with.
fn mount_of(capability: Option<&pb::VolumeCapability>) -> (&[String], &str) {
    match capability.and_then(|capability| capability.access_type.as_ref()) {
        Some(pb::volume_capability::AccessType::Mount(mount)) => (&mount.mount_flags, &mount.fs_type),
        _ => (&[], ""),
    }
}

fn is_block(capability: Option<&pb::VolumeCapability>) -> bool {
    use pb::volume_capability::AccessType;
    matches!(capability.and_then(|c| c.access_type.as_ref()), Some(AccessType::Block(_)))
}

#[tonic::async_trait]
impl Registration for Service {
    async fn get_info(&self, _: Request<reg::InfoRequest>) -> Result<Response<reg::PluginInfo>, Status> {
        let text = |key: &str| self.settings[key].as_str().unwrap_or_default().to_owned();
        Ok(Response::new(reg::PluginInfo {
            r#type: "CSIPlugin".into(),
            name: text("name"),
            endpoint: text("socket"),
            supported_versions: vec!["1.0.0".into()],
        }))
    }

    async fn notify_registration_status(
        &self,
        status: Request<reg::RegistrationStatus>,
    ) -> Result<Response<reg::RegistrationStatusResponse>, Status> {
        let status = status.into_inner();
        let more = json!({"registered": status.plugin_registered, "error": status.error});
        self.note("Registered", "", true, &more);
        Ok(Response::new(reg::RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl Node for Service {
    async fn node_get_info(
        &self,
        _: Request<pb::NodeGetInfoRequest>,
    ) -> Result<Response<pb::NodeGetInfoResponse>, Status> {
        let segments =
            [(format!("topology.{}/zone", self.settings["name"].as_str().unwrap()), "z".to_owned())];
        Ok(Response::new(pb::NodeGetInfoResponse {
            node_id: "node-of-the-driver".into(),
            max_volumes_per_node: self.most_volumes(),
            accessible_topology: Some(pb::Topology { segments: segments.into() }),
        }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<pb::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<pb::NodeGetCapabilitiesResponse>, Status> {
        use pb::node_service_capability::{Rpc, Type, rpc};
        let mut known = Vec::new();
        for (setting, ability) in [
            ("stage", rpc::Type::StageUnstageVolume),
            ("expand", rpc::Type::ExpandVolume),
            ("stats", rpc::Type::GetVolumeStats),
            ("condition", rpc::Type::VolumeCondition),
        ] {
            if self.settings[setting] == true {
                known.push(ability);
            }
        }
        let capability = |r#type: rpc::Type| pb::NodeServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: r#type.into() })),
        };
        let capabilities = known.into_iter().map(capability).collect();
        Ok(Response::new(pb::NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_stage_volume(
        &self,
        request: Request<pb::NodeStageVolumeRequest>,
    ) -> Result<Response<pb::NodeStageVolumeResponse>, Status> {
        let call = request.into_inner();
        let (flags, fs_type) = mount_of(call.volume_capability.as_ref());
        let more = json!({
            "secrets": call.secrets, "publishContext": call.publish_context, "mountFlags": flags,
            "fsType": fs_type,
        });
        let staging = PathBuf::from(&call.staging_target_path);
        let block = is_block(call.volume_capability.as_ref());
        self.perform("Stage", &call.volume_id, more, || {
            if block {
                return self.device(&call.volume_id).map(drop);
            }
            let data = self.data(&call.volume_id);
            fs::create_dir_all(&data).map_err(|error| error.to_string())?;
            self.bind(&data, &staging)
        })
        .await?;
        Ok(Response::new(pb::NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<pb::NodeUnstageVolumeRequest>,
    ) -> Result<Response<pb::NodeUnstageVolumeResponse>, Status> {
        let call = request.into_inner();
        self.perform("Unstage", &call.volume_id, json!({}), || {
            self.drop_device(&call.volume_id)?;
            unmount(Path::new(&call.staging_target_path))
        })
        .await?;
        Ok(Response::new(pb::NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<pb::NodePublishVolumeRequest>,
    ) -> Result<Response<pb::NodePublishVolumeResponse>, Status> {
        let call = request.into_inner();
        let (flags, fs_type) = mount_of(call.volume_capability.as_ref());
        let more = json!({
            "secrets": call.secrets, "context": call.volume_context, "target": call.target_path,
            "publishContext": call.publish_context, "mountFlags": flags, "fsType": fs_type,
        });
        let target = PathBuf::from(&call.target_path);
        let block = is_block(call.volume_capability.as_ref());
        self.perform("Publish", &call.volume_id, more, || {
            if block {
                if !target.exists() {
                    fs::write(&target, "").map_err(|error| error.to_string())?;
                }
                return self.bind(&self.device(&call.volume_id)?, &target);
            }
            let data = self.data(&call.volume_id);
            let staged = PathBuf::from(&call.staging_target_path);
            let from = if call.staging_target_path.is_empty() { &data } else { &staged };
            fs::create_dir_all(&data).map_err(|error| error.to_string())?;
            if from == &staged && !is_mounted(from) {
                return Err(format!("{} is not staged", call.volume_id));
            }
            // Not to be touched: its server may be dead.
            if is_mounted(&target) {
                return Ok(());
            }
            fs::create_dir_all(&target).map_err(|error| error.to_string())?;
            match self.fault("Publish", &call.volume_id).as_deref() {
                Some("dead") => mount_dead_server(&target).map_err(|error| error.to_string()),
                _ => self.bind(from, &target),
            }
        })
        .await?;
        Ok(Response::new(pb::NodePublishVolumeResponse {}))
    }

    async fn node_expand_volume(
        &self,
        request: Request<pb::NodeExpandVolumeRequest>,
    ) -> Result<Response<pb::NodeExpandVolumeResponse>, Status> {
        let call = request.into_inner();
        let bytes = call.capacity_range.unwrap_or_default().required_bytes;
        let more = json!({
            "bytes": bytes, "target": call.volume_path, "staging": call.staging_target_path,
            "secrets": call.secrets,
        });
        let published = PathBuf::from(&call.volume_path);
        self.perform("Expand", &call.volume_id, more, || {
            if !is_mounted(&published) {
                return Err(format!("{} is not published", call.volume_id));
            }
            let size = self.dir.join("volumes").join(format!("{}.size", call.volume_id));
            fs::write(size, bytes.to_string()).map_err(|error| error.to_string())
        })
        .await?;
        Ok(Response::new(pb::NodeExpandVolumeResponse { capacity_bytes: bytes }))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<pb::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<pb::NodeGetVolumeStatsResponse>, Status> {
        use pb::volume_usage::Unit;
        let call = request.into_inner();
        let published = PathBuf::from(&call.volume_path);
        self.perform("Stats", &call.volume_id, json!({"target": call.volume_path}), || {
            match is_mounted(&published) {
                true => Ok(()),
                false => Err(format!("{} is not published", call.volume_id)),
            }
        })
        .await?;
        let [bytes, inodes] = super::FIGURES;
        let usage = [(bytes, Unit::Bytes), (inodes, Unit::Inodes)].map(|([total, used, available], unit)| {
            pb::VolumeUsage { available, total, used, unit: unit.into() }
        });
        let trouble = fs::read_to_string(self.dir.join("trouble")).unwrap_or_default();
        let condition = pb::VolumeCondition { abnormal: !trouble.is_empty(), message: trouble };
        Ok(Response::new(pb::NodeGetVolumeStatsResponse {
            usage: usage.into(),
            volume_condition: Some(condition),
        }))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<pb::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<pb::NodeUnpublishVolumeResponse>, Status> {
        let call = request.into_inner();
        let target = PathBuf::from(&call.target_path);
        self.perform("Unpublish", &call.volume_id, json!({"target": call.target_path}), || {
            unmount(&target)?;
            let gone = match target.is_dir() {
                true => fs::remove_dir(&target),
                false => fs::remove_file(&target),
            };
            match gone {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.to_string()),
                _ => Ok(()),
            }
        })
        .await?;
        Ok(Response::new(pb::NodeUnpublishVolumeResponse {}))
    }
}
