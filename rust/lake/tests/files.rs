//! Files of every physical type, written without Arrow: without some of their rows, truncated, and from memory.

#![expect(clippy::unwrap_used, reason = "tests")]

use fencepost_lake::{Columns, Error, ParquetFile, ReadAt, RowRanges, rewrite};
use parquet::basic::{BoundaryOrder, Compression, Encoding, ZstdLevel};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::{ByteArray, FixedLenByteArray, Int96};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::page_index::column_index::ColumnIndexMetaData;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::serialized_reader::ReadOptionsBuilder;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const SCHEMA: &str = "
    message things {
        required boolean flag;
        optional int32 small (INTEGER(8, false));
        required int64 seq;
        optional int96 old;
        required float f;
        optional double d;
        optional binary text (ENUM);
        required fixed_len_byte_array(16) id (UUID);
        repeated int32 bare;
        optional group legacy (LIST) { repeated group array { optional binary document (JSON); required int64 n; } }
    }
";

/// A folder that is removed after the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("fencepost-lake-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn write_things(path: &Path, groups: &[usize], properties: WriterProperties) {
    let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
    let mut writer = SerializedFileWriter::new(File::create(path).unwrap(), schema, Arc::new(properties)).unwrap();
    let mut first = 0;
    for &rows in groups {
        let mut group = writer.next_row_group().unwrap();
        while let Some(mut column) = group.next_column().unwrap() {
            write_column(column.untyped(), first, rows);
            column.close().unwrap();
        }
        group.close().unwrap();
        first += rows;
    }
    writer.close().unwrap();
}

/// Values that identify their row. Every third is null if possible, and lists have 0 to 3 items.
fn write_column(column: &mut ColumnWriter<'_>, first: usize, rows: usize) {
    let all: Vec<usize> = (first..first + rows).collect();
    let present: Vec<usize> = all.iter().copied().filter(|row| row % 3 != 0).collect();
    let levels: Vec<i16> = all.iter().map(|row| i16::from(row % 3 != 0)).collect();
    let texts = |of: &[usize]| of.iter().map(|row| ByteArray::from(format!("text {}", row % 50).as_str())).collect();
    match column {
        ColumnWriter::BoolColumnWriter(it) => {
            it.write_batch(&all.iter().map(|row| row % 2 == 0).collect::<Vec<_>>(), None, None).unwrap();
        }
        ColumnWriter::FloatColumnWriter(it) => {
            it.write_batch(&all.iter().map(|&row| row as f32).collect::<Vec<_>>(), None, None).unwrap();
        }
        ColumnWriter::DoubleColumnWriter(it) => {
            it.write_batch(&present.iter().map(|&row| row as f64).collect::<Vec<_>>(), Some(&levels), None).unwrap();
        }
        ColumnWriter::Int96ColumnWriter(it) => {
            let values: Vec<Int96> = present.iter().map(|&row| Int96::from(vec![row as u32, 0, 2_440_588])).collect();
            it.write_batch(&values, Some(&levels), None).unwrap();
        }
        ColumnWriter::FixedLenByteArrayColumnWriter(it) => {
            let value = |row: &usize| FixedLenByteArray::from((*row as u128).to_be_bytes().to_vec());
            it.write_batch(&all.iter().map(value).collect::<Vec<_>>(), None, None).unwrap();
        }
        ColumnWriter::Int64ColumnWriter(it) if it.get_descriptor().max_rep_level() == 0 => {
            it.write_batch(&all.iter().map(|&row| row as i64).collect::<Vec<_>>(), None, None).unwrap();
        }
        ColumnWriter::Int32ColumnWriter(it) if it.get_descriptor().max_rep_level() == 0 => {
            it.write_batch(&present.iter().map(|&row| row as i32).collect::<Vec<_>>(), Some(&levels), None).unwrap();
        }
        ColumnWriter::ByteArrayColumnWriter(it) if it.get_descriptor().max_rep_level() == 0 => {
            let values: Vec<ByteArray> = texts(&present);
            it.write_batch(&values, Some(&levels), None).unwrap();
        }
        repeated => {
            let highest = match repeated {
                ColumnWriter::Int32ColumnWriter(_) => 1,
                ColumnWriter::Int64ColumnWriter(_) => 2,
                _ => 3,
            };
            let (mut items, mut definitions, mut repetitions) = (vec![], vec![], vec![]);
            for &row in &all {
                for item in 0..row % 4 {
                    items.push(row);
                    definitions.push(highest);
                    repetitions.push(i16::from(item > 0));
                }
                if row % 4 == 0 {
                    definitions.push(if highest > 1 && row % 8 == 0 { 1 } else { 0 });
                    repetitions.push(0);
                }
            }
            let (definitions, repetitions) = (Some(&definitions[..]), Some(&repetitions[..]));
            match repeated {
                ColumnWriter::Int32ColumnWriter(it) => {
                    let values: Vec<i32> = items.iter().map(|&row| row as i32).collect();
                    it.write_batch(&values, definitions, repetitions).unwrap();
                }
                ColumnWriter::Int64ColumnWriter(it) => {
                    let values: Vec<i64> = items.iter().map(|&row| row as i64).collect();
                    it.write_batch(&values, definitions, repetitions).unwrap();
                }
                ColumnWriter::ByteArrayColumnWriter(it) => {
                    let values: Vec<ByteArray> = texts(&items);
                    it.write_batch(&values, definitions, repetitions).unwrap();
                }
                _ => unreachable!("no other column is repeated"),
            }
        }
    }
}

