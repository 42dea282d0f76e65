"""What the modules of tutti.losses share: gradients of terms, gathering, weights of rows, and the queue."""
import copy
import ctypes
import inspect
import os
import sys
import warnings
import zlib
from typing import NamedTuple, Optional

import torch
import torch.distributed as dist
from torch import nn

from tutti.distributed import GRAD_SCALES, device_of, exchange, gather_rows


class Terms(torch.autograd.Function):
    """Terms and their gradients as a function of `logits`, whose rows begin at row `start` of all rows. A term belongs
    to a class (a column of the gradient), a row, or an element."""

    @staticmethod
    def forward(ctx, logits, terms, grad, of, start):
        ctx.save_for_backward(grad[start:start + logits.shape[0]] if logits.ndim else grad)
        ctx.of, ctx.start = of, start
        return terms.clone()

    @staticmethod
    def backward(ctx, g):
        (grad,) = ctx.saved_tensors
        if ctx.of != "class" and grad.ndim:
            g = g[ctx.start:ctx.start + grad.shape[0]]
        grad = grad * (g.unsqueeze(1) if ctx.of == "row" else g)
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # once_differentiable lets a constant g pass.
            grad = torch._C._functions.DelayedError("tutti: the losses have no second derivative", 1)(
                grad.detach().requires_grad_())
        return grad.to(g.dtype), None, None, None, None


def on_host(*tensors):
    return (None if t is None else t.detach().cpu() for t in tensors)


def warn(text):
    """A UserWarning at the first frame outside of this package and of torch."""
    ours, level, frame = (os.path.dirname(__file__), torch.__path__[0]), 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(ours):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, UserWarning, stacklevel=level)


class Loss(nn.Module):
    """Gathering, weights of rows, and warnings that are given once."""

    def __init__(self, gather_distributed, grad_scale="sum", group=None, **unknown):
        super().__init__()
        for name in unknown:
            raise TypeError(f"{type(self).__name__}.__init__() got an unexpected keyword argument {name!r}")
        if grad_scale not in GRAD_SCALES:
            raise ValueError(f"grad_scale must be one of {GRAD_SCALES}, got {grad_scale!r}")
        self.gather_distributed, self.grad_scale, self.group = gather_distributed, grad_scale, group
        self._warned, self._same_rows = set(), False

    def __deepcopy__(self, memo):
        memo[id(self.group)] = self.group  # Groups cannot be copied; the copy has the same one.
        memo[id(self)] = made = type(self).__new__(type(self))
        made.__setstate__(copy.deepcopy(self.__dict__, memo))
        return made

    def _warn_once(self, kind, text):
        if kind not in self._warned:
            self._warned.add(kind)
            warn(f"{type(self).__name__}: {text} (Shown once per instance.)")

    def _should_gather(self):
        return (self.gather_distributed is not False and dist.is_available() and dist.is_initialized()
                and dist.get_world_size(self.group) > 1)

    def _scaled(self, grad):
        return grad * dist.get_world_size(self.group) if self.grad_scale == "sum" and self._should_gather() else grad

    def _checked_weight(self, weight, like, name, shape, dtype):
        """The weights in `dtype`; `shape` None: they need only broadcast to `like`."""
        if weight is None:
            return None
        if weight.ndim == 0 or weight.size(0) != like.size(0):
            raise ValueError(f"sample_weight must match {name} dim-0: it is {tuple(weight.shape)}, and there are "
                             f"{like.size(0)} rows")
        if shape is not None and tuple(weight.shape) != tuple(shape):
            raise ValueError(f"sample_weight must be {tuple(shape)} as {name} require; it is {tuple(weight.shape)}")
        if shape is None:
            try:
                weight.expand(like.shape)
            except RuntimeError:
                raise ValueError(f"sample_weight must be broadcastable to {name} {tuple(like.shape)}; it is "
                                 f"{tuple(weight.shape)}") from None
        weight = weight.detach()
        if weight.numel() > 0 and not torch.compiler.is_compiling():
            if not bool(weight.isfinite().all()):
                raise ValueError("sample_weight must be finite")
            if bool((weight < 0).any()):
                raise ValueError(f"sample_weight must be non-negative; its minimum is {weight.min().item()}")
            if not bool(weight.any()):
                self._warn_once("weight", "sample_weight is entirely zero in this call, so it has no gradient.")
        return weight.to(dtype)

    def _options(self):
        """What has to be equal on all ranks, in words."""
        names = {name for kind in type(self).__mro__ if issubclass(kind, Loss) and "__init__" in vars(kind)
                 for name in inspect.signature(kind.__init__).parameters} - {"gather_distributed", "group"}
        values = {name: getattr(self, name) for name in sorted(names) if hasattr(self, name)}
        return ", ".join(f"{name} {value.tolist() if isinstance(value, torch.Tensor) else value}"
                         for name, value in values.items())

    def _hash_of_queue(self):
        return 0

    @staticmethod
    def _hash_of_rows(tensors):
        """Of their beginnings: a wrong one costs a warning. -1 for equal logits, as of a layer of zeros."""
        parts = [t.detach().reshape(-1)[:4096].cpu().contiguous() for t in tensors]
        if (parts[0] == parts[0][:1]).all():
            return -1
        return zlib.crc32(b"".join(ctypes.string_at(t.data_ptr(), t.nbytes) for t in parts))

    def _warn_about_same_rows(self):
        """At the end of a call: a filter may turn a warning of one rank into an error."""
        if self._same_rows:
            self._warn_once("same", "all ranks pass the same rows. If they were gathered before, pass "
                            "gather_distributed=False.")

    @torch.compiler.disable  # Its errors depend on what other ranks pass.
    def _agreed(self, refused, tensors, weight, seed=0, sums=(0, 0)):
        """The number of rows of `tensors`, each [N, ...], of every rank, the seed of rank 0, and `sums`, two numbers,
        added in f64 over the ranks in their order. Raises on every rank if one refuses its arguments (`refused` is its
        error), or if ranks differ in options, in shapes and dtypes, in their queues, or in whether they pass weights."""
        options = self._options()
        if not refused:
            options += "; rows " + ", ".join(f"{list(t.shape[1:])} {t.dtype}" for t in tensors)
        mine = [-1 if refused else tensors[0].size(0), weight is not None, seed, zlib.crc32(options.encode()),
                self._hash_of_queue(), 0 if refused else self._hash_of_rows(tensors),
                *torch.tensor([float(x) for x in sums], dtype=torch.float64).view(torch.int64).tolist()]
        every = exchange(mine, getattr(tensors[0], "device", None) or device_of(self.group), self.group)
        if refused:
            raise refused
        refusing = [rank for rank, (rows, *_) in enumerate(every) if rows < 0]
        if refusing:
            raise ValueError(f"tutti: the arguments of ranks {refusing} were refused there")
        for what, column in ((f"options or rows of {type(self).__name__}", 3), ("queues", 4)):
            other = [rank for rank, each in enumerate(every) if each[column] != every[0][column]]
            if other:
                raise ValueError(f"tutti: the {what} of ranks 0 and {other[0]} differ; give all ranks equal options, "
                                 f"and load the same state. This rank has: {options}")
        given = [rank for rank, (_, weighted, *_) in enumerate(every) if weighted]
        if given and len(given) < len(every):
            raise ValueError(f"tutti: ranks {given} of {len(every)} pass sample_weight; all ranks do, or none")
        self._same_rows = (every[0][0] > 0 and every[0][5] >= 0
                           and all((each[0], each[5]) == (every[0][0], every[0][5]) for each in every))
        parts = torch.tensor([each[6:] for each in every]).view(torch.float64).tolist()
        return [rows for rows, *_ in every], every[0][2], [sum(part) for part in zip(*parts)]

    def _gathered(self, tensors, lengths):
        """The rows of all ranks for each tensor [N, ...], and the number of the first one of this rank."""
        every = [None if t is None else gather_rows(t.detach(), self.group, lengths)[0] for t in tensors]
        return every, sum(lengths[:dist.get_rank(self.group)])


