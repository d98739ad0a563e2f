//! Reads Thrift's compact protocol without allocating: the headers of pages, and the counts in footers and page
//! indexes.
//!
//! The crate `parquet` allocates what some of these counts declare, and recurses as deep as a schema. Therefore
//! everything is checked here first.

use crate::levels::put_varint;
use parquet::basic::Encoding;

/// Maximum depth of structs and lists. The format needs eight; unknown fields can have more.
const DEPTH_MAX: usize = 64;
/// Maximum depth of groups in a schema.
const SCHEMA_DEPTH_MAX: usize = 128;
/// Means the items of a list in a path.
const ITEM: i16 = i16::MIN;
/// Path of a footer's list of schema elements, and of an element's number of children.
const SCHEMA: [i16; 1] = [2];
const CHILDREN: [i16; 3] = [2, ITEM, 5];

/// Why bytes are invalid.
#[derive(Debug, PartialEq)]
pub(crate) enum Broken {
    /// They end too early: more bytes may be enough.
    Short,
    /// They are wrong, whatever follows.
    Wrong(String),
}

fn wrong<T>(problem: impl Into<String>) -> Result<T, Broken> {
    Err(Broken::Wrong(problem.into()))
}

/// The content of a struct, field by field. The path has the ids of the enclosing fields.
enum Event {
    /// An integer, or a boolean as 0 or 1.
    Int(i64),
    /// The next item of a list begins.
    Item,
}

type Visit<'v> = dyn FnMut(&[i16], Event) -> Result<(), Broken> + 'v;

struct Reader<'a> {
    bytes: &'a [u8],
    path: Vec<i16>,
}

impl Reader<'_> {
    fn byte(&mut self) -> Result<u8, Broken> {
        let (&byte, rest) = self.bytes.split_first().ok_or(Broken::Short)?;
        self.bytes = rest;
        Ok(byte)
    }

    fn varint(&mut self) -> Result<u64, Broken> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        wrong("an integer has more than 64 bits")
    }

    fn int(&mut self) -> Result<i64, Broken> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn skip(&mut self, count: u64) -> Result<(), Broken> {
        let count = usize::try_from(count).ok();
        self.bytes = count.and_then(|count| self.bytes.get(count..)).ok_or(Broken::Short)?;
        Ok(())
    }

    /// Each item takes at least a byte.
    fn count(&self, count: u64) -> Result<u64, Broken> {
        if count > self.bytes.len() as u64 { Err(Broken::Short) } else { Ok(count) }
    }

    fn structure(&mut self, visit: &mut Visit<'_>) -> Result<(), Broken> {
        let mut id = 0_i16;
        loop {
            let head = self.byte()?;
            if head & 15 == 0 {
                return Ok(());
            }
            id = match head >> 4 {
                0 => i16::try_from(self.int()?).or_else(|_| wrong("a field has an id of more than 16 bits"))?,
                step => id.checked_add(step.into()).ok_or_else(|| Broken::Wrong("a field has no id".into()))?,
            };
            match head & 15 {
                flag @ 1..=2 => {
                    self.path.push(id);
                    visit(&self.path, Event::Int(i64::from(flag == 1)))?;
                    self.path.pop();
                }
                kind => self.within(id, kind, visit)?,
            }
        }
    }

    fn within(&mut self, id: i16, kind: u8, visit: &mut Visit<'_>) -> Result<(), Broken> {
        if self.path.len() >= DEPTH_MAX {
            return wrong(format!("more than {DEPTH_MAX} levels of fields"));
        }
        self.path.push(id);
        self.value(kind, visit)?;
        self.path.pop();
        Ok(())
    }

    fn value(&mut self, kind: u8, visit: &mut Visit<'_>) -> Result<(), Broken> {
        match kind {
            1..=3 => self.byte().map(drop),
            4..=6 => {
                let value = self.int()?;
                visit(&self.path, Event::Int(value))
            }
            7 => self.skip(8),
            8 => {
                let length = self.varint()?;
                self.skip(length)
            }
            9 | 10 => self.list(visit),
            11 => self.map(visit),
            12 => self.structure(visit),
            other => wrong(format!("a field has the type {other}, which is not defined")),
        }
    }

    fn list(&mut self, visit: &mut Visit<'_>) -> Result<(), Broken> {
        let head = self.byte()?;
        let count = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
        for _ in 0..self.count(count)? {
            visit(&self.path, Event::Item)?;
            self.within(ITEM, head & 15, visit)?;
        }
        Ok(())
    }

    fn map(&mut self, visit: &mut Visit<'_>) -> Result<(), Broken> {
        let count = self.varint()?;
        let kinds = if count > 0 { self.byte()? } else { 0 };
        for _ in 0..self.count(count)? {
            self.within(ITEM, kinds >> 4, visit)?;
            self.within(ITEM, kinds & 15, visit)?;
        }
        Ok(())
    }
}

