"""The cleanup.policy of topics, which the files of a log do not record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from fencepost.errors import PolicyError

CLEANUP_POLICIES = ("delete", "compact", "unknown")
"""Values of a topic's cleanup.policy."""
COMPACTED_TOPICS = {"__consumer_offsets", "__transaction_state"}
"""Kafka's internal topics, always compacted."""

CleanupPolicy: TypeAlias = str | Mapping[str, str]
"""One of `CLEANUP_POLICIES`, or a mapping from topics to these, with "*" for all others."""


def check_cleanup_policy(policy: CleanupPolicy) -> None:
    """Raise PolicyError for an unknown policy."""
    for it in [policy] if isinstance(policy, str) else policy.values():
        if it not in CLEANUP_POLICIES:
            raise PolicyError(f"cleanup_policy={it!r}: expected one of {', '.join(CLEANUP_POLICIES)}")


def policy_of_topic(policy: CleanupPolicy, topic: str | None) -> str:
    """Return the cleanup.policy of a topic, as far as known."""
    named = {"*": policy} if isinstance(policy, str) else policy
    if topic in COMPACTED_TOPICS and named.get(topic, "unknown") == "unknown":
        return "compact"  # a policy for all topics is not meant for Kafka's own
    return named.get(topic or "", named.get("*", "unknown"))
