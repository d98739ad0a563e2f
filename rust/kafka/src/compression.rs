//! Decompresses and compresses records. A frame declares its size and may be wrong. Memory grows with the decoded
//! bytes, at most to twice their size, and never above the caller's limit.

use crate::error::Kind;
use crate::header::Compression;
use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;
use lz4_flex::frame::{BlockSize, FrameDecoder, FrameEncoder, FrameInfo};
use std::io::{self, Read, Write};
use zstd::zstd_safe::{DCtx, get_error_name, get_frame_content_size};

/// Maximum number of bytes that are kept between batches.
const KEPT_BYTES_MAX: usize = 16 << 20;
/// Snappy's longest copy, 64 bytes, takes three bytes.
const SNAPPY_RATIO_MAX: usize = 22;
/// Maximum ratio of the first attempt to decompress a batch of zstd. A larger batch is attempted again.
const ZSTD_RATIO_FIRST: usize = 16;
const ZSTD_BYTES_FIRST: usize = 1 << 16;
/// `ZSTD_error_dstSize_tooSmall`, as zstd's functions return it.
const ZSTD_TOO_SMALL: usize = 70usize.wrapping_neg();
/// Before the blocks of snappy-java: a magic and two versions.
const XERIAL_MAGIC: &[u8] = b"\x82SNAPPY\0";
const XERIAL_HEAD_BYTES: usize = 16;
const XERIAL_VERSIONS: [u8; 8] = [0, 0, 0, 1, 0, 0, 0, 1];
/// Size of a block of snappy-java.
const XERIAL_BLOCK_BYTES: usize = 32 << 10;
/// zstd's own default, and that of Kafka's clients.
const ZSTD_LEVEL: i32 = 3;

/// A problem of compressed bytes.
pub(crate) type Problem = (Kind, String);

/// Decompresses batch after batch into one buffer.
pub(crate) struct Decompressor {
    bytes_max: usize,
    bytes: Vec<u8>,
    zstd: DCtx<'static>,
}

impl Decompressor {
    /// No batch may have more than `bytes_max` bytes.
    pub(crate) fn new(bytes_max: usize) -> Decompressor {
        Decompressor { bytes_max, bytes: Vec::new(), zstd: DCtx::create() }
    }

    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// The bytes of the last batch.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn run(&mut self, compression: Compression, packed: &[u8]) -> Result<(), Problem> {
        self.bytes.clear();
        if self.bytes.capacity() > KEPT_BYTES_MAX {
            self.bytes = Vec::new();
        }
        match compression {
            Compression::None => {
                self.bytes.extend_from_slice(packed);
                Ok(())
            }
            Compression::Gzip => self.read_to_end("gzip", MultiGzDecoder::new(packed)),
            Compression::Lz4 => self.read_to_end("lz4", FrameDecoder::new(packed)),
            Compression::Snappy => self.run_snappy(packed),
            Compression::Zstd => self.run_zstd(packed),
        }
    }

    fn too_large(&self) -> Problem {
        (Kind::TooLarge, format!("its records have more bytes than the limit {} (batch_bytes_max)", self.bytes_max))
    }

    fn read_to_end(&mut self, name: &str, reader: impl Read) -> Result<(), Problem> {
        let read = reader.take(self.bytes_max as u64 + 1).read_to_end(&mut self.bytes);
        read.map_err(|error| damaged(name, error))?;
        if self.bytes.len() > self.bytes_max { Err(self.too_large()) } else { Ok(()) }
    }

    /// Java's clients write blocks, each after its length; others write one block only.
    fn run_snappy(&mut self, packed: &[u8]) -> Result<(), Problem> {
        if !packed.starts_with(XERIAL_MAGIC) {
            return self.add_snappy_block(packed);
        }
        let mut rest = packed.get(XERIAL_HEAD_BYTES..).ok_or_else(|| damaged("snappy", "its head is cut off"))?;
        while let Some((length, blocks)) = rest.split_first_chunk() {
            let length = usize::try_from(i32::from_be_bytes(*length)).ok();
            let block = length.and_then(|length| blocks.split_at_checked(length));
            let (block, others) = block.ok_or_else(|| damaged("snappy", "a block is longer than its batch"))?;
            self.add_snappy_block(block)?;
            rest = others;
        }
        if rest.is_empty() { Ok(()) } else { Err(damaged("snappy", "bytes follow its last block")) }
    }

    fn add_snappy_block(&mut self, block: &[u8]) -> Result<(), Problem> {
        let length = snap::raw::decompress_len(block).map_err(|error| damaged("snappy", error))?;
        if length > block.len().saturating_mul(SNAPPY_RATIO_MAX) {
            return Err(damaged("snappy", format!("{} bytes cannot hold the {length} that are declared", block.len())));
        }
        let start = self.bytes.len();
        if length > self.bytes_max - start {
            return Err(self.too_large());
        }
        self.bytes.resize(start + length, 0);
        let done = snap::raw::Decoder::new().decompress(block, &mut self.bytes[start..]);
        done.map(drop).map_err(|error| damaged("snappy", error))
    }

    /// Decompresses in one piece, because a stream would allocate a window of up to 128 MiB that a header declares. A
    /// buffer that is too small is doubled. All attempts before the last take no longer than the last one.
    fn run_zstd(&mut self, packed: &[u8]) -> Result<(), Problem> {
        let declared = get_frame_content_size(packed).ok().flatten().and_then(|bytes| usize::try_from(bytes).ok());
        let first = packed.len().saturating_mul(ZSTD_RATIO_FIRST).max(ZSTD_BYTES_FIRST);
        let mut capacity = declared.map_or(first, |declared| declared.min(first)).min(self.bytes_max);
        loop {
            self.bytes.reserve_exact(capacity);
            match self.zstd.decompress(&mut self.bytes, packed) {
                // Vectors can be larger than requested.
                Ok(count) if count <= self.bytes_max => return Ok(()),
                Ok(_) => return Err(self.too_large()),
                Err(ZSTD_TOO_SMALL) if self.bytes.capacity() >= self.bytes_max => return Err(self.too_large()),
                Err(ZSTD_TOO_SMALL) => capacity = self.bytes.capacity().saturating_mul(2).min(self.bytes_max),
                Err(code) => return Err(damaged("zstd", get_error_name(code))),
            }
            self.bytes = Vec::new();
        }
    }
}

