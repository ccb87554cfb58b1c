"""Writes ops.npy and ops.txt: inputs, outputs and gradients of every operation, computed by PyTorch.

    python tests/numbers/ops.py

The gradients are those of sum(weights * output)."""

import torch
import torch.nn.functional as F

import tensors
from tensors import put

torch.manual_seed(20)


def case(name, function, ints=(), **inputs):
    """Runs one case. Inputs are leaves; function(**inputs) returns one tensor or several."""
    leaves = {}
    for key, value in inputs.items():
        put(f"{name}.{key}", value)
        leaves[key] = value if key in ints else value.clone().requires_grad_()
    outputs = function(**leaves)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    total = 0
    for index, output in enumerate(outputs):
        weights = torch.randn(output.shape).to(output.dtype)
        suffix = "" if index == 0 else str(index)
        put(f"{name}.y{suffix}", output)
        put(f"{name}.w{suffix}", weights)
        total = total + (weights * output).sum()
    total.backward()
    for key, leaf in leaves.items():
        if key not in ints:
            put(f"{name}.d{key}", leaf.grad)


def rand(*shape):
    return torch.randn(*shape)


def rope(x, frequencies, position0):
    t = torch.arange(x.shape[1], dtype=torch.float32) + position0
    angle = torch.outer(t, frequencies)
    cos = torch.cat((angle, angle), -1).cos()[None, :, None, :]
    sin = torch.cat((angle, angle), -1).sin()[None, :, None, :]
    half = x.shape[-1] // 2
    rotated = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * cos + rotated * sin


def attention(q, k, v, causal):
    """Computes attention of (B,T,H,D) over (B,S,G,D): query t sees keys up to t + S - T."""
    groups = q.shape[2] // k.shape[2]
    q, k, v = (z.transpose(1, 2) for z in (q, k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2)))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if causal:
        t, s = scores.shape[-2:]
        scores = scores.masked_fill(torch.ones(t, s).tril(s - t) == 0, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2)


def packed(qkv):
    b, t, _ = qkv.shape
    q, k, v = qkv.split([12, 6, 6], -1)
    return attention(q.view(b, t, 4, 3), k.view(b, t, 2, 3), v.view(b, t, 2, 3), True).reshape(b, t, 12)


case("linear", lambda x, weight, bias: F.linear(x, weight, bias), x=rand(2, 3, 5), weight=rand(4, 5), bias=rand(4))
case("conv1d", lambda x, weight, bias: x @ weight + bias, x=rand(2, 3, 5), weight=rand(5, 4), bias=rand(4))
case("matmul", lambda a, b: a @ b, a=rand(2, 3, 4, 5), b=rand(2, 3, 5, 2))
case("matmul_shared", lambda a, b: a @ b, a=rand(2, 3, 5), b=rand(5, 4))
case("embedding", lambda table, ids: F.embedding(ids, table), ints=("ids",), table=rand(7, 3),
     ids=torch.tensor([[6, 0, 2], [2, 2, 5]]))
