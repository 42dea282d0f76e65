"""The ranking and focal losses as modules, with the arguments and the state of imbalanced-losses 0.6.0.

N rows of this rank, C classes. While a group of torch.distributed has several ranks, a loss is over the rows of all of
them: each rank passes its own rows (their number may differ, and be 0) and gets the same loss. Its gradient is that of
its own rows times the number of ranks, because DDP averages: so W ranks train as one process does. With
grad_scale="mean" or "local_slice" it is not multiplied, as in the package: add it over the ranks. A call is then
collective, and one that is refused on a rank raises on every rank. docs/pytorch.md has what differs from the package.
"""
import importlib
import pkgutil

from tutti import _extension  # noqa: F401  Loads the operators. Before torch.

import torch

from tutti._loss import Loss, Queue, Rows, Terms, on_host, warn
from tutti._warmup import LossWarmupWrapper
from tutti.distributed import all_gather_no_grad, all_gather_with_grad, is_tutti, name_of

__all__ = ["SmoothAPLoss", "RecallAtQuantileLoss", "PAUCAtBudgetLoss", "SigmoidFocalLoss", "SoftmaxFocalLoss",
           "LossWarmupWrapper", "install"]

_ops = torch.ops.tutti
_NO_SPREAD = 5  # ClassStatus::no_spread
_INTERPOLATIONS = ("linear", "lower", "higher", "nearest", "midpoint")
_RANKING_OPS = ("smooth_ap", "recall_at_quantile", "p_auc_at_budget")


def _shapes_of_ranking(logits, *_):
    classes = logits.shape[1]
    return (logits.new_empty(classes), logits.new_empty(classes, dtype=torch.int64), torch.empty_like(logits),
            logits.new_empty((classes, 5), dtype=torch.float64))


for _name in _RANKING_OPS:
    torch.library.register_fake(f"tutti::{_name}")(_shapes_of_ranking)
torch.library.register_fake("tutti::sigmoid_focal")(lambda x, *_: (torch.empty_like(x), torch.empty_like(x)))
torch.library.register_fake("tutti::softmax_focal")(
    lambda x, targets, *_: (x.new_empty(targets.shape), torch.empty_like(x)))


