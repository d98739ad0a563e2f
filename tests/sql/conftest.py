"""Every test that asks for `engine` runs on SQLite, on PostgreSQL and on MariaDB. Some of these runs are nightly."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy
from support.databases import database_url, mariadb, postgres

__all__ = ["database_url", "engine", "mariadb", "new_engine", "postgres"]

# On SQLite `make test` runs every test, and on PostgreSQL most of them. On MariaDB it runs the tests of what depends on
# the SQL of a database: claims, tables, locks, types, and calls at the same time. `make test-matrix` runs all others.
FILES_WITHOUT_MARIADB = {
    "test_consumer.py",
    "test_coordinator_faults.py",
    "test_producer_transactions.py",
    "test_requests.py",
    "test_requests_http.py",
    "test_routes.py",
    "test_sink_faults.py",
    "test_staged.py",
    "test_tutorial.py",
}
TESTS_WITH_MARIADB = {
    "test_a_call_that_loses_every_race_can_be_repeated",
    "test_a_dead_letter_is_written_to_a_topic_once",
    "test_a_key_identifies_one_request",
    "test_a_lost_commit_is_settled",
    "test_a_poison_message_becomes_a_dead_letter_and_its_neighbors_are_applied",
    "test_a_response_is_replayed_byte_for_byte",
    "test_a_slow_worker_whose_lease_was_taken_commits_nothing",
    "test_a_worker_that_is_killed",
    "test_an_outage_pauses_and_the_same_messages_are_applied",
    "test_another_process_takes_over_in_mid_batch",
    "test_concurrent_repeats_have_one_effect",
    "test_each_message_once_and_claims_stay_plain",
    "test_expired_requests_are_forgotten",
    "test_many_drivers_at_once",
    "test_one_transaction_of_several_transports",
    "test_steps_are_resumed_with_their_results",
    "test_tables_that_a_crash_of_the_server_took",
    "test_the_claim_shows_the_outcome_of_a_lost_commit",
    "test_versions_are_transactions",
}
TESTS_WITHOUT_MARIADB = {
    # Long, and others do the same with the database.
    "test_a_long_source_is_read_a_batch_at_a_time",
    "test_random_requests_agree_with_the_state_machine",
    "test_tables_of_many_columns_are_compared",
    "test_the_command_line",
    # Rows that come in, routes, and settings: Python decides.
    "test_a_backfill_under_a_new_epoch_does_not_age_the_old_one",
    "test_a_coordinator_that_would_show_nothing_is_refused",
    "test_a_fresh_pid_whose_answer_was_lost_is_requested_again",
    "test_a_log_under_kafkas_rules_takes_markers_twice_and_late",
    "test_a_marker_that_cannot_be_written_leaves_the_decision",
    "test_a_missing_range_has_the_timestamp_of_the_row_that_opened_it",
    "test_a_refused_marker_does_not_complete_the_transaction",
    "test_a_retention_by_processing_that_is_too_short",
    "test_a_retention_shorter_than_what_is_in_flight",
    "test_a_retention_that_is_too_short",
    "test_a_route_that_cannot_be_opened_gets_no_markers_and_holds_up_no_other",
    "test_a_route_that_returns_before_the_marker_is_written_is_refused",
    "test_a_source_is_read_again_under_a_fresh_pid",
    "test_a_source_of_events_one_by_one",
    "test_a_uuid_is_one_id_however_it_is_spelt",
    "test_batches_are_held_against_the_schema",
    "test_conflicts_are_passed_to_refused",
    "test_content_is_compared_only_on_request",
    "test_effects_cannot_be_compared",
    "test_events_have_the_columns_that_any_of_them_has",
    "test_one_that_cannot_be_finished_does_not_keep_the_others",
    "test_positions_advance_without_rows",
    "test_rows_of_a_replaced_producer_are_counted",
    "test_rows_of_any_shape",
    "test_rows_without_a_producer",
    "test_types_of_keys_of_another_process_hold_after_a_first_call_that_was_undone",
    "test_waiting_for_markers_is_checked_in_each_call",
    "test_without_a_schema_batches_are_held_against_the_columns",
}
# A process that imports the package takes a second of CPU time, and does the same on any database.
TESTS_OF_ONE_DATABASE = {
    "test_a_forked_process_has_a_block_of_its_own": "postgresql",
    "test_a_stuck_transaction_is_named": "postgresql",
    "test_a_task_that_fails_is_counted_and_tried_again": "sqlite",
    "test_it_stops_on_a_signal": "sqlite",
    "test_without_tables_there_is_nothing_to_do": "postgresql",
}
# What Kafka and its client do. The claims, the positions and the outages of a database are in other tests.
TESTS_OF_KAFKA = {
    "test_a_decoder_passes_over_messages",
    "test_a_fatal_error_of_the_client",
    "test_a_message_whose_decoder_fails_is_tried_again",
    "test_a_replica_that_lacks_the_last_transactions",
    "test_a_signal_stops_the_loop_after_its_transaction",
    "test_a_topic_that_was_created_again",
    "test_fields_that_the_table_has_not",
    "test_kafka_that_does_not_answer_is_asked_again",
    "test_messages_that_are_deleted_while_it_runs",
    "test_messages_that_were_deleted_unread",
    "test_metrics_for_a_scraper",
    "test_partitions_move_between_polls",
    "test_partitions_move_in_an_outage",
    "test_too_many_dead_letters_in_a_row_stop_it",
    "test_two_partitions_whose_messages_are_all_deleted",
    "test_where_a_new_partition_begins",
}
# Their cases differ in what Python decides, before or after the same statements: on a server the first is enough.
TESTS_OF_ONE_CASE = {
    "test_a_bad_call_gives_the_reason_and_changes_nothing",
    "test_a_coordinator_without_a_route_cannot_complete",
    "test_a_route_that_leads_nowhere_is_refused",
    "test_a_time_that_is_not_now_is_refused",
    "test_an_effect_that_would_run_later_claims_nothing",
    "test_an_error_that_no_message_causes_stops_the_loop",
    "test_bad_calls_change_nothing",
    "test_batches_are_held_against_the_schema",
    "test_broker_coordinates_are_refused_as_message_id",
    "test_broker_coordinates_as_a_sequence_are_labelled",
    "test_invalid_combinations_of_options_are_refused",
    "test_invalid_message_ids_are_refused",
    "test_invalid_retentions_are_refused",
    "test_invalid_settings",
    "test_one_event_of_another_type_is_named",
    "test_texts_that_utf_8_does_not_have",
    "test_times_of_message_ids_are_milliseconds",
    "test_transitions_that_do_not_apply",
    # However the table of a task was lost, its rows are read from the file.
    "test_tables_that_a_crash_of_the_server_took",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    seen: set[tuple[str, str, str]] = set()
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        parameters = item.callspec.params
        if "database_url" in parameters:
            case = item.path.name, item.originalname, parameters["database_url"]
            if _is_nightly(item.path.name, item.originalname, parameters, is_first=case not in seen):
                item.add_marker(pytest.mark.matrix)
            seen.add(case)


def _is_nightly(file: str, test: str, parameters: dict[str, Any], *, is_first: bool) -> bool:
    """Whether `make test` leaves out a test on this database."""
    database = parameters["database_url"]
    if test in TESTS_OF_ONE_DATABASE:
        return database != TESTS_OF_ONE_DATABASE[test]
    if database == "sqlite":
        return False
    if test in TESTS_OF_KAFKA or (test in TESTS_OF_ONE_CASE and not is_first):
        return True
    # On a server the first of random runs is enough, and the output that is in its database.
    if parameters.get("seed", 0) > 0 or {"landing", "log"} & {it for it in parameters.values() if isinstance(it, str)}:
        return True
    if database == "postgresql":
        return False
    return test in TESTS_WITHOUT_MARIADB or (file in FILES_WITHOUT_MARIADB and test not in TESTS_WITH_MARIADB)


@pytest.fixture
def new_engine(database_url: str) -> Iterator[Callable[[], sqlalchemy.Engine]]:
    """Makes one more engine on the test's database, as another process would."""
    engines: list[sqlalchemy.Engine] = []

    def make() -> sqlalchemy.Engine:
        engine = sqlalchemy.create_engine(database_url)
        engines.append(engine)
        if engine.dialect.name == "mariadb":
            sqlalchemy.event.listen(engine, "before_cursor_execute", _quoted, retval=True)
        return engine

    yield make
    for engine in engines:
        engine.dispose()


def _quoted(_: object, __: object, statement: str, parameters: object, ___: object, ____: bool) -> tuple[str, object]:
    """A test's own statement, with columns that MariaDB has for keywords: partition, offset. None of the package's."""
    if "fencepost" in statement or "`" in statement:
        return statement, parameters
    statement = statement.replace('"offset"', "`offset`")
    return re.sub(r"(?<![.\w:(%])partition(?=[ ,)=]|$)(?! BY)", "`partition`", statement), parameters


@pytest.fixture
def engine(new_engine: Callable[[], sqlalchemy.Engine]) -> sqlalchemy.Engine:
    return new_engine()
