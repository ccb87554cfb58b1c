#!/usr/bin/env python3
"""docs.py SOURCE BUILD [--write [--measure]]: runs the commands of README.md, CONTRIBUTING.md and docs/.

A command is a line of an indented block, a line after "$ " in a fenced block, or a span of code in the text, if it
begins with a program (one of PROGRAMS, or a path in one of FOLDERS). Each command is run, as written or as INSTEAD
says, in a folder that has the files which the pages name. Commands that are not run are in LISTED, with the reason. A
command that fails is an error, and so is an entry of INSTEAD or LISTED that no page has any more. Every --section.key
on a page must be a key.

A block that begins with ```output and "$ COMMAND" holds all that the command prints, and the pictures in DRAWN are what
commands print. Another output is an error; with --write it replaces what the page has. A block that begins with
```measured has times, so it is not compared; --measure runs its command, which is in LISTED, and writes the block and
the picture of its --svg."""
import difflib
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile

PROGRAMS = {"make", "cmake", "ctest", "cc", "git", "fsdp", "python3", "mpicc", "mpirun", "apt", "apt-get", "sudo", "pip",
            "ulimit", "yes", "export", "env", "ldconfig", "pkg-config", "mpiexec.mpich"}
FOLDERS = ("build/", "bench/", "tools/", ".ci/", "./", "tests/")

