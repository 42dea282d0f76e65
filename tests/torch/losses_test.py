"""The modules of tutti.losses in one process: values and gradients against formulas written here, state, errors.

usage: losses_test.py [-v] [TEST...]. Needs no other package."""
import copy
import itertools
import os
import sys
import tempfile
import unittest
import warnings

import torch

import tutti
from tutti import losses

EXACT = {"rtol": 0, "atol": 1e-10}  # Of f64: both sides round each term.


# Formulas, for one class: scores [M], positive [M] of bool, weights [M].

def smooth_ap(loss, s, positive, weight, iid):
    above = torch.sigmoid((s[None, :] - s[positive][:, None]) / loss.temperature)
    above = above * (1 - torch.eye(len(s), dtype=s.dtype)[positive])
    precision = (1 + above[:, positive].sum(1)) / (1 + above.sum(1))
    return 1 - (precision * weight[positive]).sum() / weight[positive].sum()


def recall(loss, s, positive, weight, iid):
    cut = torch.quantile(s.detach(), 1 - loss.quantile, interpolation=loss.quantile_interpolation)
    found = torch.sigmoid((s[positive] - cut) / loss.temperature)
    return 1 - (found * weight[positive]).sum() / weight[positive].sum()


def p_auc(loss, s, positive, weight, iid):
    reference = s.detach()[iid if loss.budget_basis == "population" else iid & ~positive]

    def at(level):
        return torch.quantile(reference, 1 - level, interpolation=loss.quantile_interpolation)
    spread = at(0.25) - at(0.75) if loss.tau_scale == "iqr" else at(loss.alpha) - at(loss.beta)
    if loss.surrogate == "trapezoid":
        cuts = torch.stack([at(f) for f in torch.linspace(loss.alpha, loss.beta, loss.n_knots, dtype=s.dtype).tolist()])
        share = torch.full((loss.n_knots,), 1 / (loss.n_knots - 1), dtype=s.dtype)
        share[0] = share[-1] = share[0] / 2
    else:
        cuts = s[~positive & (s >= at(loss.beta)) & (s <= at(loss.alpha))]
        share = torch.full((len(cuts),), 1 / len(cuts), dtype=s.dtype)
    mine = torch.sigmoid((s[positive][:, None] - cuts[None, :]) / (loss.temperature * spread)) @ share
    return 1 - (mine * weight[positive]).sum() / weight[positive].sum()


def per_class(loss, formula, logits, targets, weight=None, iid=None):
    """[C], of rows that are not ignored; each class has positives and others."""
    counted = targets != loss.ignore_index
    weight = torch.ones_like(logits[:, 0]) if weight is None else weight
    iid = torch.ones_like(counted) if iid is None else iid
    return torch.stack([formula(loss, logits[counted, c],
                                targets[counted] == (1 if loss.num_classes == 1 else c), weight[counted], iid[counted])
                        for c in range(loss.num_classes)])


C = 3
RANKING = [(smooth_ap, lambda **o: losses.SmoothAPLoss(C, temperature=0.05, **o)),
           (recall, lambda **o: losses.RecallAtQuantileLoss(C, quantile=0.3, temperature=0.05, **o)),
           (p_auc, lambda **o: losses.PAUCAtBudgetLoss(C, beta=0.3, **o)),
           (p_auc, lambda **o: losses.PAUCAtBudgetLoss(C, alpha=0.05, beta=0.4, n_knots=4, budget_basis="population",
                                                       quantile_interpolation="linear", **o)),
           (p_auc, lambda **o: losses.PAUCAtBudgetLoss(C, alpha=0.1, beta=0.5, surrogate="pairwise", tau_scale="band",
                                                       temperature=1.0, **o))]


def rows_of(seed, count, dtype=torch.float64):
    """logits [count, C], targets with ignored rows, weights, flags; every class occurs if there are 2 C rows."""
    made = torch.Generator().manual_seed(seed)
    targets = torch.arange(count) % C
    targets[5::7] = -100
    logits = torch.randn(count, C, dtype=dtype, generator=made)
    return logits, targets, torch.rand(count, dtype=dtype, generator=made), torch.rand(count, generator=made) < 0.8


