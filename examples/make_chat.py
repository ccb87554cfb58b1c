#!/usr/bin/env python3
"""make_chat.py: writes what docs/fine-tune.md and docs/dpo.md train with: conversations, pairs of answers, and a folder
with a tokenizer of bytes.

chat.jsonl has 120 conversations about capitals, held_out.jsonl 30 others with the same answers, pairs.jsonl 60 pairs of
a right and a wrong answer. The folder `words` has tokenizer.json (259 tokens: three special ones and 256 bytes),
tokenizer_config.json and chat_template.jinja."""
import json
import os
import random

CAPITALS = {"Norway": "Oslo", "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo", "Peru": "Lima"}
ASKED = ("What is the capital of {}?", "The capital of {}?", "Capital of {}?")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}
    {%- else %}
        {{- message.content + '<|im_end|>' }}
    {%- endif %}
    {{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def byte_characters():
    """Returns the character that stands for each byte in tokenizers of kind ByteLevel."""
    visible = [byte for byte in range(256) if 32 < byte < 127 or 160 < byte < 256 and byte != 173]
    others = [byte for byte in range(256) if byte not in visible]
    return {**{byte: chr(byte) for byte in visible}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


def tokenizer():
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokens = list(SPECIAL) + [byte_characters()[byte] for byte in range(256)]
    added = [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, token in enumerate(SPECIAL)]
    return {"version": "1.0", "added_tokens": added, "normalizer": None, "pre_tokenizer": level,
            "post_processor": None, "decoder": level,
            "model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": []}}


def conversation(dice):
    country = dice.choice(sorted(CAPITALS))
    messages = [{"role": "user", "content": dice.choice(ASKED).format(country)},
                {"role": "assistant", "content": f"{CAPITALS[country]}."}]
    if dice.random() < 0.3:
        messages += [{"role": "user", "content": "Thanks!"}, {"role": "assistant", "content": "You are welcome."}]
    return {"messages": messages}


def pair(dice):
    country, other = dice.sample(sorted(CAPITALS), 2)
    return {"prompt": [{"role": "user", "content": dice.choice(ASKED).format(country)}],
            "chosen": [{"role": "assistant", "content": f"{CAPITALS[country]}."}],
            "rejected": [{"role": "assistant", "content": f"{CAPITALS[other]}."}]}


def write(name, text):
    with open(name, "w", encoding="utf-8") as file:
        file.write(text)


def main():
    dice = random.Random(1)
    os.makedirs("words", exist_ok=True)
    write("words/tokenizer.json", json.dumps(tokenizer()))
    write("words/tokenizer_config.json", json.dumps({"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}))
    write("words/chat_template.jinja", TEMPLATE)
    for name, count in (("chat.jsonl", 120), ("held_out.jsonl", 30)):
        write(name, "".join(json.dumps(conversation(dice)) + "\n" for _ in range(count)))
    write("pairs.jsonl", "".join(json.dumps(pair(dice)) + "\n" for _ in range(60)))


if __name__ == "__main__":
    main()