fn rows(path: &Path) -> Vec<String> {
    let file = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
    file.get_row_iter(None).unwrap().map(|row| row.unwrap().to_string()).collect()
}

fn forms() -> Vec<(&'static str, WriterProperties)> {
    let of = || WriterProperties::builder().set_data_page_row_count_limit(70).set_write_batch_size(10);
    vec![
        ("plain", of().set_dictionary_enabled(false).build()),
        ("second", of().set_writer_version(WriterVersion::PARQUET_2_0).set_compression(Compression::SNAPPY).build()),
        ("deltas", of().set_writer_version(WriterVersion::PARQUET_2_0).set_dictionary_enabled(false).build()),
        ("no_index", of().set_offset_index_disabled(true).set_statistics_enabled(EnabledStatistics::Chunk).build()),
        ("no_statistics", of().set_statistics_enabled(EnabledStatistics::None).build()),
        ("bloom", of().set_bloom_filter_enabled(true).set_compression(Compression::LZ4_RAW).build()),
        ("fallback", of().set_dictionary_page_size_limit(60).set_compression(Compression::LZ4).build()),
    ]
}

fn opened(path: &Path) -> ParquetFile {
    ParquetFile::open(path).unwrap()
}

#[test]
fn rows_are_taken_out_of_every_physical_type() {
    let folder = Folder::new("types");
    for (name, properties) in forms() {
        let (source, target) = (folder.path(&format!("{name}.parquet")), folder.path(&format!("{name}-new.parquet")));
        write_things(&source, &[300, 200, 1, 100], properties);
        let before = rows(&source);
        assert_eq!(before.len(), 601);
        // The second row group stays whole, the third is removed.
        let ranges = RowRanges::new(&[3, 50, 299, 500, 520], &[1, 100, 1, 1, 3]).unwrap();
        let is_lost = |row: usize| [3..4, 50..150, 299..300, 500..501, 520..523].iter().any(|it| it.contains(&row));
        let written = rewrite(opened(&source), &target, &ranges, false, &mut || true).unwrap();
        let kept: Vec<&String> = (0..601).filter(|&row| !is_lost(row)).map(|row| &before[row]).collect();
        assert_eq!(rows(&target).iter().collect::<Vec<_>>(), kept, "{name}");
        assert_eq!((written.groups_copied, written.groups_rewritten), (1, 2), "{name}");
        let (old, new) = (ParquetFile::open(&source).unwrap(), ParquetFile::open(&target).unwrap());
        let [old, new] = [old.metadata(), new.metadata()];
        assert_eq!(new.file_metadata().schema(), old.file_metadata().schema());
        for (number, of) in [(0, 0), (1, 1), (2, 3)] {
            for (new, old) in new.row_group(number).columns().iter().zip(old.row_group(of).columns()) {
                let declared = |it: &parquet::file::metadata::ColumnChunkMetaData| {
                    let pages = it.page_encoding_stats().unwrap();
                    let mut kinds: Vec<_> = pages.iter().map(|it| (it.page_type as i32, it.encoding as i32)).collect();
                    kinds.sort_unstable();
                    kinds.dedup();
                    if name == "fallback" {
                        // Its dictionaries were dropped early; they need not be here.
                        kinds.clear();
                    }
                    let has_bounds = it.statistics().map(|it| it.min_bytes_opt().is_some());
                    let has = [it.offset_index_offset(), it.column_index_offset(), it.bloom_filter_offset()];
                    (it.compression(), kinds, has_bounds, has.map(|it| it.is_some()))
                };
                assert_eq!(declared(new), declared(old), "{name}, {}", new.column_path());
            }
        }
    }
}

