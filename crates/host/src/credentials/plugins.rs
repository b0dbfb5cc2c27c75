//! Credential plugins: programs that are started once per image, answer or fail, and exit.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use model::credentials::CredentialPlugin;
use model::text_limits::TextLimit;
use ports::PluginError;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

/// A plugin may retry its network calls, but its time is limited.
pub(super) const PLUGIN_TIMEOUT: Duration = Duration::from_secs(60);
/// Larger than any answer.
const MAX_OUTPUT_BYTES: u64 = 1 << 20;
/// This much of a plugin's error output is reported.
const MAX_STDERR_BYTES: usize = TextLimit::PluginMessage.bytes();

#[derive(thiserror::Error, Debug)]
pub enum PluginPathError {
    #[error("plugin binary directory {} did not exist", path.display())]
    NoDirectory { path: PathBuf },
    #[error("plugin binary executable {} did not exist", path.display())]
    NoProgram { path: PathBuf },
    #[error("plugin binary {} is not executable", path.display())]
    NotExecutable { path: PathBuf },
    #[error("no configuration files found in directory {:?}", path.display())]
    NoFiles { path: PathBuf },
    #[error("unable to read {:?}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// The file, or all `.json`, `.yaml` and `.yml` files of the directory in the order of their names.
pub fn read_plugin_config(path: &Path) -> Result<Vec<(String, Vec<u8>)>, PluginPathError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| PluginPathError::Read { path, source }
    };
    let mut files = vec![path.to_owned()];
    if path.metadata().map_err(failed(path))?.is_dir() {
        files.clear();
        for entry in path.read_dir().map_err(failed(path))? {
            let entry = entry.map_err(failed(path))?;
            let kind = entry.path().extension().and_then(|kind| kind.to_str()).map(str::to_owned);
            let wanted = matches!(kind.as_deref(), Some("json" | "yaml" | "yml"));
            if wanted && !entry.file_type().map_err(failed(path))?.is_dir() {
                files.push(entry.path());
            }
        }
        files.sort();
    }
    if files.is_empty() {
        return Err(PluginPathError::NoFiles { path: path.to_owned() });
    }
    let read = |file: PathBuf| {
        let bytes = std::fs::read(&file).map_err(failed(&file))?;
        Ok((file.display().to_string(), bytes))
    };
    files.into_iter().map(read).collect()
}

pub(super) fn check_programs(bin_dir: &Path, plugins: &[CredentialPlugin]) -> Result<(), PluginPathError> {
    use std::os::unix::fs::PermissionsExt;
    if !bin_dir.is_dir() {
        return Err(PluginPathError::NoDirectory { path: bin_dir.to_owned() });
    }
    for plugin in plugins {
        let path = bin_dir.join(&plugin.name);
        match path.metadata() {
            Ok(found) if found.is_file() && found.permissions().mode() & 0o111 != 0 => {}
            Ok(_) => return Err(PluginPathError::NotExecutable { path }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(PluginPathError::NoProgram { path });
            }
            Err(source) => return Err(PluginPathError::Read { path, source }),
        }
    }
    Ok(())
}

/// Every process of the plugin is killed in the end: it has its own process group.
struct PluginProcess {
    child: Child,
    group: Option<Pid>,
}

impl Drop for PluginProcess {
    fn drop(&mut self) {
        // The PID of the group can't be reused while its leader is not reaped.
        let not_reaped = self.child.id().is_some();
        if let Some(group) = self.group.filter(|_| not_reaped) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

pub(super) async fn run_plugin(
    program: &Path,
    plugin: &CredentialPlugin,
    image: &str,
    request: &str,
    patience: Duration,
) -> Result<Vec<u8>, PluginError> {
    let names = || (plugin.name.clone(), image.to_owned());
    let start_failed = |source| {
        let (plugin, image) = names();
        PluginError::Start { plugin, image, source }
    };
    let mut running = start(program, plugin).map_err(start_failed)?;
    let Ok(result) = tokio::time::timeout(patience, exchange_with_plugin(&mut running.child, request)).await
    else {
        let (plugin, image) = names();
        return Err(PluginError::TimedOut { plugin, image, after: patience });
    };
    let (status, stdout, stderr) = result.map_err(start_failed)?;
    let (plugin, image) = names();
    if !status.success() {
        let stderr = stderr_tail(&stderr);
        return Err(PluginError::Failed { plugin, image, status, stderr });
    }
    if stdout.len() as u64 > MAX_OUTPUT_BYTES {
        return Err(PluginError::TooMuch { plugin, image, limit: MAX_OUTPUT_BYTES });
    }
    Ok(stdout)
}

fn start(program: &Path, plugin: &CredentialPlugin) -> io::Result<PluginProcess> {
    let child = Command::new(program)
        .args(&plugin.args)
        .envs(plugin.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    Ok(PluginProcess { child, group })
}

/// Writes and reads concurrently, because a plugin may answer before it has read everything.
async fn exchange_with_plugin(
    child: &mut Child,
    request: &str,
) -> io::Result<(ExitStatus, Vec<u8>, Vec<u8>)> {
    let (mut stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let write = async {
        if let Some(stdin) = &mut stdin {
            // A plugin that does not need the request closes its end.
            let _ = stdin.write_all(request.as_bytes()).await;
        }
        drop(stdin);
    };
    let (_, stdout, stderr) = tokio::join!(write, read(stdout), read(stderr));
    Ok((child.wait().await?, stdout?, stderr?))
}

/// Reads to the end, but keeps only slightly more than is allowed.
async fn read(pipe: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let Some(mut pipe) = pipe else { return Ok(Vec::new()) };
    let mut kept = Vec::new();
    (&mut pipe).take(MAX_OUTPUT_BYTES + 1).read_to_end(&mut kept).await?;
    tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await?;
    Ok(kept)
}

fn stderr_tail(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let text = text.trim();
    let mut from = text.len().saturating_sub(MAX_STDERR_BYTES);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text[from..].to_owned()
}
