"""Features are computed once per image; what they are made of decides whether they are found again."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from probe import features
from probe.data import Split
from probe.errors import UserError
from probe.features import encoder, pipeline, store
from probe.features.cache_key import key_of
from probe.features.precision import ingredient
from probe.system.cache_dir import cache_root
from probe.system.sealed_json import sealed, unsealed
from tests.support import feature_world as world


def take(cache, split=None, backbone=None, **options):
    options = {"shard_rows": 32, "batch_size": 8, "progress": False, **options}
    split = world.split() if split is None else split
    return features.extract(backbone or world.backbone(), split, cache=cache, **options)


def expected(split, backbone):
    with torch.inference_mode():
        return torch.stack([backbone(backbone.transform(split[i][0])[None])[0] for i in range(len(split))])


def test_features_are_those_of_the_backbone_and_rows_belong_to_their_ids(tmp_path):
    split, backbone = world.split(), world.backbone()
    f = take(tmp_path, split, backbone)
    torch.testing.assert_close(f.X.tensor(), expected(split, backbone), rtol=1e-5, atol=1e-6)
    assert f.y.tolist() == split.labels.tolist()
    assert f.y.dtype == np.int64
    assert f.ids == split.ids
    assert (f.class_names, f.name, f.skipped) == (world.CLASSES, "pets/train", [])


def test_a_second_run_reads_no_image_and_returns_the_same(tmp_path):
    first = take(tmp_path)
    again = world.split()
    second = take(tmp_path, again)
    assert (first.cached, second.cached, again._images.seen) == (False, True, [])
    assert torch.equal(first.X.tensor(), second.X.tensor())
    assert first.key == second.key


def test_a_name_makes_the_folder_readable_and_another_name_finds_the_same_entry(tmp_path):
    first = take(tmp_path, world.split(name="../Odd name/ü"))
    again = take(tmp_path)
    assert (again.key, again.cached) == (first.key, True)
    assert [p.name[:-13] for p in tmp_path.iterdir()] == ["tiny-odd-name"]


def relabelled(split):
    return Split(split.name, split._images, (split.labels + 1) % 3, split.ids, split.class_names)


def other_ids(split):
    return Split(split.name, split._images, split.labels, [f"x{i}" for i in split.ids], split.class_names)


def moved_weight(backbone):
    with torch.no_grad():
        next(backbone.parameters())[0, 0, 0, 0] += 1e-3
    return backbone


CHANGES = {
    "one weight": lambda s, b: (s, moved_weight(b), {}),
    "all weights": lambda s, b: (s, world.backbone(1), {}),
    "tap": lambda s, b: (s, world.backbone(tap="projected"), {}),
    "mean": lambda s, b: (s, world.backbone(mean=(0.5, 0.5, 0.5)), {}),
    "resize": lambda s, b: (s, world.backbone(resize=20), {}),
    "interpolation": lambda s, b: (s, world.backbone(interpolation="bicubic"), {}),
    "dtype": lambda s, b: (s, b, {"dtype": "float16"}),
    "labels": lambda s, b: (relabelled(s), b, {}),
    "ids": lambda s, b: (other_ids(s), b, {}),
    "order": lambda s, b: (s.subset(np.arange(100)[::-1], s.name), b, {}),
    "fewer rows": lambda s, b: (s.subset(range(99), s.name), b, {}),
    "policy for bad images": lambda s, b: (s, b, {"skip_bad_images": True}),
    "shard size": lambda s, b: (s, b, {"shard_rows": 16}),
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    root = tmp_path_factory.mktemp("filled")
    return root, take(root).key


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_ingredient_is_another_entry(filled, change):
    root, key = filled
    split, backbone, options = CHANGES[change](world.split(), world.backbone())
    f = take(root, split, backbone, **options)
    assert not f.cached
    assert f.key != key


def test_precision_and_image_content_are_ingredients_too():
    split, backbone = world.split(4), world.backbone()
    options = {"fingerprint": "f", "dtype": "float32", "skip_bad_images": False}
    plain = key_of(backbone, split, **options)
    assert plain.hash != key_of(backbone, split, **options, autocast="bfloat16").hash
    # golden: the entries of caches from before `precision` are still found
    assert plain.hash == "d1051c37baeb3e403d91ad42855e0bb111ea27ef1ddafa3ce2870a0024859cd9"
    assert ingredient("float32") is None
    assert ingredient("bfloat16") == "bfloat16"
    split.__dict__["fingerprint"] = "another picture"
    assert plain.hash != key_of(backbone, split, **options).hash


def test_the_entry_is_private_and_nothing_temporary_is_left(tmp_path):
    f = take(tmp_path / "new" / "cache")
    (entry,) = (tmp_path / "new" / "cache").iterdir()
    assert entry.name == f"tiny-pets-train-{f.key[:12]}"
    assert sorted(p.name[:6] for p in entry.iterdir()) == ["00000-", "00001-", "00002-", "00003-", "manife"]
    assert entry.stat().st_mode & 0o777 == entry.parent.stat().st_mode & 0o777 == 0o700


def test_the_cache_is_where_one_says_else_the_variable_else_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.delenv("PROBE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "mr2-probe"
    monkeypatch.setenv("PROBE_CACHE", str(tmp_path / "variable"))
    assert cache_root() == tmp_path / "variable"
    assert cache_root(tmp_path / "given") == tmp_path / "given"


def test_bytes_do_not_depend_on_the_number_of_streams(tmp_path):
    for workers in (1, 3):
        take(tmp_path / str(workers), workers=workers)
    assert world.contents(tmp_path / "1") == world.contents(tmp_path / "3")


def test_loader_processes_give_the_same_bytes(tmp_path, monkeypatch):
    take(tmp_path / "threads")
    monkeypatch.setattr(pipeline, "_streams", pipeline._processes)
    take(tmp_path / "processes", workers=2)
    assert world.contents(tmp_path / "threads") == world.contents(tmp_path / "processes")


def test_half_precision_is_half_the_size_and_comes_back_as_float32(tmp_path):
    full, half = take(tmp_path / "full"), take(tmp_path / "half", dtype="float16")
    assert half.X[0].dtype == half.X.dtype == torch.float32
    torch.testing.assert_close(half.X.tensor(), full.X.tensor(), rtol=1e-3, atol=1e-4)
    sizes = [sum(map(len, world.contents(tmp_path / name).values())) for name in ("half", "full")]
    assert sizes[0] < 0.65 * sizes[1]


def test_a_backbone_in_training_mode_is_run_in_evaluation_mode_and_left_as_it_was(tmp_path):
    backbone = world.backbone().train()
    backbone.encoder[1].eval()
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    f = take(tmp_path, None, backbone)
    assert torch.equal(f.X.tensor(), take(tmp_path / "eval").X.tensor())
    assert all(torch.equal(before[name], tensor) for name, tensor in backbone.state_dict().items())
    assert (backbone.training, backbone.encoder[0].training, backbone.encoder[1].training) == (
        True,
        True,
        False,
    )


def test_threads_are_given_back(tmp_path):
    before = torch.get_num_threads()
    take(tmp_path)
    assert torch.get_num_threads() == before


def test_threads_are_given_back_at_once_after_a_failure(tmp_path, monkeypatch):
    """Not when garbage is collected: that may be amid a training, whose last bits it would change."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)

    def no_room(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.Entry, "save", no_room)
    try:
        with pytest.raises(OSError, match="No space left") as caught:
            take(tmp_path)
        assert caught.traceback  # its frames hold the stream alive
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_batch_too_large_for_the_device_is_halved(tmp_path):
    class Small(torch.nn.Module):
        def __init__(self, inner, room):
            super().__init__()
            self.inner, self.room = inner, room

        def forward(self, x):
            if len(x) > self.room:
                raise torch.OutOfMemoryError("out of memory")
            return self.inner(x)

    fits = world.backbone(encoder=Small(world.backbone().encoder, 3))
    torch.testing.assert_close(take(tmp_path, None, fits).X.tensor(), take(tmp_path).X.tensor())
    with pytest.raises(UserError, match="one image does not fit"):
        take(tmp_path / "new", None, world.backbone(encoder=Small(world.backbone().encoder, 0)))
    assert list((tmp_path / "new").iterdir()) == []


