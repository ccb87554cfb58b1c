"""Writes the files of the other scripts here. X.npy has the values of all tensors in float32, one after the other.
X.txt says who made them, and then has a line with the name and the shape of each tensor, in that order."""

import pathlib

import numpy
import torch

tensors = []


def put(name, tensor):
    tensors.append((name, tensor.detach().float().numpy().copy()))


def write(file):
    """Writes all tensors that were put into `file`.npy and `file`.txt."""
    folder = pathlib.Path(__file__).parent
    numpy.save(folder / f"{file}.npy", numpy.concatenate([values.reshape(-1) for _, values in tensors]))
    lines = [f"{file}.py with PyTorch " + torch.__version__.split("+")[0]]
    lines += [" ".join([name, *map(str, values.shape)]) for name, values in tensors]
    (folder / f"{file}.txt").write_text("\n".join(lines) + "\n")
