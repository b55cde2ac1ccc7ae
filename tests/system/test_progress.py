"""What a user sees while something takes long, with and without a terminal."""

from probe.system import progress


def test_a_log_file_gets_a_line_now_and_then(monkeypatch, capsys):
    monkeypatch.setattr(progress, "EVERY", -1.0)
    with progress.bar("training", 4000, "samples") as advance:
        advance(1000, "epoch 1/4")
        advance(1000)
    assert capsys.readouterr().err.splitlines() == [
        "training: 1,000 of 4,000 samples  epoch 1/4",
        "training: 2,000 of 4,000 samples",
    ]


def test_a_log_file_tells_of_a_long_step_inside_another(monkeypatch, capsys):
    monkeypatch.setattr(progress, "EVERY", -1.0)
    with progress.bar("comparing", 3, "runs"), progress.bar("extracting", 10, "images") as advance:
        advance(10)
    assert capsys.readouterr().err.splitlines() == ["extracting: 10 of 10 images"]


def test_nothing_is_said_of_what_is_short_or_hidden(monkeypatch, capsys):
    with progress.bar("reading", 10, "files") as advance:
        advance(10)
    monkeypatch.setattr(progress, "EVERY", -1.0)
    with progress.bar("hidden", 10, "files", show=False) as advance:
        advance(10)
    assert capsys.readouterr().err == ""
