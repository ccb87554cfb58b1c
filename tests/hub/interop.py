"""interop.py PROGRAM FOLDER: checks that the program reads what transformers and PyTorch write, and the other way
round.

PROGRAM is program_interop; FOLDER is empty, and gets what is made here. Tiny models of each kind with random weights
are written as safetensors and as files of torch.save, in one file or many, in three dtypes. The program's logits must
be those of transformers. Its export must load in transformers as the same class, and have the same bits there and in
the safetensors library. Then each kind is trained by two steps of SGD, here and by PyTorch: the weights and logits must
be the same, also when transformers loads the export, whose config.json has everything that was in it before. A table
shows how far apart they were. Each failure prints a line, and the exit status is then 1."""

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
# Calls have eight tokens: more than six.
LONG = dict(rope_type="longrope", rope_theta=5000.0, short_factor=[1.0, 1.25], long_factor=[2.0, 8.125])
TWO_ROPES = dict(full_attention={**YARN, "rope_theta": 9000.0},
                 sliding_attention=dict(rope_type="default", rope_theta=500.0))
MODELS = {
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=99, n_embd=16, n_layer=2, n_head=4, n_positions=64,
                                             attn_pdrop=0, embd_pdrop=0, resid_pdrop=0)),
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
    "phi3-long": lambda: Phi3ForCausalLM(Phi3Config(
        **SIZES, **NO_PAD, original_max_position_embeddings=6, rope_parameters=LONG)),
    "phi3-short": lambda: Phi3ForCausalLM(Phi3Config(**{**SIZES, "hidden_size": 32}, **NO_PAD,
        original_max_position_embeddings=8, rope_parameters={**LONG, "short_factor": [1.0, 1.5, 2.0],
                                                             "long_factor": [4.0, 5.0, 6.0],
                                                             "partial_rotary_factor": 0.75})),  # as Phi-4-mini
    "llama-longrope": lambda: LlamaForCausalLM(LlamaConfig(
        **SIZES, rope_parameters={**LONG, "factor": 4.0, "original_max_position_embeddings": 6})),
    "llama-dynamic": lambda: LlamaForCausalLM(LlamaConfig(
        **{**SIZES, "max_position_embeddings": 5}, rope_parameters=dict(rope_type="dynamic", rope_theta=1000.0, factor=2.0))),
    "llama-yarn": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters={
        **YARN, "mscale": 1.5, "mscale_all_dim": 0.5, "truncate": False, "beta_fast": 16.0, "beta_slow": 2.0})),
    "llama-yarn-factor": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters={
        **YARN, "attention_factor": 1.375})),
    "mistral-local": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=3)),
    "qwen2-local": lambda: Qwen2ForCausalLM(Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=3, max_window_layers=1)),
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(
        **SIZES, head_dim=6, sliding_window=3, query_pre_attn_scalar=5, attn_implementation="eager",
        attn_logit_softcapping=2.0, final_logit_softcapping=1.5)),
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(
        **SIZES, head_dim=6, sliding_window=3, sliding_window_pattern=2, query_pre_attn_scalar=5)),
    "gemma3-yarn": lambda: Gemma3ForCausalLM(Gemma3TextConfig(
        **SIZES, head_dim=6, sliding_window=3, sliding_window_pattern=2, query_pre_attn_scalar=5,
        rope_parameters=TWO_ROPES)),
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


TOKENS = torch.tensor([(7 * i + 3) % 99 for i in range(16)]).reshape(2, 8)
TARGETS = torch.tensor([(5 * i + 1) % 99 for i in range(16)])
OTHERS = {"our_key": {"list": [1, None, "\u00e4"], "number": 1e300}, "our_null": None}  # what nobody here reads


def make(kind):
    """Makes a model, biases and norms random too, so that a dropped one shows."""
    model = MODELS[kind]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    return model


def train(model):
    for _ in range(2):
        loss = torch.nn.functional.cross_entropy(model(TOKENS).logits.reshape(16, 99), TARGETS)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.05 * parameter.grad
    return loss.item()


