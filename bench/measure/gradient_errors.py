# SPDX-License-Identifier: Apache-2.0
"""The measurements of bench/errors.py gradients, which bench/speed.py asks for too."""
import os
import re

import torch

from . import contenders, gradients
from .command import append, commit_here, now
from .froghopper_ctypes import Error, Froghopper
from .inputs import outliers

KINDS = ("normal", "outliers")
MOST = 0.05           # a larger error, or NaN, is no rounding of a 16-bit type
GRADS = ("grad_q", "grad_k", "grad_v")


def run(a):
    library = Froghopper(os.path.abspath(a.library))
    offers = contenders.installed(a.rivals, lambda name: gradients.rival(name, a.fa3bwd))
    target = contenders.TARGETS[a.device]
    gpu = torch.cuda.get_device_name() if a.device == "cuda" else "CPU"
    facts = dict(gpu=gpu, commit=a.commit or commit_here(), date=now())
    for line in a.lines:
        for kind in KINDS:
            cell = contenders.Cell.make(library, line, a.device)
            draw(cell, kind)
            layers = gradients.froghopper(cell, library, target)
            for offer in offers: layers.update(offer(cell))
            errors, wrong = errors_of(cell, layers)
            print_errors(f"{line}, {kind}", errors)
            for impl, why in wrong.items(): print(f"    {impl}: {why}")
            record(a.json, line, kind, errors, facts)


def small(line, rows):
    """A problem of the same kind with few rows, whose gradients are written and not added."""
    line = re.sub(r" acc\b", "", line)
    if "varlen" in line.split():
        lens = [rows, rows // 3, rows // 7, 16]
        new = dict(b=len(lens), sq=rows, skv=rows, tq=sum(lens), tkv=sum(lens))
        line = f"{line.partition(':')[0].strip()} : lens_q={','.join(map(str, lens))}"
    else: new = dict(b=2, sq=rows, skv=rows)
    return re.sub(r"\b(b|sq|skv|tq|tkv)\d+\b", lambda found: f"{found[1]}{new[found[1]]}", line)


def draw(cell, kind):
    """Other inputs than the cell came with."""
    if kind == "normal": return
    for t in (cell.q, cell.k, cell.v): t.copy_(outliers(t.shape, t.device))


def errors_of(cell, layers):
    """({impl: relative errors of grad_q, grad_k, grad_v}, {impl: why it is wrong or has none}). An error is an absolute
    one where the exact gradient is 0, as with a scale of zero."""
    exact = by_plain_products(cell, torch.float64)
    def against(grads):
        return [((g.double() - e).norm() / (e.norm() or 1)).item() for g, e in zip(grads, exact)]
    errors, wrong = {}, {}
    for (impl, _), layer in layers.items():
        try:
            errors[impl] = against(layer.both())
            if impl.endswith(gradients.DETERMINISTIC) and not same_again(layer): wrong[impl] = "its bits change"
        except Exception as problem: wrong[impl] = f"{type(problem).__name__}: {problem}"[:400]
    wrong |= {impl: f"its gradients are off by {max(e):.2g}" for impl, e in errors.items() if not max(e) < MOST}
    return errors | {"standard": against(by_plain_products(cell, cell.q.dtype))}, wrong


def same_again(layer):
    first = [g.clone() for g in layer.backward()]
    return all(torch.equal(a, b) for _ in range(4) for a, b in zip(first, layer.backward()))


def by_plain_products(cell, dtype):
    """The gradients in this type, sequence by sequence and a key head at a time: all scores would be gigabytes."""
    p, grads = cell.problem, [torch.zeros_like(t, dtype=dtype) for t in (cell.q, cell.k, cell.v)]
    if not cell.is_plain(): raise Error(f"the exact gradients of {cell.line} are not known here")
    group = p.heads_q // p.heads_kv
    for rows in sequences(cell):
        for head in range(p.heads_kv):
            mine = slice(head * group, (head + 1) * group)
            places = [(*rows, mine), (*rows, slice(head, head + 1)), (*rows, slice(head, head + 1))]
            leaves = [t[at].to(dtype).requires_grad_() for t, at in zip((cell.q, cell.k, cell.v), places)]
            q, k, v = (t.transpose(-3, -2) for t in leaves)  # [..., heads, rows, columns]
            scores = q @ k.mT * cell.scale()
            if p.is_masked():
                hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
                scores = scores.masked_fill(hidden, -torch.inf)
            o = (torch.softmax(scores, -1) @ v).transpose(-3, -2)
            parts = torch.autograd.grad(o, leaves, cell.grad_o[places[0]].to(dtype))
            for grad, at, part in zip(grads, places, parts): grad[at] = part
    return grads


def sequences(cell):
    """Where each sequence's rows are: indices of a tensor's axes before that of heads."""
    if cell.lens is None: return [(b, slice(None)) for b in range(cell.problem.batch)]
    ends = cell.cu_seqlens.tolist()
    return [(slice(begin, end),) for begin, end in zip(ends, ends[1:])]


def print_errors(title, errors):
    print(f"  errors of grad_q, grad_k, grad_v, {title}")
    for impl, e in errors.items(): print(f"    {impl:<16}" + "".join(f" {x:.2e}" for x in e), flush=True)


def record(path, line, kind, errors, facts):
    for impl, e in errors.items():
        rounded = {name: float(f"{x:.4g}") for name, x in zip(GRADS, e)}
        append(path, {"problem": line, "pass": "bwd error", "data": kind, "impl": impl, **rounded, **facts})
