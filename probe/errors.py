"""Errors a user can cause; the same classes as in `backbones`, so that one handler serves both."""

from backbones.errors import Unavailable, UserError, nearest

__all__ = ["Unavailable", "UserError", "nearest"]