LISTED = {
    "make": "builds what this test runs",
    "make test": "is what runs this test",
    "make check": "minutes; CI runs it",
    "make asan": "minutes; CI runs it",
    "make tsan": "minutes; CI runs it",
    "make test-long": "hours",
    "make test-interop": "needs PyTorch",
    "build/fsdp tokenize text/*.jsonl.zst -o tokens.bin --tokenizer path/to/folder": "needs a tokenizer",
    "build/fsdp tokenize text.txt -o text.bin --tokenizer tokenizer.model": "needs a tokenizer",
    "build/fsdp train --model.path=SmolLM2 --data.path=chat.jsonl --training.epochs=2 -n 2": "needs a model's weights",
    "fsdp tokenize chat.jsonl --tokenizer FOLDER -o rows.bin": "needs a tokenizer",
    "fsdp eval MODEL --data PAIRS --reference OTHER": "stands for any names",
    "tools/story.sh": "needs PyTorch",
    "make format": "changes the sources",
    "tests/tools/docs.py . build --write": "is this test",
    "tools/gpu_pack.sh": "needs nvcc",
    "build/fsdp train config.yaml --training.device=cuda -n 4": "needs a GPU",
    "build/fsdp train config.yaml --training.device=cuda --metrics.trace.path=trace.json.gz --metrics.trace.steps=3-5":
        "needs a GPU",
    "build/fsdp train config.yaml --training.device=cuda --training.mixed_precision_param=bfloat16 "
    "--kernels.attention=fast": "needs a GPU",
    "tools/gpu_check.sh [STAGE ..]": "needs a GPU",
    "tools/gpu_check.sh many": "needs GPUs",
    "tools/gpu_check.sh profile bench": "needs a GPU",
    "tools/fuzz.sh build-fuzz 60": "minutes; make test-long runs it, for hours",
    ".ci/run": "is what runs this test",
    "ctest --test-dir build -R test_shard_parity": "is a test itself",
    "build/tests/test_shard parity": "is a test itself",
    "build/tests/test_shard parity '*one_batch'": "is a test itself",
    "FSDP_TEST_RANKS=processes FSDP_TEST_DEVICE=cuda FSDP_TEST_CARRIER=peer build/tests/test_shard zero '*replicas'":
        "is a test itself",
    "make && cmake --build build --target benchmarks": "builds what is only measured with",
    "cmake --build build --target benchmarks": "builds what is only measured with",
    "cmake --build build --target examples": "builds what this test has",
    "build/fsdp compare llama-1m -n 2 --strategies ddp,zero1,zero2,zero3,fsdp1,fsdp2 --svg strategies.svg":
        "measures for a minute",
    "bench/compare.py --teams": "measures for minutes",
    "bench/compare.py --against OTHER_BUILD": "measures for minutes, with a build of another commit",
    "git worktree add ../before HEAD~1": "needs the repository's history",
    "make -C ../before": "needs the repository's history",
    'bench/compare.py --peer "PROGRAM"': "measures for minutes, beside a program of the reader's",
    'bench/compare.py --peer "python3 /path/to/torch_bench.py" --write docs/performance.md':
        "measures for minutes, beside PyTorch",
    'bench/compare.py --peer "python3 /path/to/torch_bench.py" --repeats 2 --rows ROWS':
        "measures for minutes, beside PyTorch",
    "bench/grow.py": "measures for minutes",
    "bench/plan.py": "measures for minutes",
    'bench/plan.py --repeats 2 --steps 3 --prefix "chrt -f 1"': "measures for minutes",
    "build/fsdp plan --measure prices.json": "measures for a minute",
    'cmake --build build --target fsdp test_device && bench/plan.py --configs --repeats 2 --steps 3 --prefix "chrt -f 1"':
        "measures for minutes",
    "mpirun --hostfile hosts -n 2 --map-by node fsdp plan --measure prices.json": "needs two machines",
    "build/fsdp plan llama-100m -n 1000000 --machines 125000 --no-time": "takes half a minute",
    'bench/cluster.sh --peer "python3 /path/to/torch_bench.py" --model gpt-10m --steps 4 --warmup 1 '
    '--step-options "--parts --keep-last"':
        "measures for minutes, beside PyTorch, and needs namespaces",
    'bench/cluster.sh --ranks 1 --rates 1gbit --run "build/bench/bench_collectives joined 256"': "needs namespaces",
    'bench/cluster.sh --ranks 1 --rates 200mbit --run "build/fsdp train CONFIG [--parallelism.schedule=FILE]"':
        "needs namespaces",
    'bench/cluster.sh --ranks 1 --rates 1gbit --run "./mpi_collectives 256"': "needs namespaces, and Open MPI's compiler",
    "build/bench/bench_products -s 60 llama-1b:8x2048 gpt2-124m:32x1024 >log": "needs a GPU",
    "build/bench/bench_kernels": "measures for minutes",
    "build/bench/bench_kernels -t 1 -i v3 unary binary topk": "measures for minutes",
    "build/bench/bench_kernels -t 1 -i v4 unary binary topk": "measures for minutes",
    "build/bench/bench_kernels [-t THREADS] [NAME]": "measures for minutes",
    "build/bench/bench_collectives 2 4": "measures for minutes",
    "build/bench/bench_trace trace.json": "measures",
    "build/bench/bench_collectives [RANKS]": "measures for minutes",
    "OMP_NUM_THREADS=1 build/bench/bench_generate --model llama-100m --prompt 128 [--dtype bfloat16] [--no-cache]":
        "measures for minutes",
    "cmake --build build --target bench_tokenizer && build/bench/bench_tokenizer path/to/folder text.txt":
        "measures, and needs a tokenizer",
    "RAYON_NUM_THREADS=1 python3 bench/peer/tokenizer.py path/to/folder/tokenizer.json text.txt":
        "needs Hugging Face's tokenizers",
    "build/bench/bench_load --write FOLDER": "writes a model of 1 GB",
    "build/fsdp run -n 2 -- build/bench/bench_load FOLDER": "measures, with a model of 1 GB",
    "build/fsdp run -n 2 -- build/bench/bench_load --load leader FOLDER": "measures, with a model of 1 GB",
    "build/bench/bench_checkpoint /dev/shm 512": "measures for a minute",
    "build/bench/bench_checkpoint FOLDER [MB [RANKS]]": "measures for a minute",
    "fsdp run -n N -- bench_step --model gpt-10m --batch 8/N --steps 6 --warmup 2": "measures, for a list of N",
    "mpirun --hostfile hosts -n 2 --map-by node hostname": "needs two machines",
    "mpirun --hostfile hosts -n 16 -x FSDP_CUDA_LIBRARIES fsdp train config.yaml --training.device=cuda": "needs GPUs",
    "build/fsdp run -n 8 -- build/bench/bench_gpus peer exact": "needs GPUs",
    "mpicc -O2 bench/peer/mpi_collectives.c -o mpi_collectives && mpirun --oversubscribe -n 2 ./mpi_collectives":
        "needs OpenMPI, which nothing else needs",
    "python3 bench/peer/gloo_collectives.py 2": "needs PyTorch",
    "mpirun -n 16 fsdp train config.yaml": "needs an MPI",
    "mpirun --hostfile hosts -n 16 fsdp train config.yaml --training.device=cuda": "needs machines with GPUs",
    "build/fsdp train config.yaml --training.device=cuda -n 8 --comm.carrier=nccl --comm.nccl_buffers=copy_engines":
        "needs GPUs and NCCL",
    "mpirun --hostfile hosts -n 8 fsdp train config.yaml --checkpoint.folder=checkpoints":
        "needs an MPI, and machines",
    "mpirun --hostfile examples/cluster/hosts -n 8 fsdp train config.yaml": "needs an MPI, and machines",
    "mpiexec.mpich -f hosts -n 8 fsdp train config.yaml": "needs an MPI, and machines",
    "RANK=0 WORLD_SIZE=2 fsdp train config.yaml &": "waits for rank 1",
    "fsdp flight metrics.jsonl.flight --calls 2": "needs a run that hangs",
}

