//! Reads one line without ever holding more than its bound.

use tokio::io::{AsyncBufRead, AsyncBufReadExt};

/// Why no line came.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// The line is longer than allowed.
    #[error("a line is longer than {limit} bytes")]
    TooLong {
        /// The bound.
        limit: usize,
    },
    /// Reading failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// The next line without its end; `None` at the end of the stream. A last line without an end counts.
pub async fn read_line<R>(from: &mut R, limit: usize) -> Result<Option<Vec<u8>>, LineError>
where
    R: AsyncBufRead + Unpin,
{
    let mut line = Vec::new();
    loop {
        let chunk = from.fill_buf().await?;
        if chunk.is_empty() {
            return Ok(if line.is_empty() { None } else { Some(line) });
        }
        let end = chunk.iter().position(|byte| *byte == b'\n');
        let take = end.unwrap_or(chunk.len());
        if line.len() + take > limit {
            return Err(LineError::TooLong { limit });
        }
        line.extend_from_slice(chunk.get(..take).unwrap_or_default());
        from.consume(take + usize::from(end.is_some()));
        if end.is_some() {
            return Ok(Some(line));
        }
    }
}
