"""check_transformers.py FOLDER GOLDEN TOLERANCE: loads a folder with transformers and compares its logits. The exit
status is 1 if they differ."""

import sys

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

folder, golden, tolerance = sys.argv[1], load_file(sys.argv[2]), float(sys.argv[3])
model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
    if info[kind]:
        sys.exit(f"{folder}: {kind}: {info[kind]}")
with torch.no_grad():
    logits = model.eval()(golden["input_ids"].long()).logits
worst = ((logits - golden["logits"]).abs() / (tolerance + tolerance * golden["logits"].abs())).max().item()
if not worst <= 1:
    sys.exit(f"{folder}: logits differ by {worst:.3g} times the tolerance")
model.generate(golden["input_ids"][:1, :4].long(), max_new_tokens=2, do_sample=False)
