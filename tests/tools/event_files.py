"""event_files.py FOLDER METRICS.JSONL: reads what runs have written to FOLDER as TensorBoard does, and compares it with
their metrics.jsonl. What lies behind the step from which a run resumes is lost, and not shown."""

import json
import math
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

folder, metrics = sys.argv[1:]
steps, validations, headers = {}, {}, []
with open(metrics) as file:
    for line in map(json.loads, file):
        if "step" in line:
            steps[line["step"]] = line
        elif "validation" in line:
            validations[line["validation"]] = line
        else:
            headers.append(line)
            lost = len(steps) and [done for done in (steps, validations) for step in list(done)
                                   if step > line["resumed_from"] and done.pop(step)]

events = EventAccumulator(folder, size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
events.Reload()
tags = events.Tags()
assert len(headers) == 2 and lost, headers

for tag, key in {"train/loss": "loss", "train/grad_norm": "grad_norm", "train/tokens": "tokens", "speed/mfu": "mfu",
                 "communication/bytes_sent": "bytes_sent", "memory/memory_peak_bytes": "memory_peak_bytes"}.items():
    found = events.Scalars(tag)
    assert [e.step for e in found] == sorted(steps), (tag, [e.step for e in found])  # each step once
    for e in found:
        assert math.isclose(e.value, steps[e.step][key], rel_tol=1e-6), (tag, e, steps[e.step][key])
for e in events.Scalars("validation/loss"):
    assert math.isclose(e.value, validations[e.step]["loss"], rel_tol=1e-6), e
assert {e.step for e in events.Scalars("validation/loss")} == set(validations)

of_gradients = [tag for tag in tags["histograms"] if tag.startswith("gradient/")]
assert len(of_gradients) > 1 and "gradient/root" in of_gradients, tags["histograms"]
every = None
for what in "gradient", "weight":
    elements = {}
    for tag in (tag for tag in tags["histograms"] if tag.startswith(what + "/")):
        for e in events.Histograms(tag):
            h = e.histogram_value
            assert sum(h.bucket) == h.num and sorted(h.bucket_limit) == list(h.bucket_limit), tag
            elements[e.step] = elements.get(e.step, 0) + h.num
        assert events.CompressedHistograms(tag), tag  # what the page of distributions shows
    assert elements and set(elements.values()) == {headers[0]["parameters"]}, (what, elements)
    assert every is None or every == set(elements)
    every = set(elements)
for step in every:
    squares = sum(e.value**2 for tag in tags["scalars"] if tag.startswith("gradient norm/")
                  for e in events.Scalars(tag) if e.step == step)
    assert math.isclose(math.sqrt(squares), steps[step]["grad_norm"], rel_tol=1e-4), step

config = events.Tensors("config")[0].tensor_proto.string_val[0].decode()
assert "preset: llama-1m" in config, config
print(f"{len(tags['scalars'])} numbers of {len(steps)} steps, {len(tags['histograms'])} histograms, {len(headers)} runs")
