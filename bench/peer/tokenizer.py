"""The other side of bench_tokenizer: Hugging Face's tokenizers on one thread.

    RAYON_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false tokenizer.py TOKENIZER_JSON TEXT [ROUNDS]

Encodes the file's lines in one batch, without offsets, and prints MB/s of processor time and the ids."""

import statistics
import sys
import time

from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file(sys.argv[1])
data = open(sys.argv[2], "rb").read()
lines = data.decode().split("\n")
lines = [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)
seconds = []
for _ in range(rounds):
    began = time.process_time()
    encoded = encode(lines, add_special_tokens=False)
    seconds.append(time.process_time() - began)
speeds = [len(data) / 1e6 / s for s in seconds]
ids = [i for e in encoded for i in e.ids]
print(f"{statistics.median(speeds):.1f} MB/s ({min(speeds):.1f}-{max(speeds):.1f})  {len(ids)} ids, sum {sum(ids)}")
