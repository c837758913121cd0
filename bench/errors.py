#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Errors against fp64, of froghopper and of other implementations on the same inputs.

  bench/errors.py forward --json bench/results/errors/h200.jsonl
  bench/errors.py gradients --rivals cudnn,fa3,fa4 --fa3bwd libfa3bwd.so --json bench/results/grad_errors/h200.jsonl
  bench/errors.py gradients --device cpu --rivals torch 'bwd f32 b1 hq2 hkv2 sq64 skv64 d64 causal'
  bench/errors.py fp8 --rows 512 --means 4
  bench/errors.py fp8 --device cuda --keys 1024,16384,131072 --rivals fa3
  bench/errors.py weights --keys 16384 --dims 64,128 --begin 16,16 --begin 16,64

Nothing is timed. The exact answer is computed in fp64 from the rounded inputs. "standard" is softmax(scale q k^T) v in
the type of the inputs, one matrix product after the other. "outliers" are the inputs of the error table of the
FlashAttention-3 paper (section 4.3), N(0, 1) + N(0, 100) Bernoulli(0.001), so that a few entries are ten times larger.

  bench/errors.py forward --help     and so on: what each of them computes
"""
import sys

from measure import command

FORWARD = """Root mean square error of o, f16 and bf16, head dims 64, 128 and 256, 4096 keys.

The first kind of inputs is "outliers"; the others make rows more and more peaked. FlashAttention-3 is taken from the
wheel tokenspeed-fa3 (module flash_attn_interface) where it is installed. Needs PyTorch and a Hopper GPU.
"""
GRADIENTS = """Errors of everybody's gradients: |found - exact| / |exact|, over all rows.

The exact gradients come from autograd through softmax(scale q k^T) v in fp64. Kinds of inputs: N(0, 1), and "outliers";
grad_o is always N(0, 1). bench/speed.py asks for the same of every kind of problem that it times, so that a wrong
rival, or a wrong call of one, is seen and not timed. Needs PyTorch.
"""
FP8 = """What 8-bit q, k and v cost: root mean square error of o, quantised by the library and attended to by it.

Inputs are "outliers" or N(0, 1), 8 heads. "inputs" is exact attention of the quantised numbers, which no kernel can be
better than; the exact answer is computed in fp64 from the inputs before. On the CPU from fp32, on a GPU from bf16.
Fewer rows of queries than 4096 are a sample: few rows with one dominant score make most of the error, so samples of 512
differ by a quarter. With --means k and v have one besides, N(0, MEANS^2) a column, as the keys of real models have, and
are quantised also without it. With "16-bit q" k and v alone are quantised, and q, in bf16, is rotated by PyTorch where
k is. --rivals fa3: FlashAttention-3 on our numbers with one scale a head, of which it takes no other. Needs PyTorch.
"""
WEIGHTS = """What weights in e4m3 cost, by where a row's reference begins and where it moves to: simulated on the CPU.

Inputs are those of `errors.py fp8`: one scale a head, with outliers q and k rotated by a Hadamard matrix with random
signs. A kv tile of 128 keys after the other, as the kernel of docs/10-fp8.md takes them: the first makes a row's
largest weight the first number of --begin; one that would pass 448 makes it the second. Weights are rounded to e4m3,
products and sums are fp64, so nothing else is in the error: the root mean square of what differs from attention of the
inputs before, over that of exact weights with the same numbers. In brackets, how many tiles in a hundred move a
reference, for which one row of a warp's 16 is enough. Needs numpy and ml_dtypes, and no PyTorch.
"""
GRADIENT_LINES = [f"bwd {dtype} b2 hq8 hkv8 sq1024 skv1024 d{dim}{mask}"
                  for dtype in ("bf16", "f16") for dim in (64, 128, 256) for mask in ("", " causal")]


def arguments():
    p = command.parser(__doc__)
    kinds = p.add_subparsers(dest="kind", required=True, metavar="forward|gradients|fp8|weights")
    def kind(name, description):
        return kinds.add_parser(name, description=description, formatter_class=p.formatter_class,
                                help=description.partition("\n")[0])
    forward, gradients, fp8, weights = map(kind, ("forward", "gradients", "fp8", "weights"),
                                           (FORWARD, GRADIENTS, FP8, WEIGHTS))
    for of_library in (forward, gradients, fp8):
        command.add_library(of_library)
        command.add_json(of_library, "an implementation" if of_library is gradients else "an error")
    gradients.add_argument("lines", nargs="*", metavar="LINE", default=GRADIENT_LINES)
    command.add_device(gradients)
    command.add_rivals(gradients, "cudnn,fa3,fa4")
    fp8.add_argument("--rows", type=int, default=512, help="of queries (default 512)")
    fp8.add_argument("--keys", default="4096", help="one number or several, with commas (default 4096)")
    fp8.add_argument("--data", choices=("outliers", "normal"), default="outliers", help="default outliers")
    fp8.add_argument("--type", choices=("e4m3", "e5m2"), default="e4m3", help="default e4m3")
    command.add_device(fp8, "cpu")
    fp8.add_argument("--means", type=float, default=0.0, help="of k and v: the deviation of their columns' means")
    fp8.add_argument("--rivals", choices=("", "fa3"), default="", help="also the error of FlashAttention-3, on a GPU")
    weights.add_argument("--keys", type=int, default=16384, help="a multiple of 128 (default 16384)")
    weights.add_argument("--dims", default="64,128,256", help="powers of two, with commas")
    weights.add_argument("--data", choices=("outliers", "normal"), default="outliers", help="default outliers")
    weights.add_argument("--begin", action="append", metavar="FIRST,MOVED", help="largest weights, several times")
    weights.add_argument("--rows", type=int, default=512, help="of queries, a multiple of 16 (default 512)")
    weights.add_argument("--heads", type=int, default=2, help="default 2")
    weights.add_argument("--seed", type=int, default=0, help="default 0")
    return weights, p.parse_args()


def main():
    weights, a = arguments()
    if a.kind == "weights":
        try: from measure import fp8_weights
        except ImportError as missing: sys.exit(f"errors.py: weights needs numpy, ml_dtypes: {missing}; .venv has both")
        return fp8_weights.run(a, weights.error)
    if a.kind == "fp8" and a.rivals and a.device == "cpu":
        sys.exit("errors.py: --rivals is fa3, which runs on a GPU alone; say --device cuda, or leave --rivals out")
    command.need_torch(getattr(a, "device", "cuda"))
    if a.kind == "forward": from measure import forward_errors as measured
    elif a.kind == "gradients": from measure import gradient_errors as measured
    else: from measure import fp8_errors as measured
    return command.end_on_errors(measured.run, a)


if __name__ == "__main__":
    sys.exit(main())
