"""Many large images are decoded a few at a time, over all threads and processes; small ones at once."""

from __future__ import annotations

import io
import multiprocessing
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from probe.data import decode, decode_memory
from tests.support.tiny_datasets import picture

LARGE = Image.new("RGBA", (300, 200), (9, 9, 9, 99))


def encoded(image: Image.Image, form: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


@pytest.fixture
def scale(monkeypatch):
    """A world in which 60,000 transparent pixels, half a megabyte, are half of all memory."""
    monkeypatch.setattr(decode_memory, "UNIT", 1 << 14)
    monkeypatch.setattr(decode_memory, "LEAST", 1 << 20)
    monkeypatch.setattr(decode_memory, "EACH_STREAM", 0)
    monkeypatch.setattr(decode_memory, "_budget", None)


class Counter:
    """How many were inside at once."""

    def __init__(self):
        self.lock, self.now, self.most = threading.Lock(), 0, 0

    def __call__(self, image):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.02)
        with self.lock:
            self.now -= 1
        return image


def most_at_once(data: bytes, monkeypatch, *, view: bool) -> int:
    counter, plain = Counter(), decode.to_rgb
    if not view:
        monkeypatch.setattr(decode, "to_rgb", lambda image: counter(plain(image)))

    def seen(_):
        with decode_memory.until_seen():
            image = decode.rgb(data, "x")
            return counter(image) if view else image

    decode_memory.share(8)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(seen, range(16)))
    return counter.most


@pytest.mark.parametrize("view", [False, True], ids=["decoding", "resizing"])
def test_large_images_wait_for_each_other_and_small_ones_do_not(scale, monkeypatch, view):
    assert most_at_once(encoded(LARGE), monkeypatch, view=view) <= 2
    assert most_at_once(encoded(picture(0)), monkeypatch, view=view) > 2


def test_transparency_and_depth_cost_more():
    def needed(image, form="PNG", **options):
        return decode.bytes_needed(Image.open(io.BytesIO(encoded(image, form, **options))))

    grey, colour = needed(Image.new("L", (10, 10))), needed(Image.new("RGB", (10, 10)))
    deep, clear = needed(Image.new("I;16", (10, 10))), needed(Image.new("RGBA", (10, 10)))
    progressive = needed(Image.new("RGB", (10, 10)), "JPEG", progressive=True)
    assert grey < deep < colour <= clear < progressive < needed(Image.new("RGB", (10, 10)), "WEBP")


def test_an_image_larger_than_all_memory_is_decoded_alone(scale, monkeypatch):
    huge = encoded(Image.new("RGBA", (2000, 1000), (1, 2, 3, 4)))
    assert most_at_once(huge, monkeypatch, view=False) == 1


def test_what_was_taken_is_given_back_also_after_a_bad_image(scale):
    cut = encoded(LARGE)[:-30]
    budget = decode_memory.share(1)
    for _ in range(50):
        with pytest.raises(decode.BadImage), decode_memory.until_seen():
            decode.rgb(cut, "x")
        with pytest.raises(decode.BadImage):
            decode.rgb(cut, "x")
    assert budget.take(1 << 20) == budget.units  # it would wait for ever


def _hold(budget, inside, most):
    decode_memory.use(budget)
    for _ in range(4):
        with decode_memory.taken(600_000):
            with inside.get_lock():
                inside.value += 1
                most.value = max(most.value, inside.value)
            time.sleep(0.01)
            with inside.get_lock():
                inside.value -= 1


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_share_one_budget(scale, method):
    start = multiprocessing.get_context(method)
    inside, most = start.Value("i", 0), start.Value("i", 0)
    budget = decode_memory.Budget(4, start)
    workers = [start.Process(target=_hold, args=(budget, inside, most)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert most.value == 1


def test_training_processes_of_one_machine_share_the_memory(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert 4 * decode_memory.Budget(1).units * decode_memory.UNIT <= decode_memory.LEAST


SHADES = np.random.default_rng(0).integers(0, 256, (40, 30, 4), dtype=np.uint8)
HALF_OPAQUE = SHADES.copy()
HALF_OPAQUE[:20, :, 3] = 255
IMAGES = {
    "RGBA": (Image.fromarray(SHADES), "PNG", {}),
    "half of it opaque": (Image.fromarray(HALF_OPAQUE), "PNG", {}),
    "LA": (Image.fromarray(SHADES).convert("LA"), "PNG", {}),
    "palette": (picture(3, (40, 30)).convert("P"), "PNG", {"transparency": 3}),
    "colour key": (picture(3, (40, 30)), "PNG", {"transparency": (9, 9, 9)}),
    "16-bit": (Image.fromarray(SHADES.astype(np.uint16)[..., 0] * 257), "PNG", {}),
    "I, deep in one place": (Image.fromarray(np.diag(np.arange(40) * 1000).astype(np.int32)), "TIFF", {}),
    "I, 8-bit": (Image.fromarray(SHADES[..., 0].astype(np.int32)), "TIFF", {}),
}


@pytest.mark.parametrize("kind", IMAGES)
def test_converting_by_strips_gives_the_same_pixels(kind, monkeypatch):
    image, form, options = IMAGES[kind]
    whole = np.asarray(decode.rgb(encoded(image, form, **options), "x"))
    monkeypatch.setattr(decode, "STRIP", 70)
    assert np.array_equal(np.asarray(decode.rgb(encoded(image, form, **options), "x")), whole)
