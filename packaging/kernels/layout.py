# SPDX-License-Identifier: Apache-2.0
"""Lays a wheel out as a repository of Hugging Face's `kernels`.

    python3 packaging/kernels/layout.py out/wheel/froghopper-*.whl out/kernels

    out/kernels/build/torch-stable-abi25-cpu-x86_64-linux/    __init__.py (kernel.py), metadata.json, froghopper/
    out/kernels/build/torch-stable-abi25-cu120-x86_64-linux/  the same, for CUDA 12 and newer 12s
    out/kernels/build/torch-stable-abi25-cu130-x86_64-linux/  the same, for CUDA 13

The library is the same in all: it needs no version of PyTorch (2.5 or newer) or CUDA, but `kernels` chooses by these
names. Files are hard links where the folder allows it.

    kernels.get_local_kernel(pathlib.Path("out/kernels"))
    LOCAL_KERNELS=froghopper/flash-attn3=out/kernels    what get_kernel and transformers then find under that name
"""
import argparse
import json
import os
import pathlib
import platform
import shutil
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
BACKENDS = {"cpu": {"type": "cpu"}, "cu120": {"type": "cuda", "archs": ["9.0a"]},
            "cu130": {"type": "cuda", "archs": ["9.0a"]}}
OLDEST_TORCH = "25"  # as kernels writes 2.5; pyproject.toml names it too


def variants(machine):
    """{folder: backend} of a machine's architecture."""
    return {f"torch-stable-abi{OLDEST_TORCH}-{name}-{machine}-linux": (name, told) for name, told in BACKENDS.items()}


def lay_out(wheel, folder, major=1, machine=None):
    """Writes the repository; returns the folders of its variants. major: the version that get_kernel is asked for."""
    folder, made = pathlib.Path(folder), []
    for name, (backend, told) in variants(machine or platform.machine()).items():
        to = folder / "build" / name
        shutil.rmtree(to, ignore_errors=True)
        to.mkdir(parents=True)
        if not made:
            with zipfile.ZipFile(wheel) as held:
                held.extractall(to, [x for x in held.namelist() if x.startswith("froghopper/")])
        else: shutil.copytree(made[0] / "froghopper", to / "froghopper", copy_function=link)
        shutil.copyfile(HERE / "kernel.py", to / "__init__.py")
        (to / "metadata.json").write_text(json.dumps({
            "id": f"_froghopper_{backend}_{major}", "name": "froghopper", "version": major, "license": "Apache-2.0",
            "python-depends": [], "backend": told}, indent=2) + "\n")
        made.append(to)
    return made


def link(old, new):
    try: os.link(old, new)
    except OSError: shutil.copyfile(old, new)


def main():
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given.add_argument("wheel", type=pathlib.Path)
    given.add_argument("folder", type=pathlib.Path)
    given.add_argument("--version", type=int, default=1, help="of the repository; kernels asks for one (default 1)")
    told = given.parse_args()
    for made in lay_out(told.wheel, told.folder, told.version): print(made)


if __name__ == "__main__": main()
