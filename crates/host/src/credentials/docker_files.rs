//! Reads Docker config files from the directories that upstream searches. They are read at each pull, so that a new
//! login is used at once.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use model::credentials::{DockerConfigFile, DockerConfigForm};
use tokio::io::AsyncReadExt;

/// Larger than any real file.
const MAX_FILE_BYTES: u64 = 10 << 20;

/// The directories to search, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DockerConfigDirs {
    /// For `config.json`.
    pub json: Vec<PathBuf>,
    /// For `.dockercfg`, which is only read if there is no `config.json`.
    pub legacy: Vec<PathBuf>,
}

impl DockerConfigDirs {
    /// The agent's root directory, its working directory, the home directory and `/`.
    pub fn standard(root_dir: &Path, working_dir: Option<PathBuf>, home: Option<PathBuf>) -> Self {
        let home = home.filter(|home| !home.as_os_str().is_empty());
        let own = [Some(root_dir.to_owned()), working_dir];
        let legacy = own.clone().into_iter().chain([home.clone(), Some("/".into())]);
        let json = own.into_iter().chain([home.map(|home| home.join(".docker")), Some("/.docker".into())]);
        Self { json: json.flatten().collect(), legacy: legacy.flatten().collect() }
    }

    fn files(&self) -> impl Iterator<Item = (PathBuf, DockerConfigForm)> {
        let json = self.json.iter().map(|dir| (dir.join("config.json"), DockerConfigForm::Json));
        let legacy = self.legacy.iter().map(|dir| (dir.join(".dockercfg"), DockerConfigForm::Legacy));
        json.chain(legacy)
    }
}

pub(super) async fn read(places: &DockerConfigDirs) -> Vec<DockerConfigFile> {
    let mut found = Vec::new();
    for (path, form) in places.files() {
        match read_file(&path).await {
            Ok(content) => {
                found.push(DockerConfigFile { path: path.display().to_string(), form, content });
            }
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(error) => tracing::warn!(path = %path.display(), "no credentials from this file: {error}"),
        }
    }
    found
}

async fn read_file(path: &Path) -> std::io::Result<Vec<u8>> {
    let file = tokio::fs::File::open(path).await?;
    if !file.metadata().await?.is_file() {
        return Err(std::io::Error::other("not a regular file"));
    }
    let mut content = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut content).await?;
    match content.len() as u64 > MAX_FILE_BYTES {
        true => Err(std::io::Error::new(ErrorKind::FileTooLarge, "larger than 10 MiB")),
        false => Ok(content),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_places_in_their_order() {
        let places = DockerConfigDirs::standard(Path::new("/r"), Some("/w".into()), Some("/h".into()));
        let names: Vec<String> = places.files().map(|(path, _)| path.display().to_string()).collect();
        assert_eq!(
            names,
            [
                "/r/config.json",
                "/w/config.json",
                "/h/.docker/config.json",
                "/.docker/config.json",
                "/r/.dockercfg",
                "/w/.dockercfg",
                "/h/.dockercfg",
                "/.dockercfg",
            ]
        );
        let homeless = DockerConfigDirs::standard(Path::new("/r"), None, Some("".into()));
        assert_eq!(homeless.json, [Path::new("/r"), Path::new("/.docker")]);
    }

    #[tokio::test]
    async fn what_is_there_is_read_each_time() {
        let temp = tempfile::tempdir().unwrap();
        let dir = |name: &str| {
            let dir = temp.path().join(name);
            std::fs::create_dir_all(&dir).unwrap();
            dir
        };
        let places = DockerConfigDirs { json: vec![dir("a"), dir("b")], legacy: vec![dir("a")] };
        assert_eq!(read(&places).await, []);
        std::fs::write(temp.path().join("b/config.json"), "two").unwrap();
        std::fs::write(temp.path().join("a/.dockercfg"), "old").unwrap();
        // A directory with the name of the file is ignored.
        std::fs::create_dir(temp.path().join("a/config.json")).unwrap();
        let names = |files: &[DockerConfigFile]| -> Vec<(String, Vec<u8>)> {
            let name = |file: &DockerConfigFile| {
                file.path.strip_prefix(&format!("{}/", temp.path().display())).unwrap().to_owned()
            };
            files.iter().map(|file| (name(file), file.content.clone())).collect()
        };
        let expect =
            [("b/config.json".to_owned(), b"two".to_vec()), ("a/.dockercfg".into(), b"old".to_vec())];
        assert_eq!(names(&read(&places).await), expect);
        std::fs::write(temp.path().join("b/config.json"), "changed").unwrap();
        assert_eq!(read(&places).await[0].content, b"changed");
    }

    #[tokio::test]
    async fn what_is_too_large_is_not_read() {
        let temp = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(temp.path().join("config.json")).unwrap();
        file.set_len(MAX_FILE_BYTES + 1).unwrap();
        let places = DockerConfigDirs { json: vec![temp.path().to_owned()], legacy: Vec::new() };
        assert_eq!(read(&places).await, []);
    }
}
