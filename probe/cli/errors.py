"""Commands that report every failure a user can cause in one line on stderr, with exit code 2."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from probe.cli import standard_streams
from probe.errors import UserError
from probe.system import interrupts, world
from probe.system.atomic import WAYS_OUT
from probe.system.world import inside, rank
from probe.train.parallel.launch import GO_ON

# Seconds after which a process that is still running is the only one that failed; on a busy machine another
# one needs several to fail alike and to end.
ALONE = 10.0


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn every mistake in the arguments or in the files they name into one line and exit code 2."""
    try:
        with interrupts.as_exceptions():
            yield
    except click.exceptions.NoArgsIsHelpError:
        raise
    except (UserError, click.ClickException, OSError) as error:
        if isinstance(error, OSError) and error.filename is None:
            raise  # from a stream: left to `Commands.main` and, for a closed pipe, to click
        if rank() > 0:  # if all fail alike, process 0 says so and the launcher ends this one meanwhile
            time.sleep(ALONE)
        standard_streams.tell(f"error: {_told(error)}")
        sys.exit(2)
    except RuntimeError as error:
        if not (inside() and _peer_lost(error)):
            raise
        standard_streams.tell(f"error: process {rank()} lost its connection to another process, {GO_ON}")
        sys.exit(1)
    except KeyboardInterrupt:
        standard_streams.tell("stopped; run the same command to resume")
        sys.exit(interrupts.INTERRUPTED)


def _told(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}; check the path"
    if not isinstance(error, click.ClickException):
        return str(error)
    at = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "probe"
    return f"{error.format_message()} See `{at} --help`"


def _peer_lost(error: RuntimeError) -> bool:
    from probe.core.collectives import peer_lost

    return peer_lost(error)


class Commands(click.Group):
    """A command group whose errors are one line each."""

    def main(self, *args: Any, **extra: Any) -> Any:
        standard_streams.settle()
        world.drop_strays()
        code: Any = None
        try:
            return super().main(*args, **extra)
        except SystemExit as end:
            code = end.code
            raise
        except OSError as error:
            standard_streams.failure()
            # Errors of files carry their names (`probe.system.atomic.named_failures`), so this was a stream.
            where = "cannot write to standard output: " if error.errno in WAYS_OUT else "system error: "
            standard_streams.tell(f"error: {where}{error.strerror or error}")
            sys.exit(2)
        finally:
            if code in (None, 0) and (refused := standard_streams.failure()) is not None:
                standard_streams.tell(f"error: cannot write to standard output: {refused.strerror}")
                sys.exit(2)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with plain_errors():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with plain_errors():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order a newcomer needs them
