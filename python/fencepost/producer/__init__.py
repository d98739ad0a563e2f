"""The producing end of a stream: delivers each row exactly once, in order. `docs/producer.md` is an introduction.

Applications use `SequencedProducer`. `sequencer` contains the protocol, without threads or clocks. `transport` defines
the interface of a destination.
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
