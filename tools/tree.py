# SPDX-License-Identifier: Apache-2.0
"""The files of this project, for the checkers: what git tracks or would track; without git, what lies here."""
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


def made(folder):
    """Folders that scripts and git make."""
    return folder in {".git", ".venv", "out", "__pycache__"} or folder.startswith("build")


def files():
    """Paths relative to ROOT, sorted. Text files and others; links and deleted files are left out."""
    listing = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        names = subprocess.run(listing, check=True, capture_output=True).stdout.decode().split("\0")
        paths = [pathlib.Path(name) for name in names if name]
    except (OSError, subprocess.CalledProcessError):
        paths = [path.relative_to(ROOT) for path in ROOT.rglob("*")]
        paths = [path for path in paths if not any(made(folder) for folder in path.parts[:-1])]
    return sorted(path for path in paths if (ROOT / path).is_file() and not (ROOT / path).is_symlink())


def text(path):
    """The text of a file, or None for one that is not text."""
    raw = (ROOT / path).read_bytes()
    if b"\0" in raw:
        return None
    return raw.decode("utf-8", errors="surrogateescape")


def generated(path):
    """Written by a program, kept by git: NAME_generated.SUFFIX, or the C interface of the Python package."""
    of_c = ("python/froghopper/_c.py", "python/froghopper/_c_parallel.py")
    return path.stem.endswith("_generated") or path.as_posix() in of_c
