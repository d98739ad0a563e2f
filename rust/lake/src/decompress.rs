//! Decompresses pages. A page header declares the number of bytes and may be wrong, so memory grows with the decoded
//! bytes.

use lz4_flex::frame::FrameDecoder;
use parquet::basic::Compression;
use parquet::errors::{ParquetError, Result};
use std::io::{Cursor, Read};
use zstd::zstd_safe::{DCtx, get_error_name};

/// Number of bytes that are reserved because a page header declares them.
const FREE_BYTES: usize = 16 << 20;
/// Additional bytes that are reserved per compressed byte.
const RATIO: usize = 64;
/// Snappy's longest copy, 64 bytes, takes three bytes.
const SNAPPY_RATIO_MAX: usize = 22;
/// A byte of lz4 adds at most 255 to a length.
const LZ4_RATIO_MAX: usize = 256;
/// `ZSTD_error_dstSize_tooSmall`, as zstd's functions return it.
const ZSTD_TOO_SMALL: usize = 70usize.wrapping_neg();
const BROTLI_BUFFER_BYTES: usize = 1 << 16;

/// A codec, with working memory that is reused between pages.
pub(crate) enum Decompressor {
    None,
    Snappy(Box<snap::raw::Decoder>),
    Gzip,
    Brotli,
    Lz4,
    Lz4Raw,
    Zstd(Box<DCtx<'static>>),
}

fn damaged(codec: &str, problem: impl std::fmt::Display) -> ParquetError {
    ParquetError::General(format!("a page cannot be decompressed as {codec}: {problem}"))
}

impl Decompressor {
    pub(crate) fn of(codec: Compression) -> Result<Decompressor> {
        Ok(match codec {
            Compression::UNCOMPRESSED => Decompressor::None,
            Compression::SNAPPY => Decompressor::Snappy(Box::default()),
            Compression::GZIP(_) => Decompressor::Gzip,
            Compression::BROTLI(_) => Decompressor::Brotli,
            Compression::LZ4 => Decompressor::Lz4,
            Compression::LZ4_RAW => Decompressor::Lz4Raw,
            Compression::ZSTD(_) => {
                let context = DCtx::try_create().ok_or_else(|| damaged("zstd", "the system has no memory left"))?;
                Decompressor::Zstd(Box::new(context))
            }
            Compression::LZO => return Err(ParquetError::NYI(format!("the codec {codec} is not supported"))),
        })
    }

    pub(crate) fn is_none(&self) -> bool {
        matches!(self, Decompressor::None)
    }

    /// Appends the `count` bytes in `packed`.
    pub(crate) fn append(&mut self, packed: &[u8], count: usize, out: &mut Vec<u8>) -> Result<()> {
        let end = out.len() + count;
        let reserved = count.min(FREE_BYTES.max(packed.len().saturating_mul(RATIO)));
        match self {
            Decompressor::None => out.extend_from_slice(packed),
            Decompressor::Snappy(decoder) => {
                check_ratio("snappy", packed, count, SNAPPY_RATIO_MAX)?;
                fill(out, count, |out| decoder.decompress(packed, out)).map_err(|error| damaged("snappy", error))?;
            }
            Decompressor::Gzip => {
                read_to_end("gzip", flate2::read::MultiGzDecoder::new(packed), reserved, count, out)?;
            }
            Decompressor::Brotli => {
                let buffer_bytes = count.clamp(1, BROTLI_BUFFER_BYTES);
                read_to_end("brotli", brotli::Decompressor::new(packed, buffer_bytes), reserved, count, out)?;
            }
            Decompressor::Lz4 => append_lz4(packed, reserved, count, out)?,
            Decompressor::Lz4Raw => append_lz4_block(packed, count, out)?,
            Decompressor::Zstd(context) => append_zstd(context, packed, reserved, count, out)?,
        }
        if out.len() != end {
            let found = out.len() + count - end;
            let problem =
                format!("a page has {found} bytes or more once decompressed, but its header declares {count}");
            return Err(ParquetError::General(problem));
        }
        Ok(())
    }
}

fn check_ratio(codec: &str, packed: &[u8], count: usize, ratio_max: usize) -> Result<()> {
    if count > packed.len().saturating_mul(ratio_max) {
        return Err(damaged(codec, format!("{} bytes cannot hold the {count} that its header declares", packed.len())));
    }
    Ok(())
}

/// Appends the `count` bytes that `decode` writes.
fn fill<E>(out: &mut Vec<u8>, count: usize, decode: impl FnOnce(&mut [u8]) -> Result<usize, E>) -> Result<(), E> {
    let start = out.len();
    out.resize(start + count, 0);
    let written = decode(&mut out[start..])?;
    out.truncate(start + written);
    Ok(())
}

fn read_to_end(codec: &str, decoder: impl Read, reserved: usize, count: usize, out: &mut Vec<u8>) -> Result<()> {
    out.reserve(reserved);
    let read = decoder.take(count as u64 + 1).read_to_end(out);
    read.map(drop).map_err(|error| damaged(codec, error))
}

fn append_lz4_block(packed: &[u8], count: usize, out: &mut Vec<u8>) -> Result<()> {
    check_ratio("lz4", packed, count, LZ4_RATIO_MAX)?;
    fill(out, count, |out| lz4_flex::block::decompress_into(packed, out)).map_err(|error| damaged("lz4", error))
}

/// Three formats have this name: that of Hadoop, frames, and a bare block.
fn append_lz4(packed: &[u8], reserved: usize, count: usize, out: &mut Vec<u8>) -> Result<()> {
    let start = out.len();
    let is_hadoop = check_ratio("lz4", packed, count, LZ4_RATIO_MAX).is_ok()
        && fill(out, count, |out| decode_hadoop(packed, out).ok_or(())).is_ok()
        && out.len() == start + count;
    if is_hadoop {
        return Ok(());
    }
    out.truncate(start);
    if read_to_end("lz4", FrameDecoder::new(packed), reserved, count, out).is_ok() && out.len() == start + count {
        return Ok(());
    }
    out.truncate(start);
    append_lz4_block(packed, count, out)
}

/// Decodes blocks. Each follows its decompressed length and its compressed length, in four bytes each.
fn decode_hadoop(mut packed: &[u8], out: &mut [u8]) -> Option<usize> {
    let mut written = 0;
    while let Some((head, rest)) = packed.split_first_chunk::<8>() {
        let length = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]) as usize;
        let (block, others) = rest.split_at_checked(length(4))?;
        let target = out.get_mut(written..)?.get_mut(..length(0))?;
        if lz4_flex::block::decompress_into(block, target).ok()? != target.len() {
            return None;
        }
        written += target.len();
        packed = others;
    }
    packed.is_empty().then_some(written)
}

