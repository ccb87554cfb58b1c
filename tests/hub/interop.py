"""interop.py PROGRAM FOLDER: checks that the program reads what transformers and PyTorch write, and the other way
round.

PROGRAM is program_interop; FOLDER is empty, and gets what is made here. Tiny models of each kind with random weights
are written as safetensors and as files of torch.save, in one file or many, in three dtypes. The program's logits must
be those of transformers. Its export must load in transformers as the same class, and have the same bits there and in
the safetensors library. Each failure prints a line, and the exit status is then 1."""

import json
import os
import subprocess
import sys

import torch
from safetensors.torch import load_file
from transformers import (AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig,
                          GPT2Config, GPT2LMHeadModel,
                          LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Olmo2Config, Olmo2ForCausalLM,
                          Phi3Config, Phi3ForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM,
                          SmolLM3Config, SmolLM3ForCausalLM)

PROGRAM, FOLDER = sys.argv[1], sys.argv[2]
SIZES = dict(vocab_size=99, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64)
LLAMA3 = dict(rope_type="llama3", rope_theta=5000.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)
YARN = dict(rope_type="yarn", rope_theta=5000.0, factor=4.0, original_max_position_embeddings=16)
NO_PAD = dict(pad_token_id=None)
MODELS = {
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=99, n_embd=16, n_layer=2, n_head=4, n_positions=64)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "llama-tied": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)),  # as SmolLM
    "llama-linear": lambda: LlamaForCausalLM(LlamaConfig(
        **SIZES, rope_parameters=dict(rope_type="linear", rope_theta=1000.0, factor=2.0), attention_bias=True)),
    "llama-llama3": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=LLAMA3, mlp_bias=True)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, head_dim=6, sliding_window=None)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=True)),
    "qwen2-untied": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, rope_parameters=LLAMA3)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=6, rope_parameters=YARN)),
    "olmo2": lambda: Olmo2ForCausalLM(Olmo2Config(**SIZES, **NO_PAD)),
    "smollm3": lambda: SmolLM3ForCausalLM(SmolLM3Config(**SIZES, no_rope_layer_interval=2, **NO_PAD)),
    "phi3": lambda: Phi3ForCausalLM(Phi3Config(**{**SIZES, "hidden_size": 32}, **NO_PAD, sliding_window=5, rope_parameters=dict(
        rope_type="default", rope_theta=5000.0, partial_rotary_factor=0.75))),
    "mistral-local": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=3)),
    "qwen2-local": lambda: Qwen2ForCausalLM(Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=3, max_window_layers=1)),
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(
        **SIZES, head_dim=6, sliding_window=3, query_pre_attn_scalar=5, attn_implementation="eager",
        attn_logit_softcapping=2.0, final_logit_softcapping=1.5)),
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(
        **SIZES, head_dim=6, sliding_window=3, sliding_window_pattern=2, query_pre_attn_scalar=5)),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
failures = []


def fail(what, why):
    failures.append(what)
    print(f"{what}: {why}", flush=True)


def save_bin(model, folder, files):
    """Saves a model as transformers did before safetensors: each tensor under its name, and tied ones twice."""
    model.config.save_pretrained(folder)
    state = model.state_dict()
    names = list(state)
    if files == 1:
        torch.save(state, f"{folder}/pytorch_model.bin")
        return
    where = {}
    for part in range(files):
        file = f"pytorch_model-{part + 1:05d}-of-{files:05d}.bin"
        chosen = names[part * len(names) // files:(part + 1) * len(names) // files]
        torch.save({name: state[name] for name in chosen}, f"{folder}/{file}")
        where.update({name: file for name in chosen})
    with open(f"{folder}/pytorch_model.bin.index.json", "w") as index:
        json.dump({"metadata": {}, "weight_map": where}, index)


FORMATS = {
    "safetensors": lambda model, folder: model.save_pretrained(folder),
    "safetensors-sharded": lambda model, folder: model.save_pretrained(folder, max_shard_size="4KB"),
    "bin": lambda model, folder: save_bin(model, folder, 1),
    "bin-sharded": lambda model, folder: save_bin(model, folder, 3),
}


def same_bits(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.contiguous().reshape(-1).view(torch.uint8),
                                                                      b.contiguous().reshape(-1).view(torch.uint8))


def check_export(what, model, folder, dtype):
    """Compares the export with the weights that were written."""
    wanted = {name: value.to(dtype) for name, value in model.state_dict().items()}
    again, info = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[kind]:
            fail(what, f"transformers has {kind}: {info[kind]}")
    if type(again) is not type(model):
        fail(what, f"transformers loads a {type(again).__name__}, not a {type(model).__name__}")
    for name, value in again.state_dict().items():
        if not same_bits(value, wanted[name]):
            fail(what, f"{name} has other bits in transformers")
    files = [file for file in sorted(os.listdir(folder)) if file.endswith(".safetensors")]
    for file in files:
        for name, value in load_file(f"{folder}/{file}").items():
            if not same_bits(value, wanted[name]):
                fail(what, f"{name} has other bits in {file}")
    return len(files)


def check(kind, dtype, format, export, limit):
    what = f"{kind} {dtype} {format} -> {export} in files of {limit}"
    source, target = (f"{FOLDER}/{kind}-{dtype}-{format}{end}" for end in ("", "-export"))
    torch.manual_seed(len(what))
    model = MODELS[kind]()
    with torch.no_grad():  # biases and norms too, so that a dropped one shows
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    model = model.to(DTYPES[dtype]).eval()
    os.makedirs(source)
    FORMATS[format](model, source)
    ran = subprocess.run([PROGRAM, source, target, export, str(limit)], capture_output=True, text=True)
    if ran.returncode != 0:
        return fail(what, ran.stderr.strip())
    tokens = torch.tensor([(7 * i + 3) % 99 for i in range(16)]).reshape(2, 8)
    reference = MODELS[kind]().eval()  # a model that is cast casts its rotary frequencies too
    reference.load_state_dict({name: value.float() for name, value in model.state_dict().items()})
    with torch.no_grad():
        expected = reference(tokens).logits.reshape(-1)
    logits = torch.tensor([float(line) for line in ran.stdout.split()])
    worst = ((logits - expected).abs() / (1e-5 + 1e-4 * expected.abs())).max().item()
    if not worst <= 1:
        fail(what, f"logits differ by {worst:.3g} times the tolerance")
    files = check_export(what, model, target, DTYPES[export])
    if (files > 1) != (limit < 100000):
        fail(what, f"the export has {files} files")


count = 0
for at, kind in enumerate(MODELS):
    for format in FORMATS:
        for dtype in DTYPES:
            export = list(DTYPES)[(at + count) % 3]
            check(kind, dtype, format, export, (4000, 1000000)[count % 2])
            count += 1
print(f"{count} folders, {len(failures)} failures")
sys.exit(1 if failures else 0)