def run(source, target, steps):
    ran = subprocess.run([PROGRAM, source, target, "float32", "1000000", str(steps)], capture_output=True, text=True)
    if ran.returncode != 0:
        raise RuntimeError(ran.stderr.strip())
    return torch.tensor([float(line) for line in ran.stdout.split()])


def logits_of(model):
    with torch.no_grad():
        return model(TOKENS).logits.reshape(-1)


def apart(a, b):
    return (a - b).abs().max().item()


def check_config(what, source, target):
    """Compares config.json before and after: only the dtype may be other."""
    before, after = (json.load(open(f"{folder}/config.json")) for folder in (source, target))
    for key in before:
        if key not in ("dtype", "torch_dtype") and (key not in after or after[key] != before[key]):
            fail(what, f"config.json had {key} {before[key]!r}, and now {after.get(key)!r}")


def check_trained(kind):
    what = f"{kind} trained"
    source, target = f"{FOLDER}/{kind}-trained", f"{FOLDER}/{kind}-trained-export"
    torch.manual_seed(len(kind))
    model = make(kind)
    model.save_pretrained(source)
    config = json.load(open(f"{source}/config.json"))
    json.dump({**config, **OTHERS}, open(f"{source}/config.json", "w"), indent=2)
    try:
        before, after = run(source, f"{target}-0", 0), run(source, target, 2)
    except RuntimeError as error:
        return fail(what, error)
    expected = logits_of(model)
    train(model)
    again, info = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32, output_loading_info=True,
                                                       attn_implementation="eager")
    for keys in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[keys]:
            fail(what, f"transformers has {keys}: {info[keys]}")
    check_config(what, source, target)
    trained = dict(model.named_parameters())
    worst = [apart(before, expected), apart(after, logits_of(again)), apart(after, logits_of(model)),
             max(apart(value, trained[name]) for name, value in again.named_parameters())]
    moved = apart(expected, logits_of(model))
    print(f"| {kind} | " + " | ".join(f"{value:.1e}" for value in (*worst, moved)) + " |", flush=True)
    if not max(worst) <= (5e-5 if kind == "olmo2" else 1e-5):  # whose last norms make differences of weights larger
        fail(what, f"differs by {max(worst):.3g}")


def check(kind, dtype, format, export, limit):
    what = f"{kind} {dtype} {format} -> {export} in files of {limit}"
    source, target = (f"{FOLDER}/{kind}-{dtype}-{format}{end}" for end in ("", "-export"))
    torch.manual_seed(len(what))
    model = make(kind).to(DTYPES[dtype])
    os.makedirs(source)
    FORMATS[format](model, source)
    ran = subprocess.run([PROGRAM, source, target, export, str(limit), "0"], capture_output=True, text=True)
    if ran.returncode != 0:
        return fail(what, ran.stderr.strip())
    reference = MODELS[kind]().eval()  # a model that is cast casts its rotary frequencies too
    reference.load_state_dict({name: value.float() for name, value in model.state_dict().items()})
    with torch.no_grad():
        expected = reference(TOKENS).logits.reshape(-1)
    logits = torch.tensor([float(line) for line in ran.stdout.split()])
    worst = ((logits - expected).abs() / (1e-5 + 1e-4 * expected.abs())).max().item()
    if not worst <= 1:
        fail(what, f"logits differ by {worst:.3g} times the tolerance")
    files = check_export(what, model, target, DTYPES[export])
    if (files > 1) != (limit < 100000):
        fail(what, f"the export has {files} files")


print("| model | logits | of the export | after two steps | weights | the steps' change |")
for kind in MODELS:
    check_trained(kind)
count = 0
for at, kind in enumerate(MODELS):
    for format in FORMATS:
        for dtype in DTYPES:
            export = list(DTYPES)[(at + count) % 3]
            check(kind, dtype, format, export, (4000, 1000000)[count % 2])
            count += 1
print(f"{count} folders, {len(failures)} failures")
sys.exit(1 if failures else 0)
