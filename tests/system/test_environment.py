"""A result says what it depends on: versions, device, and the commit of the program."""

import subprocess

from probe.system import environment


def git(folder, *words):
    settings = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(
        ["git", "-C", folder, *settings, *words], capture_output=True, text=True, check=True
    ).stdout


def test_the_commit_is_that_of_the_checkout_and_says_whether_files_differ(tmp_path):
    git(tmp_path, "init", "--quiet")
    (tmp_path / "code.py").write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    git(tmp_path, "tag", "-m", "a release", "v1")  # which is no commit's name
    name = git(tmp_path, "rev-parse", "--short=9", "HEAD").strip()
    assert environment.commit(tmp_path) == name
    environment.commit.cache_clear()
    (tmp_path / "code.py").write_text("2")
    assert environment.commit(tmp_path) == f"{name}-dirty"


def test_an_installed_program_has_no_commit_even_inside_another_repository(tmp_path):
    git(tmp_path, "init", "--quiet")
    site = tmp_path / "site-packages"
    site.mkdir()
    assert environment.commit(site) is None


def test_without_git_there_is_no_commit(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    monkeypatch.setenv("PATH", "")
    assert environment.commit(tmp_path) is None
