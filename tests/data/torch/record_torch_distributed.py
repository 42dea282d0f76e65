"""Records the results of torch.distributed.nn.functional for torch_autograd_test.cpp.

usage: record_torch_distributed.py > torch_distributed.inc

Runs 2 and 3 processes over torch's gloo. Rank s has the loss sum(weight * out * out). One line for
each call, number of ranks and rank: {name, ranks, rank, input's sizes, input, weight, out,
gradient}. All numbers are exact in binary."""
import functools
import multiprocessing
import pathlib
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as nn

ROOT = 1
ROWS, COLUMNS = 2, 3


def pattern(sizes, step, shift, modulus, divisor):
    numbers = torch.arange(torch.Size(sizes).numel(), dtype=torch.float64)
    return ((numbers * step + shift).remainder(modulus) - modulus // 2).div(divisor).view(sizes)


def reduce_scatter(x, op):
    return nn.reduce_scatter(torch.empty(ROWS, COLUMNS, dtype=x.dtype), list(x.split(ROWS)), op)


# Name, rows of the input per rank (0: one row per rank, times the ranks), the call, whether out is on root
# only.
SUM, AVG, MIN, MAX, PRODUCT = (getattr(dist.ReduceOp, name) for name in ["SUM", "AVG", "MIN", "MAX", "PRODUCT"])
CALLS = {
    "all_gather": (False, lambda x: torch.cat(nn.all_gather(x)), False),
    "all_reduce sum": (False, lambda x: nn.all_reduce(x, SUM), False),
    "reduce sum": (False, lambda x: nn.reduce(x, ROOT, SUM), True),
    "broadcast": (False, lambda x: nn.broadcast(x, ROOT), False),
    "gather": (False, lambda x: torch.cat(nn.gather(x, ROOT)), True),
    "scatter": (True, lambda x: nn.scatter(list(x.split(ROWS)), ROOT), False),
    "reduce_scatter sum": (True, functools.partial(reduce_scatter, op=SUM), False),
    "all_to_all": (True, lambda x: nn.all_to_all_single(torch.empty_like(x), x), False),
    # torch's gradients do not match its function.
    "all_reduce min": (False, lambda x: nn.all_reduce(x, MIN), False),
    "all_reduce max": (False, lambda x: nn.all_reduce(x, MAX), False),
    "all_reduce product": (False, lambda x: nn.all_reduce(x, PRODUCT), False),
    "all_reduce avg": (False, lambda x: nn.all_reduce(x, AVG), False),
    "reduce_scatter avg": (True, functools.partial(reduce_scatter, op=AVG), False),
}


def text(tensor):
    return "{" + ", ".join(repr(value) for value in tensor.flatten().tolist()) + "}"


def run(rank, ranks, folder):
    lines = []
    warnings.simplefilter("ignore", FutureWarning)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    for name, (whole, call, rooted) in CALLS.items():
        x = pattern([ROWS * ranks if whole else ROWS, COLUMNS], 5, 3 * rank, 7, 4).requires_grad_()
        try:
            out = call(x)
        except (RuntimeError, ValueError) as error:
            print(f"rank {rank} of {ranks}: {name}: {error}", file=sys.stderr)
            continue
        weight = pattern(out.shape, 3, 2 * rank, 5, 2)
        if rooted and rank != ROOT:
            weight.zero_()
        (weight * out * out).sum().backward()
        lines.append(f'{{"{name}", {ranks}, {rank}, {{{x.shape[0]}, {x.shape[1]}}},\n {text(x)},\n {text(weight)},\n'
                     f" {text(out)},\n {text(x.grad)}}},")
    dist.barrier()
    dist.destroy_process_group()
    pathlib.Path(folder, f"rank{rank}").write_text("\n".join(lines) + "\n")


def main():
    print(f"// torch {torch.__version__}, gloo. Made by record_torch_distributed.py.")
    for ranks in [2, 3]:
        with tempfile.TemporaryDirectory() as folder:
            processes = [multiprocessing.Process(target=run, args=(rank, ranks, folder)) for rank in range(ranks)]
            for process in processes:
                process.start()
            for process in processes:
                process.join()
            if any(process.exitcode for process in processes):
                sys.exit("a rank failed")
            for rank in range(ranks):
                print(pathlib.Path(folder, f"rank{rank}").read_text(), end="")


if __name__ == "__main__":
    main()
