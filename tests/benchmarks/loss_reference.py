"""Compares the ranking losses with those of the Python package imbalanced-losses (0.5.1), forward
and backward on one thread:

loss_reference.py RANKING_BENCH [--rounds N]

RANKING_BENCH is the program ranking_bench of a release build. Both compute on 12,000 rows of normal
float scores, 3,000 of them positive (temperature 0.01; without a queue), in turn: a round is one
call of the package and one run of the program for each loss. Prints medians of processor time and
their ratio. Exit 1: Smooth-AP is neither 100 times as fast as the package nor done in 3 ms. Exit 2:
torch or the package is missing."""
import argparse
import json
import statistics
import subprocess
import sys
import time

ROWS, POSITIVES = 12_000, 3_000
FASTER, ENOUGH_MS = 100, 3.0

try:
    import torch
    from imbalanced_losses import PAUCAtBudgetLoss, RecallAtQuantileLoss, SmoothAPLoss
except ImportError as missing:
    print(f"loss_reference.py: {missing}; it needs the Python packages torch and imbalanced-losses", file=sys.stderr)
    sys.exit(2)


def losses():
    """The package's losses under the names of our benchmarks."""
    common = {"num_classes": 1, "queue_size": 0}
    return {
        "smooth_ap": SmoothAPLoss(temperature=0.01, **common),
        "recall_at_quantile": RecallAtQuantileLoss(quantile=0.005, temperature=0.01, **common),
        "p_auc_pairwise": PAUCAtBudgetLoss(surrogate="pairwise", **common),
    }


def reference_ms(loss, scores, targets):
    logits = scores.clone().requires_grad_()
    start = time.process_time()
    loss(logits, targets).backward()
    return (time.process_time() - start) * 1e3


def our_ms(program, name):
    """Mean over as many calls as fit into a quarter of a second."""
    run = subprocess.run([program, f"--benchmark_filter=^{name}/{ROWS}/{POSITIVES}$", "--benchmark_format=json",
                          "--benchmark_min_time=0.25"], check=True, capture_output=True, text=True)
    result, = json.loads(run.stdout)["benchmarks"]
    assert result["time_unit"] == "ms"
    return result["cpu_time"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="RANKING_BENCH")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(1)
    scores = torch.randn(ROWS, 1)
    targets = torch.zeros(ROWS, dtype=torch.long)
    targets[torch.randperm(ROWS)[:POSITIVES]] = 1

    times = {name: ([], []) for name in losses()}
    for loss in losses().values():
        reference_ms(loss, scores, targets)   # The first call is slower.
    for _ in range(args.rounds):
        for name, loss in losses().items():
            times[name][0].append(reference_ms(loss, scores, targets))
            times[name][1].append(our_ms(args.program, name))

    medians = {}
    print(f"{'':20}{'package, ms':>12}{'tutti, ms':>12}{'ratio':>8}   of {args.rounds} rounds, one thread, processor time")
    for name, (reference, ours) in times.items():
        medians[name] = statistics.median(reference), statistics.median(ours)
        print(f"{name:20}{medians[name][0]:12.1f}{medians[name][1]:12.3f}{medians[name][0] / medians[name][1]:8.0f}")
    reference, ours = medians["smooth_ap"]
    return 0 if ours * FASTER <= reference or ours <= ENOUGH_MS else 1


if __name__ == "__main__":
    sys.exit(main())
