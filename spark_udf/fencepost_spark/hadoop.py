"""Translates a session's Hadoop settings (`fs.s3a.*`, `fs.gs.*`, `fs.azure.*`) to store options.

Spark's connectors and `fencepost.state.open_store` reach the same stores by different clients. With this translation,
you configure location and credentials once. Sources: hadoop-aws ("Authenticating with S3", core-default.xml), the Cloud
Storage connector's CONFIGURATION.md, hadoop-azure ("ABFS").

The driver reads the settings when a job is created. Tasks receive the options through Spark.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from fencepost.errors import StoreError
from fencepost.state.stores import is_local
from pyspark.sql import SparkSession

Options = dict[str, Any]
Get = Callable[[str], str | None]
"""Returns the value of a setting, or None."""

# Classes of hadoop-aws and of both AWS SDKs, by their simple names.
_BY_KEYS = ("SimpleAWSCredentialsProvider", "TemporaryAWSCredentialsProvider")
_ANONYMOUS = "AnonymousAWSCredentialsProvider"
# Providers that obstore implements itself: environment, web identity files, containers, instances.
_FOUND_ALONE = (
    *(
        "EnvironmentVariableCredentialsProvider",
        "EnvironmentVariableCredentialProvider",
        "ContainerCredentialsProvider",
    ),
    *("WebIdentityTokenFileCredentialsProvider", "WebIdentityTokenCredentialsProvider"),
    *("InstanceProfileCredentialsProvider", "IAMInstanceCredentialsProvider", "EC2ContainerCredentialsProviderWrapper"),
    *("DefaultCredentialsProvider", "DefaultAWSCredentialsProviderChain"),
)
_AWS_HOST = re.compile(r"s3[.-](?:dualstack\.)?([a-z0-9-]+)?\.?amazonaws\.com(?:\.cn)?")


def with_options(spark: SparkSession | None, options: Mapping[str, Any], **places: object) -> dict[str, Any]:
    """Return `options` of a job, completed with the options of the stores of its `places`.

    `places`: `source`, `state` and `sink`; values that are not paths or URIs are ignored. Raises StoreError for
    credentials that only Spark's connector can get.
    """
    found = dict(options)
    for name, place in places.items():
        if isinstance(place, str | os.PathLike) and found.get(f"{name}_options") is None:
            known = store_options(os.fspath(place), spark)
            if known:
                found[f"{name}_options"] = known
    return found


def store_options(uri: str, spark: SparkSession | None) -> Options:
    """Return the session's options for the store of a URI. Empty for a local path, and without a session."""
    if is_local(uri) or spark is None:
        return {}
    parts = urlsplit(uri)
    readers: dict[str, Callable[[Get, str], Options]] = {
        **dict.fromkeys(("s3", "s3a"), _of_s3),
        "gs": _of_gs,
        **dict.fromkeys(("abfs", "abfss"), _of_azure),
    }
    reader = readers.get(parts.scheme)
    return {} if reader is None else reader(_settings_of(spark), parts.netloc)


def _settings_of(spark: SparkSession) -> Get:
    java: Any = getattr(spark, "_jsparkSession", None)
    if java is None:  # Spark Connect exposes only settings of the session
        return lambda name: spark.conf.get(name, None) or spark.conf.get(f"spark.hadoop.{name}", None)
    jvm: Any = spark.sparkContext._jvm
    settings, text = java.sessionState().newHadoopConf(), jvm.java.lang.String

    def get(name: str) -> str | None:
        secret = settings.getPassword(name)  # also reads credential files
        return None if secret is None else str(text(secret)).strip() or None

    return get


def _of_s3(get: Get, bucket: str) -> Options:
    def own(name: str) -> str | None:
        return get(f"fs.s3a.bucket.{bucket}.{name}") or get(f"fs.s3a.{name}")

    options = _credentials_of_s3(own, bucket)
    host, region = own("endpoint"), own("endpoint.region")
    if host is not None and (known := _AWS_HOST.fullmatch(urlsplit(host).netloc or host)):
        region, host = region or known[1], None
    if host is not None:
        options |= _endpoint(host, own, bucket)
    if region is not None or host is not None:
        options["region"] = region or "us-east-1"
    return options


