"""A training that is killed anywhere resumes to the same bits; one that is asked to stop saves itself."""

import json
import multiprocessing
import signal
from multiprocessing import forkserver

import pytest
import torch

from probe.core import collectives
from probe.errors import UserError
from tests.support import killed_trainings as victims
from tests.support.killed_trainings import features, finish, images
from tests.support.training_world import feature_training, gone, same_bits


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def spawn():
    """Run a function in a fresh process that has torch loaded but nothing started; returns its exit code."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.killed_trainings"])
    forkserver.ensure_running()

    def run(function, *args, **options):
        process = context.Process(target=function, args=args, kwargs=options)
        process.start()
        process.join(120)
        return process.exitcode

    return run


@pytest.fixture(scope="module")
def uninterrupted():
    return finish(features(None))


def steps_of(folder):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if "lr" in line]


@pytest.mark.parametrize(("step", "often"), [(5, True), (13, True), (20, False), (38, True)])
def test_after_kill_9_in_a_step_the_same_command_ends_with_the_same_bits(
    tmp_path, spawn, uninterrupted, step, often
):
    assert spawn(victims.killed_after, step, "features", tmp_path, often=often) == -signal.SIGKILL
    resumed = features(tmp_path, often=often)
    assert same_bits(finish(resumed), uninterrupted)
    assert steps_of(tmp_path) == list(range(1, 40))
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


def test_a_training_goes_on_with_the_threads_it_began_with(tmp_path, spawn, uninterrupted):
    spawn(victims.killed_after, 20, "features", tmp_path, often=True)
    torch.set_num_threads(2)  # as on another machine; it may change the last bits
    seen = []
    training = features(tmp_path)
    train_stage = training._train_stage
    training._train_stage = lambda *given: seen.append(torch.get_num_threads()) or train_stage(*given)
    try:
        assert same_bits(finish(training), uninterrupted)
        assert (seen, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(1)


def test_a_resumed_training_knows_the_whole_course_of_its_margins(tmp_path, spawn):
    whole = features(None)
    finish(whole)
    spawn(victims.killed_after, 20, "features", tmp_path, often=True)
    resumed = features(tmp_path)
    finish(resumed)
    course = resumed.method.loss.history.as_lists()
    assert course["step"] == list(range(39))
    assert course == whole.method.loss.history.as_lists()


@pytest.mark.parametrize("half", [True, False])
def test_after_kill_9_while_saving_the_checkpoint_before_it_counts(tmp_path, spawn, uninterrupted, half):
    assert spawn(victims.killed_while_saving, 2, half, tmp_path) == -signal.SIGKILL
    assert [path.name for path in (tmp_path / "checkpoints").glob("0*")] == ["00000013"]
    assert same_bits(finish(features(tmp_path)), uninterrupted)
    assert not list((tmp_path / "checkpoints").glob(".tmp-*"))


def test_a_checkpoint_that_was_damaged_later_is_passed_over(tmp_path, uninterrupted):
    finish(features(tmp_path))
    last = max((tmp_path / "checkpoints").iterdir())
    (last / "tensors.safetensors").write_bytes(b"no tensors")
    assert same_bits(finish(features(tmp_path)), uninterrupted)


def test_images_views_mixing_and_stochastic_depth_resume_too(tmp_path, spawn):
    whole = finish(images(None, tmp_path / "m"))
    assert spawn(victims.killed_after, 4, "images", tmp_path / "run", tmp_path / "m", often=True) == -9
    assert gone(int((tmp_path / "run" / "loader").read_text()))
    assert same_bits(finish(images(tmp_path / "run", tmp_path / "m")), whole)


@pytest.mark.parametrize(("name", "step"), [("jtt", 70), ("jtt", 75), ("sam", 20)])
def test_methods_with_stages_and_memories_resume_too(tmp_path, spawn, name, step):
    whole = finish(features(None, name=name))
    assert spawn(victims.killed_after, step, "features", tmp_path, often=True, name=name) == -signal.SIGKILL
    assert same_bits(finish(features(tmp_path, name=name)), whole)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_asked_to_stop_it_saves_says_how_to_go_on_and_goes_on(tmp_path, spawn, uninterrupted, number, code):
    assert spawn(victims.signalled_after, 7, number, tmp_path / "said", tmp_path) == code
    said = (tmp_path / "said").read_text()
    assert "stopped after step 8" in said
    assert "the same command resumes from there" in said
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["00000008"]
    assert same_bits(finish(features(tmp_path)), uninterrupted)


def test_a_full_disk_is_one_line_and_the_checkpoint_before_it_survives(tmp_path, spawn, uninterrupted):
    assert spawn(victims.out_of_space, tmp_path / "said", tmp_path / "run") == 0
    said = (tmp_path / "said").read_text()
    assert said.startswith("cannot write")
    assert "ulimit -f" in said
    assert "\n" not in said
    assert [path.name for path in (tmp_path / "run" / "checkpoints").glob("0*")] == ["00000013"]
    assert same_bits(finish(features(tmp_path / "run")), uninterrupted)


def test_two_trainings_in_one_folder_are_one_too_many(tmp_path, spawn):
    first = features(tmp_path)
    codes = []
    first.method.end_epoch = lambda epoch, run: codes.append(
        spawn(victims.refused, tmp_path / "said", tmp_path)
    )
    first.run()
    assert codes == [0, 0, 0]
    assert f"another training is at work in {tmp_path}; wait for it" in (tmp_path / "said").read_text()


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path):
    finish(feature_training(folder=tmp_path, digest="one"))
    with pytest.raises(UserError, match="belongs to another recipe; train in another folder"):
        feature_training(folder=tmp_path, digest="two").run()


def test_machines_that_do_not_share_a_folder_are_told_so(tmp_path, monkeypatch):
    finish(feature_training(folder=tmp_path))

    def with_one_that_finds_nothing(*mine, device):
        return [max(pair) for pair in zip(mine, (-1, 1) if len(mine) == 2 else (0,), strict=True)]

    monkeypatch.setattr(collectives, "largest", with_one_that_finds_nothing)
    with pytest.raises(UserError, match="not every process finds the checkpoint of step 39"):
        feature_training(folder=tmp_path).run()


def test_a_finished_training_is_not_trained_again(tmp_path, uninterrupted):
    finish(features(tmp_path))
    again = features(tmp_path)
    again.make_step = None  # any step would fail
    assert same_bits(finish(again), uninterrupted)
    assert steps_of(tmp_path) == list(range(1, 40))


def test_weights_that_are_no_numbers_are_never_saved(tmp_path):
    training = feature_training(folder=tmp_path, epochs=1)
    training.method.end_epoch = lambda epoch, run: run.network.head.weight.data.fill_(float("inf"))
    words = r"head.weight is no longer finite after epoch 0, step 12.*nothing was saved; the batch holds blob"
    with pytest.raises(UserError, match=words):
        training.run()
    assert not list((tmp_path / "checkpoints").glob("0*"))
