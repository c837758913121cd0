# SPDX-License-Identifier: Apache-2.0
"""The command of the installed package; `python3 -m froghopper` is the same.

    froghopper info [--json]              the library in use, the frameworks that are installed, what would run here
    froghopper explain LINE [TARGET]      how a problem would be computed, or why not: "auto", "cpu", "hopper", "h200";
                                          --target TARGET is the same
    froghopper probe [FILE]               under torchrun: what transfers between the ranks cost, for context parallelism
    froghopper --version                  the library's

For example:

    froghopper explain "fwd bf16 b2 hq16 hkv4 sq4096 skv4096 d128 causal" h200

    torchrun --nproc-per-node 8 -m froghopper probe machine.txt

check, bench, prepare and attend are commands of the program that is built from the sources, build/froghopper.
"""
import contextlib
import difflib
import errno
import importlib.metadata
import json
import os
import pathlib
import re
import signal
import sys
from typing import TextIO

import froghopper
from froghopper._library import library
from froghopper._values import text

SAMPLE = "fwd bf16 b2 hq16 hkv4 sq4096 skv4096 d128 causal"
FRAMEWORKS = ("numpy", "torch", "transformers", "jax")
TARGETS = ("auto", "cpu", "hopper", "h100", "h200")  # no word of a line is one
COMMANDS = ("info", "explain", "probe")
OF_THE_OTHER_PROGRAM = ("check", "bench", "prepare", "attend")
NO_LINE = f"LINE must be given, but is not. Write froghopper explain \"{SAMPLE}\"."
EXPLAINED = "problem "  # begins an answer, also one that says why not
DONE, BAD_INPUT, WRITING_FAILED = 0, 2, 5  # as the program of the source tree has them


def installed(name: str) -> str:
    try: return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError: return "not installed"


def info(as_json: bool) -> str:
    found = {"froghopper": froghopper.__version__, "library": library().path} | {x: installed(x) for x in FRAMEWORKS}
    if installed("torch") != "not installed":
        found |= {"torch calls": torch_calls(), "torch ranks": beside("libfroghopper-cp.so", "froghopper-cp")}
    if installed("jax") != "not installed": found["jax calls"] = beside("libfroghopper_xla.so", "froghopper_xla")
    if as_json: return json.dumps(found | {"explanation": froghopper.explain(SAMPLE)})
    lines = [f"{name:<13} {what}" for name, what in found.items()]
    return "\n".join([*lines, "", "For example:", froghopper.explain(SAMPLE)])


def beside(name: str, target: str) -> str:
    """A library that lies beside libfroghopper.so, where it does."""
    if (pathlib.Path(library().path).resolve().parent / name).exists(): return f"by {name}"
    return f"none: {name} is not beside the library; install the wheel, or build the target {target}"


def torch_calls() -> str:
    """By which way."""
    try:
        from froghopper import _torch_native
        _torch_native.load()
    except Exception as error: return f"none: {error}"  # a PyTorch that is broken is told like one that is not there
    return f"in Python, as {_torch_native.why_not}" if _torch_native.why_not else "by native operators"


def refusal(command: str) -> str:
    """Why there is no such command, and what to use instead."""
    if command in OF_THE_OTHER_PROGRAM:
        return (f"froghopper: {command} is not in the Python package; it must be run with the program that is built "
                "from the sources. In a checkout: scripts/setup froghopper_program, then build/froghopper "
                f"{command} --help.")
    meant = {"-?": "help", "-v": "--version", "-V": "--version", "version": "--version"}.get(command)
    near = [meant] if meant else difflib.get_close_matches(command.lower(), (*COMMANDS, "help", "--version",
                                                                               *OF_THE_OTHER_PROGRAM), 1)
    return (f'froghopper: "{command}" is no command; it must be one of info, explain, probe, help.'
            f'{f" Did you mean {near[0]}?" if near else ""} froghopper --help says what they do.')


def misused(command: str, words: list[str]) -> str:
    """What is wrong with the words behind a command that has no use for them."""
    takes = {"info": "--json or nothing", "probe": "one FILE or nothing", "--version": "nothing"}.get(command)
    if takes is None: return f"froghopper: {NO_LINE}"
    return (f"froghopper: {command} takes {takes}, but is given {' '.join(words)}. froghopper --help says what each "
            "command takes.")


def answer(command: str, words: list[str]) -> tuple[int, str]:
    """The exit code and what is said."""
    usage = __doc__.strip()
    if command in COMMANDS and words in (["--help"], ["-h"]): return DONE, usage
    try:
        if command == "info" and words in ([], ["--json"]): return DONE, info(as_json=bool(words))
        if command == "probe" and len(words) < 2: return probed(*words)
        if command == "--version" and not words: return DONE, library().version()
        if command == "explain" and words: return told(explained(*in_one_line(words)))
    except froghopper.Error as error: return BAD_INPUT, f"froghopper: {error}"
    if command in ("help", "-h", "--help"): return DONE, usage
    return BAD_INPUT, misused(command, words) if command in (*COMMANDS, "--version") else refusal(command)


