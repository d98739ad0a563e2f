"""A Kafka consumer that applies each message once to a database: poll, decode, apply, go on.

Needs `fencepost[sql]` or `fencepost[postgresql]`, and a Kafka client that the caller makes and passes in:
`confluent_kafka.Consumer` for `ConsumerLoop`, or an object with its methods; `aiokafka.AIOKafkaConsumer` for
`AsyncConsumerLoop`, with `fencepost[asyncio]`.
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