# What is run in place of a command: shorter, or without touching the machine.
INSTEAD = {
    "build/fsdp explain llama-8b -n 64 --machines 8 --batch 1 --seq-len 2048 --device cuda:H100":
        "build/fsdp explain llama-1m -n 64 --machines 8 --batch 1 --seq-len 32 --device cuda:H100",
    "build/fsdp train -n 2 --model.path=tuned --data.path=pairs.jsonl --training.objective=dpo --training.seq_len=128 "
    "--training.local_batch_size=4 --training.epochs=4 --optimizer.lr=1e-4 --validation.share=0.2 "
    "--validation.freq=12 --export.path=preferring":
    "build/fsdp train -n 2 --model.path=tuned --data.path=pairs.jsonl --training.objective=dpo --training.seq_len=128 "
    "--training.local_batch_size=4 --training.epochs=1 --optimizer.lr=1e-4 --validation.share=0.1 "
    "--validation.freq=12 --export.path=preferring",
    "build/fsdp eval preferring --data pairs.jsonl --reference tuned -n 2":
        "head -n 8 pairs.jsonl > few.jsonl && build/fsdp eval preferring --data few.jsonl --reference tuned -n 2",
    "build/fsdp plan config.yaml -n 2 --fit 2GiB": "build/fsdp plan config.yaml -n 2 --device cuda:H100 --fit 2GiB",
    "build/fsdp train config.yaml -n 4 --sweep optimizer.lr=1e-4,3e-4,1e-3 --sweep optimizer.weight_decay=0,0.1":
        "build/fsdp train config.yaml -n 4 --sweep optimizer.lr=1e-4,3e-4 --sweep optimizer.weight_decay=0.1",
    "apt-get install libopenmpi-dev": "dpkg-query --show libopenmpi-dev",
    "make demo": "tools/demo.sh --training.steps=3",
    "make install": "cmake --install build --prefix installed",
    "build/fsdp eval my_model --data demo/data.txt -n 2":
        "head -n 400 demo/data.txt > less.txt && build/fsdp eval my_model --data less.txt -n 2",
    "build/fsdp report a.jsonl b.jsonl":
        "cp metrics.jsonl a.jsonl && cp metrics.jsonl b.jsonl && build/fsdp report a.jsonl b.jsonl",
    "fsdp explain llama-8b -n 512 --machines 64 --batch 1 --seq-len 2048":
        "fsdp explain llama-1m -n 512 --machines 64 --batch 1 --seq-len 32",
    "fsdp train -n 2 --model.preset=llama-1m --data.path=text.txt --training.steps=300 --training.seq_len=32 "
    "--training.local_batch_size=1 --checkpoint.folder=once --checkpoint.interval=1000000":
        "fsdp train -n 2 --model.preset=llama-1m --data.path=text.txt --training.steps=3 --training.seq_len=32 "
        "--training.local_batch_size=1 --checkpoint.folder=once --checkpoint.interval=1000000",
    "build/fsdp train -n 2 --model.preset=llama-1m --model.vocab_size=259 --data.path=demo/data.txt "
    "--data.tokenizer=words --training.seq_len=128 --training.steps=400 --optimizer.lr=3e-3 "
    "--export.path=base":
    "build/fsdp train -n 2 --model.preset=llama-1m --model.vocab_size=259 --data.path=demo/data.txt "
    "--data.tokenizer=words --training.seq_len=128 --training.steps=2 --optimizer.lr=3e-3 "
    "--export.path=base",
    "build/fsdp train -n 2 --model.path=base --data.path=chat.jsonl --data.order=shuffled --training.seq_len=128 "
    "--training.local_batch_size=4 --training.epochs=16 --optimizer.lr=6e-3 --lr_scheduler.decay_type=cosine "
    "--validation.path=held_out.jsonl --validation.freq=40 --metrics.jsonl=tuned.jsonl --export.path=tuned":
    "build/fsdp train -n 2 --model.path=base --data.path=chat.jsonl --data.order=shuffled --training.seq_len=128 "
    "--training.local_batch_size=4 --training.epochs=1 --optimizer.lr=6e-3 --lr_scheduler.decay_type=cosine "
    "--validation.path=held_out.jsonl --validation.freq=40 --metrics.jsonl=tuned.jsonl --export.path=tuned",
    "build/fsdp train -n 2 --model.path=base --data.path=chat.jsonl --data.order=shuffled --training.seq_len=128 "
    "--training.local_batch_size=4 --training.epochs=48 --optimizer.lr=6e-3 --lr_scheduler.decay_type=cosine "
    "--validation.path=held_out.jsonl --validation.freq=40 --metrics.jsonl=lora.jsonl --export.path=lora "
    "--adapter.rank=32 --adapter.alpha=64":
    "build/fsdp train -n 2 --model.path=base --data.path=chat.jsonl --data.order=shuffled --training.seq_len=128 "
    "--training.local_batch_size=4 --training.epochs=1 --optimizer.lr=6e-3 --lr_scheduler.decay_type=cosine "
    "--validation.path=held_out.jsonl --validation.freq=40 --metrics.jsonl=lora.jsonl --export.path=lora "
    "--adapter.rank=32 --adapter.alpha=64",
}

