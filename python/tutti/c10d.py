"""The backend "tutti" of torch.distributed, for tensors on cpu and cuda."""
import atexit
import datetime
import os
import typing

from tutti._extension import _c10d  # Before torch.

import torch
import torch.distributed as dist

from tutti import _interrupt


def create(store: dist.Store, rank: int, size: int, timeout: datetime.timedelta = dist.default_pg_timeout,
           name: str = "tutti", backend: typing.Optional[str] = None,
           device_backend: typing.Optional[str] = None) -> torch._C._distributed_c10d.Backend:
    """A backend of c10d that torch.distributed does not know, for frameworks that make groups of their own, such as
    torchft. Collective: every rank of `size` calls it with one store of c10d. timeout: a timedelta, the limit of each
    call; name: that of the group in errors, the same on all ranks. backend, device_backend: the transport, and that of
    tensors on cuda; by default TUTTI_BACKEND and TUTTI_DEVICE_BACKEND, or else every group chooses. Its methods are
    those of torch's ProcessGroupGloo."""
    made = _c10d.create(store, rank, size, timeout.total_seconds(), name,
                        backend or os.environ.get("TUTTI_BACKEND", "auto"),
                        device_backend or os.environ.get("TUTTI_DEVICE_BACKEND", "auto"))
    _interrupt.start()
    _interrupt.made.add(made)
    return made


def _create(options, _=None):
    # torch lists the ranks of every group but the default one, which it calls "0".
    name = options.group_id if options.global_ranks_in_group else "world"
    return create(options.store, options.group_rank, options.group_size, options.timeout, name)


def register():
    """Registers the backend, once. torch calls it from 2.14 on for the entry point torch.distributed.backends."""
    if "tutti" not in dist.Backend.backend_list:
        dist.Backend.register_backend("tutti", _create, extended_api=True, devices=["cpu", "cuda"])


def describe(group=None):
    """The backend and transport under a group of c10d, such as "shm over shared memory"; also of its group for a
    device, once there is one."""
    group = group if group is not None else dist.distributed_c10d._get_default_group()
    backend = next(iter(_interrupt.backends_of(group)), group._get_backend(group._device_types[0]))
    return _c10d.describe(backend)


register()
# Callbacks of futures are Python's, and so may be tensors of calls; neither may end after the interpreter.
atexit.register(_c10d.end_with_python)
