"""A feature matrix answers like numpy and holds no copy."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from probe.features import Matrix, SideBySide

GENERATOR = torch.Generator().manual_seed(0)
SHARDS = [torch.randn(n, 5, generator=GENERATOR) for n in (7, 0, 1, 12)]
WHOLE = torch.cat(SHARDS).numpy()
MASK = np.arange(20) % 3 == 0

INDICES = {
    "first": 0,
    "last": -1,
    "numpy integer": np.int64(8),
    "slice in one shard": slice(1, 5),
    "slice across": slice(5, 15),
    "everything": slice(None),
    "beyond the end": slice(15, 99),
    "empty": slice(9, 3),
    "stepped": slice(1, 19, 4),
    "backwards": slice(None, None, -1),
    "list": [3, 19, 3, 0, 8],
    "negative list": [-1, -20],
    "nothing": [],
    "array": np.array([19, 7, 8]),
    "mask": MASK,
    "rows and columns": (slice(2, 9), slice(1, 3)),
    "one number": (4, 2),
}


@pytest.mark.parametrize("which", INDICES.values(), ids=INDICES)
@pytest.mark.parametrize("view", [False, True], ids=["whole", "view"])
def test_indexing_equals_numpy(which, view):
    order = np.random.default_rng(1).permutation(20)
    matrix = Matrix(SHARDS, 5).view(order) if view else Matrix(SHARDS, 5)
    array = WHOLE[order] if view else WHOLE
    expected = array[np.asarray(which, int)] if isinstance(which, list) else array[which]
    np.testing.assert_array_equal(matrix[which].numpy(), expected)


def test_tensors_choose_rows_as_well():
    matrix = Matrix(SHARDS, 5)
    assert torch.equal(matrix[torch.tensor([19, 0])], torch.from_numpy(WHOLE[[19, 0]]))
    assert torch.equal(matrix[torch.from_numpy(MASK)], torch.from_numpy(WHOLE[MASK]))


@pytest.mark.parametrize("which", [20, -21, [0, 20], np.ones(19, bool), [0.5], np.zeros((2, 2), int)])
def test_rows_that_do_not_exist_are_refused(which):
    with pytest.raises(IndexError):
        Matrix(SHARDS, 5)[which]


@pytest.mark.parametrize("rows", [1, 3, 7, 20, 100])
def test_blocks_are_the_whole_in_order(rows):
    blocks = list(Matrix(SHARDS, 5).blocks(rows))
    assert all(len(block) == rows for block in blocks[:-1])
    np.testing.assert_array_equal(torch.cat(blocks).numpy(), WHOLE)


def test_numpy_reads_it_as_an_array():
    matrix = Matrix(SHARDS, 5)
    np.testing.assert_array_equal(np.asarray(matrix), WHOLE)
    assert np.asarray(matrix, dtype=np.float64).dtype == np.float64
    assert (matrix.shape, len(matrix), matrix.ndim, matrix.dtype) == ((20, 5), 20, 2, torch.float32)


def test_blocks_inside_a_shard_are_not_copied():
    assert Matrix(SHARDS, 5)[8:15].data_ptr() == SHARDS[3].data_ptr()


READ = """
import re, sys, torch
from pathlib import Path
from safetensors import safe_open
from probe.features import Matrix
def megabytes(field):
    return int(re.search(field + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
with safe_open(sys.argv[1], framework="pt") as file:
    X = Matrix([file.get_tensor("features")] * 8, 1024)
peak, own = megabytes("VmHWM"), megabytes("RssAnon")
view = X.view(torch.arange(0, len(X), 2))
for block in X.blocks(256):
    view[torch.randint(len(view), (64,))]
print(len(X) * 4096 / 2**20, megabytes("VmHWM") - peak, megabytes("RssAnon") - own)
"""


def test_reading_all_of_a_matrix_never_holds_a_copy_of_it(tmp_path):
    from safetensors.torch import save_file

    save_file({"features": torch.zeros(32768, 1024)}, tmp_path / "big.safetensors")
    done = subprocess.run(
        [sys.executable, "-c", READ, tmp_path / "big.safetensors"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    whole, peak, own = map(float, done.stdout.split())
    assert whole == 1024
    assert peak < 200  # the file's 128 MB, as pages that the system may take back
    assert own < 40


def test_matrices_side_by_side_are_the_stacked_columns_of_both():
    a, b = torch.randn(20, 3), torch.randn(20, 5)
    both = SideBySide([Matrix([a[:7], a[7:]], 3), Matrix([b.half()], 5)])
    whole = torch.cat([a, b.half().float()], dim=1)
    assert (both.shape, both.widths, len(both)) == ((20, 8), [3, 5], 20)
    for which in (4, -1, slice(2, 11), slice(None, None, 3), [3, 1, 3], np.arange(20) > 12):
        index = which if not isinstance(which, np.ndarray) else torch.from_numpy(which)
        assert torch.equal(both[which], whole[index])
    assert torch.equal(both[2:5, 1:4], whole[2:5, 1:4])
    assert torch.equal(both.tensor(), whole)
    assert np.array_equal(np.asarray(both), whole.numpy())
    assert torch.equal(torch.cat(list(both.blocks(6))), whole)
    rows = np.array([19, 0, 5])
    assert torch.equal(both.view(rows).tensor(), whole[rows])
    assert torch.equal(SideBySide.join([both, both]).tensor(), torch.cat([whole, whole]))


def test_matrices_of_other_rows_cannot_stand_side_by_side():
    with pytest.raises(ValueError, match=r"\[3, 4\] rows"):
        SideBySide([Matrix([torch.zeros(3, 2)], 2), Matrix([torch.zeros(4, 2)], 2)])
