//! The kernel's control groups: versions 1 and 2, by files or through systemd.
//!
//! ```text
//! CgroupSpec --spell--> path --+-- v1: a directory in each hierarchy --+
//!                              +-- v2: one directory                 --+-- settings --> files
//!                              +-- systemd: a slice, then the above  --+
//! ```
//!
//! - `layout`: what this host has, and where
//! - `settings`: from numbers to files (pure)
//! - `v1`, `v2`: making, testing for and filling a cgroup of that version
//! - `systemd`: the same through slices
//! - `removals`: which cgroups somebody removed
//! - `placement`: moving processes that are no pods
//! - `clear`: killing what runs in a cgroup and removing it
//!
//! Files are accessed in tokio's blocking pool only, because an access may wait long for a kernel lock.

mod clear;
mod file;
mod layout;
mod placement;
mod removals;
mod settings;
mod systemd;
mod v1;
mod v2;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use model::cgroup::{CgroupDriver, CgroupName, CgroupSpec, CgroupValues};
use ports::{CgroupError, Cgroups};

pub use layout::{CgroupLayout, Hierarchy, detect, detect_in};
pub use placement::ProcessCgroup;

use systemd::{Slice, SystemdBus, SystemdUnits};

/// How long killed processes get to end before each attempt to remove their cgroup.
const PAUSES: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_millis(10),
    Duration::from_millis(50),
    Duration::from_millis(250),
    Duration::from_millis(750),
];

/// `ports::Cgroups` on this host.
pub struct HostCgroups {
    layout: Arc<CgroupLayout>,
    /// Changed once, when the runtime reports its driver.
    driver: ArcSwap<Driver>,
}

enum Driver {
    Files,
    Systemd(Box<dyn SystemdUnits>),
}

impl Driver {
    fn new(driver: CgroupDriver) -> Self {
        match driver {
            CgroupDriver::Cgroupfs => Driver::Files,
            CgroupDriver::Systemd => Driver::Systemd(Box::new(SystemdBus::new())),
        }
    }

    fn kind(&self) -> CgroupDriver {
        match self {
            Driver::Files => CgroupDriver::Cgroupfs,
            Driver::Systemd(_) => CgroupDriver::Systemd,
        }
    }
}

impl HostCgroups {
    /// Reads and writes nothing yet; the connection to systemd is opened when it is first needed.
    pub fn new(layout: CgroupLayout, driver: CgroupDriver) -> Self {
        Self { layout: Arc::new(layout), driver: ArcSwap::from_pointee(Driver::new(driver)) }
    }

    pub fn layout(&self) -> &CgroupLayout {
        &self.layout
    }

    fn to_path(&self, name: &CgroupName) -> Result<String, CgroupError> {
        let path = name.to_path(self.driver.load().kind());
        let sound = |part: &String| {
            !part.is_empty() && part != "." && part != ".." && !part.contains(['/', '\0', '\n'])
        };
        if name.0.iter().all(sound) { Ok(path) } else { Err(refused("checking the name", path)) }
    }

    /// As `spell`, for changes of the cgroup: refuses the root cgroup, which is shared.
    fn path_to_change(&self, name: &CgroupName) -> Result<String, CgroupError> {
        let path = self.to_path(name)?;
        if name.0.is_empty() { Err(refused("changing the root", path)) } else { Ok(path) }
    }

    async fn with_layout<T: Send + 'static>(
        &self,
        path: &str,
        work: impl FnOnce(&CgroupLayout, &str) -> Result<T, CgroupError> + Send + 'static,
    ) -> Result<T, CgroupError> {
        let layout = Arc::clone(&self.layout);
        let below = path.trim_start_matches('/').to_owned();
        blocking(path, move || work(&layout, &below)).await
    }

    /// Kills what is in the cgroup until it is empty, then removes it if requested.
    async fn clear(&self, path: &str, remove: bool) -> Result<(), CgroupError> {
        let directories = Arc::new(self.layout.directories(path));
        let mut left = 0;
        for pause in PAUSES {
            tokio::time::sleep(pause).await;
            let here = Arc::clone(&directories);
            let (killed, done) = blocking(path, move || kill_and_remove(&here, remove)).await?;
            if done {
                return Ok(());
            }
            left = killed;
        }
        match left {
            0 => Err(clear::busy_error(path)),
            pids => Err(CgroupError::Busy { path: path.to_owned(), pids }),
        }
    }

    async fn ensure_slice(
        &self,
        units: &dyn SystemdUnits,
        name: &CgroupName,
        path: &str,
        values: &CgroupValues,
    ) -> Result<(), CgroupError> {
        let wanted = values.clone();
        let (made, settled) = self
            .with_layout(path, move |layout, below| {
                Ok((exists(layout, below)?, is_up_to_date(layout, below, &wanted)?))
            })
            .await?;
        if settled {
            return Ok(());
        }
        let Some(slice) = Slice::of(name) else { return Ok(()) };
        systemd::ensure(units, &slice, self.layout.version(), values, made).await
    }
}

#[async_trait]
impl Cgroups for HostCgroups {
    fn use_driver(&self, driver: CgroupDriver) {
        if self.driver.load().kind() != driver {
            self.driver.store(Arc::new(Driver::new(driver)));
        }
    }

