"""Writes llamas.npy and llamas.txt: logits and gradients of tiny Llamas and their like as transformers computes them.

    python tests/numbers/llamas.py

A parameter's values follow from its place in the order of names and from its elements' numbers alone (fill below), in C
as here. The gradients are those of the mean cross-entropy."""

import math

import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM

import tensors
from tensors import put

SIZES = dict(vocab_size=7, hidden_size=4, intermediate_size=5, num_hidden_layers=1, num_attention_heads=2,
             num_key_value_heads=1, head_dim=6, max_position_embeddings=64, rms_norm_eps=1e-5,
             attn_implementation="eager")
LLAMA3 = dict(rope_type="llama3", rope_theta=100.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)
LINEAR = dict(rope_type="linear", rope_theta=1000.0, factor=2.5)
DEFAULT = dict(rope_type="default", rope_theta=1000.0)


def fill(model):
    """Sets element i of parameter p to 0.6 sin(0.7 i + 1.3 p), and to 1 more in norms."""
    with torch.no_grad():
        for p, (name, parameter) in enumerate(model.named_parameters()):
            numbers = torch.tensor([0.6 * math.sin(0.7 * i + 1.3 * p) for i in range(parameter.numel())])
            parameter.copy_((numbers + (1 if "norm" in name else 0)).reshape(parameter.shape))


def record(name, kind, config):
    model = kind(config).float().eval()
    fill(model)
    tokens = torch.tensor([[(5 * t + b) % 7 for t in range(6)] for b in range(2)])
    targets = torch.tensor([[(3 * t + b + 1) % 7 for t in range(6)] for b in range(2)])
    logits = model(tokens).logits
    torch.nn.functional.cross_entropy(logits.reshape(-1, 7), targets.reshape(-1)).backward()
    put(f"{name}.logits", logits)
    for key, parameter in model.named_parameters():
        put(f"{name}.{key}", parameter.grad)


record("qwen2", Qwen2ForCausalLM, Qwen2Config(**SIZES, rope_parameters=DEFAULT, tie_word_embeddings=True))
record("mistral", MistralForCausalLM, MistralConfig(**SIZES, rope_parameters=DEFAULT, sliding_window=None))
record("linear", LlamaForCausalLM, LlamaConfig(**SIZES, rope_parameters=LINEAR, attention_bias=True, mlp_bias=True))
record("llama3", LlamaForCausalLM, LlamaConfig(**SIZES, rope_parameters=LLAMA3, tie_word_embeddings=True))
tensors.write("llamas")
