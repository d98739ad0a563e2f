//! The targets of the binding without libFuzzer: over the corpus, over what comes of it by chance, and over a broken
//! subject.

mod inputs;

use arrow_array::ffi_stream::{ArrowArrayStreamReader, FFI_ArrowArrayStream};
use arrow_array::{ArrayRef, Int16Array, Int32Array, Int64Array, RecordBatch, RecordBatchIterator, StringArray};
use fencepost_columns::{ColumnNames, missing_batches, restore, without_panic};
use fencepost_core::Epochs;
use fencepost_fuzz::binding::{apply, scan};
use fencepost_fuzz::{Named, POLICIES, binding, bounded};
use fencepost_lake::ParquetFile;
use fencepost_testkit::pair::Rules;
use fencepost_testkit::workload::Random;
use inputs::{corpus, run, write};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, Encoding};
use parquet::file::properties::{WriterProperties, WriterVersion};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

#[test]
fn no_rows_break_the_conversion() {
    run(binding::rows, "binding_rows");
}

#[test]
fn spans_are_judged_as_their_rows() {
    run(binding::spans, "binding_spans");
}

#[test]
fn no_snapshot_breaks_what_is_given_of_it() {
    run(binding::restore, "binding_restore");
}

#[test]
fn no_file_breaks_a_scan_or_a_rewrite() {
    run(binding::parquet, "binding_parquet");
}

/// A panic that left through the C functions of a stream would end the process: its reader sees an error, and continues.
#[test]
fn a_panic_behind_a_stream_of_arrow_is_an_error() {
    let mut pulls = 0;
    let pull = move || {
        pulls += 1;
        without_panic(|| match pulls {
            2 => panic!("no room for {pulls} rows"),
            _ => Some(Ok(rows())),
        })
    };
    let stream = RecordBatchIterator::new(std::iter::from_fn(pull), rows().schema());
    let mut reader = ArrowArrayStreamReader::try_new(FFI_ArrowArrayStream::new(Box::new(stream))).expect("a stream");
    assert_eq!(reader.next().expect("rows").expect("rows"), rows());
    let error = reader.next().expect("an error").expect_err("a panic");
    assert!(error.to_string().contains("the stream failed: no room for 2 rows"), "{error}");
    assert_eq!(reader.next().expect("rows").expect("rows"), rows());
}

/// What is read at all shows that the corpus reaches behind the checks.
#[test]
fn the_corpus_is_read() {
    let columns = ColumnNames {
        pid: vec!["pid".into(), "name".into()],
        epoch: Some("epoch".into()),
        partition: vec!["partition".into()],
        seq: "seq".into(),
        timestamp: Some("timestamp".into()),
        length: None,
    };
    let committed = corpus("binding_parquet");
    for bytes in files() {
        assert!(committed.contains(&bytes), "write the corpus again: make fuzz-corpus");
        let file = Arc::new(bytes[binding::OPTIONS..].to_vec());
        let file = ParquetFile::of_reader(Path::new("file"), file).expect("a file");
        let scanned = scan(&file, &columns, vec![], false, 4).expect("a file");
        assert!(scanned.is_end && scanned.untracked == 2, "{} rows", file.rows());
    }
}

#[test]
fn the_corpus_is_restored() {
    let committed = corpus("binding_restore");
    let mut holes = 0;
    for (number, bytes) in snapshots().into_iter().enumerate() {
        assert!(committed.contains(&bytes), "write the corpus again: make fuzz-corpus");
        let delta = bytes.windows(8).skip(1).position(|it| it == b"FPSTATE\0").map_or(bytes.len(), |at| at + 1);
        assert_eq!(delta < bytes.len(), number % 2 == 0);
        let (snapshot, delta) = bytes.split_at(delta);
        let deltas: &[&[u8]] = &[delta];
        let table = restore(snapshot, deltas[usize::from(delta.is_empty())..].iter().copied()).expect("its own bytes");
        holes += missing_batches(&table).iter().map(RecordBatch::num_rows).sum::<usize>();
    }
    assert!(holes > 5, "{holes}");
}