def test_a_machine_that_cannot_compile_goes_on_without(tmp_path, monkeypatch, caplog):
    def no_compiler(*_, **__):
        return lambda images: (_ for _ in ()).throw(RuntimeError("no C++ compiler"))

    monkeypatch.setattr(torch, "compile", no_compiler)
    f = take(tmp_path, compile=True)
    assert torch.equal(f.X.tensor(), take(tmp_path / "plain", compile=False).X.tensor())
    assert "cannot compile tiny, continuing without: no C++ compiler" in caplog.text


@pytest.mark.slow
def test_a_compiled_backbone_gives_the_same_features(tmp_path, caplog):
    f = take(tmp_path, compile=True, workers=2)
    torch.testing.assert_close(f.X.tensor(), take(tmp_path / "plain", compile=False).X.tensor())
    assert "cannot compile" not in caplog.text


def test_small_images_make_large_batches():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert [encoder.default_batch(cpu, size) for size in (32, 224, 518)] == [196, 4, 4]
    assert [encoder.default_batch(gpu, size) for size in (32, 224, 518)] == [1024, 256, 47]


def test_compilation_is_for_many_images_only():
    cpu = torch.device("cpu")
    assert not encoder.worth_compiling(4_000, cpu)
    assert not encoder.worth_compiling(10**9, torch.device("meta"))
    assert encoder.worth_compiling(10**6, torch.device("cuda"))