class Values(unittest.TestCase):
    def compare(self, got, expected, logits):
        """Values of classes, and gradients of a mix of them with these coefficients."""
        torch.testing.assert_close(got, expected, **EXACT)
        mix = torch.linspace(-1, 2, got.numel(), dtype=got.dtype).view(got.shape)
        for a, b in zip(*(torch.autograd.grad((v * mix).sum(), logits, retain_graph=True) for v in (got, expected))):
            torch.testing.assert_close(a, b, **EXACT)

    def test_ranking_losses(self):
        logits, targets, weight, iid = rows_of(1, 40)
        logits.requires_grad_()
        for (formula, make), weights in itertools.product(RANKING, (None, weight)):
            loss = make(queue_size=0, reduction="none")
            self.compare(loss(logits, targets, iid, sample_weight=weights),
                         per_class(loss, formula, logits, targets, weights, iid), logits)
            for reduction in ("mean", "sum"):
                loss.reduction = reduction
                each = per_class(loss, formula, logits, targets, weights, iid)
                self.compare(loss(logits, targets[:, None], iid, sample_weight=weights), getattr(each, reduction)(),
                             logits)

    def test_a_knot_beside_the_middle_of_two_scores(self):
        """Its level is 17.5 of 30, but for the last bit: linspace rounds once, by a fused multiply-add."""
        loss = losses.PAUCAtBudgetLoss(1, alpha=1 / 3, beta=0.5, n_knots=7, quantile_interpolation="nearest",
                                       queue_size=0)
        logits = torch.randn(40, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
        targets = (torch.arange(40) >= 31).long()
        self.compare(loss(logits, targets), per_class(loss, p_auc, logits, targets)[0], logits)

    def test_binary_and_half_types(self):
        logits, targets, _, _ = rows_of(2, 40)
        for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
            x = logits[:, :1].to(dtype).requires_grad_()
            loss = losses.SmoothAPLoss(1, queue_size=0, temperature=0.5)
            got = loss(x, (targets == 1).long())
            exact = x.detach().double().requires_grad_()
            expected = per_class(loss, smooth_ap, exact, (targets == 1).long()).mean()
            self.assertEqual(got.dtype, dtype)
            torch.testing.assert_close(got.double(), expected, rtol=0, atol=tolerance)
            gradients = (torch.autograd.grad(v, i)[0].double() for v, i in ((got, x), (expected, exact)))
            torch.testing.assert_close(*gradients, rtol=0, atol=tolerance)

    def test_targets_of_any_type_are_classes(self):
        x, y = torch.randn(20, 1), (torch.arange(20) % 3 == 0).long()
        for make in (losses.SmoothAPLoss, losses.RecallAtQuantileLoss):
            expected = make(1, queue_size=32)(x, y)
            for targets in (y.bool(), y.to(torch.uint8), y.int(), y.float(), y * 0.5):
                self.assertEqual(make(1, queue_size=32)(x, targets), expected, targets.dtype)

    def test_small_gradients_of_half_floats_are_there_for_a_scaled_loss(self):
        x = torch.randn(1_000_000, generator=torch.Generator().manual_seed(1))
        for kind in (torch.float32, torch.float16):
            logits = x.to(kind, copy=True).requires_grad_()
            loss = losses.SigmoidFocalLoss(alpha=-1)(logits, (x > 0).to(kind))
            (loss * 32768).backward()
            if kind == torch.float32:
                expected = logits.grad
        torch.testing.assert_close(logits.grad.float(), expected, rtol=2e-2, atol=1e-5)
        self.assertLess((logits.grad == 0).float().mean(), 0.01)

    def test_sums_of_half_floats_do_not_overflow(self):
        x, y = torch.randn(70_000, 4), torch.arange(70_000) % 4
        weight = torch.full((70_000,), 1e5)
        for loss in (losses.SoftmaxFocalLoss(), losses.SoftmaxFocalLoss(reduction="mean_positive")):
            half = x.half().requires_grad_()
            value = loss(half, y, sample_weight=weight)
            torch.testing.assert_close(value.float(), loss(x, y, sample_weight=weight), rtol=2e-3, atol=0)
            value.backward()
            self.assertGreater(half.grad.abs().sum(), 0)

    def test_the_queue_keeps_rows_and_their_weights(self):
        for formula, make in RANKING:
            loss = make(queue_size=50, reduction="none")
            old = None
            for step in range(4):
                logits, targets, weight, iid = rows_of(step, 30)
                new = (logits.float().double().requires_grad_(), targets, weight.float().double(), iid)
                pool = new if old is None else tuple(torch.cat(pair) for pair in zip(new, old))
                got = loss(new[0], targets, iid, sample_weight=new[2])
                self.compare(got, per_class(loss, formula, pool[0], pool[1], pool[2], pool[3]), new[0])
                old = tuple(t.detach()[-50:] for t in (new if old is None else
                                                       [torch.cat(pair) for pair in zip(old, new)]))
            loss.eval()
            before = copy.deepcopy(loss.state_dict())
            loss(new[0], targets)
            torch.testing.assert_close(loss.state_dict(), before, rtol=0, atol=0)

    def test_live_positives(self):
        loss = losses.PAUCAtBudgetLoss(1, beta=0.5, pos_numerator="live", queue_size=20)
        x, _, _, _ = rows_of(3, 20)
        _, valid = loss(x[:, :1], (torch.arange(20) < 5).long(), None, True)[1:]
        self.assertTrue(valid.all())
        _, valid = loss(x[:, :1], torch.zeros(20, dtype=torch.int64), None, True)[1:]
        self.assertFalse(valid.any())

    def test_classes_that_are_not_valid(self):
        logits, targets, _, _ = rows_of(4, 12)
        logits.requires_grad_()
        targets[targets == 2] = 0
        loss = losses.SmoothAPLoss(C, queue_size=0)
        out, each, valid = loss(logits, targets, return_per_class=True)
        self.assertEqual(valid.tolist(), [True, True, False])
        self.assertEqual(each.isnan().tolist(), [False, False, True])
        torch.testing.assert_close(out, each[:2].mean())
        out.backward()
        self.assertTrue(logits.grad[:, :2].any() and not logits.grad[:, 2].any())
        out = loss(logits, torch.full_like(targets, -100))
        self.assertEqual(out.item(), 0)
        self.assertFalse(torch.autograd.grad(out, logits)[0].any())

    def test_focal_losses(self):
        made = torch.Generator().manual_seed(5)
        x = torch.randn(6, 4, 5, dtype=torch.float64, generator=made).requires_grad_()
        y = (torch.rand(6, 4, 5, generator=made) < 0.3).double()
        wide = torch.rand(6, 1, 5, dtype=torch.float64, generator=made)
        p = torch.sigmoid(x) * y + torch.sigmoid(-x) * (1 - y)
        each = (0.3 * y + 0.7 * (1 - y)) * (1 - p) ** 1.5 * -p.log()
        for weight, (name, expected) in itertools.product((None, wide), (
                ("none", lambda e, w: e * w), ("sum", lambda e, w: (e * w).sum()),
                ("mean", lambda e, w: (e * w).sum() / w.sum()))):
            loss = losses.SigmoidFocalLoss(0.3, 1.5, name)
            w = torch.ones_like(each) if weight is None else weight.expand(each.shape)
            self.compare(loss(x, y, sample_weight=weight), expected(each, w), x)
        targets = torch.randint(0, 4, (6, 5), generator=made)
        targets[0] = -100
        alpha = torch.tensor([0.5, 1, 2, 3])
        logs = x.log_softmax(1)
        of_target = logs.gather(1, targets.clamp(min=0)[:, None])[:, 0]
        smooth = -0.9 * of_target - 0.1 * logs.mean(1)
        counted = (targets != -100).double()
        each = alpha.double()[targets.clamp(min=0)] * (1 - of_target.exp()) ** 2 * smooth * counted
        for weight, (name, expected) in itertools.product((None, wide[:, 0]), (
                ("none", lambda e, w: e * w), ("sum", lambda e, w: (e * w).sum()),
                ("mean", lambda e, w: (e * w).sum() / (w * counted).sum()),
                ("mean_positive", lambda e, w: (e * w).sum() / (w * counted * (targets != 1)).sum()))):
            loss = losses.SoftmaxFocalLoss(alpha, 2.0, name, label_smoothing=0.1, background_class=1)
            w = torch.ones_like(each) if weight is None else weight
            self.compare(loss(x, targets, sample_weight=weight), expected(each, w), x)
        self.assertEqual(list(loss.state_dict()), ["alpha"])

    def test_a_sample_is_drawn_by_the_seed_of_torch(self):
        logits, targets, _, _ = rows_of(6, 200)
        loss = losses.SmoothAPLoss(C, queue_size=0, max_pool_size=40)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            values = []
            for seed in (1, 2, 1):
                torch.manual_seed(seed)
                values.append(loss(logits, targets).item())
        self.assertEqual(len(seen), 1)
        self.assertRegex(str(seen[0].message), "max_pool_size=40")
        self.assertEqual(seen[0].filename, __file__)
        self.assertEqual(values[0], values[2])
        self.assertNotEqual(values[0], values[1])

    def test_no_second_derivative(self):
        logits, targets, _, _ = rows_of(7, 20)
        logits.requires_grad_()
        (grad,) = torch.autograd.grad(losses.SmoothAPLoss(C)(logits, targets), logits, create_graph=True)
        with self.assertRaisesRegex(RuntimeError, "no second derivative"):
            grad.sum().backward()


class Compiled(unittest.TestCase):
    def test_operators_are_registered_for_compilers(self):
        logits, targets, weight, iid = rows_of(8, 20)
        common = (logits, targets, iid, weight, [20], -100, 0.1, 0, 0, True, "")
        for name, arguments in (("smooth_ap", common), ("recall_at_quantile", common + (0.3, 0)),
                                ("p_auc_at_budget", common + (0.1, 0.5, 0, 2, 0, 0, 0, 2)),
                                ("sigmoid_focal", (logits, logits.sigmoid(), 0.25, 2.0)),
                                ("softmax_focal", (logits, targets, torch.ones(C), 2.0, 0.1, -100))):
            torch.library.opcheck(getattr(torch.ops.tutti, name).default, arguments,
                                  test_utils=("test_schema", "test_faketensor"))

    def test_a_compiled_loss_is_the_same(self):
        for make in [make for _, make in RANKING] + [lambda **o: losses.SoftmaxFocalLoss()]:
            plain, compiled = make(queue_size=30), make(queue_size=30)
            module = torch.compile(compiled, backend="aot_eager", fullgraph=True)
            for step in range(3):
                logits, targets, _, _ = rows_of(step, 20)
                grads = []
                for loss in (plain, module):
                    x = logits.clone().requires_grad_()
                    loss(x, targets).backward()
                    grads.append(x.grad)
                torch.testing.assert_close(*grads, rtol=0, atol=0)
            torch.testing.assert_close(plain.state_dict(), compiled.state_dict(), rtol=0, atol=0)


class State(unittest.TestCase):
    KEYS = ["_queue._q_logits", "_queue._q_targets", "_queue._q_ptr", "_queue._q_iid", "_queue._q_weight"]

    def test_a_checkpoint_goes_on(self):
        for _, make in RANKING:
            loss = make(queue_size=50)
            for step in range(3):
                logits, targets, weight, iid = rows_of(step, 30)
                loss(logits, targets, iid, sample_weight=weight)
            self.assertEqual(list(loss.state_dict()), self.KEYS)
            self.assertEqual(loss._q_ptr.item(), 90 % 50)
            with tempfile.TemporaryFile() as file:
                torch.save(loss.state_dict(), file)
                file.seek(0)
                state = torch.load(file, weights_only=True)
            loaded, copied = make(queue_size=50), copy.deepcopy(loss)
            loaded.load_state_dict(state)
            logits, targets, weight, iid = rows_of(4, 30)
            expected = loss(logits, targets, iid)
            for other in (loaded, copied):
                torch.testing.assert_close(other(logits, targets, iid), expected, rtol=0, atol=0)
                torch.testing.assert_close(other.state_dict(), loss.state_dict(), rtol=0, atol=0)
            loss.reset_queue()
            torch.testing.assert_close(loss.state_dict(), make(queue_size=50).state_dict(), rtol=0, atol=0)

    def test_older_checkpoints_load(self):
        loss = losses.SmoothAPLoss(C, queue_size=10)
        loss.load_state_dict({"_q_logits": torch.ones(10, C), "_q_targets": torch.arange(10) % C,
                              "_q_ptr": torch.tensor([4])})
        self.assertEqual(loss._queue._q_weight.tolist(), [1] * 10)
        self.assertEqual(loss._q_ptr.item(), 4)
        self.assertEqual(losses.SmoothAPLoss(C, queue_size=0).state_dict(), {})

    def test_ignored_rows_stay_out_of_the_queue_on_request(self):
        logits, targets, _, _ = rows_of(1, 30)
        loss = losses.SmoothAPLoss(C, queue_size=100, reference_compat=False)
        loss(logits, targets)
        self.assertEqual(loss._q_ptr.item(), int((targets != -100).sum()))
        targets[0] = C
        with self.assertRaisesRegex(ValueError, f"targets.0. is {C}"):
            loss(logits, targets)


class WarmUp(unittest.TestCase):
    def made(self, **options):
        return losses.LossWarmupWrapper(losses.SoftmaxFocalLoss(), losses.SmoothAPLoss(C, queue_size=100),
                                        temp_start=0.1, temp_end=0.001, temp_decay_steps=4, **options)

    def test_the_schedule(self):
        logits, targets, weight, _ = rows_of(1, 30)
        for unit in ("epochs", "steps"):
            loss = self.made(**{f"warmup_{unit}": 2, f"blend_{unit}": 3}, final_main_weight=0.8)
            rows = []
            for now in range(7):
                loss.on_train_epoch_start(now)
                loss.on_train_batch_start(now)
                w = loss.main_weight
                value = loss(logits, targets, sample_weight=weight)
                again = copy.deepcopy(loss.main_loss).eval()
                again.reset_queue()
                if now <= 2:  # The queue is empty.
                    expected = (1 - w) * loss.warmup_loss(logits, targets, sample_weight=weight)
                    expected = expected + w * again(logits, targets, sample_weight=weight)
                    torch.testing.assert_close(value, expected, **EXACT)
                rows.append((loss.in_warmup, loss.in_blend, round(w, 6), round(loss.current_temperature, 6)))
            self.assertEqual([row[:3] for row in rows],
                             [(True, False, 0)] * 2 + [(False, True, 0.2), (False, True, 0.4), (False, True, 0.6)]
                             + [(False, False, 0.8)] * 2)
            self.assertEqual([row[3] for row in rows[2:]], [0.1, 0.031623, 0.01, 0.003162, 0.001])
            self.assertEqual(loss.main_loss._q_ptr.item(), 150 % 100)

    def test_its_state(self):
        loss = self.made(warmup_epochs=1)
        for epoch in range(3):
            loss.on_train_epoch_start(epoch)
            loss.on_train_batch_start(epoch)
        self.assertEqual(loss.state_dict()["_extra_state"],
                         {"epoch": 2, "global_step": 0, "switch_step": 1, "batch_hook_seen": True,
                          "temperature": loss.current_temperature})
        other = self.made(warmup_epochs=1)
        other.load_state_dict(loss.state_dict())
        loss.on_train_batch_start(3)
        other.on_train_batch_start(3)
        self.assertEqual(other.current_temperature, loss.current_temperature)

    def test_a_forgotten_step_is_a_warning(self):
        loss = self.made()
        logits, targets, _, _ = rows_of(1, 30)
        with self.assertWarnsRegex(UserWarning, "on_train_batch_start"):
            loss(logits, targets)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loss(logits, targets)


class Errors(unittest.TestCase):
    def test_arguments(self):
        x, y, w, _ = rows_of(1, 12)
        for words, call in (
                ("num_classes", lambda: losses.SmoothAPLoss(0)),
                ("reduction", lambda: losses.SmoothAPLoss(2, reduction="x")),
                ("temperature", lambda: losses.SmoothAPLoss(2, temperature=0)),
                ("quantile", lambda: losses.RecallAtQuantileLoss(2, quantile=1)),
                ("alpha and beta", lambda: losses.PAUCAtBudgetLoss(2, alpha=0.5, beta=0.5)),
                ("tau_scale", lambda: losses.PAUCAtBudgetLoss(2, tau_scale="x")),
                ("Expected logits", lambda: losses.SmoothAPLoss(2)(x, y)),
                ("targets must be", lambda: losses.SmoothAPLoss(C)(x, y[1:])),
                ("sample_weight must be finite", lambda: losses.SmoothAPLoss(C)(x, y, sample_weight=w / 0)),
                ("sample_weight must match", lambda: losses.SmoothAPLoss(C)(x, y, sample_weight=w[1:])),
                ("must be finite", lambda: losses.SmoothAPLoss(C)(x / 0, y)),
                ("targets", lambda: losses.SoftmaxFocalLoss()(x, y + 7)),
                ("Supported modes", lambda: losses.SigmoidFocalLoss(reduction="x")(x, x.sigmoid())),
                ("blend_steps requires", lambda: losses.LossWarmupWrapper(None, None, blend_steps=1)),
                ("grad_scale", lambda: losses.SmoothAPLoss(2, grad_scale="x"))):
            with self.subTest(words), self.assertRaisesRegex(ValueError, words):
                call()

    def test_a_warning_of_a_pool_without_spread(self):
        with self.assertWarnsRegex(UserWarning, "near-zero"):
            losses.PAUCAtBudgetLoss(1)(torch.zeros(10, 1), torch.arange(10) % 2)

    def test_install_needs_the_package_and_replaces_its_classes_and_gathers(self):
        names = losses.__all__[:-1] + ["all_gather_with_grad", "all_gather_no_grad"]
        with tempfile.TemporaryDirectory() as folder:
            package = os.path.join(folder, "imbalanced_losses")
            os.mkdir(package)
            for file, text in (("a", "".join(f"class {name}: pass\n" for name in names)),
                               ("__init__", f"from imbalanced_losses.a import {', '.join(names)}\n")):
                with open(f"{package}/{file}.py", "w", encoding="utf-8") as out:
                    out.write(text)
            kept = {n: sys.modules.pop(n) for n in list(sys.modules) if n.split(".")[0] == "imbalanced_losses"}
            sys.path.insert(0, folder)
            try:
                losses.install()
                import imbalanced_losses.a as inner  # pylint: disable=import-outside-toplevel,import-error
                for name in names:
                    self.assertIs(getattr(inner, name), getattr(losses, name))
                    self.assertIs(getattr(sys.modules["imbalanced_losses"], name), getattr(losses, name))
            finally:
                sys.path.remove(folder)
                for name in ("imbalanced_losses", "imbalanced_losses.a"):
                    sys.modules.pop(name, None)
                sys.modules.update(kept)


if __name__ == "__main__":
    print("tutti", tutti.__version__, "under torch", torch.__version__)
    unittest.main()
