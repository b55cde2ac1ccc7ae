"""The same few images in every layout that is read, all without a test split."""

from __future__ import annotations

import io
import json
import tarfile

import pandas
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

import probe.data
from tests.support.tiny_datasets import encoded, picture

CLASSES = ("cat", "dog", "fox")
EACH = 5
SAMPLES = [
    (f"{name}/{i}.png", k, encoded(picture(10 * k + i)))
    for k, name in enumerate(CLASSES)
    for i in range(EACH)
]


def flat(root):
    for file, _, data in SAMPLES:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_bytes(data)
    return root


def train_only(root):
    flat(root / "train")
    return root


def csv(root):
    flat(root / "pictures")
    lines = ["image,label,camera", *(f"pictures/{file},{CLASSES[k]},left" for file, k, _ in SAMPLES)]
    (root / "table.csv").write_text("\n".join(lines))
    return root / "table.csv"


def jsonl(root):
    flat(root / "pictures")
    rows = [
        {"file_name": f"pictures/{file}", "label": CLASSES[k], "camera": "left"} for file, k, _ in SAMPLES
    ]
    (root / "all.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return root


def table(ids=True):
    struct = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    columns = {
        "image": pa.array([{"bytes": data, "path": file} for file, _, data in SAMPLES], struct),
        "label": [k for _, k, _ in SAMPLES],
        "camera": ["left"] * len(SAMPLES),
    }
    columns |= {"id": [file for file, _, _ in SAMPLES]} if ids else {}
    features = {"image": {"_type": "Image"}, "label": {"names": list(CLASSES), "_type": "ClassLabel"}}
    features |= {name: {"dtype": "string", "_type": "Value"} for name in columns if name not in features}
    told = json.dumps({"info": {"features": features}})
    return pa.table(columns).replace_schema_metadata({"huggingface": told})


def parquet(root):
    root.mkdir(parents=True, exist_ok=True)
    pq.write_table(table(), root / "train.parquet")
    return root


def rows():
    import datasets

    return datasets.Dataset(datasets.table.InMemoryTable(table()))


def saved(root):
    rows().save_to_disk(str(root), num_shards=2)
    return root


def arrow(root):
    root.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(root / "train.arrow"), "wb") as sink, pa.ipc.new_file(sink, table().schema) as writer:
        writer.write_table(table())
    return root


def shards(root, per_shard=8):
    root.mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(0, len(SAMPLES), per_shard)):
        with tarfile.open(root / f"train-{number:03d}.tar", "w") as tar:
            for at, (_, k, data) in enumerate(SAMPLES[start : start + per_shard], start):
                told = json.dumps({"label": CLASSES[k], "camera": "left"}).encode()
                for name, content in ((f"{at:04d}.png", data), (f"{at:04d}.json", told)):
                    info = tarfile.TarInfo(name)
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
    return root


class Pictures:
    classes = CLASSES

    def __len__(self):
        return len(SAMPLES)

    def __getitem__(self, i):
        return Image.open(io.BytesIO(SAMPLES[i][2])), SAMPLES[i][1]


LAYOUTS = {
    "flat folder": flat,
    "train only": train_only,
    "csv": csv,
    "jsonl": jsonl,
    "parquet": parquet,
    "save_to_disk": saved,
    "arrow": arrow,
    "webdataset": shards,
    "brace pattern": lambda root: f"{shards(root)}/train-{{000..001}}.tar",
    "Dataset": lambda root: probe.data.from_datasets(rows()),
    "DataFrame": lambda root: probe.data.from_frame(pandas.read_csv(csv(root)), root=root),
    "in memory": lambda root: probe.data.from_samples(Pictures()),
}


def load(layout, root):
    found = LAYOUTS[layout](root)
    return found if isinstance(found, probe.data.Dataset) else probe.data.load(found)
