"""The tests of imbalanced-losses 0.6.0 over the modules of tutti.losses, and random calls of both side by side.

usage: package_test.py [TESTS] [--expect FILE] [--calls N] [PYTEST-ARGUMENT...]

TESTS: the folder tests of its source distribution; they want pytest. Without it only --calls are compared. --expect: a file with
lines "test  kind  reason" of tests that are known to fail; then a new failure and a mended one are both errors. A line
without [parameters] stands for all of a test. --calls: the number of random sequences of calls for the comparison."""
import argparse
import collections
import os
import sys
import unittest.mock

import torch

from tutti import losses
try:
    import imbalanced_losses
except ModuleNotFoundError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

PACKAGE = {name: getattr(imbalanced_losses, name) for name in losses.__all__ if name != "install"}


class Results:
    """A plugin of pytest: the outcome of each test."""

    def __init__(self):
        self.outcomes = {}

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.rsplit("/", 1)[-1]
        if report.failed:
            self.outcomes[name] = "failed"
        elif report.when == "call" or report.skipped:
            self.outcomes.setdefault(name, report.outcome)


def compare(outcomes, path):
    """The number of differences from the file of expected failures."""
    with open(path, encoding="utf-8") as file:
        lines = [line.split(None, 2) for line in file if line.strip() and not line.startswith("#")]
    known = {test: kind for test, kind, _ in lines}
    kinds, wrong = collections.Counter(), 0
    for name, outcome in sorted(outcomes.items()):
        listed = next((n for n in (name, name.split("[")[0]) if n in known), None)
        if outcome == "failed" and listed is None:
            print(f"a new failure: {name}")
            wrong += 1
        elif outcome == "failed":
            kinds[known[listed]] += 1
        elif listed is not None and outcome == "passed":
            print(f"passes now, so change {path}: {name}")
            wrong += 1
    files = {name.split("::")[0] for name in outcomes}
    for test in known:
        if test.split("::")[0] in files and not any(test in (n, n.split("[")[0]) for n in outcomes):
            print(f"there is no test {test}")
            wrong += 1
    print("expected failures:", ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "none")
    return wrong


def random_sequence(seed):
    """The name of a module, its options, and the batches of three calls in f64."""
    made = torch.Generator().manual_seed(seed)

    def pick(*values):
        return values[int(torch.randint(len(values), (), generator=made))]
    name = pick("SmoothAPLoss", "RecallAtQuantileLoss", "PAUCAtBudgetLoss", "SigmoidFocalLoss", "SoftmaxFocalLoss")
    classes, rows = pick(1, 2, 5), pick(4, 30, 90)
    options = {"reduction": pick("mean", "sum", "none")}
    if "Focal" in name:
        classes = max(classes, 2)
        options["gamma"] = pick(0.0, 1.0, 2.0, 2.5)
        if name == "SoftmaxFocalLoss":
            options.update(label_smoothing=pick(0.0, 0.1), alpha=pick(None, torch.rand(classes, generator=made)),
                           reduction=pick("mean", "sum", "none", "mean_positive"))
        else:
            options["alpha"] = pick(-1, 0.0, 0.25)
    else:
        options.update(num_classes=classes, queue_size=pick(0, 20, 40, 100), temperature=pick(0.01, 0.1, 1.0))
        if name == "RecallAtQuantileLoss":
            options.update(quantile=pick(0.01, 0.3, 0.7), quantile_interpolation=pick(*losses._INTERPOLATIONS))
        if name == "PAUCAtBudgetLoss":
            choices = losses.PAUCAtBudgetLoss._choices
            options.update({key: pick(*values) for key, values in choices.items()}, alpha=pick(0.0, 0.05, 1 / 3),
                           beta=pick(0.5, 0.9), n_knots=pick(2, 5, 7))
    batches = []
    for _ in range(3):
        logits = torch.randn(rows, classes, dtype=torch.float64, generator=made)
        if name == "SigmoidFocalLoss":
            targets = (torch.rand(rows, classes, generator=made) < 0.3).double()
        else:
            targets = torch.randint(max(classes, 2), (rows,), generator=made)
            targets[torch.rand(rows, generator=made) < 0.1] = -100
        shape = (rows, 1) if name == "SigmoidFocalLoss" else (rows,)
        keywords = {"sample_weight": pick(None, torch.rand(shape, dtype=torch.float64, generator=made))}
        if "Focal" not in name:
            keywords["iid_mask"] = pick(None, torch.rand(rows, generator=made) < 0.7)
        batches.append((logits, targets, keywords))
    return name, options, batches