class Rows(NamedTuple):
    logits: torch.Tensor
    targets: torch.Tensor
    is_iid: torch.Tensor
    sample_weight: Optional[torch.Tensor]


class Queue(nn.Module):
    """A ring of `queue_size` rows in buffers, those of the package. Free slots have the target ignore_index."""

    def __init__(self, queue_size, num_classes, ignore_index=-100):
        super().__init__()
        self.queue_size, self.num_classes, self.ignore_index = queue_size, num_classes, ignore_index
        if queue_size > 0:
            self.register_buffer("_q_logits", torch.zeros(queue_size, num_classes))
            self.register_buffer("_q_targets", torch.full((queue_size,), ignore_index))
            self.register_buffer("_q_ptr", torch.zeros(1, dtype=torch.int64))
            self.register_buffer("_q_iid", torch.ones(queue_size, dtype=torch.bool))
            self.register_buffer("_q_weight", torch.ones(queue_size))

    def _load_from_state_dict(self, state_dict, prefix, *args):
        if self.queue_size > 0:  # Older checkpoints lack these two.
            for name in ("_q_iid", "_q_weight"):
                state_dict.setdefault(prefix + name, torch.ones_like(getattr(self, name)))
        super()._load_from_state_dict(state_dict, prefix, *args)

    @torch.no_grad()
    def enqueue(self, logits, targets, is_iid=None, sample_weight=None):
        """Stores the rows [N, C], [N], [N], [N]; the last queue_size rows stay. Without flags or weights they are 1."""
        rows = logits.size(0)
        kept = min(rows, self.queue_size)
        whole = rows >= self.queue_size  # Then the ring begins again at slot 0.
        slots = torch.arange(kept, device=self._q_ptr.device) + (0 if whole else self._q_ptr)
        slots = slots % self.queue_size
        for buffer, new in ((self._q_logits, logits), (self._q_targets, targets), (self._q_iid, is_iid),
                            (self._q_weight, sample_weight)):
            if new is None:
                buffer[slots] = torch.ones_like(buffer[:kept])
            else:
                buffer[slots] = new.detach()[rows - kept:].to(buffer)
        self._q_ptr.copy_(self._q_ptr * 0 if whole else (self._q_ptr + rows) % self.queue_size)

    def merge(self, logits, targets, is_iid, sample_weight):
        """The rows, then all slots. Without weights of rows and slots there are none."""
        if self.queue_size == 0:
            return Rows(logits, targets, is_iid, sample_weight)
        if sample_weight is None:  # Weights that are all 1 change nothing.
            sample_weight = logits.new_ones(logits.size(0))
        return Rows(*(torch.cat([new, slots.to(new)]) for new, slots in
                       ((logits, self._q_logits), (targets, self._q_targets), (is_iid, self._q_iid),
                        (sample_weight, self._q_weight))))

    @torch.no_grad()
    def reset(self):
        """Empties the ring."""
        if self.queue_size > 0:
            self._q_logits.zero_()
            self._q_targets.fill_(self.ignore_index)
            self._q_ptr.zero_()
            self._q_iid.fill_(True)
            self._q_weight.fill_(1)
