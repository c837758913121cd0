# SPDX-License-Identifier: Apache-2.0
"""froghopper.torch.norm_rotary: its rows beside plain formulas in float64 and beside append_kv's, and its gradients."""
import pytest

torch = pytest.importorskip("torch", reason="froghopper.torch needs torch, which is not installed")
from froghopper.torch import append_kv, norm_rotary  # noqa: E402

BATCH, SEQ, HEADS, HEADS_KV, DIM, POSITIONS = 2, 5, 4, 2, 32, 11
ROUNDING = {torch.float32: 2**-24, torch.bfloat16: 2**-8, torch.float16: 2**-11}
CASES = {
    "norm": dict(norm_epsilon=1e-6), "norm, weights": dict(norm_epsilon=1e-5, weights=True), "rotary": dict(rotary=DIM),
    "part": dict(rotary=16, rotary_interleaved=True),
    "all": dict(norm_epsilon=1e-6, weights=True, rotary=DIM, positions=True),
    "all, part": dict(norm_epsilon=0.1, weights=True, rotary=16, positions=True, rotary_interleaved=True),
    "tokens": dict(norm_epsilon=1e-6, weights=True, rotary=DIM, positions=True, tokens=True)}


def drawn(name, dtype, tables=torch.float32):
    """q, k, the other arguments."""
    case, generator = CASES[name], torch.Generator().manual_seed(3)
    random = lambda *shape: torch.randn(*shape, generator=generator)
    rows = (BATCH * SEQ,) if case.get("tokens") else (BATCH, SEQ)
    q, k = (random(*rows, heads, DIM).to(dtype) for heads in (HEADS, HEADS_KV))
    words = {key: case[key] for key in ("norm_epsilon", "rotary_interleaved") if key in case}
    if case.get("weights"): words |= dict(norm_q=random(DIM).to(tables), norm_k=random(DIM).to(tables))
    if rotary := case.get("rotary"):
        angles = random(POSITIONS, rotary // 2)
        words |= dict(rotary_cos=angles.cos().to(tables), rotary_sin=angles.sin().to(tables))
    if case.get("positions"): words["positions"] = torch.randint(POSITIONS, rows, generator=generator)
    return q, k, words


def plain(x, weight, norm_epsilon=None, rotary_cos=None, rotary_sin=None, positions=None, rotary_interleaved=False):
    """The formulas of src/oracle/append.cpp."""
    if norm_epsilon is not None:
        x = x / (x.square().mean(-1, keepdim=True) + norm_epsilon).sqrt() * (1 if weight is None else weight)
    if rotary_cos is None: return x
    pairs, columns = rotary_cos.shape[1], list(range(x.shape[-1]))
    made = list(x.unbind(-1))
    at = torch.arange(x.shape[1]) if positions is None else positions
    of_cos, of_sin = rotary_cos[at].unsqueeze(-2), rotary_sin[at].unsqueeze(-2)
    for i in range(pairs):
        first, second = (2 * i, 2 * i + 1) if rotary_interleaved else (i, i + pairs)
        a, b = x[..., columns[first]], x[..., columns[second]]
        made[first] = a * of_cos[..., i] - b * of_sin[..., i]
        made[second] = b * of_cos[..., i] + a * of_sin[..., i]
    return torch.stack(made, -1)


def wide(q, k, words):
    """The same in float64."""
    return q.double(), k.double(), {key: x.double() if torch.is_tensor(x) and x.is_floating_point() else x
                                    for key, x in words.items()}


def both_plain(q, k, words):
    words = dict(words)
    of_q, of_k = words.pop("norm_q", None), words.pop("norm_k", None)
    return plain(q, of_q, **words), plain(k, of_k, **words)


def of_row(x): return x.double().square().mean(-1, keepdim=True).sqrt()


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("name", CASES)
def test_rows_are_those_of_float64_rounded_once(name, dtype):
    q, k, words = drawn(name, dtype)
    for found, wanted, x in zip(norm_rotary(q, k, **words), both_plain(*wide(q, k, words)), (q, k)):
        assert found.dtype == dtype and found.shape == x.shape and found.is_contiguous()
        bound = ROUNDING[dtype] * wanted.abs() + 64 * 2**-24 * (wanted.abs() + of_row(wanted)) + 2**-25
        assert ((found.double() - wanted).abs() <= bound).all()


@pytest.mark.parametrize("tables", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_rows_are_those_of_append_kv(name, tables):
    """Within one step of bfloat16, which differences in float32 decide rarely."""
    q, k, words = drawn(name, torch.bfloat16, tables)
    found_q, found_k = norm_rotary(q, k, **words)
    rows = q.shape[:-2].numel()
    given = {"positions": None, **words}
    if words.get("rotary_cos") is not None and given["positions"] is None:
        given["positions"] = torch.arange(SEQ).repeat(BATCH)
    cache = torch.zeros(1, rows, HEADS_KV, DIM, dtype=torch.bfloat16)
    flat = lambda x: x.reshape(rows, *x.shape[-2:])
    out = append_kv(flat(k), None, cache, None, q=flat(q), slot_mapping=torch.arange(rows), **given)
    for mine, its in ((found_q, out), (found_k, cache[0])):
        mine, its = flat(mine).float(), its.float()
        assert ((mine - its).abs() <= 2 * 2**-8 * its.abs() + 1e-6).all()
        assert (mine != its).float().mean() < 0.01


def leaves(q, k, words):
    """The tensors with gradients."""
    words = dict(words)
    made = [q.detach().clone().requires_grad_(), k.detach().clone().requires_grad_()]
    for name in ("norm_q", "norm_k"):
        if name in words:
            words[name] = words[name].detach().clone().requires_grad_()
            made.append(words[name])
    return made, words


def gradients(function, q, k, words):
    made, words = leaves(q, k, words)
    results = function(made[0], made[1], words)
    loss = sum((x.double() * torch.linspace(-1, 2, x.numel(), dtype=torch.float64).view(x.shape)).sum()
               for x in results)
    return torch.autograd.grad(loss, made)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_float64(name, dtype):
    q, k, words = drawn(name, dtype)
    found = gradients(lambda q, k, words: norm_rotary(q, k, **words), q, k, words)
    wanted = gradients(both_plain, *wide(q, k, words))
    for mine, exact in zip(found, wanted):
        # What comes in is rounded to the type too.
        assert (mine.double() - exact).norm() <= 4 * ROUNDING[dtype] * exact.norm() + 1e-6 * exact.norm()


def test_gradients_have_the_types_of_their_tensors():
    q, k, words = drawn("all", torch.bfloat16)
    assert [x.dtype for x in gradients(lambda q, k, words: norm_rotary(q, k, **words), q, k, words)] == [
        torch.bfloat16, torch.bfloat16, torch.float32, torch.float32]


def test_only_rows_as_they_came_are_saved():
    q, k, words = drawn("all", torch.bfloat16)
    made, words = leaves(q, k, words)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        norm_rotary(made[0], made[1], **words)
    assert {x.data_ptr() for x in saved} <= {x.data_ptr() for x in (*made, *words.values()) if torch.is_tensor(x)}


def test_second_derivatives():
    q, k, words = drawn("all, part", torch.float32)
    def twice(function, q, k, words):
        made, words = leaves(q, k, words)
        first = torch.autograd.grad(sum((x ** 3).sum() for x in function(made[0], made[1], words)), made,
                                    create_graph=True)
        return torch.autograd.grad(sum(x.square().sum() for x in first), made)
    found = twice(lambda q, k, words: norm_rotary(q, k, **words), q, k, words)
    for mine, exact in zip(found, twice(both_plain, *wide(q, k, words))):
        assert (mine.double() - exact).norm() <= 1e-5 * exact.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", ["rotary", "all, part", "tokens"])
def test_compiled(name, dtype):
    q, k, words = drawn(name, dtype)
    torch.compiler.reset()
    call = lambda q, k, words: norm_rotary(q, k, **words)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for one, other in zip(compiled(q, k, words), call(q, k, words)): assert torch.equal(one, other)
    for one, other in zip(gradients(compiled, q, k, words), gradients(call, q, k, words)):
        assert torch.equal(one, other)


def test_under_vmap_and_grad():
    q, k, words = drawn("norm, weights", torch.float32)
    one, other = (torch.func.vmap(lambda x: norm_rotary(x, k[0], **words)[0])(q), norm_rotary(q, k, **words)[0])
    torch.testing.assert_close(one, other)
    loss = lambda q: norm_rotary(q, k, **words)[0].square().sum()
    leaf = q.clone().requires_grad_()
    torch.testing.assert_close(torch.func.grad(loss)(q), torch.autograd.grad(loss(leaf), leaf)[0])


Q, K, TABLE = torch.ones(2, 3, 4, 16), torch.ones(2, 3, 2, 16), torch.ones(8, 8)


@pytest.mark.parametrize("words, error, says", [
    (dict(), ValueError, "norm_epsilon or rotary_cos must be given"),
    (dict(norm_epsilon="small"), TypeError, "norm_epsilon must be"),
    *((dict(norm_epsilon=wrong), ValueError, "norm_epsilon must be 0 or positive, .* but is ") for wrong in (
        -1.0, -1e-9, float("nan"), float("inf"))),
    (dict(norm_q=torch.ones(16)), ValueError, "norm_q must be None without norm_epsilon"),
    (dict(norm_epsilon=1e-6, norm_q=torch.ones(8)), ValueError, r"norm_q must have the shape \[dim\] \[16\]"),
    (dict(norm_epsilon=1e-6, norm_k=torch.ones(16).half()), TypeError, "norm_k must be float32, as q is"),
    (dict(rotary_cos=TABLE), ValueError, "rotary_sin is None"),
    (dict(rotary_cos=TABLE, rotary_sin=TABLE[:, :4]), ValueError, "of one type, with 8 columns at most"),
    (dict(rotary_cos=torch.ones(8, 9), rotary_sin=torch.ones(8, 9)), ValueError, "with 8 columns at most"),
    (dict(rotary_cos=TABLE[:2], rotary_sin=TABLE[:2]), ValueError, "a row for each of 3 rows"),
    (dict(rotary_cos=TABLE, rotary_sin=TABLE, positions=torch.zeros(3, dtype=torch.int64)), ValueError,
     r"int64 \[2, 3\]"),
    (dict(rotary_cos=TABLE, rotary_sin=TABLE, positions=torch.zeros(2, 3, dtype=torch.int32)), ValueError,
     r"int64 \[2, 3\]"),
    (dict(norm_epsilon=1e-6, positions=torch.zeros(2, 3, dtype=torch.int64)), ValueError,
     "positions must be None without rotary_cos"),
    (dict(rotary_cos=TABLE.clone().requires_grad_(), rotary_sin=TABLE), NotImplementedError,
     "rotary_cos requires a gradient"),
    (dict(norm_epsilon=1e-6, rotary_interleaved=1.5), TypeError, "rotary_interleaved must be"),
])
def test_what_is_wrong_is_said(words, error, says):
    with pytest.raises(error, match=says): norm_rotary(Q, K, **words)


def test_rows_that_are_wrong():
    for q, k, error, says in ((Q.double(), K.double(), TypeError, "q must be float16"),
                              (Q[0, 0], K, ValueError, r"q must be \[batch, seq, heads, dim\]"),
                              (Q, K[:, :2], ValueError, "k must have the rows and the type of q"),
                              (Q, K.half(), ValueError, "k must have the rows and the type of q"),
                              (Q, None, TypeError, "k must be")):
        with pytest.raises(error, match=says): norm_rotary(q, k, norm_epsilon=1e-6)
    tokens = Q.flatten(0, 1), K.flatten(0, 1)
    with pytest.raises(ValueError, match="positions must be given"):
        norm_rotary(*tokens, rotary_cos=TABLE, rotary_sin=TABLE)
