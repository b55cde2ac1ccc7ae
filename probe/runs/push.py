"""A run on the Hugging Face hub: its model in safetensors, and a card written from its result."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from backbones import hub
from probe.errors import UserError
from probe.heads import fitted
from probe.runs.export import ABOUT, FORMATS, check_place, describe, export
from probe.runs.folder import RunFolder, understood
from probe.runs.model import RunModel, load
from probe.runs.model_card import card
from probe.system.atomic import staged_folder

CARD = "README.md"
OWN = "mr2-probe"  # the format of run folders, for what no library can build
NAME = re.compile(r"[\w.-]+/[\w.-]+")
INSTEAD = "or write the files with --dry-run DIR"


def push(
    run: Path, repository: str, *, seed: int = 0, private: bool = False, dry_run: Path | None = None
) -> dict[str, Any]:
    """Upload the run to `repository`, or write the folder that would be uploaded to `dry_run`."""
    if not NAME.fullmatch(repository):
        raise UserError(f'"{repository}" is not the name of a repository; write it as OWNER/NAME')
    if dry_run is not None:
        check_place(dry_run)
        with staged_folder(dry_run) as staged:
            files = collect(run, repository, staged, seed)
        return {"repository": repository, "where": str(dry_run), "files": files}
    if why := hub.out_of_reach():
        raise UserError(f"nothing can be uploaded: {why}; try again later, {INSTEAD}")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "model")
        folder.mkdir()
        files = collect(run, repository, folder, seed)
        address = upload(folder, repository, private=private)
    return {"repository": repository, "where": address, "files": files}


def collect(run: Path, repository: str, folder: Path, seed: int) -> list[str]:
    """Write model, card and class names to the empty `folder`; returns the names of its files."""
    source = RunFolder(run)
    result, model = source.result(), load(run, seed=seed)
    if not isinstance(model, RunModel):
        raise UserError(f"{run} holds a head but no backbone; give a run folder, as `probe run` writes it")
    to = next((name for name in ("timm", "transformers") if FORMATS[name].obstacle(model) is None), OWN)
    if to == OWN:
        own = source.of_seed(seed)
        for path in (own.path / fitted.FILE, own.weights):
            if path.is_file():
                shutil.copyfile(path, folder / path.name)
        about = describe(model, source, to, from_bytes=False)
    else:
        inside = folder / "export"
        about = export(run, to, inside, seed=seed)
        for path in inside.iterdir():
            path.rename(folder / path.name)
        inside.rmdir()
    with understood(run):
        (folder / CARD).write_text(card(result, about, repository))
    files = sorted({ABOUT, *(path.name for path in folder.iterdir())})
    kept = {key: value for key, value in about.items() if key not in ("folder", "load")}
    (folder / ABOUT).write_text(json.dumps({**kept, "files": files}, indent=2))
    return files


def upload(folder: Path, repository: str, *, private: bool) -> str:
    """Make the repository, unless it is there, and commit the files; returns its address."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi(endpoint=hub.endpoint())
    with hub.plain_errors(repository, kind="model", local_copy=INSTEAD):
        try:
            if api.repo_exists(repository):
                _check_ours(api.list_repo_files(repository), repository)
            api.create_repo(repository, private=private, exist_ok=True)
            api.upload_folder(repo_id=repository, folder_path=folder, commit_message="A run of mr2-probe")
        except HfHubHTTPError as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(
                f"{hub.endpoint()} refuses the upload to {repository}: {reason}; log in with `hf auth login` "
                f"as somebody who may write there, {INSTEAD}"
            ) from error
    return f"{hub.endpoint()}/{repository}"


def _check_ours(files: list[str], repository: str) -> None:
    """Refuse to write over a model that did not come from here."""
    foreign = [name for name in files if name != ".gitattributes"]
    if foreign and ABOUT not in foreign:
        raise UserError(
            f"{repository} holds {foreign[0]}, which no push wrote; choose the name of a new repository"
        )
