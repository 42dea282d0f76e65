#!/usr/bin/env python3
"""Tensor-parallel inference by DeepSpeed, whose sums are those of tutti.

usage: tutti run -n W inference.py OPERATOR [--backend auto] [--times]

OPERATOR is the library of operator.cpp, or "deepspeed" for the operator that DeepSpeed compiles itself, or "torch" for
torch.distributed over Gloo. --times prints the times of calls instead."""
import argparse
import contextlib
import io
import os
import statistics
import sys
import time
import warnings

warnings.simplefilter("ignore")
os.environ["DS_ACCELERATOR"] = "cpu"
try:
    import torch
    import transformers
    import deepspeed
    from deepspeed import comm as dist
except ImportError as error:
    print(f"skipped: {error}", file=sys.stderr)
    sys.exit(77)

KIB = 1024


def start(operator, backend):
    transformers.logging.set_verbosity_error()
    # DeepSpeed would compile and load an operator of the same name.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = operator == "deepspeed"
    os.environ["LOCAL_SIZE"] = os.environ["LOCAL_WORLD_SIZE"]  # DeepSpeed's operator needs it.
    deepspeed.init_distributed("gloo", verbose=False)
    if os.path.exists(operator):
        torch.ops.load_library(operator)
        torch.ops.tutti_deepspeed.start(backend)
        deepspeed.comm.comm.cdb.shm_vector_kernel_level = 2  # DeepSpeed's operator would need AVX-512 for bf16.


def check_sums():
    """The cases of DeepSpeed's own test."""
    size = dist.get_world_size()
    for dtype in torch.float32, torch.bfloat16, torch.float16:
        for count in 128, 3:
            x = torch.full([1, count], dist.get_rank() + 1, dtype=dtype)
            dist.inference_all_reduce(x)
            assert torch.equal(x, torch.full_like(x, size * (size + 1) // 2)), (dtype, count, x)


def check_model():
    """The largest difference between the logits of a model that is split over the ranks, and of the whole model."""
    config = transformers.LlamaConfig(vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=3,
                                      num_attention_heads=4, num_key_value_heads=4)
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(config).eval()
    tokens = torch.arange(32)[None] * 7 % 256
    with torch.no_grad():
        whole = model(tokens).logits
        with contextlib.redirect_stdout(io.StringIO()):
            split = deepspeed.init_inference(model, tensor_parallel={"tp_size": dist.get_world_size()}, dtype=torch.float32)
        parts = split(tokens).logits
    return ((parts - whole).abs().max() / whole.abs().max()).item()


def times():
    """Microseconds of a call, the median of 15 rounds; the slowest rank of each round counts."""
    for bytes_ in 16 * KIB, 64 * KIB, 256 * KIB, 512 * KIB:
        x = torch.zeros(bytes_ // 2, dtype=torch.bfloat16)
        rounds = []
        for _ in range(15):
            torch.distributed.barrier()
            begin = time.perf_counter()
            for _ in range(100):
                dist.inference_all_reduce(x)
            rounds.append((time.perf_counter() - begin) / 100 * 1e6)
        slowest = torch.tensor(rounds)
        torch.distributed.all_reduce(slowest, torch.distributed.ReduceOp.MAX)
        yield bytes_ // KIB, statistics.median(slowest.tolist())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("operator")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--times", action="store_true")
    options = parser.parse_args()
    start(options.operator, options.backend)
    if options.times:
        lines = [f"{kib} KiB of bf16: {microseconds:.0f} us" for kib, microseconds in times()]
    else:
        check_sums()
        difference = check_model()
        assert difference < 1e-5, difference
        lines = ["sums: as in DeepSpeed's own test", "logits: equal to those of one process within 1e-5 of the largest"]
    if os.path.exists(options.operator):
        lines.append(f"{torch.ops.tutti_deepspeed.finish()} sums over tutti")
    if dist.get_rank() == 0:
        print("\n".join(lines))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
