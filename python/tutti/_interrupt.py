"""Ctrl-C ends a call that waits. Python's handler of SIGINT runs between instructions of the main thread, and that
thread may wait in a call for a peer that waits too. The groups of the process are then aborted, so it returns."""
import os
import signal
import sys
import threading
import weakref

import torch.distributed as dist

PATIENCE = 1.0  # In seconds, for a main thread that does not wait in a call.

made = weakref.WeakSet()  # The backends of tutti.c10d.create(), which torch.distributed does not know.
_running = None  # The thread, the event that ends it, and its descriptors.


def _place():
    frame = sys._current_frames().get(threading.main_thread().ident)
    return frame and (id(frame), frame.f_lasti)


def backends_of(group):
    """The backends "tutti" of a group of c10d: one for all of its devices, unless they were named one by one."""
    found = [group._get_backend(device) for device in group._device_types]
    return [backend for backend in found if backend.name() == "tutti"]


def _watch(read_end, ended):
    while not ended.is_set():
        # A handler of the program may let the call go on. Python's own raises KeyboardInterrupt.
        if (signal.SIGINT not in os.read(read_end, 4096)
                or signal.getsignal(signal.SIGINT) is not signal.default_int_handler):
            continue
        before = _place()
        if ended.wait(PATIENCE) or before is None or _place() != before:
            continue
        of_groups = [backend for group in list(dist.distributed_c10d._world.pg_map) for backend in backends_of(group)]
        for backend in {*of_groups, *made}:
            backend.abort()


def start():
    """Starts the thread, unless it runs. Leaves a program alone that ignores SIGINT or has a wakeup descriptor."""
    global _running
    if _running is not None or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, signal.SIG_DFL, None):
        return
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    previous = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    if previous != -1:  # Of another part of the program, such as an event loop.
        signal.set_wakeup_fd(previous, warn_on_full_buffer=False)
        os.close(read_end)
        os.close(write_end)
        return
    ended = threading.Event()
    thread = threading.Thread(target=_watch, args=(read_end, ended), name="tutti-interrupt", daemon=True)
    thread.stop = stop  # For tests of Lightning, which end all threads.
    _running = thread, ended, read_end, write_end
    thread.start()


def stop():
    """Ends the thread. Only the main thread may take the descriptor back; on another one nothing changes."""
    if _running is None or threading.current_thread() is not threading.main_thread():
        return
    thread, ended, _, write_end = _running
    ended.set()
    os.write(write_end, b"\0")
    try:
        thread.join()
    finally:  # A Ctrl-C may end the wait.
        _release()


def _release():
    global _running
    if _running is None:
        return
    _, _, read_end, write_end = _running
    _running = None
    previous = signal.set_wakeup_fd(-1)
    if previous != write_end:
        signal.set_wakeup_fd(previous, warn_on_full_buffer=False)
    os.close(read_end)
    os.close(write_end)


os.register_at_fork(after_in_child=_release)  # A forked child has the descriptors, but not the thread.
