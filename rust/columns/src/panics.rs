//! Panics in streams.

use arrow_schema::ArrowError;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Reads the next item of a stream. A panic becomes an error: if it left through the C functions of an Arrow stream, it
/// would abort the process.
pub fn without_panic<T>(pull: impl FnOnce() -> Option<Result<T, ArrowError>>) -> Option<Result<T, ArrowError>> {
    caught(pull)
        .unwrap_or_else(|message| Some(Err(ArrowError::ExternalError(format!("the stream failed: {message}").into()))))
}

/// Returns the result of `work`, or the message of its panic.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        message.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given").to_owned()
    })
}
