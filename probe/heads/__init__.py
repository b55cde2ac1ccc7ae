"""Classifier heads: modules to train, and trained ones as plain tensors."""

from probe.heads.modules import ETF, HEADS, Adapter, AngleHead, Cosine, Head, Linear, PlainHead, make

__all__ = ["ETF", "HEADS", "Adapter", "AngleHead", "Cosine", "Head", "Linear", "PlainHead", "make"]
