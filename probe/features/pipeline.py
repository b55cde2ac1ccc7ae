"""Keeping the device busy: batches are loaded ahead and come back encoded, in order.

On a CPU every core gets its own stream: it decodes a batch and encodes it with a single thread. Compared
with decoding beside a forward pass that spans all cores, no thread waits at barriers, no core is
oversubscribed, and the features do not depend on the number of cores.
On a GPU, worker processes decode into page-locked memory that they share with this process, which feeds the
device and collects its features one batch behind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from probe.core import threads
from probe.data import decode_memory
from probe.features.batches import BatchLoader, BatchRequest, DecodedBatch
from probe.features.encoder import BatchEncoder
from probe.features.shared_pixels import PixelBuffers
from probe.features.transfers import Collected
from probe.system.world import usable_cores

EncodedBatch = tuple[DecodedBatch, Tensor]  # with its features, len(batch.rows) x dim
Stream = Generator[EncodedBatch, None, None]
AHEAD = 2  # batches in flight for each stream or worker: bounds the memory, whatever the number of images


def default_workers(device: torch.device) -> int:
    """As many streams as there are free threads; on a GPU, the cores that this process may use, up to 16."""
    if device.type == "cpu":
        return threads.usable()
    return min(16, max(1, usable_cores() - 1))


def encoded(
    requests: Iterable[BatchRequest], loader: BatchLoader, encoder: BatchEncoder, workers: int
) -> Stream:
    """Load and encode every batch; `requests` are drawn lazily, results keep their order.

    Close the stream when done, also on failure: until then torch has one thread, and cores are at work.
    """
    feed = _streams if encoder.device.type == "cpu" else _processes
    return feed(requests, loader, encoder, workers)


def _streams(
    requests: Iterable[BatchRequest], loader: BatchLoader, encoder: BatchEncoder, workers: int
) -> Stream:
    def work(request: BatchRequest) -> EncodedBatch:
        batch = loader[request]
        result = batch, encoder(batch.pixels)
        batch.pixels = batch.pixels[:0]  # the bytes are not needed while the result waits for its turn
        return result

    before = torch.get_num_threads()
    waiting: deque[Future[EncodedBatch]] = deque()
    remaining = iter(requests)
    torch.set_num_threads(1)
    decode_memory.share(max(1, workers))
    pool = ThreadPoolExecutor(max(1, workers), initializer=torch.set_num_threads, initargs=(1,))
    try:
        waiting.extend(pool.submit(work, request) for request in islice(remaining, AHEAD * max(1, workers)))
        while waiting:
            done = waiting.popleft().result()
            waiting.extend(pool.submit(work, request) for request in islice(remaining, 1))
            yield done
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(before)


def _processes(
    requests: Iterable[BatchRequest], loader: BatchLoader, encoder: BatchEncoder, workers: int
) -> Stream:
    from torch.utils.data import DataLoader

    # Beside those in flight, one batch is being encoded and one waits to be collected.
    places = AHEAD * max(1, workers) + 2
    buffers = PixelBuffers.for_batches(places, encoder.batch_size, loader.preprocessing.size)
    batches: Iterable[DecodedBatch] = DataLoader(
        replace(loader, buffers=buffers),  # type: ignore[arg-type]
        batch_size=None,
        sampler=buffers.placed(requests),
        num_workers=workers,
        prefetch_factor=AHEAD if workers else None,
        worker_init_fn=partial(_begin, decode_memory.share(max(1, workers))),
    )
    with closing(buffers.page_locked(encoder.device)):
        yield from _one_behind(batches, buffers, encoder)


def _one_behind(batches: Iterable[DecodedBatch], buffers: PixelBuffers, encoder: BatchEncoder) -> Stream:
    """Give each batch to the device before the features of the one before it are waited for."""
    sent: tuple[DecodedBatch, Collected] | None = None

    def collect(batch: DecodedBatch, collected: Collected) -> EncodedBatch:
        features = collected()
        assert batch.place is not None
        buffers.free.append(batch.place)  # copied to the device long ago, and encoded now
        return batch, features

    for batch in batches:
        assert batch.place is not None
        before, sent = sent, (batch, encoder.begin(buffers.pixels(batch.place, len(batch.rows))))
        if before is not None:
            yield collect(*before)
    if sent is not None:
        yield collect(*sent)


def _begin(budget: decode_memory.Budget, _: int) -> None:
    decode_memory.use(budget)
