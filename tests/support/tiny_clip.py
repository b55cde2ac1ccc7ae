"""A CLIP model of a few thousand weights, in the real format."""

from __future__ import annotations

import json
from pathlib import Path


def write(folder: Path) -> Path:
    """Write it to `folder`, for `open_clip:ViT-B-32` with these weights."""
    import open_clip
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    text = {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
    vision = {"image_size": 32, "layers": 2, "width": 32, "patch_size": 8, "head_width": 16}
    config = {"embed_dim": 24, "quick_gelu": True, "vision_cfg": vision, "text_cfg": text}
    numbers = {"mean": [0.4] * 3, "std": [0.2] * 3, "interpolation": "bicubic", "resize_mode": "shortest"}
    (folder / "open_clip_config.json").write_text(
        json.dumps({"model_cfg": config, "preprocess_cfg": numbers})
    )
    torch.manual_seed(0)
    state = open_clip.create_model(f"local-dir:{folder}").state_dict()
    save_file({k: v.contiguous() for k, v in state.items()}, folder / "open_clip_model.safetensors")
    return folder