/// Compresses bytes like Java's clients, so that every client can read them, and appends them: lz4 in independent
/// blocks of 64 KiB, snappy in the blocks of snappy-java.
pub(crate) fn compress(compression: Compression, bytes: &[u8], mut packed: Vec<u8>) -> io::Result<Vec<u8>> {
    match compression {
        Compression::None => packed.extend_from_slice(bytes),
        Compression::Gzip => {
            let mut encoder = GzEncoder::new(packed, flate2::Compression::default());
            encoder.write_all(bytes)?;
            packed = encoder.finish()?;
        }
        Compression::Snappy => {
            packed.extend(XERIAL_MAGIC);
            packed.extend(XERIAL_VERSIONS);
            let mut encoder = snap::raw::Encoder::new();
            for block in bytes.chunks(XERIAL_BLOCK_BYTES) {
                let block = encoder.compress_vec(block)?;
                packed.extend((block.len() as i32).to_be_bytes());
                packed.extend(block);
            }
        }
        Compression::Lz4 => {
            let info = FrameInfo::new().block_size(BlockSize::Max64KB);
            let mut encoder = FrameEncoder::with_frame_info(info, packed);
            encoder.write_all(bytes)?;
            packed = encoder.finish()?;
        }
        Compression::Zstd => packed.extend(zstd::bulk::compress(bytes, ZSTD_LEVEL)?),
    }
    Ok(packed)
}

