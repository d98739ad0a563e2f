"""Object stores of a session's Hadoop settings: a job needs no options of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import fencepost as fp
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from conftest import classic_only, settings
from fencepost import lake
from fencepost.lake import dataset
from fencepost.state import open_store
from fencepost_spark import DedupJob
from fencepost_spark.hadoop import store_options, with_options
from pyspark.sql import SparkSession
from support.s3_server import BUCKET

AWS = "software.amazon.awssdk.auth.credentials"
HADOOP = "org.apache.hadoop.fs.s3a"
KEYS = {"fs.s3a.access.key": "a", "fs.s3a.secret.key": "the-secret"}
HOST = "account.dfs.core.windows.net"
OAUTH = "org.apache.hadoop.fs.azurebfs.oauth2"
SETTINGS = [
    ("s3://bucket/x", {}, {}),
    ("s3a://bucket/x", KEYS, {"access_key_id": "a", "secret_access_key": "the-secret"}),
    (
        "s3://bucket/x",
        {**KEYS, "fs.s3a.session.token": "t", "fs.s3a.endpoint.region": "eu-west-1"},
        {"access_key_id": "a", "secret_access_key": "the-secret", "session_token": "t", "region": "eu-west-1"},
    ),
    # Settings of a bucket override settings of all buckets.
    (
        "s3://bucket/x",
        {**KEYS, "fs.s3a.bucket.bucket.access.key": "b", "fs.s3a.bucket.other.access.key": "c"},
        {"access_key_id": "b", "secret_access_key": "the-secret"},
    ),
    ("s3://bucket/x", {"fs.s3a.endpoint": "s3.eu-west-1.amazonaws.com"}, {"region": "eu-west-1"}),
    ("s3://bucket/x", {"fs.s3a.endpoint": "https://s3.amazonaws.com"}, {}),
    (
        "s3://bucket/x",
        {"fs.s3a.endpoint": "minio:9000", "fs.s3a.path.style.access": "true", "fs.s3a.connection.ssl.enabled": "false"},
        {"endpoint": "http://minio:9000", "allow_http": True, "region": "us-east-1"},
    ),
    (
        "s3://bucket/x",
        {"fs.s3a.endpoint": "minio:9000", "fs.s3a.path.style.access": "True", "fs.s3a.connection.ssl.enabled": "False"},
        {"endpoint": "http://minio:9000", "allow_http": True, "region": "us-east-1"},
    ),
    (
        "s3://bucket/x",
        {"fs.s3a.endpoint": "https://store.example/"},
        {"endpoint": "https://bucket.store.example", "virtual_hosted_style_request": True, "region": "us-east-1"},
    ),
    ("s3://bucket/x", {"fs.s3a.aws.credentials.provider": f"{AWS}.AnonymousCredentialsProvider"}, None),
    (
        "s3://bucket/x",
        {"fs.s3a.aws.credentials.provider": f"{HADOOP}.AnonymousAWSCredentialsProvider"},
        {"skip_signature": True},
    ),
    (
        "s3://bucket/x",
        {**KEYS, "fs.s3a.aws.credentials.provider": f"{HADOOP}.auth.IAMInstanceCredentialsProvider"},
        {},
    ),
    ("s3://bucket/x", {"fs.s3a.aws.credentials.provider": f"{HADOOP}.auth.AssumedRoleCredentialProvider"}, None),
    ("gs://bucket/x", {}, {}),
    (
        "gs://bucket/x",
        {"fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE", "fs.gs.auth.service.account.json.keyfile": "/key.json"},
        {"service_account": "/key.json"},
    ),
    (
        "gs://bucket/x",
        {"google.cloud.auth.service.account.json.keyfile": "/key.json"},
        {"service_account": "/key.json"},
    ),
    ("gs://bucket/x", {"fs.gs.auth.type": "COMPUTE_ENGINE"}, {}),
    ("gs://bucket/x", {"fs.gs.auth.type": "UNAUTHENTICATED"}, {"skip_signature": True}),
    ("gs://bucket/x", {"fs.gs.auth.type": "USER_CREDENTIALS"}, None),
    (f"abfss://box@{HOST}/x", {f"fs.azure.account.key.{HOST}": "a2V5"}, {"account_key": "a2V5"}),
    (f"abfss://box@{HOST}/x", {"fs.azure.account.key.other.dfs.core.windows.net": "k"}, {}),
    (
        f"abfss://box@{HOST}/x",
        {f"fs.azure.account.auth.type.{HOST}": "SAS", f"fs.azure.sas.fixed.token.{HOST}": "sig=x"},
        {"sas_key": "sig=x"},
    ),
    (
        f"abfss://box@{HOST}/x",
        {
            "fs.azure.account.auth.type": "OAuth",
            "fs.azure.account.oauth.provider.type": f"{OAUTH}.ClientCredsTokenProvider",
            "fs.azure.account.oauth2.client.id": "id",
            "fs.azure.account.oauth2.client.secret": "s",
            "fs.azure.account.oauth2.client.endpoint": "https://login.example/the-tenant/oauth2/token",
        },
        {"client_id": "id", "client_secret": "s", "tenant_id": "the-tenant"},
    ),
    (
        f"abfss://box@{HOST}/x",
        {
            "fs.azure.account.auth.type": "OAuth",
            "fs.azure.account.oauth.provider.type": f"{OAUTH}.MsiTokenProvider",
        },
        {},
    ),
    (f"abfss://box@{HOST}/x", {"fs.azure.account.auth.type": "Custom"}, None),
    ("/a/folder", KEYS, {}),
    ("memory://x", KEYS, {}),
]


@classic_only
@pytest.mark.parametrize(("uri", "values", "expected"), SETTINGS)
def test_settings_become_options(
    spark: SparkSession, uri: str, values: dict[str, str], expected: dict[str, object] | None
) -> None:
    with settings(spark, **values):
        if expected is None:
            with pytest.raises(fp.StoreError, match=r"only Spark's connector .*source_options"):
                store_options(uri, spark)
        else:
            assert store_options(uri, spark) == expected
            assert "conditional_put" not in expected
            if "service_account" not in expected:
                open_store(uri, options=expected)  # the client knows these names


def chars(spark: SparkSession, text: str) -> Any:
    gateway = spark.sparkContext._gateway
    array = gateway.new_array(gateway.jvm.char, len(text))
    for place, char in enumerate(text):
        array[place] = char
    return array


@classic_only
def test_a_credential_file_of_hadoop_is_read(spark: SparkSession, tmp_path: Path) -> None:
    path = f"jceks://file{tmp_path}/secrets.jceks"
    jvm = spark._jvm
    conf = jvm.org.apache.hadoop.conf.Configuration(False)
    conf.set("hadoop.security.credential.provider.path", path)
    store = jvm.org.apache.hadoop.security.alias.CredentialProviderFactory.getProviders(conf)[0]
    for name, value in KEYS.items():
        store.createCredentialEntry(name, chars(spark, value))
    store.flush()
    with settings(spark, **{"hadoop.security.credential.provider.path": path}):
        assert store_options("s3://bucket/x", spark) == {"access_key_id": "a", "secret_access_key": "the-secret"}


def test_options_that_are_given_stay(spark: SparkSession) -> None:
    with settings(spark, **KEYS):
        found = with_options(
            spark, {"sink_options": {}, "policy": "kafka"}, source="s3://b/x", state="/y", sink="s3://b/z"
        )
        assert found == {
            "policy": "kafka",
            "sink_options": {},
            "source_options": {"access_key_id": "a", "secret_access_key": "the-secret"},
        }
    assert with_options(None, {}, source="s3://b/x") == {}


def test_a_kafka_log_gets_options_too(spark: SparkSession, tmp_path: Path) -> None:
    known = {"access_key_id": "a", "secret_access_key": "the-secret"}
    with settings(spark, **KEYS):
        for given, expected in ((None, known), ({}, {}), ({"region": "eu"}, {"region": "eu"})):
            log = lake.KafkaLog("s3://bucket/logs", options=given)
            job = DedupJob(log, tmp_path / "state", tmp_path / "sink", spark=spark)
            assert job.log is not None
            assert job.log.options == expected
            assert job.source == log.name
        local = DedupJob(lake.KafkaLog(tmp_path / "logs"), tmp_path / "state", tmp_path / "sink", spark=spark)
        assert local.log is not None
        assert local.log.options is None


def test_a_job_needs_no_options(spark: SparkSession, endpoint: str, tmp_path: Path) -> None:
    root = f"s3a://{BUCKET}/{os.urandom(8).hex()}"
    options = {"endpoint": endpoint, "access_key_id": "a", "secret_access_key": "the-secret", "allow_http": True}
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"pid": [1] * 4, "epoch": [0] * 4, "partition": [0] * 4, "seq": [0, 1, 1, 2]}), path)
    open_store(f"{root}/source", options=options).put("a.parquet", path.read_bytes())
    values = {**KEYS, "fs.s3a.endpoint": endpoint, "fs.s3a.path.style.access": "true"}
    with settings(spark, **values):
        places = [f"{root}/{it}" for it in ("source", "state", "sink")]
        report = DedupJob(*places, spark=spark, policy="any_order", settle_ms=0).run()
    assert (report.kept, report.counts["DUPLICATE"]) == (3, 1)
    assert sorted(dataset(f"{root}/sink", options).to_table()["seq"].to_pylist()) == [0, 1, 2]
