"""Writes index.npy and index.txt: what PyTorch's operations by index, on repeated batches and on shapes compute, with
gradients.

    python tests/numbers/index.py

The gradients are those of sum(weights * output)."""

import torch

import tensors
from tensors import put

torch.manual_seed(21)


def case(name, function, ints=None, **leaves):
    for key, value in {**(ints or {}), **leaves}.items():
        put(f"{name}.{key}", value)
    leaves = {key: value.clone().requires_grad_() for key, value in leaves.items()}
    outputs = function(**leaves, **(ints or {}))
    y, more = outputs if isinstance(outputs, tuple) else (outputs, None)
    weights = torch.randn(y.shape)
    put(f"{name}.y", y)
    put(f"{name}.w", weights)
    if more is not None:
        put(f"{name}.indices", more)
    (weights * y).sum().backward()
    for key, leaf in leaves.items():
        put(f"{name}.d{key}", leaf.grad)


rand = torch.randn
index = torch.tensor
select = {"i": index([3, 0, 0, 2, 3])}
along = {"i": index([[[2, 0], [1, 1]], [[0, 0], [2, 1]]])}
case("index_select", lambda x, i: x.index_select(1, i), select, x=rand(2, 4, 3))
case("index_select_last", lambda x, i: x.index_select(-1, i), select, x=rand(3, 5))
case("gather", lambda x, i: x.gather(1, i), along, x=rand(3, 3, 4))
case("gather_first", lambda x, i: x.gather(0, i), {"i": index([[1, 0, 2], [2, 2, 0]])}, x=rand(3, 3))
case("scatter", lambda x, z, i: x.scatter(1, i, z), {"i": index([[0, 2], [3, 1]])}, x=rand(3, 4), z=rand(2, 2))
case("scatter_add", lambda x, z, i: x.scatter_add(-2, i, z), along, x=rand(3, 3, 4), z=rand(2, 2, 2))
case("topk", lambda x: x.topk(3, 1), x=rand(2, 7, 2))
case("smallest", lambda x: x.topk(2, -1, largest=False), x=rand(4, 5))
case("sort", lambda x: x.sort(dim=0, stable=True), x=rand(5, 2))
case("sort_down", lambda x: x.sort(dim=-1, descending=True, stable=True), x=rand(2, 5))
case("matmul_column", lambda a, b: a @ b, a=rand(2, 3, 5), b=rand(5))
case("matmul_row", lambda a, b: a @ b, a=rand(5), b=rand(2, 5, 3))
case("matmul_dot", lambda a, b: a @ b, a=rand(5), b=rand(5))
case("matmul_vector_matrix", lambda a, b: a @ b, a=rand(5), b=rand(5, 2))
case("matmul_crossed", lambda a, b: a @ b, a=rand(2, 1, 3, 4), b=rand(3, 4, 2))
case("matmul_one_left", lambda a, b: a @ b, a=rand(3, 4), b=rand(2, 3, 4, 2))
case("matmul_first", lambda a, b: a @ b, a=rand(2, 3, 2, 4), b=rand(2, 1, 4, 3))
case("permute", lambda x: x.permute(2, 0, -2) ** 2, x=rand(2, 3, 4))
case("unsqueeze", lambda x: x.unsqueeze(-1).expand(2, 3, 4) ** 2, x=rand(2, 3))
case("expand", lambda x: x.expand(2, 3, -1, 4, 2) ** 2, x=rand(3, 1, 1, 2))
case("stack", lambda a, b: torch.stack((a, b, a), -1) ** 2, a=rand(2, 3), b=rand(2, 3))
case("split", lambda x: torch.cat([part * (1 + i) for i, part in enumerate(x.split([2, 0, 3], 1))][::-1], 1),
     x=rand(2, 5))
case("chunk", lambda x: torch.cat([part * (1 + i) for i, part in enumerate(x.chunk(3, 0))][::-1], 0), x=rand(7, 2))
case("flatten", lambda x: x.transpose(1, 2).flatten(1, -2) ** 2, x=rand(2, 3, 2, 2))

tensors.write("index")