fn damaged(name: &str, problem: impl std::fmt::Display) -> Problem {
    (Kind::Compression, format!("its records cannot be decompressed as {name}: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).expect("a Vec takes every write");
        encoder.finish().expect("a Vec takes every write")
    }

    fn lz4(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
        encoder.write_all(bytes).expect("a Vec takes every write");
        encoder.finish().expect("a Vec takes every write")
    }

    fn snappy(bytes: &[u8]) -> Vec<u8> {
        snap::raw::Encoder::new().compress_vec(bytes).expect("short enough")
    }

    fn xerial(bytes: &[u8]) -> Vec<u8> {
        let mut framed = [XERIAL_MAGIC, &1i32.to_be_bytes(), &1i32.to_be_bytes()].concat();
        for block in bytes.chunks(1 << 15) {
            let block = snappy(block);
            framed.extend((block.len() as i32).to_be_bytes());
            framed.extend(block);
        }
        framed
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        zstd::bulk::compress(bytes, 3).expect("in memory")
    }

    /// As Java writes it, without a declared length.
    fn zstd_stream(bytes: &[u8]) -> Vec<u8> {
        zstd::stream::encode_all(bytes, 3).expect("in memory")
    }

    type Encoder = fn(&[u8]) -> Vec<u8>;

    const ENCODERS: [(Compression, Encoder); 6] = [
        (Compression::Gzip, gzip),
        (Compression::Lz4, lz4),
        (Compression::Snappy, snappy),
        (Compression::Snappy, xerial),
        (Compression::Zstd, zstd),
        (Compression::Zstd, zstd_stream),
    ];

    #[test]
    fn every_codec_round_trips() {
        let samples = [vec![], b"abc".to_vec(), (0..200_000u32).flat_map(u32::to_be_bytes).collect(), vec![7; 3 << 20]];
        for (compression, encode) in ENCODERS {
            let mut decompressor = Decompressor::new(4 << 20);
            for sample in &samples {
                let done = decompressor.run(compression, &encode(sample));
                assert_eq!((done, decompressor.bytes()), (Ok(()), &sample[..]), "{compression:?}");
            }
        }
    }

    #[test]
    fn compressed_pages_round_trip() {
        let sample: Vec<u8> = (0..100_000u32).flat_map(|number| (number / 7).to_be_bytes()).collect();
        for compression in Compression::ALL {
            let packed = compress(compression, &sample, b"head".to_vec()).expect("in memory");
            let mut decompressor = Decompressor::new(1 << 20);
            let done = decompressor.run(compression, packed.strip_prefix(b"head").expect("what was there"));
            assert_eq!((done, decompressor.bytes()), (Ok(()), &sample[..]), "{compression:?}");
            assert!((packed.len() < sample.len()) == (compression != Compression::None), "{compression:?}");
        }
    }

    #[test]
    fn a_bomb_ends_at_the_limit() {
        let bomb = vec![0; 8 << 20];
        for (compression, encode) in ENCODERS {
            let mut decompressor = Decompressor::new(1 << 20);
            let (kind, reason) = decompressor.run(compression, &encode(&bomb)).expect_err("too large");
            assert_eq!((kind, reason.contains("1048576")), (Kind::TooLarge, true), "{compression:?}: {reason}");
            assert!(decompressor.bytes.capacity() <= 4 << 20, "{compression:?}: {}", decompressor.bytes.capacity());
            assert_eq!(Decompressor::new(8 << 20).run(compression, &encode(&bomb)), Ok(()), "{compression:?}");
        }
    }

    /// A frame that declares a gigabyte and has almost no content.
    #[test]
    fn a_wrong_length_allocates_no_memory() {
        let declared = [0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0, 0, 0, 0x40, 1, 0, 0];
        let mut decompressor = Decompressor::new(1 << 30);
        assert!(decompressor.run(Compression::Zstd, &declared).is_err());
        assert!(decompressor.bytes.capacity() <= ZSTD_BYTES_FIRST);
        assert!(decompressor.run(Compression::Snappy, &[0xff, 0xff, 0xff, 0x7f, 0]).is_err());
        assert!(decompressor.bytes.capacity() <= ZSTD_BYTES_FIRST);
    }

    #[test]
    fn damaged_bytes_are_refused_or_another_text() {
        let sample: Vec<u8> = (0..500u32).flat_map(|number| (number * 7 % 256).to_be_bytes()).collect();
        for (compression, encode) in ENCODERS {
            let packed = encode(&sample);
            let mut decompressor = Decompressor::new(1 << 20);
            for length in 0..packed.len() {
                let done = decompressor.run(compression, &packed[..length]);
                // If only the end mark of a frame is missing, all of the text is there.
                let has_all = compression == Compression::Lz4 && length + 4 >= packed.len();
                assert!(done.is_err() || has_all || decompressor.bytes() != sample, "{compression:?}, {length} bytes");
            }
            for at in 0..packed.len() {
                let mut bent = packed.clone();
                bent[at] ^= 0x10;
                let _ = decompressor.run(compression, &bent);
                assert!(decompressor.bytes.capacity() <= 4 << 20, "{compression:?}, byte {at}");
            }
        }
    }
}
