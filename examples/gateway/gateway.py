"""A gateway: events come over HTTP and go to a partitioned log in Kafka's format.

A request is answered once its event is on disk. Events that arrive within `LINGER_MS` share a batch and a sync. Where
the log is slower than the clients, the gateway answers 503 instead of taking more than fits into its buffer.

    pip install 'fencepost[metrics]' fastapi uvicorn pyarrow numpy
    GATEWAY_FOLDER=/var/lib/clicks uvicorn gateway:app

One process, for a log has one writer. A client that gets no answer and sends again makes a second event: put
`fencepost.sql.AsgiIdempotency` in front, or let consumers tell events apart by `id`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import fencepost as fp
from fastapi import FastAPI, HTTPException
from fencepost.metrics import Collector
from fencepost.transports import PartitionLogTransport
from prometheus_client import CollectorRegistry, make_asgi_app
from pydantic import BaseModel

FOLDER = os.environ.get("GATEWAY_FOLDER", "clicks")
LINGER_MS = int(os.environ.get("GATEWAY_LINGER_MS", "20"))
"""The longest time that an event waits for others: more clients at once, more events a sync."""
METRICS = CollectorRegistry()


class Click(BaseModel):
    """An event. What does not fit is refused here (422), so that no event spoils the batch of others."""

    id: UUID
    user: str
    page: str


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """The producer runs as long as the application, and delivers what it has taken before it ends."""
    with (
        PartitionLogTransport(FOLDER, partitions=4, topic="clicks", key="user") as transport,
        fp.SequencedProducer(
            transport, key="user", linger_ms=LINGER_MS, buffer_bytes=64 << 20, max_block_ms=0
        ) as producer,
    ):
        collector = Collector(producer)
        METRICS.register(collector)
        app.state.producer = producer
        yield
        METRICS.unregister(collector)


app = FastAPI(lifespan=lifespan)
app.mount("/metrics", make_asgi_app(METRICS))


@app.post("/clicks")
async def take(click: Click) -> dict[str, Any]:
    """Returns where the event is stored, once it is on disk."""
    try:
        [delivery] = app.state.producer.send([click.model_dump(mode="json")])
    except fp.CapacityError as error:
        raise HTTPException(503, "too many events wait for the log", {"Retry-After": "1"}) from error
    try:
        done = await asyncio.wrap_future(delivery)
    except fp.DeliveryError as error:
        raise HTTPException(503, str(error), {"Retry-After": "1"}) from error
    return {"partition": done.partition, "offset": done.offset}
