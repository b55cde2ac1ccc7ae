"""Reading a weights file without running anything in it, and loading it without leaving a key behind."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backbones import reading
from backbones.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor, nn

WRAPPERS = ("state_dict", "model")  # where training scripts put the weights inside a checkpoint
SUFFIXES = (".safetensors", ".pth", ".pth.tar", ".pt", ".bin", ".ckpt")
SHOWN_KEYS = 3
RANDOM_FILLS = ("normal_", "uniform_", "erfinv_", "kaiming_uniform_", "kaiming_normal_")

SAFE_COPY = "save the model's state_dict with safetensors and give that file"


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors or torch file by name; wrappers and a `module.` prefix are removed."""
    kind = file_kind(path)
    content = _read_safetensors(path) if kind == "safetensors" else _read_torch(path, zipped=kind == "zip")
    state = _unwrap(content)
    strange = next((key for key, value in state.items() if not _is_tensor(value)), None)
    if not state or strange is not None:
        problem = f'its entry "{strange}" is not a tensor' if state else "it holds no tensors"
        raise UserError(f"{path} is not a file of weights: {problem}; {SAFE_COPY}")
    return state


def file_kind(path: Path) -> str:
    """ "safetensors", "zip" or "pickle" by content, not by suffix; anything else is refused by name."""
    try:
        size = reading.regular(path)
        with path.open("rb") as file:
            head = file.read(9)
    except OSError as error:
        raise UserError(f"cannot read weights from {path}: {error.strerror}") from error
    if len(head) == 9 and head[8:] == b"{" and int.from_bytes(head[:8], "little") <= size:
        return "safetensors"
    if head.startswith(b"PK"):
        _refuse_other_archives(path)
        return "zip"
    if head.startswith(b"\x80"):
        return "pickle"
    hint = "a Git LFS pointer: run `git lfs pull`" if head == b"version h" else "not safetensors, nor torch's"
    raise UserError(f"{path} is not a file of weights ({hint})")


def folder_file(folder: Path, names: Sequence[str]) -> Path:
    """The first of `names` in `folder`."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"{folder} holds no weights: none of {', '.join(names)} is there")


def the_weights_file(path: Path) -> Path:
    """`path` itself, or the one file in it that looks like weights when it is a folder."""
    if not path.is_dir():
        return path
    found = sorted(file.name for file in path.iterdir() if file.name.endswith(SUFFIXES) and file.is_file())
    if not found:
        raise UserError(f"{path} holds no file of weights ({', '.join(SUFFIXES)}); give the file itself")
    if len(found) > 1:
        raise UserError(f"{path} holds several files of weights: {list_keys(found)}; give one of them")
    return path / found[0]


@contextmanager
def strictly(what: str | Path) -> Iterator[None]:
    """Turn a library's refusal, or its report of a strict load, into one line with the first wrong keys."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        raise UserError(f"{what} is damaged: {error}; copy or download it again") from error
    except pickle.UnpicklingError as error:
        raise _refused(what, error) from error
    except (RuntimeError, KeyError, ValueError) as error:
        raise UserError(f"{what} does not fit the architecture: {_mismatches(str(error))}") from error


def load_strict(module: nn.Module, state: dict[str, Tensor], what: str | Path) -> None:
    """Fill `module` from `state`: every key of both must find its partner of the same shape."""
    with strictly(what):
        module.load_state_dict(state, strict=True)


@contextmanager
def without_initialisation() -> Iterator[None]:
    """Build a model without drawing the random weights that a strict load overwrites.

    Drawing them takes longer than reading the real ones: about two thirds of the load of a ViT-B.
    """
    from torch.overrides import TorchFunctionMode

    class KeepMemory(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if getattr(func, "__name__", "") in RANDOM_FILLS:
                return args[0] if args else kwargs["tensor"]  # torch.nn.init names its argument
            return func(*args, **kwargs)

    with KeepMemory():
        yield


def list_keys(keys: Sequence[str]) -> str:
    """'a, b, c and 4 more'."""
    rest = len(keys) - SHOWN_KEYS
    return ", ".join(keys[:SHOWN_KEYS]) + (f" and {rest} more" if rest > 0 else "")


def _mismatches(report: str) -> str:
    found = []
    for word, title in (("Missing", "missing"), ("Unexpected", "unexpected")):
        listed = re.search(rf"{word} key\(s\) in state_dict: (.*)", report)
        if listed:
            keys = re.findall(r'"([^"]+)"', listed[1])
            found.append(f"{title} {list_keys(keys)}")
    sizes = re.findall(
        r"size mismatch for (\S+): .*?shape (.*?) from checkpoint.*?is (torch\.Size.*?\))", report
    )
    if sizes:
        key, given, expected = sizes[0]
        found.append(f"{key} has shape {_shape(given)}, not {_shape(expected)} ({len(sizes)} such)")
    return "; ".join(found) or " ".join(report.split())[:200]


def _shape(text: str) -> str:
    return " x ".join(re.findall(r"\d+", text)) or "scalar"


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _unwrap(content: Any) -> dict[str, Any]:
    for wrapper in WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        return {}
    if content and all(key.startswith("module.") for key in content):
        return {key.removeprefix("module."): value for key, value in content.items()}
    return dict(content)


def _read_safetensors(path: Path) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise UserError(f"{path} is damaged: {error}; copy or download it again") from error


def _read_torch(path: Path, *, zipped: bool) -> Any:
    import argparse

    import torch
    from safetensors import SafetensorError

    # Training scripts often store their parsed options beside the weights; a Namespace holds no code.
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except pickle.UnpicklingError as error:
        raise _refused(path, error) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, SafetensorError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"{path} is damaged: {reason}; copy or download it again") from error


def _refused(what: str | Path, error: Exception) -> UserError:
    wanted = re.search(r"GLOBAL ([\w.]+)", str(error))
    reason = f"it would run or build {wanted[1]}" if wanted else "it is not a plain file of tensors"
    return UserError(f"{what} is refused, and nothing in it was run: {reason}; {SAFE_COPY}")


def _refuse_other_archives(path: Path) -> None:
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.namelist()
    except zipfile.BadZipFile as error:
        raise UserError(f"{path} is damaged: {error}; copy or download it again") from error
    if any(name.endswith("/constants.pkl") or "/code/" in name for name in members):
        raise UserError(f"{path} is a TorchScript archive, which carries code and is not opened; {SAFE_COPY}")
    if not any(name.endswith("data.pkl") for name in members):
        raise UserError(f"{path} is an archive but not a torch file; {SAFE_COPY}")
