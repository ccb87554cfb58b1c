"""Writes llamas.npy and llamas.txt: logits and gradients of tiny Llamas and their like as transformers computes them.

    python tests/numbers/llamas.py

A parameter's values follow from its place in the order of names and from its elements' numbers alone (fill below), in C
as here. The gradients are those of the mean cross-entropy. All is computed in float64, also the norms and softmax
that transformers computes in float32, so that a difference is ours."""

import math
from unittest.mock import patch

import torch
from transformers import (Gemma2Config, Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig,
                          LlamaForCausalLM, MistralConfig, MistralForCausalLM, Olmo2Config, Olmo2ForCausalLM, Phi3Config,
                          Phi3ForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM, SmolLM3Config,
                          SmolLM3ForCausalLM)

import tensors
from tensors import put

SIZES = dict(vocab_size=7, hidden_size=4, intermediate_size=5, num_hidden_layers=1, num_attention_heads=2,
             num_key_value_heads=1, head_dim=6, max_position_embeddings=64, rms_norm_eps=1e-5,
             attn_implementation="eager")
LLAMA3 = dict(rope_type="llama3", rope_theta=100.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)
LONG = dict(rope_type="longrope", rope_theta=100.0, short_factor=[1.0, 1.5, 2.25], long_factor=[1.25, 4.0, 9.5])
LINEAR = dict(rope_type="linear", rope_theta=1000.0, factor=2.5)
DEFAULT = dict(rope_type="default", rope_theta=1000.0)
YARN = dict(rope_type="yarn", rope_theta=100.0, factor=4.0, original_max_position_embeddings=32)
TWO = {**SIZES, "num_hidden_layers": 2}
NO_PAD = dict(pad_token_id=None, bos_token_id=None, eos_token_id=None)


def fill(model):
    """Sets element i of parameter p to 0.6 sin(0.7 i + 1.3 p), and to 1 more in norms."""
    with torch.no_grad():
        for p, (name, parameter) in enumerate(model.named_parameters()):
            numbers = torch.tensor([0.6 * math.sin(0.7 * i + 1.3 * p) for i in range(parameter.numel())])
            parameter.copy_((numbers + (1 if "norm" in name else 0)).reshape(parameter.shape))


def stays(cast):
    """Makes a cast leave float64 as it is where it would become float32."""
    def call(tensor, *args, **options):
        becomes = [*args, *options.values()] or [torch.float32]
        if tensor.dtype == torch.float64 and any(wanted is torch.float32 for wanted in becomes):
            return tensor
        return cast(tensor, *args, **options)
    return call


def loss_and_logits(model):
    tokens = torch.tensor([[(5 * t + b) % 7 for t in range(6)] for b in range(2)])
    targets = torch.tensor([[(3 * t + b + 1) % 7 for t in range(6)] for b in range(2)])
    softmax = torch.nn.functional.softmax
    with (patch.object(torch.Tensor, "float", stays(torch.Tensor.float)),
          patch.object(torch.Tensor, "to", stays(torch.Tensor.to)),
          patch.object(torch.nn.functional, "softmax", lambda scores, dim, dtype: softmax(scores, dim=dim))):
        logits = model(tokens).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, 7), targets.reshape(-1)), logits


def record(name, kind, config):
    model = kind(config).float().eval()
    fill(model)
    loss, logits = loss_and_logits(model.double())
    assert logits.dtype == torch.float64
    loss.backward()
    put(f"{name}.logits", logits)
    for key, parameter in model.named_parameters():
        put(f"{name}.{key}", parameter.grad)


