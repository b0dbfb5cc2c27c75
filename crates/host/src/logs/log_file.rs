//! A log file that is read piece by piece, compressed or not.

use std::fs::{File, Metadata};
use std::io::{self, BufRead, BufReader, Read};

use flate2::read::MultiGzDecoder;
use tokio::io::AsyncReadExt;

pub(super) type PackedReader = BufReader<MultiGzDecoder<File>>;

pub(super) enum LogFile {
    Plain(tokio::fs::File),
    /// `None`: it was read to its end, or can't be read any further.
    Packed(Option<PackedReader>),
}

impl LogFile {
    pub fn plain(file: File) -> Self {
        Self::Plain(tokio::fs::File::from_std(file))
    }

    /// What follows after so many lines. The work blocks.
    pub fn packed(file: File, skipped_lines: u64) -> Self {
        let mut reader = packed_reader(file);
        for _ in 0..skipped_lines {
            if !matches!(skip_line(&mut reader), Ok(true)) {
                return Self::Packed(None);
            }
        }
        Self::Packed(Some(reader))
    }

    /// Zero: the end.
    pub async fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(file) => file.read(piece).await,
            Self::Packed(place) => {
                let Some(mut reader) = place.take() else { return Ok(0) };
                let mut buffer = vec![0; piece.len()];
                let work = move || {
                    let read = reader.read(&mut buffer);
                    (reader, buffer, read)
                };
                let (reader, buffer, read) =
                    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?;
                match read {
                    Ok(0) => Ok(0),
                    Ok(length) => {
                        piece[..length].copy_from_slice(&buffer[..length]);
                        *place = Some(reader);
                        Ok(length)
                    }
                    // Newer files are worth more than an error.
                    Err(error) => {
                        tracing::warn!("the rest of a compressed log can't be read: {error}");
                        Ok(0)
                    }
                }
            }
        }
    }

    pub fn as_plain(&mut self) -> Option<&mut tokio::fs::File> {
        match self {
            Self::Plain(file) => Some(file),
            Self::Packed(_) => None,
        }
    }

    pub async fn metadata(&self) -> Option<Metadata> {
        match self {
            Self::Plain(file) => file.metadata().await.ok(),
            Self::Packed(_) => None,
        }
    }
}

pub(super) fn packed_reader(file: File) -> PackedReader {
    BufReader::with_capacity(32 * 1024, MultiGzDecoder::new(file))
}

/// Counts what can be read of it.
pub(super) fn count_lines(mut reader: impl BufRead) -> u64 {
    let mut lines = 0;
    while matches!(skip_line(&mut reader), Ok(true)) {
        lines += 1;
    }
    lines
}

/// `false`: there is no whole line any more. Keeps nothing of a line, however long it is.
fn skip_line(reader: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() {
            return Ok(false);
        }
        let newline = buffer.iter().position(|byte| *byte == b'\n');
        let used = newline.map_or(buffer.len(), |at| at + 1);
        reader.consume(used);
        if newline.is_some() {
            return Ok(true);
        }
    }
}
