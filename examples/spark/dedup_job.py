"""A Spark job that keeps each event once. The Databricks bundle and the Kubernetes job beside this folder run it.

    spark-submit dedup_job.py SOURCE STATE SINK [--policy any_order] [--columns kafka-producer]

Run it again at any time: it reads only what is new. The last line is a report for programs (JSON). Exit code 1 with a
traceback means that nothing was changed, or that the next run finishes what was decided.
"""

from __future__ import annotations

import argparse

from fencepost_spark import DedupJob
from pyspark.sql import SparkSession


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("source", "state", "sink"):
        parser.add_argument(name, help="a folder that all workers see, or a URI of an object store")
    parser.add_argument("--policy", default="any_order")
    parser.add_argument("--columns", default="kafka-producer")
    options = parser.parse_args()
    spark = SparkSession.builder.appName("fencepost").getOrCreate()
    job = DedupJob(
        options.source, options.state, options.sink, policy=options.policy, columns=options.columns, spark=spark
    )
    print(job.run().to_json())


if __name__ == "__main__":
    main()
