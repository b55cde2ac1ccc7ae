"""Completion in a shell: of commands and options, and of the names that they take. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem, get_completion_class

SHELLS = ("bash", "zsh", "fish")
SOLVERS = ("lbfgs", "sgd", "ridge", "knn", "zeroshot")
VARIABLE = "_PROBE_COMPLETE"  # by which click knows that a shell asks

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _of(names: Callable[[], Iterable[str]], *, between: str = "", paths: bool = False) -> Complete:
    """Complete the last of several names, which one of the characters in `between` separates; with `paths`,
    files and folders too."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        end = 1 + max((incomplete.rfind(mark) for mark in between), default=-1)
        start, last = incomplete[:end], incomplete[end:]
        found = [CompletionItem(f"{start}{name}") for name in names() if name.startswith(last)]
        if paths and not found:
            return [CompletionItem(incomplete, type="file")]
        return found

    return complete


def _backbones() -> list[str]:
    import backbones

    return [spec.name + (":" if spec.open else "") for spec in backbones.specs()]


def _datasets() -> list[str]:
    from probe.data import catalogue

    return [spec.name for spec in catalogue.rows()]


def _methods() -> list[str]:
    from probe.losses import catalogue as losses
    from probe.methods import catalogue as methods

    return sorted({spec.name for spec in (*losses.specs(), *methods.specs())})


def _recipes() -> list[str]:
    from probe.recipe import library

    return [row.name for row in library.every()]


backbones = _of(_backbones, between="+")
datasets = _of(_datasets, paths=True)
methods = _of(_methods)
solvers = _of(lambda: SOLVERS)
recipes = _of(_recipes, paths=True)
# Options that take several names in one word, separated by spaces.
many_backbones = _of(_backbones, between=" +")
many_datasets = _of(_datasets, between=" ", paths=True)
many_methods = _of(_methods, between=" ")
many_recipes = _of(_recipes, between=" ")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print what makes a shell complete commands, options and names.

    \b
    bash  eval "$(probe completion bash)"      in ~/.bashrc
    zsh   eval "$(probe completion zsh)"       in ~/.zshrc
    fish  probe completion fish > ~/.config/fish/completions/probe.fish
    """
    from probe.cli import main

    kind = get_completion_class(shell)
    assert kind is not None, "click knows all of SHELLS"
    click.echo(kind(main, {}, "probe", VARIABLE).source())
