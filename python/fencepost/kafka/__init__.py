"""Kafka's own log, as its brokers keep it."""

from fencepost._native import TransactionIndex

__all__ = ["TransactionIndex"]
