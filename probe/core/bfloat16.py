"""Which devices have units that multiply bfloat16; emulated, such a product is slower than in float32."""

from __future__ import annotations

import torch


def is_native(device: torch.device) -> bool:
    """AMX or AVX512-BF16 on a CPU, Ampere or later among NVIDIA's; other devices are not asked."""
    if device.type == "cpu":
        return torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
