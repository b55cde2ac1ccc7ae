"""Processes that must not outlive the one that started them."""

from __future__ import annotations

import ctypes
import sys


def leave_with_parent(number: int) -> None:
    """Let the kernel send this process signal `number` when its parent is gone, however it went (Linux)."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, number)