#[test]
fn only_some_rows_and_no_rows() {
    let folder = Folder::new("keep");
    let (source, target) = (folder.path("source.parquet"), folder.path("target.parquet"));
    write_things(&source, &[10, 10], WriterProperties::default());
    let before = rows(&source);
    let written = rewrite(opened(&source), &target, &RowRanges::new(&[9], &[2]).unwrap(), true, &mut || true).unwrap();
    assert_eq!(rows(&target), before[9..11]);
    assert_eq!(written.bytes, fs::metadata(&target).unwrap().len());
    fs::remove_file(&target).unwrap();
    let written = rewrite(opened(&source), &target, &RowRanges::default(), true, &mut || true).unwrap();
    assert_eq!((written.rows, rows(&target).len()), (0, 0));
}

#[test]
fn stopping_leaves_no_target_and_existing_files_are_unchanged() {
    let folder = Folder::new("stop");
    let (source, target) = (folder.path("source.parquet"), folder.path("target.parquet"));
    write_things(&source, &[10, 10], WriterProperties::default());
    for chunks in 0..20 {
        let mut left = chunks;
        let mut can_continue = || {
            left -= 1;
            left >= 0
        };
        let stopped = rewrite(opened(&source), &target, &RowRanges::new(&[1], &[1]).unwrap(), false, &mut can_continue);
        assert!(matches!(stopped, Err(Error::Stopped)));
        assert!(!target.exists());
    }
    fs::write(&target, "theirs").unwrap();
    let refused = rewrite(opened(&source), &target, &RowRanges::default(), false, &mut || true);
    assert!(matches!(refused, Err(Error::Sink { .. })));
    assert_eq!(fs::read(&target).unwrap(), b"theirs");
}

/// Bytes in memory, a few at a time.
struct Memory(Vec<u8>);

impl ReadAt for Memory {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn read_at(&self, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = &self.0[(position as usize).min(self.0.len())..];
        let count = rest.len().min(buffer.len()).min(100);
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

fn read_columns(bytes: Vec<u8>) -> Result<usize, Error> {
    read_from(Arc::new(Memory(bytes)))
}

fn read_from(reader: Arc<dyn ReadAt>) -> Result<usize, Error> {
    let file = ParquetFile::of_reader(Path::new("memory"), reader)?;
    let mut columns = Columns::open(&file, 0..file.row_groups(), &["text", "seq"], 64)?;
    let mut rows = 0;
    while let Some((count, columns)) = columns.next_batch()? {
        assert_eq!(columns.len(), 2);
        rows += count;
    }
    Ok(rows)
}

#[test]
fn files_that_are_cut_short_or_damaged_are_errors() {
    let folder = Folder::new("damaged");
    let source = folder.path("source.parquet");
    write_things(&source, &[20, 5], WriterProperties::builder().set_compression(Compression::SNAPPY).build());
    let bytes = fs::read(&source).unwrap();
    assert_eq!(read_columns(bytes.clone()).unwrap(), 25);
    for length in 0..bytes.len() {
        let error = read_columns(bytes[..length].to_vec()).unwrap_err();
        assert!(matches!(error, Error::Source { .. }), "{error}");
    }
    let mut failed = 0;
    for place in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[place] ^= 1 << (place % 8);
        failed += usize::from(read_columns(damaged).is_err());
    }
    assert!(failed > 300, "{failed} of {}", bytes.len());
}

/// Storage that fails from some read on.
struct Failing {
    memory: Memory,
    fails_at: usize,
    reads: AtomicUsize,
    errno: i32,
}

impl ReadAt for Failing {
    fn bytes(&self) -> io::Result<u64> {
        self.memory.bytes()
    }

