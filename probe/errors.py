"""Errors a user can cause; the same class as in `backbones`, so that one handler serves both."""

from backbones.errors import UserError, nearest

__all__ = ["UserError", "nearest"]
