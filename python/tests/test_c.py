# SPDX-License-Identifier: Apache-2.0
"""froghopper._c is the header; the library is found, checked and refused in words; plans and calls are kept."""
import ctypes
import fnmatch
import gc
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from programs import run_python

import froghopper
from froghopper import _c, _c_parallel, _call, _errors, _library

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINE = "fwd f32 b1 hq1 hkv1 sq1 skv1 d8"


@pytest.mark.parametrize("module, words", [(_c, []), (_c_parallel, ["cp"])])
def test_the_file_is_what_the_header_gives(module, words):
    if not (ROOT / "tools/gen_python.py").exists(): pytest.skip("tests of an installed package: there is no header")
    made = subprocess.run([sys.executable, "tools/gen_python.py", *words], cwd=ROOT, check=True, capture_output=True,
                          text=True)
    assert made.stdout == pathlib.Path(module.__file__).read_text()


def test_offsets_are_those_of_the_c_compiler(tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc")
    header = ROOT / "include/froghopper/cp.h"
    if compiler is None or not header.exists(): pytest.skip("no C compiler, or no header beside these tests")
    structs = {"fh_problem": _c.Problem, "fh_tensor": _c.Tensor, "fh_tensors": _c.Tensors,
               "fh_cp_problem": _c_parallel.CpProblem, "fh_cp_transfer": _c_parallel.CpTransfer,
               "fh_cp_transport": _c_parallel.CpTransport, "fh_cp_memory": _c_parallel.CpMemory,
               "fh_cp_tensors": _c_parallel.CpTensors}
    wanted = [(f"sizeof({name})", ctypes.sizeof(struct)) for name, struct in structs.items()]
    wanted += [(f"offsetof({name}, {field[0]})", getattr(struct, field[0]).offset)
               for name, struct in structs.items() for field in struct._fields_]
    asserts = "\n".join(f"_Static_assert({c} == {number}, \"{c}\");" for c, number in wanted)
    source = tmp_path / "offsets.c"
    source.write_text(f"#include \"{header}\"\n{asserts}\n")
    subprocess.run([compiler, "-std=c11", "-fsyntax-only", f"-I{ROOT / 'include'}", str(source)], check=True)
    assert len(wanted) > 80


def test_packed_bytes_are_the_struct():
    packed = _call.Call.WHOLE.pack(*range(1, 42)) + _call.Call.REST.pack(*range(42, 83))
    whole = _c.Tensors.from_buffer_copy(packed.ljust(ctypes.sizeof(_c.Tensors), b"\0"))
    assert _c.Tensors.cache_k.offset == _call.ALL_BYTES  # behind it is what appending alone has
    assert _c.Tensors.scale_q.offset == _call.Call.WHOLE.size
    assert _c.Tensors.grad_o.offset == _call.Call.FORWARD.size
    assert (whole.size, whole.q.data, whole.o.stride_head, whole.lse, whole.sink) == (1, 2, 17, 18, 23)
    assert (whole.grad_o.data, whole.grad_v.stride_head, whole.grad_lse, whole.grad_sink) == (24, 39, 40, 41)
    assert (whole.scale_q.data, whole.scale_v.data, whole.scale_v.stride_head, whole.max_logit) == (42, 50, 53, 78)
    assert (whole.block_table.data, whole.block_table.stride_head) == (79, 82)


def test_every_function_is_in_the_library():
    for name in _c.FUNCTIONS: assert getattr(_library.library().calls, name, None) is not None, name
    assert _library.library().version() == froghopper.__version__
    assert _library.library().size_of_problem() == ctypes.sizeof(_c.Problem)


def test_every_status_has_an_exception_of_its_kind():
    kinds = {_c.Status.INVALID_PROBLEM: ValueError, _c.Status.INVALID_TENSOR: ValueError,
             _c.Status.UNSUPPORTED: NotImplementedError}
    for status in set(_c.Status) - {_c.Status.OK, _c.Status.INTERRUPTED}:
        error = _errors.error_of(status, "fh_plan_run: q is NULL: set it.")
        assert isinstance(error, kinds.get(status, RuntimeError)) and isinstance(error, froghopper.Error)
        assert str(error) == "q is None: set it."  # in the words of Python
    interrupted = _errors.error_of(_c.Status.INTERRUPTED, "fh_plan_run: SIGINT came.")
    assert isinstance(interrupted, KeyboardInterrupt)  # which `except Exception` does not catch


def test_a_library_that_is_not_there(monkeypatch, tmp_path):
    monkeypatch.setenv(_library.VARIABLE, str(tmp_path / "none.so"))
    with pytest.raises(froghopper.LibraryNotFound, match="looked for .*none.so") as refused: _library.load()
    assert isinstance(refused.value, ImportError)
    monkeypatch.delenv(_library.VARIABLE)
    monkeypatch.setattr(_library, "HERE", tmp_path / "python/froghopper")
    with pytest.raises(froghopper.LibraryNotFound, match="froghopper/lib/libfroghopper.so. Install"): _library.load()
    header = tmp_path / "include/froghopper/froghopper.h"
    header.parent.mkdir(parents=True)
    header.touch()
    with pytest.raises(froghopper.LibraryNotFound, match=r"lib/libfroghopper.so, .*/build/libfroghopper.so\."):
        _library.load()


def test_a_file_that_is_no_library(monkeypatch, tmp_path):
    (tmp_path / "text.so").write_text("text")
    monkeypatch.setenv(_library.VARIABLE, str(tmp_path / "text.so"))
    with pytest.raises(froghopper.LibraryNotFound, match="cannot be loaded"): _library.load()


def test_a_library_of_another_version(monkeypatch):
    monkeypatch.setattr(_c, "VERSION", "0.0.1")
    with pytest.raises(froghopper.LibraryNotFound, match="this package is 0.0.1"): _library.load()


def test_importing_loads_nothing():
    code = ("import sys, froghopper, froghopper._call, froghopper._library as l; "
            "assert not {'numpy', 'torch', 'jax'} & set(sys.modules); assert l._loaded is None; "
            "from importlib.util import find_spec; "
            "there = {name for name in ('torch', 'jax', 'transformers') if find_spec(name)}; "
            "assert {'attention', 'explain'} | there <= set(dir(froghopper)); "
            "froghopper.attention; assert 'numpy' in sys.modules and 'torch' not in sys.modules")
    run_python("-c", code)


@pytest.mark.parametrize("name, framework", [
    ("torch", "torch"), ("torch.context_parallel", "torch"), ("flash_attn_interface", "torch"), ("jax", "jax"),
    ("jax.context_parallel", "jax"), ("transformers", "transformers")])
def test_modules_show_what_is_public(name, framework):
    pytest.importorskip(framework, reason=f"froghopper.{name} needs {framework}, which is not installed")
    run_python("-c", f"import froghopper; module = froghopper.{name}; assert dir(module) == sorted(module.__all__); "
                     "assert all(hasattr(module, name) for name in module.__all__)")


def test_documents_name_every_file():
    document = ROOT / "docs/9-python.md"
    if not document.exists(): pytest.skip("tests of an installed package: there are no documents")
    named = re.findall(r"`([\w*]+\.py)`", document.read_text().partition("## Files of python/froghopper")[2])
    files = [path.name for path in sorted(pathlib.Path(froghopper.__file__).parent.glob("*.py"))]
    assert named and [file for file in files if not any(fnmatch.fnmatch(file, name) for name in named)] == []


def test_help_shows_what_is_public():
    """Also where a module's framework is not installed."""
    said = run_python("-c", "import froghopper, sys; sys.modules['sglang'] = sys.modules['vllm'] = None; "
                            "help(froghopper)")
    assert "attention_backward" in said and "append_kv" in said


def test_a_log():
    """FROGHOPPER_LOG prints what the library logs; a program may take the records instead."""
    code = "import froghopper._library as l, froghopper._call as c; c.plan_of(l.library().problem(%r), 'cpu')" % LINE
    to_stdout = "import sys; sys.stderr = sys.stdout; "
    assert "froghopper: plan: fwd f32" in run_python("-c", to_stdout + code, FROGHOPPER_LOG="1")
    assert run_python("-c", to_stdout + code, FROGHOPPER_LOG="0") == ""
    mine = "import logging; logging.basicConfig(level=logging.INFO, format='MINE %(name)s %(message)s'); "
    assert "MINE froghopper plan: fwd f32" in run_python("-c", to_stdout + mine + code)
    later = run_python("-c", to_stdout + code + "; " + mine + code.replace("sq1", "sq5"))  # after the first call
    assert later.count("MINE froghopper plan: fwd f32") == 1


def test_threads_of_the_environment():
    code = ("import froghopper._library as l, froghopper._call as c; "
            "print(c.plan_of(l.library().problem(%r), 'cpu').line)")
    large = code % "fwd f32 b4 hq8 hkv8 sq512 skv512 d64"
    assert "threads 3" in run_python("-c", large, FROGHOPPER_THREADS="3", OMP_NUM_THREADS="1")
    assert "threads 1" in run_python("-c", large, OMP_NUM_THREADS="1")
    # What is no number from 1 to 4096 is ignored, and the log says so; the library would make as many threads.
    usual, log = run_python("-c", large), "import sys; sys.stderr = sys.stdout; "
    for wrong in ("1000000000", "1" + 30 * "0", "4097", "0", "-1", "abc"):
        said = run_python("-c", log + large, FROGHOPPER_THREADS=wrong, FROGHOPPER_LOG="1")
        assert f'FROGHOPPER_THREADS is "{wrong}" and is ignored: it must be a number of threads from 1 to 4096.' in said
        assert said.endswith(usual)
    line = code % "fwd f32 b4 hq8 hkv8 sq512 skv512 d64 sms1000000000"
    assert usual.rpartition(" -> ")[2] == run_python("-c", line).rpartition(" -> ")[2]


def test_explain():
    assert "h200" in froghopper.explain("fwd bf16 b2 hq16 hkv4 sq4096 skv4096 d128 causal", "h200")
    assert "fwd f32" in froghopper.explain(_library.library().problem(LINE), "cpu")
    assert "not computed" in (found := froghopper.explain("fwd b0x")) and "b0x" in found  # told, not raised
    with pytest.raises(TypeError, match="target must .*, but is 3"): froghopper.explain(LINE, 3)


def test_a_refused_plan():
    problem = _library.library().problem(LINE.replace("d8", "d16"))
    problem.dim_qk = 12
    with pytest.raises(NotImplementedError, match="head dims must .*, but that of q and k is 12"):
        _call.Plan(problem, "cpu")
    with pytest.raises(ValueError, match="nowhere"): _call.Plan(_library.library().problem(LINE), "nowhere")
    gpu_only = _library.library().problem(LINE)
    with pytest.raises(NotImplementedError): _call.Plan(gpu_only, "h200")


def test_a_plan_is_kept_and_forgotten(monkeypatch):
    table, made, forgotten = {}, [], []
    monkeypatch.setattr(_call, "KEPT", 3)
    def make():
        plan = _call.Plan(_library.library().problem(LINE), "cpu")
        forget = plan.forget
        plan.forget = lambda handle: (forgotten.append(handle.value), forget(handle))
        made.append(plan.handle.value)
        return plan
    held = _call.cached(table, "a", make)
    assert _call.cached(table, "a", make) is held and len(made) == 1
    for key in "bcd": _call.cached(table, key, make)
    gc.collect()
    assert list(table) == ["d"] and forgotten == made[1:3]  # "a" is still held here
    assert held.line.startswith(LINE) and not held.on_gpu


def test_what_has_no_hash_is_made_and_not_kept():
    table = {}
    assert _call.cached(table, ([],), lambda: 7) == 7 and table == {}


def test_lines_come_back():
    line = "bwd f16 b2 hq8 hkv4 sq256 skv512 d128 dv64 seqused window3,5 topleft scale0.5 softcap2 sink det acc sms7"
    assert _library.library().line(_library.library().problem(line)) == line


@pytest.mark.parametrize("line, shapes, options", [
    ("fwd f16 b2 hq8 hkv4 sq256 skv512 d128 dv64 seqused window3,5 topleft scale0.5 softcap2 sink sms7",
     [(2, 256, 8, 128), (2, 512, 4, 128), (2, 512, 4, 64)],
     dict(seqused=True, window=(3, 5), align="top_left", scale=0.5, softcap=2, sink=True, max_sms=7, dtype="float16")),
    ("bwd bf16 b3 hq2 hkv2 sq9 skv11 d8 varlen tq20 tkv30 causal det acc", [(20, 2, 8), (30, 2, 8), (30, 2, 8)],
     dict(packed=_call.Packed(3, 9, 11), causal=True, backward=True, deterministic=True, accumulate=True,
          dtype="bfloat16")),
    ("fwd f32 b1 hq1 hkv1 sq4 skv5 d8 window2,-1", [(1, 4, 1, 8), (1, 5, 1, 8), (1, 5, 1, 8)],
     dict(window=(2, None), dtype="float32")),
])
def test_describe(line, shapes, options):
    assert _library.library().line(_call.describe(*shapes, **options)) == line


@pytest.mark.parametrize("scale, found", [(None, "0.0"), (0.0, "-0.0"), (-0.0, "-0.0"), (1e-50, "-0.0"), (0.5, "0.5")])
def test_a_scale_of_zero_is_negative_to_the_library(scale, found):
    shapes = [(1, 4, 1, 8), (1, 5, 1, 8), (1, 5, 1, 8)]
    assert str(_call.describe(*shapes, dtype="float32", scale=scale).scale) == found
