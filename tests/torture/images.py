"""Image files as the world makes them: cut, huge, strange, mislabelled, and things that are no files."""

from __future__ import annotations

import io
import os
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random

from PIL import Image

from backbones.preprocess import Preprocessing
from probe import data
from tests.torture.answers import command, parsed
from tests.torture.jail import SECONDS, jailed
from tests.torture.kinds import Case, Torture

MODES = {
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
    "JPEG": ("L", "RGB", "CMYK"),
    "GIF": ("L", "P", "RGB"),
    "WEBP": ("RGB", "RGBA", "L"),
    "TIFF": ("1", "L", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "I;16", "I", "F"),
    "BMP": ("1", "L", "P", "RGB"),
    "PPM": ("1", "L", "RGB", "I"),
}
SIZES = ((1, 1), (1, 2), (2, 1), (24, 24), (31, 7), (5000, 3), (30_000, 1), (1, 30_000))
EXTENSIONS = (".png", ".jpg", ".JPEG", ".gif", ".webp", ".tif", ".bmp", ".ppm", ".avif", ".txt", "")
ONE_IN = 25  # tries that go through the whole command


def painted(luck: Random) -> bytes:
    """A sound image of any format, mode and size."""
    form = luck.choice(list(MODES))
    mode = luck.choice(MODES[form])
    width, height = luck.choice(SIZES[:6] if form == "WEBP" else SIZES)
    image = Image.new(mode, (width, height))
    if mode in ("L", "RGB", "RGBA", "CMYK"):
        few = min(width * height, 4096) * len(mode)
        image = Image.frombytes(mode, (width, height), luck.randbytes(few).ljust(width * height * len(mode)))
    more = [image] * luck.randrange(3) if form in ("GIF", "WEBP", "TIFF", "PNG") else []
    content = io.BytesIO()
    image.save(content, form, **({"save_all": True, "append_images": more} if more else {}))
    return content.getvalue()


def damaged(luck: Random) -> bytes:
    """A sound image with some bytes cut off, changed or added."""
    content = bytearray(painted(luck))
    kind = luck.randrange(4)
    if kind == 0:
        return bytes(content[: luck.randrange(len(content))])
    if kind == 1:
        return bytes(content) + luck.randbytes(luck.randrange(2000))
    for _ in range(luck.randrange(1, 30)):
        content[luck.randrange(min(len(content), 200 if kind == 2 else 1 << 30))] = luck.randrange(256)
    return bytes(content)


def png(width: int, height: int, depth: int, colour: int, *chunks: tuple[bytes, bytes]) -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunk(*c) for c in chunks) + chunk(b"IEND", b"")


def bomb(luck: Random) -> bytes:
    """A few bytes that claim to be, or really become, gigabytes."""
    side = luck.choice([9000, 12_000, 20_000, 65_535, 2**31 - 1])
    rows = zlib.compress(bytes(9001 * 300), 9)  # the first rows of a large image, and no more
    makers: list[Callable[[], bytes]] = [
        lambda: png(side, side, luck.choice([8, 16]), luck.choice([0, 2, 4, 6]), (b"IDAT", rows)),
        lambda: png(9000, 9000, 16, 0, (b"IDAT", rows)),  # below the limit: it may be decoded
        lambda: png(
            1, 1, 8, 0, (b"iTXt", b"k\0\1\0\0\0" + zlib.compress(bytes(1 << 27), 9)), (b"IDAT", rows)
        ),
        lambda: png(1, 1, 8, 0, (b"iCCP", b"k\0\0" + zlib.compress(bytes(1 << 26), 9)), (b"IDAT", rows)),
        lambda: b"GIF89a" + struct.pack("<HHBBB", 65_535, 65_535, 0xF7, 0, 0) + bytes(768) + b",",
        lambda: f"P6 {side} {side} 255\n".encode() + b"x" * 99,
        lambda: b"P6 1 1 " + b"9" * 5000,
        lambda: (
            b"BM" + struct.pack("<IHHIIiiHH", 99, 0, 0, 54, 40, side, side % (1 << 31), 1, 24) + bytes(40)
        ),
        lambda: (
            b"II*\0\x08\0\0\0\x02\0"
            + struct.pack("<HHII", 256, 4, 1, side)
            + struct.pack("<HHII", 257, 4, 1, side)
        ),
        lambda: b"RIFF\xff\xff\xff\x7fWEBPVP8L\xff\xff\xff\x7f/" + b"\xff" * 40,
    ]
    return luck.choice(makers)()


def nonsense(luck: Random) -> bytes:
    heads = (
        b"",
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff\xe0",
        b"GIF89a",
        b"II*\0",
        b"RIFF",
        b"BM",
        b"P6",
        b"%PDF-1.7",
    )
    return luck.choice(heads) + luck.randbytes(luck.randrange(500))


def place(luck: Random, path: Path) -> None:
    """Put something at `path`: mostly bytes, at times what no image can be."""
    what = luck.randrange(14)
    if what == 0:
        path.mkdir()
        (path / "inner.png").write_bytes(painted(luck))
    elif what == 1:
        os.mkfifo(path)
    elif what == 2:
        path.symlink_to(luck.choice([path.name, "..", "../..", "nowhere", "/dev/zero", "/dev/stdin"]))
    elif what == 3:
        path.touch(mode=0o000)
    else:
        makers = (painted, damaged, damaged, bomb, nonsense)
        path.write_bytes(luck.choice(makers)(luck))


def prepare(folder: Path) -> Case:
    root, spare = folder / "data", folder / "spare"
    for split in ("train", "test"):
        for name in ("a", "b"):
            (spare / split / name).mkdir(parents=True)
            for i in range(2):
                Image.new("RGB", (24, 24), (90 * i, 0, 99)).save(spare / split / name / f"{i}.png")
    view = Preprocessing(size=32, resize=36)

    def look() -> None:
        found = data.load(root)
        for name in found.splits:
            split = found[name]
            assert len(split.fingerprint) == 64
            for i in range(len(split)):
                image = parsed(lambda split=split, i=i: split[i][0])
                assert image is None or view.view(image).size == (32, 32)

    def case(luck: Random) -> None:
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(spare, root)
        for i in range(luck.randrange(1, 4)):
            where = root / luck.choice(["train", "test"]) / luck.choice("ab")
            place(luck, where / f"x{i}{luck.choice(EXTENSIONS)}")
        parsed(look)
        if luck.randrange(ONE_IN) == 0:
            words = ["extract", "--backbone", "cifar-resnet20", "--data", str(root), "features.workers=0"]
            command([*words, *["--skip-bad-images"] * luck.randrange(2)])

    return case


PROMISE = "a decoded image, or one clear line that names it"
ROWS = (Torture("bad input: images", PROMISE, jailed(prepare), quick=40, share=2, timeout=SECONDS),)
