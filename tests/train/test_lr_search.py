"""The rate where none is given: the default unless it does harm; repeatable, once a training, one for all
processes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from probe.train import lr_search
from probe.train.inputs.loaders import FeatureLoader
from probe.train.lr_search import Search, choose
from tests.support.training_world import K, blobs, feature_training, same_bits, weights, wobbly_encoder

RATES = (1e3, 1e2, 1e-2)  # falling; the first two do harm
HARMFUL = 2


def search(tried=RATES, head=None):
    X, y = blobs()
    ids = [str(i) for i in range(len(y))]
    return Search(
        tried,
        FeatureLoader(X[:150], y[:150], ids[:150]),
        FeatureLoader(X[150:], y[150:], ids[150:]),
        head or {},
    )


def searching(folder=None, tried=RATES, name="mr2", **options):
    usual = {"encoder": wobbly_encoder(), "ema": 0.9, "optimizer": "adamw", "lr": None}
    training = feature_training(name, folder=folder, **{**usual, **options})
    training.search = search(tried)
    return training


def test_the_rate_is_found_the_same_every_time_and_the_search_leaves_no_trace():
    one, two = searching(), searching()
    one.run()
    two.run()
    found = one.state.progress.found
    assert found == two.state.progress.found
    assert found["lr"] == RATES[HARMFUL]
    assert same_bits(weights(one), weights(two))
    given = feature_training("mr2", encoder=wobbly_encoder(), ema=0.9, optimizer="adamw", lr=found["lr"])
    given.run()
    assert same_bits(weights(one), weights(given))
    assert one.method.loss.history.as_lists() == given.method.loss.history.as_lists()


def test_each_rate_and_its_score_are_logged(tmp_path):
    training = searching(tmp_path)
    training.run()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines[0] == {"step": 0, "search": training.state.progress.found}
    assert [row["rate"] for row in training.state.progress.found["tried"]] == ["start", *RATES]
    assert all(
        0 <= row["accuracy"] <= 1 and row["loss"] > 0 for row in training.state.progress.found["tried"]
    )
    assert {line["lr"] for line in lines if "samples" in line and line["step"] == 1} == {training.lr}


@pytest.mark.parametrize("step", [0, 5, 20])
def test_a_training_that_is_taken_up_after_a_kill_does_not_search_again(tmp_path, step):
    whole = searching()
    whole.run()
    killed = searching(tmp_path, checkpoint_minutes=1e-9)
    make = killed.steps

    def dies(data, *args):
        for one in make(data, *args):
            if data is killed.task.train and killed.state.position.steps == step:  # the search is over
                raise KeyboardInterrupt
            yield one

    killed.steps = dies
    with pytest.raises(KeyboardInterrupt):
        killed.run()
    resumed = searching(tmp_path)
    resumed.search = None  # nobody to ask
    resumed.run()
    assert resumed.state.position.steps == 39
    assert resumed.state.progress.found == whole.state.progress.found
    assert same_bits(weights(resumed), weights(whole))


HARSH = (1e-1, 1e-2, 1e-3)  # rates that leave a network finite, to be judged by a bar that none passes


@pytest.mark.parametrize("trial", [1, 2])
def test_a_search_that_was_killed_goes_on_with_the_rates_that_are_left(tmp_path, trial, monkeypatch):
    monkeypatch.setattr(lr_search, "_harmful", lambda end, start: True)
    whole = searching(tried=HARSH)
    whole.run()
    killed, steps = searching(tmp_path, tried=HARSH), lr_search.trial_steps(whole)
    _steps_before(killed, stop_at=trial * steps + 2)
    with pytest.raises(KeyboardInterrupt):
        killed.run()
    resumed = searching(tmp_path, tried=HARSH)
    made = _steps_before(resumed)
    resumed.run()
    assert len(made) == (len(HARSH) - trial) * steps  # the trials that ended are not made again
    assert resumed.state.progress.found == whole.state.progress.found
    assert same_bits(weights(resumed), weights(whole))
    assert not resumed.state.progress.trials


def _steps_before(training, stop_at=None):
    """The steps that a search makes, counted in a list; the one at `stop_at` is not made."""
    made, make, judged = [], training.steps, training.search.train

    def counted(data, *args):
        for one in make(data, *args):
            if data is judged:
                if len(made) == stop_at:
                    raise KeyboardInterrupt
                made.append(one)
            yield one

    training.steps = counted
    return made


def test_asked_to_stop_while_it_searches_it_stops_and_saves_no_half_trial(tmp_path, capsys):
    training = searching(tmp_path)
    step = training.method.step

    def signalled(one):
        os.kill(os.getpid(), signal.SIGTERM)
        return step(one)

    training.method.step = signalled
    training.show = False
    with pytest.raises(SystemExit) as stopped:
        training.run()
    assert stopped.value.code == 128 + signal.SIGTERM
    assert "stopped while trying rates" in capsys.readouterr().err
    assert not list((tmp_path / "checkpoints").glob("*"))


def test_a_rate_that_ruins_the_network_is_never_taken():
    training = searching(tried=(1e6, 1e-2), name="erm")
    training.run()
    assert training.lr == 1e-2
    assert torch.isfinite(training.evaluate(training.task.train)).all()


def losses(*values):
    return torch.tensor(values, dtype=torch.float64)


def noise(n=400):
    return torch.randn(n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_a_rate_is_taken_unless_it_does_harm_beyond_a_standard_error():
    start = 1 + 0.1 * noise()
    jitter = noise() - noise().mean()  # a standard error of 0.05 over 400 rows
    assert choose(start, {3e-4: start - 0.1}) == (3e-4, "the default does no harm")
    assert choose(start, {3e-4: start + 0.04 + jitter})[0] == 3e-4
    lowered = {3e-4: start + 0.06 + jitter, 1e-4: start - 0.1}
    assert choose(start, lowered) == (1e-4, "the largest tried that does no harm")
    assert choose(start, {3e-4: None, 1e-4: start}) == (1e-4, "the largest tried that does no harm")


def test_a_default_that_does_no_harm_ends_the_search():
    training = searching(tried=(1e-2, 1e-3))
    training.run()
    found = training.state.progress.found
    assert training.lr == 1e-2
    assert found["why"] == "the default does no harm"
    assert [row["rate"] for row in found["tried"]] == ["start", 1e-2]


def test_where_every_rate_does_harm_or_diverges_a_smaller_one_is_taken():
    start = losses(1.0, 1.0, 1.1, 0.9)
    rate, why = choose(start, dict.fromkeys(RATES, start + 1))
    assert rate < min(RATES)
    assert "every rate made the held-out rows worse" in why
    assert choose(start, dict.fromkeys(RATES)) == (rate, "every rate diverged, so a smaller one is used")


def test_where_smaller_rates_do_more_harm_the_one_that_did_least_is_taken():
    """As `mr2-early` on pets: every step pulled far, and small ones never arrived."""
    start = losses(1.0, 1.0, 1.1, 0.9)
    ends = {3e-4: start + 0.2, 1e-4: start + 0.5, 3e-5: start + 2}
    assert choose(start, ends) == (3e-4, lr_search.LEAST)
    assert choose(start, {**ends, 3e-4: None}) == (1e-4, lr_search.LEAST)
    falling = dict(zip(ends, reversed(ends.values()), strict=True))
    assert choose(start, falling)[0] < min(falling)


def test_being_surer_without_being_better_counts_for_nothing():
    z = torch.randn(200, K, generator=torch.Generator().manual_seed(0))
    y = torch.randint(K, (200,), generator=torch.Generator().manual_seed(1))
    assert torch.allclose(lr_search.losses(z, y).mean(), lr_search.losses(4 * z, y).mean(), rtol=2e-3)


def test_a_trial_takes_at_most_half_as_many_steps_as_the_training():
    for epochs in (1, 3, 20, 200):
        steps = lr_search.trial_steps(searching(epochs=epochs))
        assert steps <= lr_search.LONGEST
        assert steps <= max(0.5 * 13 * epochs, lr_search.SHORTEST)


def main(out: Path) -> None:
    torch.set_num_threads(1)
    training = searching(name="erm", encoder=None)
    training.run()
    (out / f"{training.processes}-{training.rank}.json").write_text(json.dumps(training.state.progress.found))


def test_two_processes_find_the_rate_that_one_finds(tmp_path):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command = [sys.executable, *launcher, str(Path(__file__)), str(tmp_path)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PROBE_PROCESSES": "2"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    main(tmp_path)
    one, first, second = (json.loads((tmp_path / f"{n}.json").read_text()) for n in ("1-0", "2-0", "2-1"))
    assert first == second
    assert first["lr"] == one["lr"]
    for a, b in zip(first["tried"], one["tried"], strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
