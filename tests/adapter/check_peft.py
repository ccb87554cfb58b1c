"""check_peft.py BASE ADAPTER LOGITS OUT: loads an adapter with peft beside its base and compares logits with those in
LOGITS (input_ids, logits); then saves it again to OUT. The exit status is 1 if they differ."""

import sys

import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

base, adapter, logits, out = sys.argv[1:]
expected = load_file(logits)
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter).eval()
names = {name for name, p in model.named_parameters() if "lora_" in name or "modules_to_save" in name}
stored = load_file(f"{adapter}/adapter_model.safetensors")
if len(names) != len(stored):
    sys.exit(f"peft has {len(names)} tensors of the adapter, and the folder {len(stored)}")
with torch.no_grad():
    actual = model(expected["input_ids"].long()).logits
worst = ((actual - expected["logits"]).abs() / (1e-5 + 1e-4 * expected["logits"].abs())).max().item()
if not worst <= 1:
    sys.exit(f"{adapter}: logits differ by {worst:.3g} times the tolerance")
model.save_pretrained(out)