def probed(file: str | None = None) -> tuple[int, str]:
    """Rank 0 alone says something."""
    if "RANK" not in os.environ:
        return BAD_INPUT, ("froghopper: probe must be run under torchrun, which starts the ranks: torchrun "
                           "--nproc-per-node 8 -m froghopper probe machine.txt")
    import torch
    import torch.distributed as dist

    from froghopper import _torch_cp_probe as probing
    on_gpu = torch.cuda.is_available() and dist.is_nccl_available()
    if on_gpu: torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    try:
        text_of_all = probing.measured(None, file)[1]
        return DONE, text_of_all if dist.get_rank() == 0 else ""
    finally: dist.destroy_process_group()


def without_options(words: list[str]) -> tuple[list[str], list[str]]:
    """The words that are no options, and the target that --target names, as for the program of the source tree."""
    target: list[str] = []
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if not word.startswith("-"): continue
        if name not in ("--target", "--backend"):
            raise froghopper.InvalidProblem(f"explain has no option {name}; it takes LINE and TARGET. Leave it out.")
        found = [value] if equals else words[at + 1:at + 2]
        if found in ([], [""]):
            raise froghopper.InvalidProblem(f"{name} must be followed by a target, but is not. Write {name} h200.")
        return without_options(words[:at] + words[at + 2 - len(equals):])[0], found
    return words, target


def in_one_line(given: list[str]) -> list[str]:
    """LINE and TARGET, also where the shell has parted a line without quotes into its words."""
    words, target = without_options(given)
    if not any(map(str.strip, words)): raise froghopper.InvalidProblem(NO_LINE)
    found = line_and_target(words)
    if target and len(found) > 1:
        raise froghopper.InvalidProblem(f"there must be one target, but {found[1]} and {target[0]} are given. Leave "
                                        "out one.")
    return found + target


def line_and_target(words: list[str]) -> list[str]:
    if any(" " in word for word in words):
        if len(words) < 3: return words
        raise froghopper.InvalidProblem(f"LINE must be one argument, but here are {len(words)}. Quote the line: "
                                        f"froghopper explain \"{SAMPLE}\" h200.")
    has_target = len(words) > 1 and words[-1].partition(":")[0] in TARGETS
    line = words[:-1] if has_target else words
    return [" ".join(line), *words[len(line):]]


def explained(line: str, target: str = "auto") -> str:
    """A line that makes no sense is an error of the command, where froghopper.explain only tells it."""
    if os.path.exists(line):
        raise froghopper.InvalidProblem(f"LINE must be a problem, but \"{line}\" is a "
                                        f"{'folder' if os.path.isdir(line) else 'file'}. Give one line, as in "
                                        f"froghopper explain \"{SAMPLE}\".")
    return froghopper.explain(library().problem(text("LINE", line, SAMPLE)), target)


def told(explanation: str) -> tuple[int, str]:
    """An explanation of why nothing computes the problem is a refusal to who reads the exit code alone. A GPU that is
    named need not be here."""
    if explanation.startswith("not computed "): return BAD_INPUT, f"froghopper: {explanation[len('not computed '):]}"
    nowhere = re.search(r"^runs on +nowhere: (?!a plan for a named GPU)", explanation, re.MULTILINE)
    return BAD_INPUT if nowhere else DONE, explanation


def say(said: str, file: TextIO | None) -> None:
    """OSError where it cannot be written. What an encoding lacks, as in the name of a folder, is spelled out."""
    if file is None: raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    encoding = file.encoding or "utf-8"
    print(said.encode(encoding, "backslashreplace").decode(encoding), file=file, flush=True)


def main() -> int:
    """0 done, 2 the words make no sense or the library refuses them, 5 the answer cannot be written."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # who reads the first lines alone ends it, as with any tool
    code, said = answer((sys.argv[1:] or ["help"])[0], sys.argv[2:])
    if not said: return code
    try: say(said, sys.stderr if code and not said.startswith(EXPLAINED) else sys.stdout)
    except OSError as error:
        with contextlib.suppress(OSError):
            say(f"froghopper: the answer cannot be written: {error.strerror}.", sys.stderr)
        silence()
        return WRITING_FAILED
    return code


def silence() -> None:
    """What is left in the buffers goes nowhere: Python would try again at its end, and complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None: os.dup2(nowhere, stream.fileno())


if __name__ == "__main__":
    sys.exit(main())
