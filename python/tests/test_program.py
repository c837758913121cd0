# SPDX-License-Identifier: Apache-2.0
"""The command of the package, and what it does where nobody reads its answer or it cannot be written."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

import froghopper

LINE = "fwd f32 b1 hq2 hkv1 sq9 skv9 d16 causal"


def run(*words, before=(), **streams):
    """before: a command that runs it, in place of itself."""
    path = os.pathsep.join([str(pathlib.Path(froghopper.__file__).parents[1]), *sys.path])
    return subprocess.run([*before, sys.executable, "-m", "froghopper", *words], text=True, check=False,
                          env={**os.environ, "PYTHONPATH": path},
                          **dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE) | streams)


@pytest.mark.parametrize("words, code, said", [
    (["info"], 0, froghopper.__version__), (["explain", LINE, "cpu"], 0, LINE), (["--help"], 0, "explain LINE"),
    (["probe"], 2, "probe must be run under torchrun"), (["probe", "--help"], 0, "torchrun --nproc"),
    (["--version"], 0, froghopper.__version__), (["chck"], 2, '"chck" is no command; it must be one of info, explain'),
    (["check", LINE], 2, "build/froghopper check"), (["bench"], 2, "build/froghopper bench"),
    (["explain", "--help"], 0, "For example"), (["info", "-h"], 0, "For example"),
    (["explain"], 2, "LINE must be given"), (["explain", ""], 2, "LINE must be given"),
    (["info", "--jsn"], 2, "info takes --json or nothing, but is given --jsn."), (["probe", "a", "b"], 2, "one FILE"),
    (["--version", "x"], 2, "--version takes nothing"), (["chek"], 2, "Did you mean check?"),
    (["-V"], 2, "Did you mean --version?"), (["explain", "/"], 2, 'LINE must be a problem, but "/" is a folder.'),
    (["explain", LINE, "--target", "cpu"], 0, LINE), (["explain", "--backend=cpu", *LINE.split()], 0, LINE),
    (["explain", LINE, "--target"], 2, "--target must be followed by a target"),
    (["explain", LINE, "cpu", "--target", "cpu"], 2, "there must be one target, but cpu and cpu are given"),
    (["explain", LINE, "--json"], 2, "explain has no option --json; it takes LINE and TARGET"),
    (["explain", "fwd b0x"], 2, "b0x"), (["explain", "fwd \udce9"], 2, "LINE must be UTF-8"),
])
def test_what_it_says(words, code, said):
    found = run(*words)
    assert found.returncode == code and said in (found.stderr if code else found.stdout)
    assert (found.stdout if code else found.stderr) == ""


def test_an_explanation_of_why_not_is_a_refusal():
    """To who reads the exit code alone; what is known of the problem is told all the same."""
    found = run("explain", LINE, "a100")
    assert found.returncode == 2 and found.stderr.startswith('froghopper: target is "a100"') and not found.stdout
    found = run("explain", LINE, "h100")
    assert found.returncode == 2 and "nowhere: dtype is f32; " in found.stdout and not found.stderr
    assert run("explain", LINE.replace("f32", "bf16"), "h100").returncode == 0  # it need not be here


def test_info_has_json():
    found = json.loads(run("info", "--json").stdout)
    assert found["froghopper"] == froghopper.__version__ and pathlib.Path(found["library"]).exists()


def test_info_tells_which_libraries_are_missing(tmp_path, monkeypatch):
    """As where scripts/demo has built the library alone."""
    path = json.loads(run("info", "--json").stdout)["library"]
    monkeypatch.setenv("FROGHOPPER_LIBRARY", str(shutil.copy(os.path.realpath(path), tmp_path / "libfroghopper.so")))
    found = json.loads(run("info", "--json").stdout)
    for name, target in (("torch ranks", "froghopper-cp"), ("jax calls", "froghopper_xla")):
        if name in found: assert f"is not beside the library; install the wheel, or build the target {target}" in (
            found[name])


@pytest.mark.parametrize("words", [["info"], ["explain", LINE], ["help"]])
def test_a_closed_pipe_ends_it_quietly(words):
    reads, writes = os.pipe()
    os.close(reads)
    try: found = run(*words, stdout=writes)
    finally: os.close(writes)
    assert found.returncode == -signal.SIGPIPE and found.stderr == ""  # as head ends any tool


@pytest.mark.parametrize("words", [["info"], ["explain", LINE], ["help"]])
def test_a_full_disk_is_told(words):
    with open("/dev/full", "w") as full: found = run(*words, stdout=full)
    assert found.returncode == 5
    assert found.stderr == "froghopper: the answer cannot be written: No space left on device.\n"


def test_complaints_that_cannot_be_written():
    with open("/dev/full", "w") as full: found = run("explain", "fwd b0x", stderr=full)
    assert found.returncode == 5 and found.stdout == ""
    found = run("info", before=("sh", "-c", 'exec "$@" >&-', "sh"))
    assert found.returncode == 5 and found.stderr.startswith("froghopper: the answer cannot be written: Bad file")


def test_a_name_that_the_encoding_lacks_is_spelled_out(tmp_path, monkeypatch):
    from froghopper import _library
    odd = tmp_path / "fr\u00f6sche"
    odd.mkdir()
    (odd / "libfroghopper.so").symlink_to(pathlib.Path(_library.library().path).resolve())
    monkeypatch.setenv("FROGHOPPER_LIBRARY", str(odd / "libfroghopper.so"))
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    assert r"fr\xf6sche" in run("info").stdout