    async fn ensure(&self, spec: &CgroupSpec) -> Result<(), CgroupError> {
        let path = self.path_to_change(&spec.name)?;
        if let Driver::Systemd(units) = &*self.driver.load_full() {
            self.ensure_slice(units.as_ref(), &spec.name, &path, &spec.values).await?;
        }
        let values = spec.values.clone();
        self.with_layout(&path, move |layout, below| match layout {
            CgroupLayout::V1(hierarchies) => v1::ensure(hierarchies, below, &values),
            CgroupLayout::V2 { root } => v2::ensure(root, below, &values),
        })
        .await
    }

    async fn update(&self, spec: &CgroupSpec) -> Result<(), CgroupError> {
        let path = self.path_to_change(&spec.name)?;
        let shown =
            format!("[{}]", spec.name.0.iter().map(|part| format!("{part:?}")).collect::<Vec<_>>().join(" "));
        let values = spec.values.clone();
        self.with_layout(&path, move |layout, below| check_exists(layout, below, &values, shown)).await?;
        if let Driver::Systemd(units) = &*self.driver.load_full() {
            self.ensure_slice(units.as_ref(), &spec.name, &path, &spec.values).await?;
        }
        let values = spec.values.clone();
        self.with_layout(&path, move |layout, below| match layout {
            CgroupLayout::V1(hierarchies) => v1::update(hierarchies, below, &values),
            CgroupLayout::V2 { root } => v2::update(root, below, &values),
        })
        .await
    }

    async fn exists(&self, name: &CgroupName) -> Result<bool, CgroupError> {
        let path = self.to_path(name)?;
        self.with_layout(&path, exists).await
    }

    fn removals(&self, above: Vec<CgroupName>) -> BoxStream<'static, CgroupName> {
        let driver = self.driver.load().kind();
        let directories = above.iter().enumerate().flat_map(|(index, name)| {
            let paths = self.layout.required_directories(&name.to_path(driver));
            paths.into_iter().map(move |path| (path, index))
        });
        let removed = removals::removals(directories.collect());
        let named = removed.filter_map(move |(index, entry)| {
            let parent = &above[index];
            let child = match driver {
                CgroupDriver::Cgroupfs => Some(entry),
                CgroupDriver::Systemd => Slice::child(parent, &entry),
            };
            std::future::ready(child.map(|child| parent.child(child)))
        });
        named.boxed()
    }

    async fn destroy(&self, name: &CgroupName) -> Result<(), CgroupError> {
        let path = self.path_to_change(name)?;
        if let (Driver::Systemd(units), Some(slice)) = (&*self.driver.load_full(), Slice::of(name)) {
            // Emptied first, because systemd would give each process its stop timeout.
            self.clear(&path, false).await?;
            units.stop(&slice.unit).await?;
        }
        self.clear(&path, true).await
    }

    async fn children(&self, name: &CgroupName) -> Result<Vec<String>, CgroupError> {
        let path = self.to_path(name)?;
        let entries = self
            .with_layout(&path, |layout, below| {
                let mut entries = BTreeSet::new();
                for directory in layout.directories(below) {
                    entries.extend(file::subdirectories(&directory)?);
                }
                Ok(entries)
            })
            .await?;
        Ok(match &*self.driver.load_full() {
            Driver::Files => entries.into_iter().collect(),
            Driver::Systemd(_) => entries.iter().filter_map(|entry| Slice::child(name, entry)).collect(),
        })
    }
}

fn exists(layout: &CgroupLayout, below: &str) -> Result<bool, CgroupError> {
    match layout {
        CgroupLayout::V1(hierarchies) => Ok(v1::exists(hierarchies, below)),
        CgroupLayout::V2 { root } => v2::exists(root, below),
    }
}

/// Whether the cgroup is there, with all that these values need. `shown`: the name as the error has it.
fn check_exists(
    layout: &CgroupLayout,
    below: &str,
    values: &CgroupValues,
    shown: String,
) -> Result<(), CgroupError> {
    let (what, missing) = match layout {
        CgroupLayout::V1(_) => {
            let paths = layout.missing(below);
            ("paths", paths.iter().map(|path| path.display().to_string()).collect())
        }
        CgroupLayout::V2 { root } => ("controllers", v2::missing_for(root, below, values)?),
    };
    let is_there = missing.is_empty() && layout.directories(below).iter().any(|path| path.is_dir());
    match is_there {
        true => Ok(()),
        false => Err(CgroupError::Missing { path: shown, what: format!("{what}: {}", missing.join(", ")) }),
    }
}

fn is_up_to_date(layout: &CgroupLayout, below: &str, values: &CgroupValues) -> Result<bool, CgroupError> {
    match layout {
        CgroupLayout::V1(hierarchies) => Ok(v1::is_up_to_date(hierarchies, below, values)),
        CgroupLayout::V2 { root } => v2::is_up_to_date(root, below, values),
    }
}

/// How many processes were alive, and whether the work is done.
fn kill_and_remove(directories: &[PathBuf], remove: bool) -> Result<(usize, bool), CgroupError> {
    let killed = clear::kill(directories)?;
    let done = killed == 0 && (!remove || clear::remove(directories)?);
    Ok((killed, done))
}

fn refused(operation: &'static str, path: String) -> CgroupError {
    CgroupError::Io { operation, path, source: io::Error::from(io::ErrorKind::InvalidInput) }
}

async fn blocking<T: Send + 'static>(
    path: &str,
    work: impl FnOnce() -> Result<T, CgroupError> + Send + 'static,
) -> Result<T, CgroupError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(CgroupError::Io {
            operation: "working in the background",
            path: path.to_owned(),
            source: io::Error::other(error),
        })
    })
}
