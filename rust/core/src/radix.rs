//! Sorts by digits.

pub(crate) const DIGIT_BITS: u32 = 11;
const DIGITS: usize = 1 << DIGIT_BITS;

/// One pass of a stable sort by digits, from the lowest digit. The digit is the last [`DIGIT_BITS`] bits of `number`.
#[inline]
pub(crate) fn sort_by_digit<T: Copy>(from: &[T], to: &mut [T], number: impl Fn(&T) -> usize) {
    let digit = |it: &T| number(it) % DIGITS;
    let mut starts = [0; DIGITS];
    from.iter().for_each(|it| starts[digit(it)] += 1);
    let mut sum = 0;
    for start in &mut starts {
        (*start, sum) = (sum, sum + *start);
    }
    for it in from {
        let start = &mut starts[digit(it)];
        to[*start] = *it;
        *start += 1;
    }
}