def _endpoint(host: str, own: Get, bucket: str) -> Options:
    """Return the options of a store other than Amazon's."""
    if "://" not in host:
        host = f"{'http' if _is(own('connection.ssl.enabled'), 'false') else 'https'}://{host}"
    scheme, address = host.rstrip("/").split("://", 1)
    options: Options = {"allow_http": True} if scheme == "http" else {}
    if _is(own("path.style.access"), "true"):
        return options | {"endpoint": f"{scheme}://{address}"}
    return options | {"endpoint": f"{scheme}://{bucket}.{address}", "virtual_hosted_style_request": True}


def _is(setting: str | None, value: str) -> bool:
    """Return whether a boolean setting has this value. Hadoop ignores the case."""
    return setting is not None and setting.lower() == value


def _credentials_of_s3(own: Get, bucket: str) -> Options:
    listed = re.split(r"[\s,]+", own("aws.credentials.provider") or "")
    names = [it.rpartition(".")[2] for it in listed if it]
    key, secret, token = own("access.key"), own("secret.key"), own("session.token")
    if key and secret and (not names or any(it in _BY_KEYS for it in names)):
        return {"access_key_id": key, "secret_access_key": secret, **({"session_token": token} if token else {})}
    if _ANONYMOUS in names:
        return {"skip_signature": True}
    if not names or any(it in _FOUND_ALONE for it in names):
        return {}
    raise _unknown(f"s3a://{bucket}", "fs.s3a.aws.credentials.provider", ", ".join(names))


def _of_gs(get: Get, bucket: str) -> Options:
    older = get("google.cloud.auth.service.account.json.keyfile")
    if older:
        return {"service_account": older}
    kind, file = get("fs.gs.auth.type"), get("fs.gs.auth.service.account.json.keyfile")
    if kind == "SERVICE_ACCOUNT_JSON_KEYFILE" and file:
        return {"service_account": file}
    if kind in (None, "COMPUTE_ENGINE", "APPLICATION_DEFAULT"):
        return {}
    if kind == "UNAUTHENTICATED":
        return {"skip_signature": True}
    raise _unknown(f"gs://{bucket}", "fs.gs.auth.type", kind)


def _of_azure(get: Get, place: str) -> Options:
    """`place`: container@account.dfs.core.windows.net."""
    host = place.rpartition("@")[2]

    def own(name: str) -> str | None:
        return get(f"fs.azure.{name}.{host}") or get(f"fs.azure.{name}")

    kind = own("account.auth.type") or "SharedKey"
    if kind == "SharedKey":
        key = own("account.key")
        return {"account_key": key} if key else {}
    if kind == "SAS" and (token := own("sas.fixed.token")):
        return {"sas_key": token}
    provider = (own("account.oauth.provider.type") or "").rpartition(".")[2]
    if kind == "OAuth" and provider == "ClientCredsTokenProvider":
        tenant = re.match(r"/([^/]+)/", urlsplit(own("account.oauth2.client.endpoint") or "").path)
        options = {"client_id": own("account.oauth2.client.id"), "client_secret": own("account.oauth2.client.secret")}
        return options | ({"tenant_id": tenant[1]} if tenant else {})
    if kind == "OAuth" and provider == "MsiTokenProvider":
        return {}
    raise _unknown(f"abfss://{place}", "fs.azure.account.auth.type", f"{kind} {provider}".strip())


def _unknown(place: str, setting: str, value: str) -> StoreError:
    return StoreError(
        f"{place}: {setting} is {value}, which only Spark's connector can use. Pass source_options, "
        "KafkaLog(options=), state_options or sink_options with credentials (see fencepost.state.open_store). An empty "
        "dict, such as state_options={}, uses those of the environment",
        path=place,
    )
