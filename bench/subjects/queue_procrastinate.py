"""procrastinate: jobs deferred in batches, and worked off by one worker. Prints jobs a second as JSON."""

import asyncio
import json
import sys
import time

import procrastinate

address, total, batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=address))
TEXT = "Review change. " * 12


@app.task(name="nothing")
async def nothing(number: int, intent: str) -> None:
    pass


async def main() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        began = time.perf_counter()
        for first in range(0, total, batch):
            await nothing.batch_defer_async(*({"number": first + n, "intent": TEXT} for n in range(batch)))
        put = total / (time.perf_counter() - began)
        began = time.perf_counter()
        await app.run_worker_async(wait=False, concurrency=batch, install_signal_handlers=False)
        end = total / (time.perf_counter() - began)
        jobs = await app.job_manager.list_jobs_async(status="succeeded")
        assert len(list(jobs)) == total
    print(json.dumps({"put": put, "end": end}))


asyncio.run(main())