# Pictures that do not depend on time.
DRAWN = {
    "docs/explain.svg": "build/fsdp explain llama-1m -n 4 --batch 1 --seq-len 32 --svg explain.svg >explain.txt && cat explain.svg",
    "docs/parallel.svg":
        "build/fsdp explain llama-1m -n 4 --parallelism.tensor_parallel_degree=2 --svg parallel.svg >explain.txt && "
        "cat parallel.svg",
}


def spans(text):
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)]


def begins_with_a_program(text):
    words = [word for word in text.split() if not re.fullmatch(r"[A-Z_]+=\S*", word)]
    first = words[0] if words else ""
    return first in PROGRAMS or first.startswith(FOLDERS)


def is_command(span):
    """Returns whether a span is more than a file's name."""
    return begins_with_a_program(span) and (
        " " in span or span in LISTED or span in INSTEAD or span == "make" or span.startswith(("build/tests/", ".ci/")))


def commands_of(page):
    found, prose, fenced, continued = [], [], False, False
    for line in open(page, encoding="utf-8"):
        if not (fenced or line.startswith(("```", "    "))):
            prose.append(line)
            continue
        found += [span for span in spans("".join(prose)) if is_command(span)]
        prose = []
        if line.startswith("```"):
            fenced = not fenced
        elif continued:
            found[-1] = found[-1][:-1] + line.strip()
        elif fenced and line.startswith("$ "):
            found.append(line[2:].strip())
        elif not fenced and begins_with_a_program(line):
            found.append(line.strip())
        continued = bool(found) and found[-1].endswith("\\")
    return found + [span for span in spans("".join(prose)) if is_command(span)]


