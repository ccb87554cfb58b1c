"""Writes nn_printed.txt: what PyTorch prints for the tree that tests/nn/test_print_module.c builds.

    python tests/numbers/nn_printed.py > tests/numbers/nn_printed.txt"""

from torch import nn


class Conv1D(nn.Module):  # as in transformers
    def __repr__(self):
        return "Conv1D(nf=9, nx=3)"


class MLP(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.up = nn.Linear(3, hidden)
        self.act = nn.GELU(approximate="tanh")
        self.drop = nn.Dropout(0.1)

    def extra_repr(self):
        return f"hidden={self.up.out_features}"


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 3)
        self.attn = Conv1D()
        self.layers = nn.ModuleList([MLP(4), MLP(4), MLP(4), nn.Sequential(nn.SiLU(), nn.ReLU()), MLP(5), MLP(5)])
        self.nested = nn.ModuleList([nn.ModuleList([nn.ReLU(), nn.ReLU()]), nn.ModuleList([nn.ReLU(), nn.ReLU()]),
                                     nn.ModuleList()])
        self.named = nn.ModuleDict({"norm": nn.LayerNorm(3), "rms": nn.RMSNorm(3, eps=1e-6), "gelu": nn.GELU()})
        self.same = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
        self.drop = nn.Dropout(0.0)


print(Model())