fn read(bytes: &[u8], visit: &mut Visit<'_>) -> Result<usize, Broken> {
    let mut reader = Reader { bytes, path: vec![] };
    reader.structure(visit)?;
    Ok(bytes.len() - reader.bytes.len())
}

/// Checks a struct: no list has more items than the bytes can hold.
pub(crate) fn check(bytes: &[u8]) -> Result<(), Broken> {
    read(bytes, &mut |_, _| Ok(())).map(drop)
}

/// Checks a footer: counts that the bytes can hold, and a schema that is not too deep.
pub(crate) fn check_footer(bytes: &[u8]) -> Result<(), Broken> {
    let mut schema = Schema { open: vec![], children: 0, children_max: bytes.len() as u64 };
    let mut has_element = false;
    read(bytes, &mut |path, event| match event {
        Event::Item if *path == SCHEMA && !std::mem::replace(&mut has_element, true) => Ok(()),
        Event::Item if *path == SCHEMA => schema.close(),
        Event::Int(children) if *path == CHILDREN => {
            schema.children = children;
            Ok(())
        }
        _ => Ok(()),
    })?;
    schema.close()
}

/// The tree of a list of schema elements.
struct Schema {
    /// Number of missing children of each open group.
    open: Vec<u64>,
    /// The number of children of the current element.
    children: i64,
    /// Elements take at least a byte each.
    children_max: u64,
}

impl Schema {
    /// Finishes the current element.
    fn close(&mut self) -> Result<(), Broken> {
        let children = u64::try_from(std::mem::take(&mut self.children)).unwrap_or(0);
        if let Some(parent) = self.open.last_mut() {
            *parent = parent.saturating_sub(1);
        }
        if self.open.iter().sum::<u64>().saturating_add(children) > self.children_max {
            return wrong(format!("an element of the schema has {children} children, more than the footer can hold"));
        }
        if children > 0 {
            self.open.push(children);
        }
        if self.open.len() > SCHEMA_DEPTH_MAX {
            return wrong(format!("its schema has more than {SCHEMA_DEPTH_MAX} levels"));
        }
        while self.open.last() == Some(&0) {
            self.open.pop();
        }
        Ok(())
    }
}

/// The header of a page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Header {
    /// Size of the header itself.
    pub(crate) bytes: usize,
    /// Size of the page in the file.
    pub(crate) compressed: usize,
    pub(crate) uncompressed: usize,
    pub(crate) crc: Option<u32>,
    pub(crate) kind: Kind,
}

/// The kind of a page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Dictionary {
        values: u32,
        encoding: Encoding,
        is_sorted: bool,
    },
    First {
        values: u32,
        encoding: Encoding,
        definitions: Encoding,
        repetitions: Encoding,
    },
    Second {
        values: u32,
        nulls: u32,
        rows: u32,
        encoding: Encoding,
        definitions: u32,
        repetitions: u32,
        is_compressed: bool,
    },
    /// An index page, which readers do not need.
    Index,
}

/// The fields of page headers by their ids; those of the kinds in 5 (first version), 7 (dictionary) and 8 (second).
#[derive(Default)]
struct Fields {
    own: [Option<i64>; 5],
    first: [Option<i64>; 5],
    dictionary: [Option<i64>; 4],
    second: [Option<i64>; 8],
}

impl Fields {
    fn set(&mut self, path: &[i16], value: i64) {
        let (fields, &id) = match path {
            [id] => (&mut self.own[..], id),
            [5, id] => (&mut self.first[..], id),
            [7, id] => (&mut self.dictionary[..], id),
            [8, id] => (&mut self.second[..], id),
            _ => return,
        };
        if let Some(field) = usize::try_from(id).ok().and_then(|id| fields.get_mut(id)) {
            *field = Some(value);
        }
    }
}