/// A page that claims two gibibytes: the crate's own reader allocates them, which the limit must not let pass.
#[test]
fn the_limit_on_memory_is_one() {
    let canary = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "--ignored", "--nocapture", "a_reader_that_believes_what_files_claim"])
        .output()
        .expect("this test");
    let said = String::from_utf8_lossy(&canary.stderr).into_owned();
    assert!(!canary.status.success(), "the limit let two gibibytes pass: {said}");
    assert!(said.contains("memory allocation of") || said.contains("were asked for above"), "{said}");
    let bytes = claims_two_gibibytes();
    binding::parquet(&[&[0; binding::OPTIONS][..], &bytes].concat());
}

/// Not a test of its own: what the test above must see end.
#[test]
#[ignore = "must fail"]
fn a_reader_that_believes_what_files_claim() {
    let bytes = bytes::Bytes::from(claims_two_gibibytes());
    let _ = bounded(1 << 30, || {
        let reader = ParquetRecordBatchReaderBuilder::try_new(bytes).and_then(|it| it.build());
        reader.map(|reader| reader.map(|batch| batch.map(|it| it.num_rows())).collect::<Vec<_>>())
    });
}

/// A file of one page, whose header claims them.
fn claims_two_gibibytes() -> Vec<u8> {
    let values: ArrayRef = Arc::new(Int64Array::from_iter_values((0..100).map(|row| row * row * 7919)));
    let rows = RecordBatch::try_from_iter([("pid", values)]).expect("a column");
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).set_dictionary_enabled(false);
    let mut writer = ArrowWriter::try_new(vec![], rows.schema(), Some(properties.build())).expect("a Vec");
    writer.write(&rows).expect("a Vec takes every write");
    let file = writer.into_inner().expect("a Vec takes every write");
    // Behind the magic: type, uncompressed and compressed size. The first size takes three bytes more, the page as many
    // fewer, so everything else stays where it is.
    let [b'P', b'A', b'R', b'1', 0x15, 0, 0x15, _, _, 0x15, low, high, ..] = file[..] else {
        panic!("another header: {:?}", &file[..12])
    };
    let compressed = (u16::from(low & 0x7f) | u16::from(high) << 7) - 6;
    let claim = [0x15, 0, 0x15, 0xfe, 0xff, 0xff, 0xff, 0x0f, 0x15, compressed as u8 | 0x80, (compressed >> 7) as u8];
    let mut claiming = [&file[..4], &claim, &file[12..]].concat();
    claiming.drain(200..203);
    assert_eq!(claiming.len(), file.len());
    claiming
}

/// Forty rows of three producers, two of them without one.
fn rows() -> RecordBatch {
    let numbers = || 0..40_i64;
    let pid: Int64Array = numbers().map(|row| (row % 20 != 7).then_some(row / 10 % 3)).collect();
    let columns: [(&str, ArrayRef); 6] = [
        ("pid", Arc::new(pid)),
        ("epoch", Arc::new(Int16Array::from_iter_values(numbers().map(|row| (row / 20) as i16)))),
        ("partition", Arc::new(Int32Array::from_iter_values(numbers().map(|row| (row / 10 % 2) as i32)))),
        ("seq", Arc::new(Int64Array::from_iter_values(numbers().map(|row| row % 10)))),
        ("timestamp", Arc::new(Int64Array::from_iter_values(numbers().map(|row| 1000 * (row / 5))))),
        ("name", Arc::new(StringArray::from_iter_values(numbers().map(|row| format!("name {}", row / 10))))),
    ];
    RecordBatch::try_from_iter(columns).expect("columns of one length")
}

