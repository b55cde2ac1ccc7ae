"""Rows that other installed packages add; the same machinery for backbones, data sets, losses and methods."""

from backbones.plugins import find, names, rows

__all__ = ["find", "names", "rows"]