class RankingLoss(Loss):
    """A loss over a pool: the rows of the call, of all ranks, and those of the queue.

    num_classes: C; 1 is binary. queue_size: rows of earlier calls that stay in the pool, without gradient.
    temperature: in score units; may be set at any time. reduction: 'mean' or 'sum' over the valid classes, or 'none'.
    ignore_index: the target of padding. update_queue_in_eval: store rows in eval mode, too. gather_distributed: False
    for the rows of this rank alone. max_pool_size: a larger pool is sampled to this many rows; every class keeps some.
    Beyond the package: reference_compat False refuses targets outside of the classes and keeps ignored rows out of the
    queue; grad_scale 'mean' does not multiply the gradient by the number of ranks; group: not the default one."""

    _op = None

    def __init__(self, num_classes, queue_size=1024, temperature=0.01, reduction="mean", ignore_index=-100,
                 update_queue_in_eval=False, gather_distributed=None, max_pool_size=None, *, reference_compat=True,
                 grad_scale="sum", group=None, **unknown):
        super().__init__(gather_distributed, grad_scale, group, **unknown)
        for name, value, least in (("num_classes", num_classes, 1), ("queue_size", queue_size, 0),
                                   ("max_pool_size", max_pool_size, 1)):
            if value is not None and value < least:
                raise ValueError(f"{name} must be {'positive' if least else '>= 0'}, got {value}")
        if temperature <= 0:
            raise ValueError(f"temperature must be positive, got {temperature}")
        _one_of("invalid reduction: reduction", reduction, ("mean", "sum", "none"))
        self.num_classes, self.queue_size, self.temperature = num_classes, queue_size, float(temperature)
        self.reduction, self.ignore_index = reduction, ignore_index
        self.update_queue_in_eval, self.max_pool_size = update_queue_in_eval, max_pool_size
        self.reference_compat = reference_compat
        self._queue = Queue(queue_size, num_classes, ignore_index)

    def _own_arguments(self):
        return ()

    def _hash_of_queue(self):  # Rows of all ranks, so their targets alone show a queue that only some have loaded.
        return hash(tuple(self._q_targets.tolist())) if self.queue_size > 0 else 0

    def reset_queue(self):
        """Empties the queue."""
        self._queue.reset()

    def _load_from_state_dict(self, state_dict, prefix, *args):
        for name in ("_q_logits", "_q_targets", "_q_ptr", "_q_weight"):  # Of checkpoints before the queue had a module.
            if prefix + name in state_dict and f"{prefix}_queue.{name}" not in state_dict:
                state_dict[f"{prefix}_queue.{name}"] = state_dict.pop(prefix + name)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _checked(self, logits, targets, iid_mask, sample_weight):
        if targets.ndim == 2 and targets.size(1) == 1:
            targets = targets.squeeze(1)
        if logits.ndim != 2 or logits.size(1) != self.num_classes:
            raise ValueError(f"Expected logits [N, {self.num_classes}], got {tuple(logits.shape)}")
        for name, rows in (("targets", targets), ("iid_mask", iid_mask)):
            if rows is not None and (rows.ndim != 1 or rows.size(0) != logits.size(0)):
                raise ValueError(f"{name} must be [N] like the {logits.size(0)} rows of logits, got "
                                 f"{tuple(rows.shape)}")
        if self.num_classes == 1 and targets.is_floating_point():  # What is not 0 is positive.
            targets = torch.where(targets == self.ignore_index, targets, (targets != 0).to(targets))
        targets = targets.to(torch.int64)  # Which holds the ignore_index of free slots.
        weight = self._checked_weight(sample_weight, logits, "logits", (logits.size(0),), logits.dtype)
        iid = torch.ones_like(targets, dtype=torch.bool) if iid_mask is None else iid_mask.detach().bool()
        return Rows(logits.detach(), targets.detach(), iid, weight)

    @torch.compiler.disable
    def _warn_about(self, targets, status):
        counted = targets[targets != self.ignore_index]
        if self.num_classes == 1:
            odd = counted[(counted != 0) & (counted != 1)]
            if odd.numel() > 0:
                warn(f"Binary mode expects targets in {{0, 1}}; {odd[:8].tolist()} count as positive.")
        if self.max_pool_size is not None and counted.numel() > self.max_pool_size:
            self._warn_once("sample", f"the pool has {counted.numel()} rows, more than max_pool_size="
                            f"{self.max_pool_size}, so the loss is that of a sample.")
        if bool((status == _NO_SPREAD).any()):
            self._warn_once("spread", "the dispersion of the scores of a class is near-zero, so the class is not valid;"
                            " a larger queue_size or other rows may spread them.")

    def _evaluate(self, logits, targets, iid_mask, sample_weight):
        """The loss, the loss and the validity of each class, and the diagnostics [C, 5]."""
        refused = rows = None
        try:
            rows = self._checked(logits, targets, iid_mask, sample_weight)
        except Exception as error:  # pylint: disable=broad-except  The other ranks have to know.
            refused = error
        seed = 0 if self.max_pool_size is None else int(torch.randint(2 ** 62, ()))
        start, group = 0, ""
        if self._should_gather():
            lengths, seed, _ = self._agreed(refused, (logits,) if refused else rows[:2], sample_weight, seed)
            gathered, start = self._gathered(rows, lengths)
            rows = Rows(*gathered)
            if is_tutti(self.group):
                group = name_of(self.group)  # Its ranks share the work.
        elif refused:
            raise refused
        pool = self._queue.merge(*rows)
        each, status, grad, diagnostics = (t.to(logits.device) for t in self._op(
            *on_host(*pool), lengths if group else [rows.targets.size(0)], self.ignore_index, self.temperature,
            self.max_pool_size or 0, seed, self.reference_compat, group, *self._own_arguments()))
        if self.queue_size > 0 and (self.training or self.update_queue_in_eval):
            if not self.reference_compat:
                rows = Rows(*(None if t is None else t[rows.targets != self.ignore_index] for t in rows))
            self._queue.enqueue(*rows)
        per_class = Terms.apply(logits, each, self._scaled(grad), "class", start)
        valid = status == 0
        if not torch.compiler.is_compiling():  # At the end: a filter may turn a warning of one rank into an error.
            self._warn_about(pool.targets, status)
            self._warn_about_same_rows()
        if self.reduction == "none":
            out = torch.where((pool.targets == self.ignore_index).all(), per_class.nan_to_num(), per_class)
        else:
            out = torch.where(valid, per_class, 0).sum()
            if self.reduction == "mean":
                out = out / valid.sum().clamp(min=1)
        return out, per_class, valid, diagnostics

    def forward(self, logits, targets, iid_mask=None, return_per_class=False, *, sample_weight=None):
        """logits [N, C], finite; targets [N] or [N, 1], integers; iid_mask [N]: rows that were drawn independently;
        sample_weight [N], 0 or more: weights of the positives. Returns the loss, a scalar or with reduction 'none' [C]
        with NaN for classes that are not valid; with return_per_class (loss, per_class [C], valid [C])."""
        out, per_class, valid, _ = self._evaluate(logits, targets, iid_mask, sample_weight)
        return (out, per_class, valid) if return_per_class else out


