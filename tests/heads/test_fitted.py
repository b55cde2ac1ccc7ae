"""A saved head classifies as it did, and nothing but a head is accepted in its place."""

import json

import pytest
import torch
from safetensors.torch import save_file

from probe.core import scaling
from probe.errors import UserError
from probe.heads import fitted
from probe.heads.fitted import FittedHead

generator = torch.Generator().manual_seed(0)
X = torch.randn(50, 6, generator=generator) * torch.tensor([1.0, 5, 0.1, 2, 1, 3]) + 4
LINEAR = {"weight": torch.randn(3, 6, generator=generator), "bias": torch.randn(3, generator=generator)}


class Blocks:
    """Features that can only be read block by block, as a large cache is."""

    def __init__(self, X):
        self.X, self.shape = X, X.shape

    def blocks(self, rows):
        yield from self.X.split(7)


def test_standard_scaling_is_zero_mean_unit_variance_and_keeps_constant_columns_finite():
    constant = torch.cat([X, torch.full((50, 1), 3.0)], dim=1)
    scaled = scaling.make("standard", Blocks(constant))(constant)
    torch.testing.assert_close(scaled.mean(0), torch.zeros(7), atol=1e-5, rtol=0)
    torch.testing.assert_close(scaled[:, :6].std(0, correction=0), torch.ones(6))
    assert (scaled[:, 6] == 0).all()


def test_l2_scaling_gives_unit_rows():
    torch.testing.assert_close(scaling.make("l2", Blocks(X))(X).norm(dim=1), torch.ones(50))


@pytest.mark.parametrize(
    "head",
    [
        FittedHead("linear", LINEAR, scaling=scaling.standard(Blocks(X))),
        FittedHead("cosine", {"weight": LINEAR["weight"]}, {"scale": 20.0}),
        FittedHead(
            "knn",
            {"bank": X, "labels": torch.arange(50) % 3},
            {"num_classes": 3, "k": 5, "weighted": True},
            scaling.Scaling(unit_norm=True),
        ),
    ],
    ids=lambda head: head.kind,
)
def test_a_head_survives_its_file_bit_for_bit(head, tmp_path):
    fitted.save(head, tmp_path, {"class_names": ["a", "b", "c"]})
    again, about = fitted.load(tmp_path)
    assert about["class_names"] == ["a", "b", "c"]
    assert torch.equal(again.scores(X), head.scores(X))


def test_scores_block_by_block_are_the_scores():
    head = FittedHead("linear", LINEAR)
    torch.testing.assert_close(head.scores(Blocks(X)), head.scores(X))


@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "foreign", "other kind"])
def test_what_is_no_head_is_refused_in_one_line(tmp_path, damage):
    fitted.save(FittedHead("linear", LINEAR), tmp_path, {})
    path = tmp_path / "head.safetensors"
    if damage == "missing":
        path.unlink()
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "truncated":
        path.write_bytes(path.read_bytes()[:-10])
    elif damage == "foreign":
        save_file({"a": X}, path)
    else:
        save_file({"a": X}, path, metadata={"head": json.dumps({"format": 1, "kind": "spell"})})
    with pytest.raises(UserError) as caught:
        fitted.load(tmp_path)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)