def results_of(module, batches, dtype):
    """The value and the gradient of each call, for logits and weights of f32 or f64."""
    for logits, targets, keywords in batches:
        weight = keywords["sample_weight"]
        x = logits.to(dtype, copy=True).requires_grad_()
        value = module(x, targets, **{**keywords, "sample_weight": None if weight is None else weight.to(dtype)})
        (value.nan_to_num().sum() + 0 * x.sum()).backward()  # The package may return a constant.
        yield value.detach().double(), x.grad.double()


def quantile_of_2_15(theirs=torch.quantile):
    """torch.quantile, which the package calls, as in torch 2.15, whose positions tutti has: products in f64. torch 2.11
    computes them in the type of the values, and may then choose another value."""
    two_thirds = torch.tensor(2 / 3)
    if theirs(torch.arange(10.0), two_thirds, interpolation="higher") == 7:
        return theirs
    return lambda values, q, **keywords: theirs(
        values.double(), torch.as_tensor(q, dtype=values.dtype).double(), **keywords).to(values.dtype)


def near(mine, theirs, tolerance):
    """Raises AssertionError if a value or gradient of a call differs by more than the tolerance times the largest."""
    for one, other in zip(mine, theirs):
        largest = other.abs().nan_to_num().max().item() if other.numel() else 0
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * max(largest, 1e-2), equal_nan=True)


def compare_calls(modules, batches, dtype):
    """In f64 within 1e-10. In f32 within its rounding, 256 units, of the package in f32, or, where the package's own
    rounding is larger, of the package in f64: quotients by the temperature enlarge it."""
    mine, theirs = (list(results_of(module, batches, dtype)) for module in modules[:2])
    if dtype is torch.float64:
        for results in zip(mine, theirs):
            near(*results, 1e-10)
        return
    for one, *others in zip(mine, theirs, results_of(modules[2], batches, torch.float64)):
        tolerance = 256 * torch.finfo(dtype).eps
        try:
            near(one, others[0], tolerance)
        except AssertionError:
            near(one, others[1], tolerance)


def side_by_side(count):
    """The number of sequences whose values, gradients or states differ from the package's. Every second one is in
    f32."""
    tally, apart = collections.Counter(), collections.Counter()
    for seed in range(count):
        name, options, batches = random_sequence(seed)
        dtype = (torch.float64, torch.float32)[seed % 2]
        kind = f"{name} in {str(dtype)[6:]}"
        both = [make(**options) for make in (getattr(losses, name), PACKAGE[name], PACKAGE[name])]
        tally[kind] += 1
        try:
            compare_calls(both, batches, dtype)
            torch.testing.assert_close(dict(both[0].state_dict()), dict(both[1].state_dict()), rtol=0, atol=0)
            both[0].load_state_dict(both[1].state_dict())
            both[1].load_state_dict(both[0].state_dict())
        except AssertionError as error:
            apart[kind] += 1
            print(f"sequence {seed}: {kind} {options}: {' '.join(str(error).split())[:300]}")
    for kind, number in sorted(tally.items()):
        print(f"side by side, {kind}: {apart[kind]} of {number} sequences differ")
    return sum(apart.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="?")
    parser.add_argument("--expect")
    parser.add_argument("--calls", type=int, default=0)
    options, others = parser.parse_known_args()
    with unittest.mock.patch("torch.quantile", quantile_of_2_15()):
        wrong = side_by_side(options.calls)
    if options.tests is None:
        return wrong > 0
    import pytest  # pylint: disable=import-outside-toplevel
    losses.install()
    results = Results()
    expect = options.expect and os.path.abspath(options.expect)
    os.chdir(options.tests)
    pytest.main(["-q", "--tb=no", "--no-header", "--no-summary", "-p", "no:cacheprovider", *(others or ["."])],
                plugins=[results])
    tally = collections.Counter(results.outcomes.values())
    print(f"{len(results.outcomes)} tests: " + ", ".join(f"{n} {outcome}" for outcome, n in sorted(tally.items())))
    if expect:
        wrong += compare(results.outcomes, expect)
    else:
        wrong += tally["failed"]
        print("\n".join(sorted(name for name, outcome in results.outcomes.items() if outcome == "failed")))
    return wrong > 0 or not tally["passed"]


if __name__ == "__main__":
    sys.exit(main())