for _name in ("_q_logits", "_q_targets", "_q_ptr"):  # Of the time before the queue had a module.
    setattr(RankingLoss, _name, property(lambda self, name=_name: getattr(self._queue, name),
                                          lambda self, value, name=_name: setattr(self._queue, name, value)))


def _one_of(name, value, allowed):
    if value not in allowed:
        raise ValueError(f"{name} must be one of {allowed}, got {value!r}")


class SmoothAPLoss(RankingLoss):
    """1 - the smoothed average precision of each class (docs/losses.md). Arguments: those of RankingLoss."""

    _op = _ops.smooth_ap.default


class RecallAtQuantileLoss(RankingLoss):
    """The smoothed share of positives that are missed if the share `quantile` of the pool, 0 to 1, is flagged
    (docs/losses.md). Other arguments: those of RankingLoss."""

    _op = _ops.recall_at_quantile.default

    def __init__(self, num_classes, quantile=0.005, queue_size=1024, temperature=0.01, reduction="mean",
                 ignore_index=-100, update_queue_in_eval=False, gather_distributed=None,
                 quantile_interpolation="higher", max_pool_size=None, **options):
        if not 0 < quantile < 1:
            raise ValueError(f"quantile must be in (0, 1), got {quantile}")
        _one_of("quantile_interpolation", quantile_interpolation, _INTERPOLATIONS)
        super().__init__(num_classes, queue_size, temperature, reduction, ignore_index, update_queue_in_eval,
                         gather_distributed, max_pool_size, **options)
        self.quantile, self.quantile_interpolation = float(quantile), quantile_interpolation

    def _own_arguments(self):
        return self.quantile, _INTERPOLATIONS.index(self.quantile_interpolation)


class PAUCAtBudgetLoss(RankingLoss):
    """1 - the partial area under the ROC curve between the false positive rates alpha and beta (docs/losses.md).
    temperature is in units of the spread of the scores. Other arguments: those of RankingLoss."""

    _op = _ops.p_auc_at_budget.default
    _choices = {"surrogate": ("trapezoid", "pairwise"), "tau_scale": ("iqr", "band"),
                "pos_numerator": ("pool", "live"), "budget_basis": ("fpr", "population"),
                "quantile_interpolation": _INTERPOLATIONS}

    def __init__(self, num_classes, alpha=0.0, beta=0.005, surrogate="trapezoid", n_knots=2, tau_scale="iqr",
                 pos_numerator="pool", budget_basis="fpr", queue_size=1024, temperature=0.1, reduction="mean",
                 ignore_index=-100, update_queue_in_eval=False, gather_distributed=None,
                 quantile_interpolation="higher", max_pool_size=None, **options):
        if not 0 <= alpha < beta <= 1:
            raise ValueError(f"alpha and beta must be 0 <= alpha < beta <= 1, got {alpha} and {beta}")
        if not isinstance(n_knots, int) or n_knots < 2:
            raise ValueError(f"n_knots must be an int >= 2, got {n_knots}")
        chosen = {"surrogate": surrogate, "tau_scale": tau_scale, "pos_numerator": pos_numerator,
                  "budget_basis": budget_basis, "quantile_interpolation": quantile_interpolation}
        for name, value in chosen.items():
            _one_of(name, value, self._choices[name])
        super().__init__(num_classes, queue_size, temperature, reduction, ignore_index, update_queue_in_eval,
                         gather_distributed, max_pool_size, **options)
        self.alpha, self.beta, self.n_knots = float(alpha), float(beta), n_knots
        for name, value in chosen.items():
            setattr(self, name, value)

    def _own_arguments(self):
        surrogate, *others = (values.index(getattr(self, name)) for name, values in self._choices.items())
        return self.alpha, self.beta, surrogate, self.n_knots, *others

    def forward(self, logits, targets, iid_mask=None, return_per_class=False, return_diagnostics=False, *,
                sample_weight=None):
        """As the other losses. With return_diagnostics the last value is a dict of [C]: t_alpha, t_beta, tau_eff,
        band_neg_count, pauc_var (NaN, 0 for classes that are not valid), and grad_pos_count, positives of this rank."""
        out, per_class, valid, table = self._evaluate(logits, targets, iid_mask, sample_weight)
        result = (out, per_class, valid) if return_per_class else (out,)
        if return_diagnostics:
            stats = dict(zip(("t_alpha", "t_beta", "tau_eff", "band_neg_count", "pauc_var"), table.to(logits.dtype).T))
            stats["band_neg_count"] = table[:, 3].nan_to_num().to(torch.int64)
            mine = targets.reshape(-1)[targets.reshape(-1) != self.ignore_index]
            stats["grad_pos_count"] = (mine.bool().sum().reshape(1) if self.num_classes == 1 else
                                       torch.stack([(mine == c).sum() for c in range(self.num_classes)]))
            result += (stats,)
        return result if len(result) > 1 else out


