"""check_gguf.py FILE FOLDER: reads a GGUF file with the package gguf and compares its tensors with those of the folder's
model.safetensors (float32), brought into llama.cpp's order and type by that package. The exit status is 1 if a bit
differs."""
import json
import os
import struct
import sys

import gguf
import numpy as np


def safetensors(path):
    with open(path, "rb") as f:
        data = f.read()
    (size,) = struct.unpack("<Q", data[:8])
    for name, t in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + x for x in t["data_offsets"])
            yield name, np.frombuffer(data[begin:end], np.float32).reshape(t["shape"])


def permute(x, heads):
    return x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def main(path, folder):
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    reader = gguf.GGUFReader(path)
    arch = reader.get_field("general.architecture").contents()
    names = gguf.get_tensor_name_map({v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[arch], 100)
    tensors = {t.name: t for t in reader.tensors}
    wrong = 0
    for name, x in safetensors(os.path.join(folder, "model.safetensors")):
        mapped = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if arch in ("llama", "smollm3") and ".q_proj." in name:
            x = permute(x, config["num_attention_heads"])
        if arch in ("llama", "smollm3") and ".k_proj." in name:
            x = permute(x, config["num_key_value_heads"])
        if arch == "gpt2" and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
            x = x.T
        if arch in ("gemma2", "gemma3") and name.endswith("norm.weight"):
            x = x + np.float32(1)
        t = tensors.pop(mapped)
        kind = gguf.GGMLQuantizationType(t.tensor_type)
        coded = gguf.quants.quantize(np.ascontiguousarray(x), kind)
        if not np.array_equal(np.asarray(t.data).view(np.uint8).ravel(), coded.view(np.uint8).ravel()):
            print(f"{mapped}: {kind.name} differs")
            wrong = 1
    tensors.pop("rope_freqs.weight", None)
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    for kind in ("long", "short") if scaling.get("rope_type") == "longrope" else ():
        factors = np.float32(scaling[f"{kind}_factor"])
        if not np.array_equal(tensors.pop(f"rope_factors_{kind}.weight").data, factors):
            print(f"factors of {kind} texts differ")
            wrong = 1
    for name in tensors:
        print(f"{name}: nothing like it in the folder")
        wrong = 1
    return wrong


sys.exit(main(*sys.argv[1:]))
