#!/usr/bin/env python3
"""gloo_collectives.py - what bench_collectives measures, through gloo as PyTorch calls it. Not part of the build.

    python3 bench/peer/gloo_collectives.py 2          so many ranks

Medians in microseconds, of the slowest rank; n is the whole buffer in bytes; f32."""
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

SIZES = [1024 << 2 * i for i in range(10)]


def median_us(operation, rounds):
    times = []
    for i in range(rounds + 2):
        dist.barrier()
        start = time.perf_counter()
        operation()
        times.append(time.perf_counter() - start)
    median = torch.tensor(sorted(times[2:])[rounds // 2] * 1e6)
    dist.all_reduce(median, dist.ReduceOp.MAX)
    return median.item()


def measure(rank, ranks):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    if rank == 0:
        print(f"gloo, {ranks} ranks\n{'n':>11} {'barrier':>9} {'AG':>9} {'RS':>9} {'AR':>9}", flush=True)
    for size in SIZES:
        whole, part = torch.ones(size // 4), torch.ones(size // 4 // ranks)
        operations = [dist.barrier, lambda: dist.all_gather_into_tensor(whole, part),
                      lambda: dist.reduce_scatter_tensor(part, whole), lambda: dist.all_reduce(whole, dist.ReduceOp.MAX)]
        rounds = int(min(200, max(5, 2e8 / (size + 1e5))))
        figures = [median_us(operation, rounds) for operation in operations]
        if rank == 0:
            print(f"{size >> 10:>8} KB" + "".join(f" {us:9.1f}" for us in figures), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    processes.spawn(measure, args=(count,), nprocs=count)