def one_line(command):
    return re.sub(r"\\\n\s*", "", command)


def blocks_of(page, kind):
    """Returns [(command, what the page says it prints)]."""
    text = open(page, encoding="utf-8").read()
    return re.findall(rf"^```{kind}\n\$ (.*?[^\\])\n(.*?)^```$", text, re.M | re.S)


def compare(page, outputs, write):
    """Returns the outputs on a page that are no longer true; with `write` it corrects them."""
    text = open(page, encoding="utf-8").read()
    failed = []
    if len(re.findall(r"^```output", text, re.M)) != len(blocks_of(page, "output")):
        failed.append(f"{os.path.basename(page)}: a block of output does not begin with its command")
    for command, said in blocks_of(page, "output") + blocks_of(page, "measured"):
        printed = outputs.get(one_line(command))
        if printed is None or printed == said:
            continue
        text = text.replace(f"\n$ {command}\n{said}```", f"\n$ {command}\n{printed}```")
        difference = "".join(difflib.unified_diff(said.splitlines(True), printed.splitlines(True), "page", "run"))
        failed.append(f"{os.path.basename(page)}: '{command}' prints something else:\n{difference}")
    if failed and write:
        open(page, "w", encoding="utf-8").write(text)
    return [] if write else failed


def draw(source, build, folder, write):
    """Returns the pictures that are out of date; with `write` it draws them again."""
    failed = []
    for name, command in DRAWN.items():
        path, drawn = os.path.join(source, name), run(command, build, folder)
        if drawn is None or drawn == (open(path, encoding="utf-8").read() if os.path.exists(path) else ""):
            continue
        failed.append(f"{name} is not what this draws: {command}")
        if write:
            open(path, "w", encoding="utf-8").write(drawn)
    return [] if write else failed


def make_sandbox(source, build, folder):
    for name in ("tools", "demo", "examples", "bench", "include"):
        shutil.copytree(os.path.join(source, name), os.path.join(folder, name),
                        ignore=shutil.ignore_patterns("model", "metrics.jsonl", "data.txt"))
    os.symlink(build, os.path.join(folder, "build"))
    readme = open(os.path.join(source, "README.md"), encoding="utf-8").read()
    files = {
        "config.yaml": re.search(r"```yaml\n(.*?)```", readme, re.S).group(1),
        "my_program.c": re.search(r"```c\n(.*?)```", readme, re.S).group(1),
        "text.txt": "The quick brown fox jumps over the lazy dog. " * 100,
        "demo/data.txt": "The five boxing wizards jump quickly. " * 2000,
    }
    for name, text in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    with open(os.path.join(folder, "tokens.bin"), "wb") as file:
        file.write(struct.pack("<20000H", *(i % 97 for i in range(20000))))
    os.makedirs(os.path.join(folder, "path/to"))
    os.symlink(os.path.join(source, "tests/reference/models/tiny-llama"), os.path.join(folder, "path/to/folder"))


def environment(build, folder):
    library = os.path.join(folder, "installed/lib")
    for root, _, names in os.walk(os.path.join(folder, "installed")):
        library = root if "libfsdp.so" in names else library
    return dict(os.environ, PATH=build + ":" + os.environ["PATH"], LD_LIBRARY_PATH=library,
                PKG_CONFIG_PATH=os.path.join(library, "pkgconfig"), OMP_NUM_THREADS="1", FSDP="build/fsdp")