/// Decompresses in one piece, because a stream would allocate a window of up to 128 MiB that a frame declares. A buffer
/// that is too small is doubled.
fn append_zstd(
    context: &mut DCtx<'static>,
    packed: &[u8],
    mut reserved: usize,
    count: usize,
    out: &mut Vec<u8>,
) -> Result<()> {
    let start = out.len();
    loop {
        out.reserve_exact(reserved);
        let mut target = Cursor::new(&mut *out);
        target.set_position(start as u64);
        match context.decompress(&mut target, packed) {
            Ok(_) => return Ok(()),
            Err(ZSTD_TOO_SMALL) if reserved < count => reserved = reserved.saturating_mul(2).min(count),
            Err(code) => return Err(damaged("zstd", get_error_name(code))),
        }
        out.truncate(start);
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::io::Write;

    fn hadoop(bytes: &[u8]) -> Vec<u8> {
        let block = |bytes: &[u8]| {
            let packed = lz4_flex::block::compress(bytes);
            [&(bytes.len() as u32).to_be_bytes()[..], &(packed.len() as u32).to_be_bytes(), &packed].concat()
        };
        let (one, other) = bytes.split_at(bytes.len() / 3);
        [block(one), block(other)].concat()
    }

    fn lz4_frame(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = lz4_flex::frame::FrameEncoder::new(vec![]);
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn brotli(bytes: &[u8]) -> Vec<u8> {
        let mut packed = vec![];
        brotli::CompressorWriter::new(&mut packed, 4096, 1, 22).write_all(bytes).unwrap();
        packed
    }

    fn snappy(bytes: &[u8]) -> Vec<u8> {
        snap::raw::Encoder::new().compress_vec(bytes).unwrap()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        zstd::bulk::compress(bytes, 1).unwrap()
    }

    type Encoder = fn(&[u8]) -> Vec<u8>;

    fn codecs() -> [(Compression, Encoder); 8] {
        [
            (Compression::SNAPPY, snappy),
            (Compression::GZIP(Default::default()), gzip),
            (Compression::BROTLI(Default::default()), brotli),
            (Compression::LZ4, hadoop),
            (Compression::LZ4, lz4_frame),
            (Compression::LZ4, lz4_flex::block::compress),
            (Compression::LZ4_RAW, lz4_flex::block::compress),
            (Compression::ZSTD(Default::default()), zstd),
        ]
    }

    #[test]
    fn every_codec_round_trips() {
        let samples = [b"abc".to_vec(), (0..100_000u32).flat_map(u32::to_be_bytes).collect(), vec![7; 40 << 20]];
        for (codec, encode) in codecs() {
            let mut decompressor = Decompressor::of(codec).unwrap();
            for sample in &samples {
                let mut out = b"levels".to_vec();
                decompressor.append(&encode(sample), sample.len(), &mut out).unwrap();
                assert!(out.strip_prefix(b"levels").unwrap() == sample, "{codec}, {} bytes", sample.len());
            }
        }
    }

    #[test]
    fn a_size_that_is_not_true_is_refused_and_asks_for_no_memory() {
        let sample: Vec<u8> = (0..1000u32).flat_map(u32::to_be_bytes).collect();
        for (codec, encode) in codecs() {
            let packed = encode(&sample);
            for claimed in [1, 3999, 4001, 1 << 20, i32::MAX as usize] {
                let mut out = vec![];
                let done = Decompressor::of(codec).unwrap().append(&packed, claimed, &mut out);
                assert!(done.is_err(), "{codec} {claimed}");
                assert!(out.capacity() <= FREE_BYTES, "{codec} {claimed}: {}", out.capacity());
            }
        }
    }
}
