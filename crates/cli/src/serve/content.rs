//! The body of an answer: a text, a file read on the way, or bytes made up on the way.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::fs::File;
use tokio::io::{AsyncRead, ReadBuf};

/// Bytes of one piece.
const CHUNK: u64 = 64 << 10;

/// A body of known length.
#[derive(Debug)]
pub(crate) struct Content {
    source: Source,
    left: u64,
}

#[derive(Debug)]
enum Source {
    Text(Bytes),
    File(File),
    /// The value of a byte depends on its offset only, so that a receiver can check a part of it.
    Synthetic(u64),
}

impl Content {
    pub(crate) fn empty() -> Content {
        Content::text(String::new())
    }

    pub(crate) fn text(text: String) -> Content {
        let text = Bytes::from(text);
        Content { left: text.len() as u64, source: Source::Text(text) }
    }

    /// `len` bytes of `file` from where it stands.
    pub(crate) fn file(file: File, len: u64) -> Content {
        Content { source: Source::File(file), left: len }
    }

    /// `len` bytes of the made-up resource from `start` on.
    pub(crate) fn synthetic(start: u64, len: u64) -> Content {
        Content { source: Source::Synthetic(start), left: len }
    }

    /// Bytes still to come.
    pub(crate) fn len(&self) -> u64 {
        self.left
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Bytes>> {
        let most = usize::try_from(self.left.min(CHUNK)).unwrap_or(usize::MAX);
        match &mut self.source {
            Source::Text(text) => Poll::Ready(Ok(std::mem::take(text))),
            Source::File(file) => {
                let mut chunk = vec![0; most];
                let mut buffer = ReadBuf::new(&mut chunk);
                ready!(pin!(file).poll_read(cx, &mut buffer))?;
                let filled = buffer.filled().len();
                if filled == 0 {
                    let text = "the file became shorter while it was sent";
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::UnexpectedEof, text)));
                }
                chunk.truncate(filled);
                Poll::Ready(Ok(chunk.into()))
            }
            Source::Synthetic(offset) => {
                let start = *offset;
                *offset += most as u64;
                Poll::Ready(Ok((start..start + most as u64).map(synthetic_byte).collect()))
            }
        }
    }
}

/// The byte at `offset` of a made-up resource: a prime period, so that a segment that is missing or twice
/// shows.
fn synthetic_byte(offset: u64) -> u8 {
    (offset % 251) as u8
}

impl Body for Content {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let chunk = ready!(self.poll_chunk(cx));
        Poll::Ready(Some(chunk.map(|chunk| {
            self.left -= (chunk.len() as u64).min(self.left);
            Frame::data(chunk)
        })))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
