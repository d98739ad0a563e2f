//! Panics in streams.

use arrow_schema::ArrowError;
use fencepost_lake::caught;

/// Reads the next item of a stream. A panic becomes an error: if it left through the C functions of an Arrow stream, it
/// would abort the process.
pub fn without_panic<T>(pull: impl FnOnce() -> Option<Result<T, ArrowError>>) -> Option<Result<T, ArrowError>> {
    caught(pull)
        .unwrap_or_else(|message| Some(Err(ArrowError::ExternalError(format!("the stream failed: {message}").into()))))
}
