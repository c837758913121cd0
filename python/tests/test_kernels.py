# SPDX-License-Identifier: Apache-2.0
"""packaging/kernels: a wheel laid out as a repository of Hugging Face's kernels is found by that library, computes, and
is an attention of transformers for generate and generate_batch; every process is a new one, as for its users."""
import importlib.util
import inspect
import json
import os
import pathlib
import subprocess
import sys
import zipfile

import pytest

torch = pytest.importorskip("torch", reason="kernels need torch, which is not installed")

from froghopper import _library as library  # noqa: E402

SOURCES = pathlib.Path(__file__).resolve().parent.parent.parent / "packaging" / "kernels"
if not SOURCES.exists(): pytest.skip("packaging/kernels is in the sources alone", allow_module_level=True)
NAME = "froghopper/flash-attn3"


def has(module): return importlib.util.find_spec(module) is not None


needs_kernels = pytest.mark.skipif(not has("kernels"), reason="kernels is not installed")


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """The wheel that this package would be, laid out."""
    folder = tmp_path_factory.mktemp("kernels")
    package, built = pathlib.Path(library.__file__).parent, next(x for x in library.places() if x.exists()).resolve()
    with zipfile.ZipFile(folder / "froghopper.whl", "w") as wheel:
        for file in package.glob("*.py"): wheel.write(file, f"froghopper/{file.name}")
        wheel.write(built, "froghopper/lib/libfroghopper.so")
        native = built.parent / "libfroghopper_torch.so"
        if native.exists(): wheel.write(native, "froghopper/lib/libfroghopper_torch.so")
        wheel.writestr("froghopper-0.dist-info/METADATA", "")
    spec = importlib.util.spec_from_file_location("layout", SOURCES / "layout.py")
    layout = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(layout)
    for _ in range(2): made = layout.lay_out(folder / "froghopper.whl", folder / "out")  # again is harmless
    assert sorted(x.name for x in (folder / "out" / "build").iterdir()) == sorted(x.name for x in made)
    return folder / "out"


def others_than_froghopper(tmp_path):
    """sys.path without this package, which may lie beside all others: a folder of links then has those."""
    here, links = pathlib.Path(library.__file__).parent.parent, tmp_path / "packages"
    links.mkdir(exist_ok=True)
    for package in here.iterdir():
        link = links / package.name
        if not package.name.startswith("froghopper") and not link.exists(): link.symlink_to(package)
    of_tests = pathlib.Path(__file__).parent
    return [str(links) if pathlib.Path(x).resolve() == here else x for x in sys.path
            if x and pathlib.Path(x).resolve() != of_tests]


def run(program, tmp_path, **variables):
    """What a new process prints, in a folder that knows nothing of the sources; other packages as here."""
    paths = others_than_froghopper(tmp_path)
    environment = {name: x for name, x in os.environ.items() if name not in ("FROGHOPPER_LIBRARY", "PYTHONPATH")}
    found = subprocess.run([sys.executable, "-c", f"import sys\nsys.path[:] = {paths!r}\n" + program], cwd=tmp_path,
                           env=environment | variables, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout.splitlines()


COMPUTE = """
import torch
q = torch.randn(2, 5, 2, 64)
wanted = torch.nn.functional.scaled_dot_product_attention(*[q.transpose(1, 2)] * 3, is_causal=True).transpose(1, 2)
torch.testing.assert_close(kernel.flash_attn_func(q, q, q, causal=True), wanted)
import froghopper
print(froghopper.__file__)
"""


def test_a_variant_is_a_module(repository, tmp_path):
    """Without the library kernels: as it loads a variant, by its file and the name in metadata.json."""
    variant = next(repository.glob("build/*-cpu-*"))
    name = json.loads((variant / "metadata.json").read_text())["id"]
    load = (f"import importlib.util\nspec = importlib.util.spec_from_file_location({name!r}, '{variant}/__init__.py')\n"
            "kernel = importlib.util.module_from_spec(spec)\nspec.loader.exec_module(kernel)\n")
    assert run(load + COMPUTE, tmp_path) == [str(variant / "froghopper" / "__init__.py")]


@needs_kernels
def test_kernels_finds_it(repository, tmp_path):
    local = f"import kernels, pathlib\nkernel = kernels.get_local_kernel(pathlib.Path({str(repository)!r}))\n"
    found, = run(local + COMPUTE, tmp_path)
    assert found.startswith(str(repository))
    named = f"import kernels\nkernel = kernels.get_kernel({NAME!r}, version=1, trust_remote_code=True)\n"
    assert run(named + COMPUTE, tmp_path, LOCAL_KERNELS=f"{NAME}={repository}") == [found]


GENERATE = """
import torch, transformers
torch.manual_seed(0)
config = transformers.LlamaConfig(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, head_dim=16,
                                  num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2)
model = transformers.LlamaForCausalLM(config).eval()
prompts = [torch.randint(1, 97, (n,)).tolist() for n in (5, 17, 40)]
settings = transformers.GenerationConfig(max_new_tokens=8, do_sample=False, eos_token_id=-1, pad_token_id=0)
def tokens():
    sizes = transformers.ContinuousBatchingConfig(page_size=8, num_blocks=64, max_batch_tokens=24,
                                                  auto_switch_to_flash=False)
    found = model.generate_batch(inputs=prompts, generation_config=settings, continuous_batching_config=sizes,
                                 progress_bar=False)
    one = [model.generate(torch.tensor([x]), attention_mask=torch.ones(1, len(x)), generation_config=settings)[
        0, len(x):].tolist() for x in prompts]
    return [x.generated_tokens for x in found.values()], one
wanted = tokens()
model.set_attn_implementation(NAME, allow_all_kernels=True)
assert tokens() == wanted
import froghopper
print(model.config._attn_implementation, froghopper.__file__)
"""


@needs_kernels
def test_transformers_generates_with_it(repository, tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    of_model = inspect.signature(transformers.PreTrainedModel.set_attn_implementation).parameters
    if not ("allow_all_kernels" in of_model and hasattr(transformers, "ContinuousBatchingConfig")):
        pytest.skip("this transformers is too old")
    if not transformers.utils.is_kernels_available(): pytest.skip("transformers wants another version of kernels")
    found = run(f"NAME = {NAME!r}\n" + GENERATE, tmp_path, LOCAL_KERNELS=f"{NAME}={repository}")[-1]
    assert found.startswith(f"{NAME} {repository}")
