"""pgqueuer: jobs put in batches, and worked off by one worker. Prints jobs a second as JSON."""

import asyncio
import json
import sys
import time

import psycopg
from pgqueuer import PgQueuer
from pgqueuer.db import PsycopgDriver
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

address, total, batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
TEXT = b"Review change. " * 12


async def main() -> None:
    async with await psycopg.AsyncConnection.connect(address, autocommit=True) as connection:
        driver = PsycopgDriver(connection)
        queries = Queries(driver)
        await queries.install()
        began = time.perf_counter()
        for _ in range(0, total, batch):
            await queries.enqueue(["nothing"] * batch, [TEXT] * batch, [0] * batch)
        put = total / (time.perf_counter() - began)
        queue, ended = PgQueuer(driver), 0

        @queue.entrypoint("nothing")
        async def nothing(job: object) -> None:
            nonlocal ended
            ended += 1

        began = time.perf_counter()
        await queue.qm.run(batch_size=batch, mode=QueueExecutionMode.drain)
        end = total / (time.perf_counter() - began)
        assert ended == total
    print(json.dumps({"put": put, "end": end}))


asyncio.run(main())
