//! Compresses pages: the counterpart of `decompress.rs`.

use parquet::basic::Compression;
use parquet::errors::{ParquetError, Result};
use std::fmt::Display;
use std::io::Write;

const BROTLI_BUFFER_BYTES: usize = 4096;
/// The window of brotli in bits, as in the crate `parquet`.
const BROTLI_WINDOW: u32 = 22;

/// A codec, with working memory that is reused between pages.
pub(crate) enum Compressor {
    None,
    Snappy(Box<snap::raw::Encoder>),
    Gzip(u32),
    Brotli(u32),
    Lz4,
    Lz4Raw,
    Zstd(Box<zstd::bulk::Compressor<'static>>),
}

fn failed(error: impl Display) -> ParquetError {
    ParquetError::General(format!("a page cannot be compressed: {error}"))
}

impl Compressor {
    pub(crate) fn of(codec: Compression) -> Result<Compressor> {
        Ok(match codec {
            Compression::UNCOMPRESSED => Compressor::None,
            Compression::SNAPPY => Compressor::Snappy(Box::new(snap::raw::Encoder::new())),
            Compression::GZIP(level) => Compressor::Gzip(level.compression_level()),
            Compression::BROTLI(level) => Compressor::Brotli(level.compression_level()),
            Compression::LZ4 => Compressor::Lz4,
            Compression::LZ4_RAW => Compressor::Lz4Raw,
            Compression::ZSTD(level) => {
                let context = zstd::bulk::Compressor::new(level.compression_level());
                Compressor::Zstd(Box::new(context.map_err(failed)?))
            }
            Compression::LZO => return Err(ParquetError::NYI(format!("the codec {codec} is not supported"))),
        })
    }

    pub(crate) fn is_none(&self) -> bool {
        matches!(self, Compressor::None)
    }

    /// Appends the bytes, compressed.
    pub(crate) fn append(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        match self {
            Compressor::None => out.extend_from_slice(bytes),
            Compressor::Snappy(encoder) => {
                let start = out.len();
                out.resize(start + snap::raw::max_compress_len(bytes.len()), 0);
                let length = encoder.compress(bytes, &mut out[start..]).map_err(failed)?;
                out.truncate(start + length);
            }
            Compressor::Gzip(level) => {
                let mut encoder = flate2::write::GzEncoder::new(out, flate2::Compression::new(*level));
                encoder.write_all(bytes).and_then(|()| encoder.finish().map(drop)).map_err(failed)?;
            }
            Compressor::Brotli(level) => {
                let mut encoder = brotli::CompressorWriter::new(out, BROTLI_BUFFER_BYTES, *level, BROTLI_WINDOW);
                encoder.write_all(bytes).and_then(|()| encoder.flush()).map_err(failed)?;
            }
            Compressor::Lz4 => {
                // Hadoop's format: a block after its decompressed and compressed lengths.
                let packed = lz4_flex::block::compress(bytes);
                for length in [bytes.len(), packed.len()] {
                    out.extend_from_slice(&u32::try_from(length).map_err(failed)?.to_be_bytes());
                }
                out.extend_from_slice(&packed);
            }
            Compressor::Lz4Raw => out.extend_from_slice(&lz4_flex::block::compress(bytes)),
            Compressor::Zstd(encoder) => out.extend_from_slice(&encoder.compress(bytes).map_err(failed)?),
        }
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::decompress::Decompressor;

    #[test]
    fn compressed_bytes_round_trip() {
        let samples = [vec![], b"abc".to_vec(), (0..100_000u32).flat_map(u32::to_be_bytes).collect()];
        for codec in [
            Compression::UNCOMPRESSED,
            Compression::SNAPPY,
            Compression::GZIP(Default::default()),
            Compression::BROTLI(Default::default()),
            Compression::LZ4,
            Compression::LZ4_RAW,
            Compression::ZSTD(Default::default()),
        ] {
            let mut compressor = Compressor::of(codec).unwrap();
            for sample in &samples {
                let (mut packed, mut out) = (b"levels".to_vec(), vec![]);
                compressor.append(sample, &mut packed).unwrap();
                let packed = packed.strip_prefix(b"levels").unwrap();
                Decompressor::of(codec).unwrap().append(packed, sample.len(), &mut out).unwrap();
                assert!(&out == sample, "{codec}, {} bytes", sample.len());
            }
        }
    }
}