def test_a_subset_of_features_is_a_view_with_its_own_labels_and_ids(tmp_path):
    f = take(tmp_path)
    part = f.select(np.flatnonzero(f.y == 1)[::-1])
    assert part.ids[0] == "0097.png"
    assert set(part.y.tolist()) == {1}
    assert torch.equal(part.X[0], f.X[97])
    assert torch.equal(part.select([2]).X[0], f.X[91])
    assert len(f.select([])) == 0


def test_class_statistics_are_exact(tmp_path):
    f = take(tmp_path, dtype="float16")
    rows = f.X.tensor().double()[torch.from_numpy(f.y == 2)]
    stats = f.class_stats()
    assert stats.count.tolist() == [34, 33, 33]
    assert float(stats.spread2[2]) == pytest.approx(float((rows - rows.mean(0)).square().sum(1).mean()))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": "float61"}, 'did you mean "float16"'),
        ({"batch_size": 0}, "at least 1"),
        ({"workers": -1}, "0 or more"),
        ({"precision": "bfloat61"}, 'did you mean "bfloat16"'),
        ({"precision": "float16"}, "not for this cpu device"),
        ({"split": world.split(0)}, "no images"),
    ],
)
def test_impossible_wishes_are_refused_before_any_work(tmp_path, options, words):
    with pytest.raises(UserError, match=words):
        take(tmp_path / "cache", **options)
    assert not (tmp_path / "cache").exists()


def test_one_changed_character_of_a_sealed_text_is_noticed():
    text = sealed({"rows": 3, "shards": [{"file": "a", "rows": 3}]})
    assert unsealed(text)["rows"] == 3
    for at in range(len(text)):
        for other in ("0", " ", "é", "{"):
            if text[at] != other:
                with pytest.raises(ValueError):  # noqa: PT011
                    unsealed(text[:at] + other + text[at + 1 :])
    for hostile in ("", "[]", "null", '{"body":3,"sha256":""}', "[" * 100_000):
        with pytest.raises(ValueError):  # noqa: PT011
            unsealed(hostile)


def test_listing_the_cache_needs_no_torch():
    code = "import sys, probe.features.inventory; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_keys_ignore_where_an_equal_backbone_came_from():
    options = {"dtype": "float32", "skip_bad_images": False}
    one, two = world.backbone(), world.backbone()
    two.preprocessing = replace(two.preprocessing)
    keys = {key_of(b, world.split(), fingerprint=b.digest(), **options).hash for b in (one, two)}
    assert len(keys) == 1


def test_features_of_another_dimension_than_declared_are_refused(tmp_path):
    three = torch.nn.Sequential(torch.nn.Conv2d(3, 3, 1), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    with pytest.raises(
        UserError, match=r"tiny gives features of shape \(8, 3\), not \(8, 32\); correct its dim"
    ):
        features.extract(
            world.backbone(encoder=three), world.split(8), cache=tmp_path, batch_size=8, progress=False
        )