fn file(properties: WriterProperties) -> Vec<u8> {
    let rows = rows();
    let mut writer = ArrowWriter::try_new(vec![], rows.schema(), Some(properties)).expect("a Vec takes every write");
    writer.write(&rows.slice(0, 25)).and_then(|()| writer.flush()).expect("a Vec takes every write");
    writer.write(&rows.slice(25, 15)).expect("a Vec takes every write");
    writer.into_inner().expect("a Vec takes every write")
}

/// Every codec, both versions of pages, dictionaries and the encodings of texts.
fn files() -> Vec<Vec<u8>> {
    let codecs = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(Default::default()),
        Compression::BROTLI(Default::default()),
        Compression::LZ4,
        Compression::LZ4_RAW,
        Compression::ZSTD(Default::default()),
    ];
    let texts =
        [None, Some(Encoding::PLAIN), Some(Encoding::DELTA_BYTE_ARRAY), Some(Encoding::DELTA_LENGTH_BYTE_ARRAY)];
    let mut files = vec![];
    for (number, codec) in codecs.into_iter().cycle().take(16).enumerate() {
        let version = [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0][number / 4 % 2];
        let mut properties = WriterProperties::builder()
            .set_compression(codec)
            .set_writer_version(version)
            .set_data_page_row_count_limit(11)
            .set_write_batch_size(1);
        if let Some(encoding) = texts[number % 4] {
            properties = properties.set_dictionary_enabled(false).set_column_encoding("name".into(), encoding);
        }
        let options = [(number * 37) as u8, 3 * number as u8, 5];
        files.push([&options[..], &file(properties.build())].concat());
    }
    files
}

/// Tables of every policy, with keys of integers and of texts, and a delta behind every other.
fn snapshots() -> Vec<Vec<u8>> {
    let snapshot = |(number, &(preset, fields, keeps_timestamp)): (usize, &Named)| {
        let rules = Rules::new(preset, fields, keeps_timestamp);
        let mut table = rules.table();
        let columns = ColumnNames {
            pid: if number % 3 == 0 { vec!["pid".into(), "name".into()] } else { vec!["pid".into()] },
            epoch: (rules.core.epochs != Epochs::Ignore).then(|| "epoch".into()),
            partition: vec!["partition".into()],
            seq: "seq".into(),
            timestamp: keeps_timestamp.then(|| "timestamp".into()),
            length: None,
        };
        let rows = rows();
        apply(&mut table, vec![rows.slice(0, 13), rows.slice(25, 3)], &columns).expect("valid rows");
        let mut bytes = vec![];
        let checksum = table.write_snapshot(&mut bytes).expect("a Vec takes every write");
        if number % 2 == 0 {
            table.track_changes(true);
            table.begin_changes(checksum);
            apply(&mut table, vec![rows.slice(30, 10)], &columns).expect("valid rows");
            table.delta().expect("changes are tracked").write(&mut bytes).expect("a Vec takes every write");
        }
        bytes
    };
    POLICIES.iter().enumerate().map(snapshot).collect()
}

/// Rows of every policy, as any bytes of a length that fills some batches.
fn programs(seed: u64) -> Vec<Vec<u8>> {
    let program = |number: u64| {
        let mut random = Random::new(seed << 8 | number);
        let mut bytes: Vec<u8> = (0..300).map(|_| random.bits() as u8).collect();
        bytes[0] = number as u8;
        // Most columns of integers, and most rows without anything odd.
        (2..20).step_by(3).filter(|_| number % 4 < 3).for_each(|at| bytes[at] %= 8);
        bytes[20..].iter_mut().filter(|_| number.is_multiple_of(2)).for_each(|byte| *byte %= 240);
        bytes
    };
    (0..24).map(program).collect()
}

/// Not a test: writes the corpus. `make fuzz-corpus` after a change of a target.
#[test]
#[ignore = "writes files"]
fn write_the_corpus() {
    write("binding_rows", &programs(1));
    write("binding_spans", &programs(2));
    write("binding_restore", &snapshots());
    write("binding_parquet", &files());
}