def _wide(dtype):
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


class _FocalLoss(Loss):
    """Each rank evaluates its own rows and sends two sums; only the terms of reduction 'none' need all rows."""

    _op, _of = None, "row"  # Targets, weights and terms are of rows or of elements.

    def _checked(self, inputs, targets, sample_weight, gathers):
        """The weights."""
        expected, elements = inputs.shape, self._of == "element"
        if not elements:
            expected = inputs.shape[:1] + inputs.shape[2:] if inputs.ndim > 1 else ()
        if targets.shape != expected:
            raise ValueError(f"targets must be {tuple(expected)} for inputs {tuple(inputs.shape)}; they are "
                             f"{tuple(targets.shape)}")
        if gathers and inputs.ndim == 0:
            raise ValueError("inputs of several ranks must have a dimension of rows")
        like = (inputs, "inputs", None) if elements else (targets, "targets", targets.shape)
        return self._checked_weight(sample_weight, *like, _wide(inputs.dtype))

    def _terms(self, x, y, options):
        return (t.to(x.device) for t in self._op(*on_host(x, y), *options))

    def _own(self, inputs, targets, sample_weight, gathers, options):
        """The weights and, without reduction 'none', the gradient of the sum, the sum, and the divisor of a mean."""
        if self.reduction not in self.SUPPORTED_REDUCTIONS:
            modes = ", ".join(map(repr, self.SUPPORTED_REDUCTIONS))
            raise ValueError(f"Invalid reduction: {self.reduction!r}. Supported modes: {modes}.")
        weight = self._checked(inputs, targets, sample_weight, gathers)
        if self.reduction == "none":
            return weight, None, 0.0, 0.0
        each, grad = self._terms(inputs.detach(), targets.detach(), options)
        # The gradient of a half float could be too small before the factor of a scaled loss reaches it.
        each, grad, counted = each.double(), grad.to(_wide(grad.dtype)), self._counted(targets).double()
        if weight is not None:
            each, counted = each * weight, counted * weight
            grad = grad * (weight.unsqueeze(1) if self._of == "row" else weight)
        return weight, grad, each.sum(), counted.sum()

    @torch.compiler.disable  # What one rank refuses has to reach the others.
    def _of_all(self, inputs, targets, sample_weight, options):
        """The number of rows of every rank, and _own() with the sums of all ranks."""
        refused, own = None, (None, None, 0.0, 0.0)
        try:
            own = self._own(inputs, targets, sample_weight, True, options)
        except Exception as error:  # pylint: disable=broad-except
            refused = error
        lengths, _, sums = self._agreed(refused, (inputs, targets), sample_weight, sums=own[2:])
        return lengths, *own[:2], *torch.tensor(sums, dtype=torch.float64, device=inputs.device)

    def _evaluate(self, inputs, targets, sample_weight, *options):
        """`options`: those of the operator."""
        if not self._should_gather():
            weight, grad, total, mass = self._own(inputs, targets, sample_weight, False, options)
            x, y, start = inputs.detach(), targets.detach(), 0
        else:
            lengths, weight, grad, total, mass = self._of_all(inputs, targets, sample_weight, options)
            if self.reduction == "none":
                (x, y, weight), start = self._gathered((inputs.detach(), targets.detach(), weight), lengths)
            if not torch.compiler.is_compiling():
                self._warn_about_same_rows()
        if self.reduction == "none":
            each, grad = self._terms(x, y, options)
            loss = Terms.apply(inputs, each, self._scaled(grad), self._of, start)
            return loss if weight is None else (loss.to(weight.dtype) * weight).to(loss.dtype)
        if self.reduction != "sum":  # The mean of no elements is NaN, as torch's.
            divisor = mass if self._of == "element" and weight is None else torch.where(mass > 0, mass, 1)
            total, grad = total / divisor, (grad / divisor).to(grad.dtype)
        return Terms.apply(inputs, total.to(inputs.dtype), self._scaled(grad), "class", 0)


