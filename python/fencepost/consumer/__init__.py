"""A Kafka consumer that applies each message once to a database.

Requires `fencepost[sql]` or `fencepost[postgresql]`, and a Kafka client that the caller creates:

    ConsumerLoop         a `confluent_kafka.Consumer`, or an object with the same methods
    AsyncConsumerLoop    an `aiokafka.AIOKafkaConsumer`; also requires `fencepost[asyncio]`
"""

from fencepost.consumer.asynchronous import AsyncConsumerLoop
from fencepost.consumer.dead_letters import DeadLetter, DeadLetterWriter, to_topic
from fencepost.consumer.loop import ConsumerLoop
from fencepost.consumer.messages import Decoder, Message, message_columns

__all__ = [
    "AsyncConsumerLoop",
    "ConsumerLoop",
    "DeadLetter",
    "DeadLetterWriter",
    "Decoder",
    "Message",
    "message_columns",
    "to_topic",
]
