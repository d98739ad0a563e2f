"""An Airflow DAG (3.x): deduplicates what has landed, every hour, then audits the result.

The state knows which files were read, so no task needs the date of its interval. The next run finishes what a killed
run has decided. Two runs at once are safe, but the work of the slower one is discarded, hence `max_active_runs=1`.

The environment of the worker needs `fencepost[cli,lake]`. Paths may be folders or URIs of object stores.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

LANDING = "{{ var.value.get('fencepost_landing', '/data/landing') }}"
STATE = "{{ var.value.get('fencepost_state', '/data/state') }}"
CLEAN = "{{ var.value.get('fencepost_clean', '/data/clean') }}"

with DAG(
    dag_id="fencepost_dedup",
    schedule="@hourly",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=5), "execution_timeout": timedelta(hours=2)},
    tags=["fencepost"],
) as dag:
    deduplicate = BashOperator(
        task_id="deduplicate",
        bash_command=f"fencepost dedup '{LANDING}' '{STATE}' '{CLEAN}' --columns kafka-producer --json",
    )
    audit = BashOperator(
        task_id="audit",
        # Exit code 3, and with it this task, says that the result has repeats.
        bash_command=f"fencepost audit '{CLEAN}' --columns kafka-producer --fail-on duplicate --allow-empty",
        retries=0,
    )
    deduplicate >> audit
