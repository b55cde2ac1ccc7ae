"""Fingerprints are cache keys: what is in people's caches stays valid, whatever reads the data.

The images are written byte by byte, so that no encoder decides about these numbers.
"""

from __future__ import annotations

import pytest

import probe.data
from tests.support.tiny_datasets import write_parquet

GOLDEN: dict[str, dict[str, str]] = {
    "digits": {
        "train": "6adf64b261ee20b4eb8f8b8860cb9e845dc761e46b30de6f75aa71228c3b1d8d",
        "test": "a172313a06b0a444a1245c92dc0b00d007adde5d0b030340f3c8bdfbcba176d3",
    },
    "image folder": {
        "train": "d31ea826fbcaba2e1a4bb07366cc050840670c74491a8115d26ebc0e7fabe48a",
        "val": "031763508744ec87f97a14ddea7b29c2f81082c582ec88468d3840fd49903074",
        "test": "c8aa4c1de57a3c60f18b2275a6572d72e5dab53b567990637de7418c2198945a",
    },
    "list files": {
        "train": "0e29f73680b59b273a97070b6be7476086b5803e468330d160fd7fe1a650d3f1",
        "test": "7d49aad5ab8b357ea7918a8b42654d62491698ddcd62673c0f5e740738c03e28",
    },
    "parquet": {
        "train": "4b9feca3e33e614c22ed75d2f6b1ed02e79a354c37bb2ef8a48a6bf9400f6ebd",
        "test": "9ac4ec60f370cfb5808385b2be065f02532f760be58e19c0eab4130e68e9d48b",
    },
    "parquet with ids": {
        "train": "dd817e31b04aacf6bc89d61f3d81237e0a743a10bc04db7587ee37fbe41a062e",
        "test": "10fdcd88a50db0f2b924899a8a3aa868ecc350c53c6c5a448243c0b762bd99f9",
    },
    "parquet, compressed": {
        "train": "4b9feca3e33e614c22ed75d2f6b1ed02e79a354c37bb2ef8a48a6bf9400f6ebd",
        "test": "9ac4ec60f370cfb5808385b2be065f02532f760be58e19c0eab4130e68e9d48b",
    },
    "parquet, plain binary": {
        "train": "4b9feca3e33e614c22ed75d2f6b1ed02e79a354c37bb2ef8a48a6bf9400f6ebd",
        "test": "9ac4ec60f370cfb5808385b2be065f02532f760be58e19c0eab4130e68e9d48b",
    },
}


def plain(number: int) -> bytes:
    """A picture of 2 x 2 pixels as PPM."""
    return b"P6 2 2 255\n" + bytes(range(number, number + 12))


def image_folder(root):
    for s, split in enumerate(("train", "val", "test")):
        for c, name in enumerate(("cat", "dog")):
            for i in range(3):
                file = root / split / name / ("deep" if i == 2 else "") / f"{i}.ppm"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(plain(30 * s + 10 * c + i))


def list_files(root):
    image_folder(root)
    for split in ("train", "test"):
        lines = [f"{split}/{name}/{i}.ppm {c}" for c, name in enumerate(("cat", "dog")) for i in range(2)]
        (root / f"{split}.txt").write_text("\n".join(lines))
    return {"list_files": root}


def parquet(root, *, ids=False, **options):
    for s, (name, labels) in enumerate({"train-0": [0, 1, 0], "train-1": [1, 1, 0], "test": [1, 0]}.items()):
        images = [plain(10 * s + i) for i in range(len(labels))]
        given = [f"{name}/{i}" for i in range(len(labels))] if ids else None
        write_parquet(root / f"{name}.parquet", labels, images=images, ids=given, **options)


WRITERS = {
    "digits": lambda root: None,
    "image folder": image_folder,
    "list files": list_files,
    "parquet": parquet,
    "parquet with ids": lambda root: parquet(root, ids=True),
    "parquet, compressed": lambda root: parquet(root, compression="zstd"),
    "parquet, plain binary": lambda root: parquet(root, binary=True),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_fingerprints_are_those_of_earlier_versions(kind, tmp_path):
    options = WRITERS[kind](tmp_path) or {}
    data = probe.data.load("digits" if kind == "digits" else tmp_path, **options)
    assert {name: data[name].fingerprint for name in data.splits} == GOLDEN[kind]