record("qwen2", Qwen2ForCausalLM, Qwen2Config(**SIZES, rope_parameters=DEFAULT, tie_word_embeddings=True))
record("mistral", MistralForCausalLM, MistralConfig(**SIZES, rope_parameters=DEFAULT, sliding_window=None))
record("linear", LlamaForCausalLM, LlamaConfig(**SIZES, rope_parameters=LINEAR, attention_bias=True, mlp_bias=True))
record("llama3", LlamaForCausalLM, LlamaConfig(**SIZES, rope_parameters=LLAMA3, tie_word_embeddings=True))
record("yarn", LlamaForCausalLM, LlamaConfig(**SIZES, rope_parameters={**YARN, "beta_fast": 4.0, "beta_slow": 0.5}))
record("exact-yarn", LlamaForCausalLM, LlamaConfig(**SIZES, rope_parameters={**YARN, "mscale": 1.5,
                                                                            "mscale_all_dim": 0.5, "truncate": False}))
record("dynamic", LlamaForCausalLM, LlamaConfig(**{**SIZES, "max_position_embeddings": 4}, rope_parameters=dict(
    rope_type="dynamic", rope_theta=1000.0, factor=3.0)))
record("qwen3", Qwen3ForCausalLM, Qwen3Config(**TWO, rope_parameters=DEFAULT))
record("olmo2", Olmo2ForCausalLM, Olmo2Config(**TWO, rope_parameters=DEFAULT, attention_bias=True, **NO_PAD))
record("smollm3", SmolLM3ForCausalLM, SmolLM3Config(**TWO, rope_parameters={**YARN}, no_rope_layer_interval=2, **NO_PAD))
record("phi3", Phi3ForCausalLM, Phi3Config(**SIZES, rope_parameters=DEFAULT, **NO_PAD))
record("partial-phi3", Phi3ForCausalLM, Phi3Config(**{**SIZES, "head_dim": 8, "hidden_size": 16}, sliding_window=4, rope_parameters={
    **DEFAULT, "partial_rotary_factor": 0.75}, **NO_PAD))
# In a head of 8 that rotates by 6, and in a whole head of 6. Positions follow from the length of the call: 6.
PHI3 = dict(sliding_window=None, **NO_PAD)
record("short-phi3", Phi3ForCausalLM, Phi3Config(**{**SIZES, "head_dim": 8, "hidden_size": 16},
                                                 original_max_position_embeddings=6, rope_parameters={
    **LONG, "partial_rotary_factor": 0.75}, **PHI3))
record("long-phi3", Phi3ForCausalLM, Phi3Config(**{**SIZES, "head_dim": 8, "hidden_size": 16},
                                                original_max_position_embeddings=5, rope_parameters={
    **LONG, "partial_rotary_factor": 0.75}, **PHI3))
record("whole-phi3", Phi3ForCausalLM, Phi3Config(**{**SIZES, "hidden_size": 12}, original_max_position_embeddings=4,
                                                 rope_parameters={**LONG, "attention_factor": 1.375}, **PHI3))
record("long-llama", LlamaForCausalLM, LlamaConfig(**SIZES, rope_parameters={
    **LONG, "factor": 8.0, "original_max_position_embeddings": 4}))
record("local-mistral", MistralForCausalLM, MistralConfig(**SIZES, rope_parameters=DEFAULT, sliding_window=3))
record("local-qwen2", Qwen2ForCausalLM, Qwen2Config(**TWO, rope_parameters=DEFAULT, use_sliding_window=True,
                                                     sliding_window=3, max_window_layers=1))
record("gemma2", Gemma2ForCausalLM, Gemma2Config(
    **TWO, rope_parameters=DEFAULT, sliding_window=3, query_pre_attn_scalar=5, attn_logit_softcapping=8.0,
    final_logit_softcapping=5.0, **NO_PAD))
record("gemma3", Gemma3ForCausalLM, Gemma3TextConfig(
    **TWO, sliding_window=3, sliding_window_pattern=2, query_pre_attn_scalar=5, rope_parameters=dict(
        full_attention=dict(rope_type="linear", rope_theta=1000.0, factor=2.0),
        sliding_attention=dict(rope_type="default", rope_theta=100.0)), **NO_PAD))
tensors.write("llamas")
