"""The producing end of a stream: rows in, each in its place once. `docs/producer.md` tells it from the start.

`SequencedProducer` is what applications use. The rules are in `sequencer`, without a thread or a clock; `transport`
says what a place to write to must have.
"""

from fencepost.producer.answers import Answer, ErrorCode
from fencepost.producer.identities import Registry
from fencepost.producer.producer import Delivery, SequencedProducer
from fencepost.producer.sequencer import Delivered, Identity
from fencepost.producer.settings import Settings
from fencepost.producer.transport import Coordinator, SequencedBatch, Transport

__all__ = [
    "Answer",
    "Coordinator",
    "Delivered",
    "Delivery",
    "ErrorCode",
    "Identity",
    "Registry",
    "SequencedBatch",
    "SequencedProducer",
    "Settings",
    "Transport",
]
