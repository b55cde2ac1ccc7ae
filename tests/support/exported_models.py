"""An exported run, loaded and asked through the library that it was written for.

Images are prepared by that library, or by torchvision from the numbers that the export carries: none of the
product's own preprocessing is used on this side.
"""

import json

import numpy as np
import torch
from PIL import Image

import probe
from backbones.quiet import quietly
from backbones.torchvision_ops import ensure_torchvision
from probe.runs.export import export
from tests.support.stored_runs import predictions

ensure_torchvision()  # before timm and transformers want it


def through_timm(folder, images):
    import timm
    from timm.data import create_transform, resolve_model_data_config

    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    transform = create_transform(**resolve_model_data_config(model), is_training=False)
    return model(torch.stack([transform(Image.open(path).convert("RGB")) for path in images]))


def through_transformers(folder, images):
    from transformers import AutoImageProcessor, AutoModelForImageClassification

    with quietly():
        model = AutoModelForImageClassification.from_pretrained(folder).eval()
        processor = AutoImageProcessor.from_pretrained(folder)
    pixels = processor([Image.open(path).convert("RGB") for path in images], return_tensors="pt")
    return model(**pixels).logits


def bytes_of(numbers, images):
    """Resized and cropped by torchvision, from the numbers that an export carries."""
    from torchvision import transforms

    mode = transforms.InterpolationMode(numbers["interpolation"])
    cut = transforms.Compose(
        [transforms.Resize(numbers["resize"], mode), transforms.CenterCrop(numbers["size"])]
    )
    opened = (Image.open(path).convert("RGB") for path in images)
    return np.stack([np.asarray(cut(image)).transpose(2, 0, 1) for image in opened])


def inputs_of(about, images):
    """What each input of a graph takes, from the numbers it carries."""
    made = []
    for numbers in about:
        pixels = bytes_of(numbers, images)
        if numbers["takes"] != "uint8":
            mean, std = (np.array(numbers[key], dtype=np.float32)[:, None, None] for key in ("mean", "std"))
            pixels = ((pixels / np.float32(255) - mean) / std).astype(np.float32)
        made.append(pixels)
    return made


def through_onnx(folder, images):
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "model.onnx")
    said = json.loads(session.get_modelmeta().custom_metadata_map["inputs"])
    given = zip((i.name for i in session.get_inputs()), inputs_of(said, images), strict=True)
    return torch.from_numpy(session.run(["logits"], dict(given))[0])


def through_torch(folder, images):
    extra = {"about.json": ""}
    program = torch.export.load(folder / "model.pt2", extra_files=extra)
    said = json.loads(extra["about.json"])["inputs"]
    return program.module()(*map(torch.from_numpy, inputs_of(said, images)))


THROUGH = {
    "timm": through_timm,
    "transformers": through_transformers,
    "onnx": through_onnx,
    "torch": through_torch,
}


def agrees(run_folder, to, images, folder, **options):
    """Do the library's logits equal the run's, and its probabilities those that the run stored?"""
    export(run_folder, to, folder, **options)
    with torch.inference_mode():
        found = THROUGH[to](folder, images)
    seed = options.get("seed", 0)
    model = probe.load(run_folder, seed=seed)
    torch.testing.assert_close(found, model._scores(images).float(), atol=1e-4, rtol=1e-4)
    stored = predictions(run_folder, json.loads((run_folder / "result.json").read_text())["method"])
    rows = np.flatnonzero(stored["seed"] == seed)
    rows = rows[np.argsort(stored["id"][rows])]
    own = torch.tensor(stored["probability"][rows])
    torch.testing.assert_close(found.softmax(1).max(1).values, own.float(), atol=1e-3, rtol=1e-3)
    return found
