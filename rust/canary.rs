//! Reads memory that it has given back. `make asan` runs it first: a sanitizer that does not object does not look.

fn main() {
    let pointer = Box::into_raw(Box::new(7u8));
    // SAFETY: the pointer came from a Box.
    drop(unsafe { Box::from_raw(pointer) });
    // SAFETY: none. It is gone, and that is the point.
    println!("{}", unsafe { pointer.read_volatile() });
}