def run(command, build, folder):
    """Returns what the command prints, or None if it fails."""
    command = INSTEAD.get(command, command)
    if re.fullmatch(r"fsdp [a-z]+", command):  # a command by its name
        command += " --help"
    if re.match(r"(build/)?fsdp train .*(yaml|--model)", command) and "--training.steps" not in command:
        command = re.sub("(warmup_tokens)=[0-9]+", r"\1=1", command)  # a run has room for its warm-up
        command = re.sub(" --training.epochs=[0-9]+", "", command)
        command += " --training.steps=1 --training.global_batch_size=-1"
    command = command.replace("--training.steps=20 ", "--training.steps=2 ")
    if re.match(r"(build/)?fsdp train .*(yaml|--model)", command) and "--training.seq_len" not in command:
        command += " --training.seq_len=32"
    if re.match(r"(build/)?fsdp compare .*--steps=1 --rounds=1$", command):
        command += " --training.seq_len=32"
    if re.match(r"(build/)?fsdp compare .* -n", command) and "--steps" not in command and command not in LISTED:
        command += " --steps=1 --rounds=1 --training.seq_len=32"
        if "--strategies" not in command:
            command += " --strategies=ddp,fsdp2"
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment(build, folder),
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace")
    if done.returncode != 0:
        print(f"FAILED: {command}: status {done.returncode}:\n{done.stdout}")
    return done.stdout if done.returncode == 0 else None


def target_exists(command, source):
    """Returns whether the target of a listed make, or the program of a listed path, exists."""
    words = shlex.split(command)
    if words[0] == "make" and len(words) == 2:
        return re.search(rf"^{re.escape(words[1])}\b[^=\n]*:", open(os.path.join(source, "Makefile")).read(), re.M)
    return not words[0].startswith(("bench/", "tools/", ".ci/")) or os.path.exists(os.path.join(source, words[0]))


def unknown_keys(pages, build, folder):
    keys = set()
    for page in pages:
        keys |= set(re.findall(r"--([a-z_]+(?:\.[a-z_0-9]+)+)\b", open(page, encoding="utf-8").read()))
    unknown = []
    for key in sorted(keys - {"section.key"}):
        done = subprocess.run([os.path.join(build, "fsdp"), "train", "--print-config", "config.yaml", f"--{key}=?"],
                              cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if f"{key} is not a key" in done.stderr or "section" in done.stderr:
            unknown.append(key)
    return unknown


def main(source, build, write, measure):
    pages = [os.path.join(source, name) for name in ("README.md", "CONTRIBUTING.md")]
    names = sorted(name for name in os.listdir(os.path.join(source, "docs")) if name.endswith(".md"))
    names.insert(0, names.pop(names.index("fine-tune.md")))  # its commands make what other pages use
    pages += [os.path.join(source, "docs", name) for name in names]
    commands, measured = [], []
    for page in pages:
        commands += [command for command in commands_of(page) if command not in commands]
        measured += [one_line(command) for command, _ in blocks_of(page, "measured")]
    failed = [f"no page has '{entry}' any more" for entry in list(LISTED) + list(INSTEAD) if entry not in commands]
    outputs = {}
    with tempfile.TemporaryDirectory(prefix="fsdp-docs-") as folder:
        make_sandbox(source, build, folder)
        for command in commands:
            if command in LISTED and not (measure and command in measured):
                if not target_exists(command, source):
                    failed.append(f"'{command}' does not exist")
                continue
            outputs[command] = run(command, build, folder)
            if outputs[command] is None:
                failed.append(f"'{command}' failed")
            for picture in re.findall(r"--svg (\S+)", command) if command in LISTED else []:
                shutil.copy(os.path.join(folder, picture), os.path.join(source, "docs"))
        for page in pages:
            failed += compare(page, outputs, write)
        failed += draw(source, build, folder, write)
        failed += [f"--{key} is no key" for key in unknown_keys(pages, build, folder)]
    print("\n".join(failed) if failed else f"{len(outputs)} commands run, {len(LISTED)} listed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), "--write" in sys.argv[3:],
                  "--measure" in sys.argv[3:]))
