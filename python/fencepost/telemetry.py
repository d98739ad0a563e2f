"""What jobs, streams, audits and advice report while they work: log records, and OpenTelemetry spans and metrics.

Records of jobs and streams go to the logger `fencepost.jobs`, those of audits and advice to `fencepost.reports`: each
step at DEBUG, each run or report at INFO, one that fails at ERROR. Their extras have the names of the span attributes,
such as `fencepost.step`. Only jobs and streams have metrics.

Spans and metrics go to the providers that the application has set. A provider can only be there if something has
imported `opentelemetry`, so this module never imports it: without OpenTelemetry, nothing is loaded and nothing is done.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

jobs, reports = logging.getLogger("fencepost.jobs"), logging.getLogger("fencepost.reports")
Value: TypeAlias = str | int | float
Attributes: TypeAlias = Mapping[str, Value]


class Report(Protocol):
    """The fields of a `RunReport` that are reported here."""

    @property
    def version(self) -> int | None: ...
    @property
    def rows(self) -> int: ...
    @property
    def kept(self) -> int: ...
    @property
    def counts(self) -> Mapping[str, int]: ...
    @property
    def missing_rows(self) -> int: ...
    @property
    def missing_changes(self) -> Mapping[str, int]: ...
    @property
    def missing_open(self) -> int | None: ...
    @property
    def stale_epoch(self) -> int: ...
    @property
    def lag(self) -> int | None: ...
    @property
    def entries(self) -> int: ...
    @property
    def state_bytes(self) -> int: ...


R = TypeVar("R", bound=Report)
T = TypeVar("T")


class Instruments(NamedTuple):
    """The instruments of OpenTelemetry, by what they count."""

    runs: Any
    run_seconds: Any
    step_seconds: Any
    rows: Any
    missing_rows: Any
    missing_ranges: Any
    missing_open: Any
    lag: Any
    stale_rows: Any
    entries: Any
    state_bytes: Any


def observe_run(about: Attributes, work: Callable[[], R]) -> R:
    """Call `work`, which runs a job or judges a batch of a stream, and report the outcome.

    `about`: attributes of all that is reported, such as the state's place. Metrics get only `fencepost.state` of them:
    a number of a batch would make a time series of each batch.
    """
    began = time.perf_counter()
    place = {"fencepost.state": about["fencepost.state"]}
    outcome = "failed"
    try:
        with _span("fencepost.run", about) as span:
            report = work()
            outcome = "nothing new" if report.version is None else "applied"
            found = _attributes(report, outcome)
            if span is not None:
                span.set_attributes(found)
    except Exception as error:
        _log_failure(jobs, "run", error, {**about, "fencepost.outcome": outcome})
        raise
    finally:
        if instruments := _instruments():
            ended: Attributes = {**place, "fencepost.outcome": outcome}
            instruments.runs.add(1, ended)
            instruments.run_seconds.record(time.perf_counter() - began, ended)
    if instruments:
        _record(instruments, report, place)
    seconds = time.perf_counter() - began
    message = "version %s: %d rows read, %d kept, %.3f s" if report.version is not None else "%s"
    values = (report.version, report.rows, report.kept, seconds) if report.version is not None else (outcome,)
    jobs.info(message, *values, extra={**about, **found, "fencepost.seconds": seconds})
    return report


@contextmanager
def observe_step(step: str, state: str) -> Iterator[None]:
    """Report a step of a run when it ends."""
    began = time.perf_counter()
    about: Attributes = {"fencepost.state": state, "fencepost.step": step}
    with _logged_step(jobs, step, about):
        yield
    if instruments := _instruments():
        instruments.step_seconds.record(time.perf_counter() - began, about)


def observe_report(kind: str, source: str, work: Callable[[], T], figures: Callable[[T], Attributes]) -> T:
    """Call `work`, which makes an audit or advice, and report the outcome.

    `kind`: audit, advise or kafka_audit. `figures`: attributes of the result, with `fencepost.rows`.
    """
    began = time.perf_counter()
    about: Attributes = {"fencepost.report": kind, "fencepost.source": source}
    try:
        with _span(f"fencepost.{kind}", about) as span:
            result = work()
            found = figures(result)
            if span is not None:
                span.set_attributes(found)
    except Exception as error:
        _log_failure(reports, kind, error, about)
        raise
    seconds = time.perf_counter() - began
    extra = {**about, **found, "fencepost.seconds": seconds}
    reports.info("%s: %d rows read, %.3f s", kind, found["fencepost.rows"], seconds, extra=extra)
    return result


@contextmanager
def observe_report_step(step: str, source: str) -> Iterator[None]:
    """Report a step of an audit or advice when it ends."""
    with _logged_step(reports, step, {"fencepost.source": source, "fencepost.step": step}):
        yield


@contextmanager
def _logged_step(to: logging.Logger, step: str, about: Attributes) -> Iterator[None]:
    began = time.perf_counter()
    with _span(f"fencepost.{step}", about):
        yield
    seconds = time.perf_counter() - began
    to.debug("%s: %.3f s", step, seconds, extra={**about, "fencepost.seconds": seconds})


def _log_failure(to: logging.Logger, what: str, error: Exception, about: Attributes) -> None:
    code = str(getattr(error, "code", ""))
    extra = {**about, "error.type": type(error).__name__, "fencepost.code": code}
    to.error("%s failed: %s", what, error, extra=extra)


def _attributes(report: Report, outcome: str) -> Attributes:
    found: dict[str, Value] = {"fencepost.outcome": outcome}
    if report.lag is not None:
        found["fencepost.lag"] = report.lag
    if report.version is not None:
        found |= {
            "fencepost.version": report.version,
            "fencepost.rows": report.rows,
            "fencepost.kept": report.kept,
            "fencepost.missing_rows": report.missing_rows,
            "fencepost.stale_epoch": report.stale_epoch,
        }
        found |= {f"fencepost.rows.{verdict.lower()}": count for verdict, count in report.counts.items()}
    return found


def _record(to: Instruments, report: Report, place: Attributes) -> None:
    for verdict, count in report.counts.items():
        to.rows.add(count, {**place, "fencepost.verdict": verdict})
    for change, count in report.missing_changes.items():
        to.missing_ranges.add(count, {**place, "fencepost.change": change})
    to.missing_rows.add(report.missing_rows, place)
    if report.missing_open is not None:
        to.missing_open.set(report.missing_open, place)
    if report.lag is not None:
        to.lag.set(report.lag, place)
    to.stale_rows.add(report.stale_epoch, place)
    to.entries.set(report.entries, place)
    to.state_bytes.set(report.state_bytes, place)


def _span(name: str, attributes: Attributes) -> AbstractContextManager[Any]:
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return nullcontext()
    span: AbstractContextManager[Any] = trace.get_tracer("fencepost").start_as_current_span(name, attributes=attributes)
    return span


def _instruments() -> Instruments | None:
    return _made_once() if "opentelemetry.metrics" in sys.modules else None


def _make_instruments() -> Instruments | None:
    # The API connects instruments of a meter that was made early to the provider that is set later.
    meter = sys.modules["opentelemetry.metrics"].get_meter("fencepost")
    if not hasattr(meter, "create_gauge"):
        return None  # an API that is older than the extra `otel` allows: a run must not fail because of it
    return Instruments(
        runs=meter.create_counter("fencepost.job.runs", "{run}", "Runs by outcome: applied, nothing new, failed"),
        run_seconds=meter.create_histogram("fencepost.job.duration", "s", "Duration of runs"),
        step_seconds=meter.create_histogram("fencepost.job.step.duration", "s", "Duration of the steps of runs"),
        rows=meter.create_counter("fencepost.job.rows", "{row}", "Rows read, by verdict"),
        missing_rows=meter.create_counter("fencepost.job.missing.rows", "{row}", "Rows that runs skipped"),
        missing_ranges=meter.create_counter(
            "fencepost.job.missing.ranges", "{range}", "Changes of the missing ranges: OPEN adds one, others end one"
        ),
        missing_open=meter.create_gauge(
            "fencepost.state.missing.open", "{row}", "Rows that are missing in the whole state"
        ),
        lag=meter.create_gauge(
            "fencepost.job.lag", "{offset}", "Kafka offsets that are not read yet, of all partitions of the source"
        ),
        stale_rows=meter.create_counter("fencepost.job.stale.rows", "{row}", "Rows of replaced epochs"),
        entries=meter.create_gauge("fencepost.state.entries", "{entry}", "Entries of the state"),
        state_bytes=meter.create_gauge("fencepost.state.size", "By", "Bytes of the state"),
    )


_made_once = lru_cache(maxsize=1)(_make_instruments)