class SigmoidFocalLoss(_FocalLoss):
    """The focal loss of one binary decision per logit (docs/losses.md). alpha: the weight of positives, 0 to 1, or -1
    for none. reduction: 'none', 'mean' or 'sum'. grad_scale, group: as those of the ranking losses."""

    _op, _of = _ops.sigmoid_focal.default, "element"
    SUPPORTED_REDUCTIONS = ("none", "mean", "sum")
    """The values of `reduction`."""

    def __init__(self, alpha=0.25, gamma=2.0, reduction="mean", gather_distributed=None, **options):
        super().__init__(gather_distributed, **options)
        if not 0 <= alpha <= 1 and alpha != -1:
            raise ValueError(f"Invalid alpha value: {alpha}. alpha must be in [0, 1], or -1 for none")
        self.alpha, self.gamma, self.reduction = alpha, gamma, reduction

    def forward(self, inputs, targets, *, sample_weight=None):
        """inputs: any shape; targets: the same, 0 to 1; sample_weight: broadcasts to it, its dimension 0 is that of
        the inputs. Returns a scalar, or with reduction 'none' the loss of each element, of all ranks."""
        return self._evaluate(inputs, targets, sample_weight, self.alpha, self.gamma)

    def _counted(self, targets):
        return torch.ones_like(targets)


class SoftmaxFocalLoss(_FocalLoss):
    """The focal loss of one class per row (docs/losses.md). alpha: the weight of each class, [C]. reduction: 'none',
    'mean', 'sum', or 'mean_positive', which divides by the number of rows of other classes than background_class.
    grad_scale, group: as those of the ranking losses."""

    _op = _ops.softmax_focal.default
    SUPPORTED_REDUCTIONS = ("none", "mean", "mean_positive", "sum")
    """The values of `reduction`."""

    def __init__(self, alpha=None, gamma=2.0, reduction="mean", label_smoothing=0.0, ignore_index=-100,
                 background_class=0, gather_distributed=None, **options):
        super().__init__(gather_distributed, **options)
        self.gamma, self.reduction, self.label_smoothing = gamma, reduction, label_smoothing
        self.ignore_index, self.background_class = ignore_index, background_class
        if alpha is not None:
            alpha = torch.as_tensor(alpha, dtype=torch.float32)
            if alpha.ndim != 1:
                raise ValueError(f"alpha must be a 1-D tensor [C]; it is {tuple(alpha.shape)}")
        self.register_buffer("alpha", alpha)

    def forward(self, inputs, targets, *, sample_weight=None):
        """inputs: [N, C, *]; targets: [N, *], classes or ignore_index; sample_weight: like the targets. Returns a
        scalar, or with reduction 'none' the loss of each row, of all ranks."""
        return self._evaluate(inputs, targets, sample_weight, None if self.alpha is None else self.alpha.cpu(),
                              self.gamma, self.label_smoothing, self.ignore_index)

    def _counted(self, targets):
        counted = targets != self.ignore_index
        return counted & (targets != self.background_class) if self.reduction == "mean_positive" else counted


def install():
    """Puts these modules in the place of the classes of imbalanced_losses, and the gathers of tutti.distributed in the
    place of its two. Call it before `from imbalanced_losses import ...`. Raises ImportError if the package is not
    installed."""
    package = importlib.import_module("imbalanced_losses")
    modules = [package] + [importlib.import_module(f"{package.__name__}.{info.name}")
                           for info in pkgutil.iter_modules(package.__path__)]
    for ours in [*map(globals().get, __all__[:-1]), all_gather_with_grad, all_gather_no_grad]:
        theirs = getattr(package, ours.__name__)
        for module in modules:
            if getattr(module, ours.__name__, None) is theirs:
                setattr(module, ours.__name__, ours)