    fn read_at(&self, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if self.reads.fetch_add(1, Ordering::Relaxed) >= self.fails_at {
            return Err(io::Error::from_raw_os_error(self.errno));
        }
        self.memory.read_at(position, buffer)
    }
}

#[test]
fn storage_that_fails_is_not_damage() {
    let folder = Folder::new("storage");
    let source = folder.path("source.parquet");
    write_things(&source, &[20, 5], WriterProperties::builder().set_compression(Compression::SNAPPY).build());
    let bytes = fs::read(&source).unwrap();
    let failing = |fails_at, errno| {
        let (memory, reads) = (Memory(bytes.clone()), AtomicUsize::new(0));
        Arc::new(Failing { memory, fails_at, reads, errno })
    };
    let sound = failing(usize::MAX, 0);
    assert_eq!(read_from(sound.clone()).unwrap(), 25);
    let reads = sound.reads.load(Ordering::Relaxed);
    assert!(reads > 10, "{reads}");
    // EIO, ENOMEM, EACCES, ESTALE and ETIMEDOUT of Linux.
    for errno in [5, 12, 13, 116, 110] {
        for fails_at in 0..reads {
            let error = read_from(failing(fails_at, errno)).unwrap_err();
            let Error::Read { error: original, .. } = &error else { panic!("read {fails_at}: {error}") };
            assert_eq!(original.raw_os_error(), Some(errno), "read {fails_at}");
        }
    }
}

#[test]
fn opening_a_pipe_does_not_block() {
    let folder = Folder::new("kinds");
    let open = |path: &Path| ParquetFile::open(path).map(|_| ()).unwrap_err();
    assert!(matches!(open(&folder.0), Error::Source { .. }));
    let pipe = folder.path("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert!(matches!(open(&pipe), Error::Source { .. }));
    let missing = open(&folder.path("missing"));
    assert!(matches!(&missing, Error::Read { error, .. } if error.kind() == io::ErrorKind::NotFound), "{missing}");
}

const TEXTS: &str = "
    message texts {
        optional binary text (STRING);
        required binary raw;
        optional group deep { optional binary inner (STRING); }
    }
";

/// Texts of rows; `longest`: the maximum number of characters.
fn write_texts(path: &Path, rows: &[usize], longest: usize, properties: WriterProperties) {
    let schema = Arc::new(parse_message_type(TEXTS).unwrap());
    let mut writer = SerializedFileWriter::new(File::create(path).unwrap(), schema, Arc::new(properties)).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let value = |row: &usize| ByteArray::from(format!("{row:06}{}", "é".repeat(row * 7 % longest)).as_str());
    while let Some(mut column) = group.next_column().unwrap() {
        let ColumnWriter::ByteArrayColumnWriter(it) = column.untyped() else { unreachable!("all are byte arrays") };
        let highest = it.get_descriptor().max_def_level();
        let level = |row: &usize| if row / 50 % 3 == 1 { (row % (highest as usize + 1)) as i16 } else { highest };
        let levels: Vec<i16> = rows.iter().map(level).collect();
        let present = rows.iter().zip(&levels).filter(|it| *it.1 == highest);
        let values: Vec<ByteArray> = present.map(|it| value(it.0)).collect();
        it.write_batch(&values, (highest > 0).then_some(&levels), None).unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
}

fn with_page_indexes(path: &Path) -> ParquetMetaData {
    let options = ReadOptionsBuilder::new().with_page_index().build();
    let file = SerializedFileReader::new_with_options(File::open(path).unwrap(), options).unwrap();
    file.metadata().clone()
}

#[test]
fn statistics_of_texts_match_another_writer() {
    let folder = Folder::new("texts");
    let kept: Vec<usize> = (0..4000).filter(|row| row % 20 != 3 && row / 100 % 7 != 2).collect();
    let lost: Vec<u64> = (0..4000).filter(|row| kept.binary_search(row).is_err()).map(|row| row as u64).collect();
    for (version, codec, longest) in [
        (WriterVersion::PARQUET_1_0, Compression::SNAPPY, 5),
        (WriterVersion::PARQUET_1_0, Compression::UNCOMPRESSED, 90),
        (WriterVersion::PARQUET_2_0, Compression::SNAPPY, 90),
        (WriterVersion::PARQUET_2_0, Compression::UNCOMPRESSED, 5),
        (WriterVersion::PARQUET_2_0, Compression::ZSTD(ZstdLevel::default()), 90),
    ] {
        let properties = || {
            let builder = WriterProperties::builder().set_writer_version(version).set_compression(codec);
            builder.set_dictionary_enabled(false).set_encoding(Encoding::PLAIN)
        };
        let [source, target, expected] = ["source", "target", "expected"].map(|name| folder.path(name));
        let _ = fs::remove_file(&target);
        write_texts(
            &source,
            &(0..4000).collect::<Vec<_>>(),
            longest,
            properties().set_data_page_row_count_limit(70).build(),
        );
        write_texts(&expected, &kept, longest, properties().build());
        let ranges = RowRanges::new(&lost, &vec![1; lost.len()]).unwrap();
        rewrite(opened(&source), &target, &ranges, false, &mut || true).unwrap();
        assert_eq!(rows(&target), rows(&expected));
        let [found, expected] = [with_page_indexes(&target), with_page_indexes(&expected)];
        assert_eq!(found.column_index(), expected.column_index(), "{version:?} {codec}");
        let columns = |it: &ParquetMetaData| it.row_group(0).columns().to_vec();
        for (found, expected) in columns(&found).iter().zip(&columns(&expected)) {
            assert_eq!(found.statistics(), expected.statistics());
            assert_eq!(found.page_encoding_stats(), expected.page_encoding_stats());
            assert_eq!(found.encodings_mask(), expected.encodings_mask());
            assert_eq!(found.num_values(), expected.num_values());
            assert_eq!(found.definition_level_histogram(), expected.definition_level_histogram());
            assert_eq!(found.unencoded_byte_array_data_bytes(), expected.unencoded_byte_array_data_bytes());
        }
    }
}

/// Checks the bounds of every page of the second column, whose values are in the order of these rows. Returns the number
/// of pages.
fn check_bounds(metadata: &ParquetMetaData, rows: &[usize], name: &str) -> usize {
    let (index, pages) = (&metadata.column_index().unwrap()[0][1], &metadata.offset_index().unwrap()[0][1]);
    assert_eq!(index.get_boundary_order(), Some(BoundaryOrder::ASCENDING), "{name}");
    let ColumnIndexMetaData::BYTE_ARRAY(index) = index else { panic!("{index:?}") };
    let starts: Vec<usize> = pages.page_locations().iter().map(|it| it.first_row_index as usize).collect();
    for (page, &start) in starts.iter().enumerate() {
        let end = starts.get(page + 1).copied().unwrap_or(rows.len());
        let [least, greatest] = [rows[start], rows[end - 1]].map(|row| format!("{row:06}").into_bytes());
        assert_eq!(index.min_value(page).unwrap()[..6], least, "{name}");
        assert_eq!(index.max_value(page).unwrap()[..6], greatest, "{name}");
    }
    starts.len()
}

#[test]
fn bounds_of_pages_hold_for_their_rows() {
    let folder = Folder::new("pages");
    let [source, target] = ["source", "target"].map(|name| folder.path(name));
    let all: Vec<usize> = (0..100_000).collect();
    let properties = WriterProperties::builder().set_dictionary_enabled(false).set_encoding(Encoding::PLAIN);
    write_texts(&source, &all, 40, properties.set_compression(Compression::SNAPPY).build());
    let lost: Vec<u64> = (0..10_000).map(|it| it * 10).collect();
    let ranges = RowRanges::new(&lost, &vec![3; lost.len()]).unwrap();
    rewrite(opened(&source), &target, &ranges, false, &mut || true).unwrap();
    let kept: Vec<usize> = all.into_iter().filter(|row| row % 10 > 2).collect();
    let pages = check_bounds(&with_page_indexes(&target), &kept, "plain");
    assert!(pages > 3, "{pages}");
}

/// Copied pages beside cut pages.
#[test]
fn page_indexes_describe_every_page() {
    let folder = Folder::new("indexes");
    let all: Vec<usize> = (0..4000).collect();
    let is_lost = |row: usize| (100..150).contains(&row) || row % 700 == 5 || (2100..2400).contains(&row);
    let lost: Vec<u64> = all.iter().filter(|&&row| is_lost(row)).map(|&row| row as u64).collect();
    let kept: Vec<usize> = all.iter().copied().filter(|&row| !is_lost(row)).collect();
    let of = || WriterProperties::builder().set_data_page_row_count_limit(70).set_write_batch_size(10);
    for (name, properties) in [
        ("plain", of().set_dictionary_enabled(false)),
        ("fallback", of().set_dictionary_page_size_limit(20_000).set_compression(Compression::SNAPPY)),
        ("dictionary", of().set_dictionary_page_size_limit(1 << 24)),
        ("second", of().set_writer_version(WriterVersion::PARQUET_2_0).set_dictionary_page_size_limit(1 << 24)),
    ] {
        let [source, target] = ["source", "target"].map(|it| folder.path(&format!("{name}-{it}")));
        write_texts(&source, &all, 9, properties.set_encoding(Encoding::PLAIN).build());
        let ranges = RowRanges::new(&lost, &vec![1; lost.len()]).unwrap();
        rewrite(opened(&source), &target, &ranges, false, &mut || true).unwrap();
        let metadata = with_page_indexes(&target);
        let chunk = metadata.row_group(0).column(1);
        let declared = [chunk.statistics().unwrap().min_bytes_opt(), chunk.statistics().unwrap().max_bytes_opt()];
        let ends = [kept[0], *kept.last().unwrap()].map(|row| format!("{row:06}").into_bytes());
        assert!(declared.iter().zip(&ends).all(|(declared, end)| declared.unwrap().starts_with(end)), "{name}");
        let pages = check_bounds(&metadata, &kept, name);
        assert!(pages > 30, "{name}: {pages}");
        let lengths = metadata.offset_index().unwrap()[0][1].unencoded_byte_array_data_bytes().unwrap();
        assert_eq!(lengths.iter().sum::<i64>(), chunk.unencoded_byte_array_data_bytes().unwrap(), "{name}");
        assert_eq!(rows(&target).len(), kept.len());
    }
}

#[test]
fn each_row_group_is_in_one_part_and_those_of_a_part_are_neighbours() {
    let folder = Folder::new("parts");
    let source = folder.path("source.parquet");
    write_things(&source, &[20, 5, 400, 1, 30], WriterProperties::builder().build());
    let file = ParquetFile::open(&source).unwrap();
    assert_eq!(file.groups_of_part(0, 1), 0..5);
    assert_eq!((file.first_row(2), file.first_row(5)), (25, 456));
    for parts in [1, 2, 3, 5, 50] {
        let all: Vec<_> = (0..parts).flat_map(|number| file.groups_of_part(number, parts)).collect();
        assert_eq!(all, [0, 1, 2, 3, 4], "{parts}");
    }
    assert_eq!([file.groups_of_part(0, u32::MAX), file.groups_of_part(u32::MAX - 1, u32::MAX)], [0..0, 5..5]);
    let nothing = folder.path("nothing.parquet");
    write_things(&nothing, &[], WriterProperties::builder().build());
    let file = ParquetFile::open(&nothing).unwrap();
    assert_eq!((file.groups_of_part(0, 3), file.groups_of_part(2, 3)), (0..0, 0..0));
}