case("add", lambda a, b: a + b, a=rand(2, 3, 5), b=rand(3, 5))
case("mul", lambda a, b: a * b, a=rand(2, 3, 5), b=rand(5))
case("gelu", lambda x: F.gelu(x), x=rand(3, 7) * 2)
case("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), x=rand(3, 7) * 2)
case("silu", lambda x: F.silu(x), x=rand(3, 7) * 2)
case("relu", lambda x: F.relu(x), x=rand(3, 7))
case("swiglu", lambda gate, up: F.silu(gate) * up, gate=rand(2, 3, 5), up=rand(2, 3, 5))
case("layernorm", lambda x, weight, bias: F.layer_norm(x, (7,), weight, bias, 1e-5), x=rand(2, 3, 7), weight=rand(7),
     bias=rand(7))
case("rmsnorm", lambda x, weight: F.rms_norm(x, (7,), weight, 1e-6), x=rand(2, 3, 7), weight=rand(7))
case("add_layernorm", lambda x, residual, weight, bias: (F.layer_norm(x + residual, (7,), weight, bias, 1e-5),
                                                         x + residual),
     x=rand(5, 7), residual=rand(5, 7), weight=rand(7), bias=rand(7))
case("add_rmsnorm", lambda x, residual, weight: (F.rms_norm(x + residual, (7,), weight, 1e-6), x + residual),
     x=rand(5, 7), residual=rand(5, 7), weight=rand(7))
case("softmax", lambda x: x.softmax(-1), x=rand(2, 3, 7) * 3)
case("attention", lambda q, k, v: attention(q, k, v, False), q=rand(2, 3, 4, 5), k=rand(2, 7, 2, 5), v=rand(2, 7, 2, 5))
case("attention_causal", lambda q, k, v: attention(q, k, v, True), q=rand(2, 5, 2, 3), k=rand(2, 9, 1, 3),
     v=rand(2, 9, 1, 3))
case("attention_packed", packed, qkv=rand(2, 5, 24))
case("rope", lambda x, frequencies: rope(x, frequencies, 3), ints=("frequencies",), x=rand(2, 5, 3, 6),
     frequencies=10000.0 ** -(torch.arange(0, 6, 2) / 6))
case("cross_entropy", lambda x, targets: F.cross_entropy(x.view(-1, 9), targets.view(-1)), ints=("targets",),
     x=rand(2, 5, 9) * 2, targets=torch.tensor([[0, 8, -100, 3, 3], [-100, 1, 7, 2, -100]]))
case("linear_cross_entropy", lambda x, weight, targets: F.cross_entropy(F.linear(x, weight).view(-1, 9),
                                                                       targets.view(-1)),
     ints=("targets",), x=rand(2, 5, 6), weight=rand(9, 6),
     targets=torch.tensor([[0, 8, -100, 3, 3], [-100, 1, 7, 2, -100]]))
case("sum", lambda x: x.sum(), x=rand(3, 5))
case("mean", lambda x: x.mean(), x=rand(3, 5))
case("sum_dim", lambda x: x.sum(1), x=rand(2, 3, 5))
case("shapes", lambda x, z: torch.cat((x.transpose(1, 2).reshape(2, 15)[:, 2:11], z, x.reshape(2, -1)[:, 4:6]), 1) ** 2,
     x=rand(2, 3, 5), z=rand(2, 3))
bf16 = lambda *shape: torch.randn(*shape).bfloat16()
case("linear_bf16", lambda x, weight, bias: F.linear(x, weight, bias), x=bf16(3, 6), weight=bf16(4, 6), bias=bf16(4))
case("rmsnorm_bf16", lambda x, weight: F.rms_norm(x, (7,), weight, 1e-6), x=bf16(3, 7), weight=bf16(7))
inf, nan = float("inf"), float("nan")
kinks = torch.tensor([-2.0, -0.5, -0.0, 0.0, 0.5, 1.0, 3.0, 1e-3])
ends = torch.tensor([-inf, inf, nan, 100.0, -100.0, 1e-30, -1e-4, 0.7])
case("broadcast_add", lambda a, b: a + b, a=rand(2, 1, 5), b=rand(3, 1))
case("broadcast_mul", lambda a, b: a * b, a=rand(5), b=rand(2, 3, 5))
case("sub", lambda a, b: a - b, a=rand(3, 1), b=rand(2, 1, 5))
case("div", lambda a, b: a / b, a=rand(2, 3, 5), b=rand(3, 1))
case("pow", lambda a, b: a ** b, a=rand(2, 3, 4).abs() * 3, b=rand(3, 1) * 2)
case("pow_kinks", lambda a, b: a ** b, a=kinks, b=torch.tensor([-1.0, 0.0, 1.0, 2.0, 3.0, 0.5, -2.0]).view(7, 1))
case("pow_ends", lambda a, b: a ** b, a=ends, b=torch.tensor([3.0, 0.0, -0.5, 1.5]).view(4, 1))
case("pow_scalar", lambda x: x ** 3, x=kinks)
case("pow_scalar_fraction", lambda x: x ** 2.7, x=kinks)
case("pow_scalar_zero", lambda x: x ** 0, x=kinks)
case("pow_scalar_root", lambda x: x ** 0.5, x=kinks)
case("maximum", lambda a, b: torch.maximum(a, b), a=kinks, b=torch.tensor([[0.0], [-0.5], [nan]]))
case("minimum", lambda a, b: torch.minimum(a, b), a=torch.tensor([[0.0], [0.5], [nan]]), b=kinks)
case("where", lambda a, b: torch.where(a > b, a, b * 2), a=rand(2, 3, 1), b=rand(3, 5))
case("masked_fill", lambda x: x.masked_fill(x <= 0, -inf), x=kinks)
for name in "neg exp log sqrt rsqrt reciprocal abs square tanh sigmoid".split():
    case(name, lambda x, name=name: getattr(x, name)(), x=torch.cat((kinks, ends, rand(4) * 3)))
case("clamp", lambda x: x.clamp(-0.5, 1), x=torch.cat((kinks, ends)))
case("clamp_min", lambda x: x.clamp(min=0), x=torch.cat((kinks, ends)))
ties = torch.tensor([[1.0, 3.0, 3.0, -2.0], [3.0, 0.5, -2.0, -2.0], [1.0, 1.0, 1.0, 1.0]])
case("sum_dims", lambda x: x.sum((0, 2)), x=rand(2, 3, 4, 2))
case("mean_dims", lambda x: x.mean((1, 3), keepdim=True), x=rand(2, 3, 2, 3))
case("var", lambda x: x.var((0, 2, 3)), x=rand(3, 2, 2, 3) * 3 + 100)
case("var_biased", lambda x: x.var(-1, correction=0, keepdim=True), x=rand(3, 5))
case("std", lambda x: x.std(1), x=torch.cat((rand(2, 4), ties[2:])))
case("var_of_one", lambda x: x.var(1), x=rand(3, 1))
case("amax", lambda x: x.amax((0, 1)), x=ties)
case("amax_rows", lambda x: x.amax(1, keepdim=True), x=ties)
case("amin", lambda x: x.amin(0), x=ties)
case("max", lambda x: x.max(1).values, x=ties)
case("min", lambda x: x.min(0, keepdim=True).values, x=ties)
case("log_softmax", lambda x: x.log_softmax(-1), x=rand(2, 3, 5) * 4)
case("mse_loss", lambda a, b: F.mse_loss(a, b), a=rand(3, 4), b=rand(3, 4))
case("l1_loss", lambda a, b: F.l1_loss(a, b, reduction="sum"), a=ties, b=ties.flip(1))
case("smooth_l1_loss", lambda a, b: F.smooth_l1_loss(a, b, reduction="none", beta=2.0), a=ties, b=ties.flip(1))
case("smooth_l1_loss_sharp", lambda a, b: F.smooth_l1_loss(a, b, beta=0.0), a=ties, b=ties.flip(1))
shares = torch.tensor([0.0, 1.0, 0.0, 1.0, 1e-6, 0.3, 0.9, 0.5])
case("binary_cross_entropy", lambda a, b: F.binary_cross_entropy(a, b, reduction="none"), ints=("b",), a=shares,
     b=torch.tensor([0.0, 1.0, 1.0, 0.0, 0.0, 0.4, 1.0, 0.0]))
case("binary_cross_entropy_with_logits", lambda a, b: F.binary_cross_entropy_with_logits(a, b),
     a=torch.tensor([-50.0, 50.0, 0.0, 1e-4, -3.0, 100.0]), b=torch.tensor([1.0, 0.3, 0.5, 0.0, 1.0, 1.0]))
picks = torch.tensor([[0, 4, -100], [3, 3, 1]])
for name in "mean sum none".split():
    case("nll_loss_" + name, lambda x, targets, name=name: F.nll_loss(x.transpose(1, 2), targets, reduction=name),
         ints=("targets",), x=rand(2, 3, 5), targets=picks)
holed = torch.cat((ties, torch.tensor([[0.0, 5.0, nan, nan]])))
put("places.x", holed)
put("places.y", torch.cat((holed.argmax(1), holed.argmin(1))))
masks = torch.stack([f(torch.cat((kinks, ends)), torch.tensor([[0.5], [nan]]))
                     for f in (torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge)])
put("masks.x", torch.cat((kinks, ends)))
put("masks.y", masks)

tensors.write("ops")
