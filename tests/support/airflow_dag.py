"""Reads a DAG as Airflow does, and writes it in its schema: `python airflow_dag.py FILE`, with Airflow's Python."""

from __future__ import annotations

import importlib.util
import sys

from airflow.serialization.serialized_objects import DagSerialization

spec = importlib.util.spec_from_file_location("example", sys.argv[1])
assert spec is not None
assert spec.loader is not None
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
written = DagSerialization.to_dict(module.dag)
DagSerialization.validate_schema(written)
read = DagSerialization.from_dict(written)
assert read.task_dict["deduplicate"].downstream_task_ids == {"audit"}
assert read.max_active_runs == 1
print(f"{read.dag_id}: Airflow reads it, {len(read.task_dict)} tasks")
