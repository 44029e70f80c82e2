"""A worker: one process, woken when there is work, that analyses files and puts what it found on the result queue.

``python -m queuebell.demo.worker URL VISIBILITY_S FOLDER``, with a folder for its log; SIGTERM ends it gracefully.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from bridge.queues import open_store
from bridge.queues.base import NewMessage
from listeners.handler import Message
from listeners.listener import Listener
from queuebell.demo.analysis import FileFacts, analyse_file
from queuebell.demo.direct import COLLECT_EVERY
from queuebell.demo.work import (
    INPUT_QUEUE,
    RESULT_QUEUE,
    AnalyseFile,
    FileAnalysed,
    Probe,
    ProbeSeen,
    WorkItem,
    WorkResult,
    worker_log,
)

# A batch is small enough that a burst reaches every worker, and large enough that its cost is worth its while. The
# second one waits in the process while the first is analysed.
BATCH = 16
CONCURRENCY = 32
GRACE_S = 2.0


async def work(url: str, number: int, visibility_s: float) -> None:
    """Work until told to stop. The result is put before the item is deleted: a crash in between costs a duplicate."""
    store = open_store(url)
    loop = asyncio.get_running_loop()
    # One thread: parsing holds the interpreter's lock, and a second thread would only make all of them later.
    thread = ThreadPoolExecutor(1, thread_name_prefix="analysis")

    async def handle(messages: list[Message]) -> None:
        started_ns = time.monotonic_ns()
        paths = [message.value.path for message in messages if isinstance(message.value, AnalyseFile)]
        facts = iter(await loop.run_in_executor(thread, analyse_files, paths) if paths else ())
        results = [result_of(message, number, started_ns, facts) for message in messages]
        await store.put(RESULT_QUEUE, [NewMessage(msgspec.json.encode(result)) for result in results])

    listener = Listener(
        store,
        INPUT_QUEUE,
        handle,
        name=f"worker-{number}",
        batch=BATCH,
        concurrency=CONCURRENCY,
        visibility_timeout=visibility_s,
        payload=WorkItem,
        grace=GRACE_S,
    )
    try:
        await listener.run()
    finally:
        thread.shutdown(wait=False, cancel_futures=True)
        await store.close()


def analyse_files(paths: list[str]) -> list[FileFacts]:
    """Analyse one file after the other."""
    return [analyse_file(path) for path in paths]


def result_of(message: Message, worker: int, started_ns: int, facts: Iterator[FileFacts]) -> WorkResult:
    """Answer one work item, with the next of ``facts`` if it names a file."""
    item: WorkItem = message.value
    match item:
        case AnalyseFile():
            return FileAnalysed(item.id, worker, message.attempt, item.put_ns, started_ns, next(facts))
        case Probe():
            return ProbeSeen(item.id, worker, message.attempt, item.put_ns, started_ns)


def main() -> int:
    """Run one worker with the arguments of the command line."""
    gc.set_threshold(COLLECT_EVERY)
    url, visibility_s, folder = sys.argv[1], float(sys.argv[2]), Path(sys.argv[3])
    number = os.getpid()
    log = os.open(worker_log(folder, number), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(log, stream)
    asyncio.run(work(url, number, visibility_s))
    return 0


if __name__ == "__main__":
    sys.exit(main())
