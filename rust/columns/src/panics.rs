//! Panics behind streams.

use arrow_schema::ArrowError;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a stream gives. A panic becomes an error: it must not leave through the C functions that readers of an Arrow
/// stream call, which would end the process.
pub fn without_panic<T>(pull: impl FnOnce() -> Option<Result<T, ArrowError>>) -> Option<Result<T, ArrowError>> {
    catch_unwind(AssertUnwindSafe(pull)).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
        Some(Err(ArrowError::ExternalError(format!("the stream failed: {message}").into())))
    })
}
