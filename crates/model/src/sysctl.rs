//! Names of kernel parameters, and the kernel namespace that makes a parameter a pod's own.

/// The namespaces that parameters of pods may belong to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SysctlNamespace {
    Ipc,
    Net,
}

impl SysctlNamespace {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ipc => "IPC",
            Self::Net => "Net",
        }
    }

    /// Of a parameter in its [`normalized`] form. `None`: it is the whole machine's.
    pub fn of(parameter: &str) -> Option<Self> {
        const IPC: [&str; 10] = [
            "kernel.sem",
            "kernel.shm",
            "kernel.shmall",
            "kernel.shmmax",
            "kernel.shmmni",
            "kernel.shm_rmid_forced",
            "kernel.msg",
            "kernel.msgmax",
            "kernel.msgmnb",
            "kernel.msgmni",
        ];
        if IPC.contains(&parameter) || parameter.starts_with("fs.mqueue.") {
            Some(Self::Ipc)
        } else if parameter.starts_with("net.") {
            Some(Self::Net)
        } else {
            None
        }
    }
}

/// The name with dots between its parts, which may also be written with slashes (and then dots within them).
pub fn normalized(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(at) if name.as_bytes()[at] == b'/' => name
            .chars()
            .map(|c| match c {
                '.' => '/',
                '/' => '.',
                other => other,
            })
            .collect(),
        _ => name.to_owned(),
    }
}
