"""Splits become a data set: checked, filtered, with test images, and with the prompts of its name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from probe.data import split_names, subsets, test_cut
from probe.data.catalogue import ANY_PHOTO, DatasetSpec
from probe.data.checks import check_official, check_splits
from probe.data.dataset import Dataset, Split
from probe.errors import UserError


def assemble(
    name: str,
    row: DatasetSpec | None,
    splits: dict[str, Split],
    source: str,
    *,
    subset: str | Path | Sequence[str] | None = None,
    test_fraction: float | None = None,
    drop_val: bool = False,
) -> Dataset:
    """The data set of some splits; what has no test split gets one, a share of every class of train."""
    for split in splits.values():
        split.of = Path(name).name
    if row is not None:
        check_splits(splits, source)
        check_official(row, splits)
        splits = {split: found for split, found in splits.items() if split not in row.left_out}
    if drop_val:
        splits = {split: found for split, found in splits.items() if split != split_names.OPTIONAL}
    if subset is not None:
        splits = subsets.choose(splits, subset)
    cut, note = None, row.note if row else ""
    if "test" not in splits:
        splits, cut = _with_test(splits, source, test_fraction)
        note = "; ".join(part for part in (note, cut.remark) if part)
    elif test_fraction is not None:
        raise UserError(f"{source} has a test split; leave out data.test_fraction")
    splits = {ours: splits[ours] for ours in ("train", "val", "test") if ours in splits}
    check_splits(splits, source)
    class_names = splits["train"].class_names
    prompt_names: tuple[str, ...] = ()
    templates = row.templates if row else ANY_PHOTO
    if row is not None and row.imagenet_prompts:
        from probe.data import imagenet_prompts

        prompt_names, templates = imagenet_prompts.read(class_names)
    return Dataset(
        name=name,
        class_names=class_names,
        metric=row.metric if row else "accuracy",
        templates=templates,
        prompt_names=prompt_names,
        by_name=splits,
        source=source,
        note=note,
        test_cut=cut,
    )


def _with_test(
    splits: dict[str, Split], source: str, fraction: float | None
) -> tuple[dict[str, Split], test_cut.TestCut]:
    check_splits({"train": splits["train"]}, source)
    made, cut = test_cut.cut(splits["train"], test_cut.FRACTION if fraction is None else fraction)
    return {**splits, **made}, cut