fn number<T: TryFrom<i64>>(value: Option<i64>, what: &str) -> Result<T, Broken> {
    let value = value.ok_or_else(|| Broken::Wrong(format!("the header of a page has no {what}")))?;
    T::try_from(value).or_else(|_| wrong(format!("the header of a page has an invalid {what}: {value}")))
}

fn encoding(value: Option<i64>, what: &str) -> Result<Encoding, Broken> {
    let number: i32 = number(value, what)?;
    let found = Encoding::VARIANTS.iter().find(|&&it| it as i32 == number);
    found.copied().ok_or_else(|| Broken::Wrong(format!("the header of a page has an invalid {what}: {number}")))
}

/// Reads a header from the beginning of bytes.
pub(crate) fn header(bytes: &[u8]) -> Result<Header, Broken> {
    let mut fields = Fields::default();
    let length = read(bytes, &mut |path, event| {
        if let Event::Int(value) = event {
            fields.set(path, value);
        }
        Ok(())
    })?;
    let Fields { own, first, dictionary, second } = &fields;
    let size = |value, what| number::<i32>(value, what).and_then(|size| number(Some(size.into()), what));
    let count = |value, what| number::<i32>(value, what).and_then(|count| number::<u32>(Some(count.into()), what));
    let kind = match number::<i32>(own[1], "type")? {
        0 => Kind::First {
            values: count(first[1], "number of values")?,
            encoding: encoding(first[2], "encoding")?,
            definitions: encoding(first[3], "encoding of definition levels")?,
            repetitions: encoding(first[4], "encoding of repetition levels")?,
        },
        1 => Kind::Index,
        2 => Kind::Dictionary {
            values: count(dictionary[1], "number of values")?,
            encoding: encoding(dictionary[2], "encoding")?,
            is_sorted: dictionary[3] == Some(1),
        },
        3 => Kind::Second {
            values: count(second[1], "number of values")?,
            nulls: count(second[2], "number of nulls")?,
            rows: count(second[3], "number of rows")?,
            encoding: encoding(second[4], "encoding")?,
            definitions: count(second[5], "length of definition levels")?,
            repetitions: count(second[6], "length of repetition levels")?,
            is_compressed: second[7] != Some(0),
        },
        other => return wrong(format!("a page has the type {other}, which is not defined")),
    };
    Ok(Header {
        bytes: length,
        uncompressed: size(own[2], "uncompressed size")?,
        compressed: size(own[3], "compressed size")?,
        crc: own[4].map(|crc| crc as u32),
        kind,
    })
}

/// Appends the header of a page with data.
pub(crate) fn put_header(kind: Kind, uncompressed: i32, compressed: i32, crc: Option<u32>, out: &mut Vec<u8>) {
    let mut own = Writer { out, last: 0 };
    let (number, at) = if matches!(kind, Kind::Second { .. }) { (3, 8) } else { (0, 5) };
    own.int(1, number);
    own.int(2, uncompressed);
    own.int(3, compressed);
    if let Some(crc) = crc {
        own.int(4, crc.cast_signed());
    }
    let mut inner = own.structure(at);
    match kind {
        Kind::First { values, encoding, definitions, repetitions } => {
            inner.int(1, values.cast_signed());
            inner.int(2, encoding as i32);
            inner.int(3, definitions as i32);
            inner.int(4, repetitions as i32);
        }
        Kind::Second { values, nulls, rows, encoding, definitions, repetitions, is_compressed } => {
            inner.int(1, values.cast_signed());
            inner.int(2, nulls.cast_signed());
            inner.int(3, rows.cast_signed());
            inner.int(4, encoding as i32);
            inner.int(5, definitions.cast_signed());
            inner.int(6, repetitions.cast_signed());
            inner.flag(7, is_compressed);
        }
        Kind::Dictionary { .. } | Kind::Index => unreachable!("copied as they are"),
    }
    // The ends of both structs.
    out.extend_from_slice(&[0, 0]);
}

/// Writes fields of a struct in the order of their ids.
struct Writer<'a> {
    out: &'a mut Vec<u8>,
    last: u8,
}

impl Writer<'_> {
    fn field(&mut self, id: u8, kind: u8) {
        self.out.push((id - self.last) << 4 | kind);
        self.last = id;
    }

    fn int(&mut self, id: u8, value: i32) {
        self.field(id, 5);
        put_varint((value << 1 ^ value >> 31).cast_unsigned(), self.out);
    }

    fn flag(&mut self, id: u8, value: bool) {
        self.field(id, if value { 1 } else { 2 });
    }

    fn structure(&mut self, id: u8) -> Writer<'_> {
        self.field(id, 12);
        Writer { out: self.out, last: 0 }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// A dictionary page of 3 values: type, sizes, and field 7.
    const DICTIONARY: [u8; 16] = [0x15, 4, 0x15, 24, 0x15, 24, 0x4c, 0x15, 6, 0x15, 0, 0x11, 0, 0, 0xff, 0xff];

    #[test]
    fn a_header_ends_where_its_struct_ends() {
        let kind = Kind::Dictionary { values: 3, encoding: Encoding::PLAIN, is_sorted: true };
        let expected = Header { bytes: 14, compressed: 12, uncompressed: 12, crc: None, kind };
        assert_eq!(header(&DICTIONARY), Ok(expected));
        for length in 0..14 {
            assert_eq!(header(&DICTIONARY[..length]), Err(Broken::Short), "{length}");
        }
    }

    #[test]
    fn headers_that_are_written_are_read_again() {
        let first = Kind::First {
            values: 70_000,
            encoding: Encoding::RLE_DICTIONARY,
            definitions: Encoding::RLE,
            repetitions: Encoding::PLAIN,
        };
        let second = |is_compressed| Kind::Second {
            values: 3,
            nulls: 1,
            rows: 2,
            encoding: Encoding::PLAIN,
            definitions: 200,
            repetitions: 0,
            is_compressed,
        };
        for kind in [first, second(false), second(true)] {
            for crc in [None, Some(7), Some(u32::MAX), Some(1 << 31)] {
                let mut bytes = vec![];
                put_header(kind, i32::MAX, 12, crc, &mut bytes);
                let expected =
                    Header { bytes: bytes.len(), compressed: 12, uncompressed: i32::MAX as usize, crc, kind };
                assert_eq!(header(&bytes), Ok(expected));
            }
        }
    }

    #[test]
    fn missing_and_negative_values_are_named() {
        let mut bytes = DICTIONARY;
        bytes[8] = 5;
        assert_eq!(header(&bytes), wrong("the header of a page has an invalid number of values: -3"));
        assert_eq!(header(&[0x15, 4, 0]), wrong("the header of a page has no number of values"));
        assert_eq!(header(&[0x15, 22, 0]), wrong("a page has the type 11, which is not defined"));
    }

    #[test]
    fn lists_are_bounded_by_the_remaining_bytes() {
        // Field 1: a list of 2^31 integers.
        let bytes = [0x19, 0xf5, 0x80, 0x80, 0x80, 0x80, 0x08, 0];
        assert_eq!(check(&bytes), Err(Broken::Short));
        assert_eq!(check(&[0x19, 0x15, 2, 0]), Ok(()));
    }

    #[test]
    fn depth_has_an_end() {
        assert!(matches!(check(&[0x1c; 1000]), Err(Broken::Wrong(problem)) if problem.contains("64 levels")));
    }

    /// Schema elements with these numbers of children.
    fn schema(children: &[u64]) -> Vec<u8> {
        let element = |&count: &u64| {
            let zigzag = count << 1;
            let low = [
                zigzag as u8 | 0x80,
                (zigzag >> 7) as u8 | 0x80,
                (zigzag >> 14) as u8 | 0x80,
                (zigzag >> 21) as u8 & 0x7f,
            ];
            [&[0x55][..], &low, &[0]].concat()
        };
        let count = children.len();
        let head = [0x29, 0xfc, count as u8 | 0x80, (count >> 7) as u8];
        [&head[..], &children.iter().flat_map(element).collect::<Vec<u8>>(), &[0]].concat()
    }

    #[test]
    fn a_schema_is_a_tree_that_is_not_too_deep() {
        check_footer(&schema(&[3, 0, 2, 0, 0, 0])).unwrap();
        check_footer(&schema(&[[1; 127].as_slice(), &[0]].concat())).unwrap();
        let deep = check_footer(&schema(&[[1; 200].as_slice(), &[0]].concat()));
        assert!(matches!(deep, Err(Broken::Wrong(problem)) if problem.contains("128 levels")));
        let wide = check_footer(&schema(&[1 << 20, 0]));
        assert!(matches!(wide, Err(Broken::Wrong(problem)) if problem.contains("1048576 children")));
    }
}
