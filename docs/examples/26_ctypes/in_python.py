#!/usr/bin/env python3
"""Collectives of Python processes, with nothing but ctypes. Arrays are any that share their memory: those of
array.array, and of numpy where that is installed."""
import ctypes
import os
from array import array

try:
    import numpy
except ImportError:
    numpy = None

try:
    import tutti   # The library of the wheel.
    lib = tutti.c_library()
except ImportError:
    lib = ctypes.CDLL(os.environ.get("LIBTUTTI", "libtutti_c.so.0.1"))
lib.tutti_last_error.restype = ctypes.c_char_p
DTYPES = {"f": 11, "d": 12, "l": 6, "q": 6}   # A buffer's format: TUTTI_F32, ...
SUM, MAX = 0, 4


class Struct(ctypes.Structure):
    def __init__(self, **values):
        super().__init__(size=ctypes.sizeof(self), **values)   # All others are 0, their default.


class Array(Struct):
    _fields_ = [("size", ctypes.c_size_t), ("data", ctypes.c_void_p), ("dtype", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("device", ctypes.c_int32 * 2), ("dims", ctypes.c_int64 * 8)]


class GroupOptions(Struct):   # An older header would have had these fields alone.
    _fields_ = [("size", ctypes.c_size_t), ("backend", ctypes.c_char_p), ("name", ctypes.c_char_p)]


# Without argtypes, ctypes passes an int as 32 bits: counts and row numbers would be cut without an error.
POINTER, INT = ctypes.c_void_p, ctypes.c_int32
for function, types in {
        "init": [POINTER, POINTER], "group_rank": [POINTER, POINTER], "group_free": [POINTER],
        "all_reduce": [POINTER, POINTER, POINTER, INT, POINTER, POINTER],
        "all_gather_rows": [POINTER, POINTER, ctypes.c_size_t, POINTER, POINTER, POINTER, POINTER],
        "broadcast": [POINTER, POINTER, INT, POINTER, POINTER],
        "result_array": [POINTER, ctypes.c_size_t, POINTER], "result_free": [POINTER]}.items():
    getattr(lib, "tutti_" + function).argtypes = types


def call(name, *arguments):
    """Calls a function; a status other than 0 becomes an exception."""
    if getattr(lib, "tutti_" + name)(*arguments) != 0:
        raise RuntimeError(lib.tutti_last_error().decode())


def view(values):
    """The array of an object with a writable buffer. It must live as long as the call."""
    memory = memoryview(values)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return ctypes.byref(Array(data=address, dtype=DTYPES[memory.format], ndim=memory.ndim,
                              dims=(ctypes.c_int64 * 8)(*memory.shape)))


def make(values):
    return numpy.array(values, dtype="f") if numpy else array("f", values)


group, rank, result = ctypes.c_void_p(), ctypes.c_int32(), ctypes.c_void_p()
call("init", ctypes.byref(GroupOptions(backend=b"shm")), ctypes.byref(group))
call("group_rank", group, ctypes.byref(rank))

loss = make([rank.value + 1, 10])
call("all_reduce", group, view(loss), view(loss), SUM, None, None)
print("sum", list(map(float, loss)))

rows = make(range(rank.value + 1))   # Rank r has r + 1 rows.
call("all_gather_rows", group, view(rows), 1, None, None, ctypes.byref(result), None)
found = Array()
call("result_array", result, 0, ctypes.byref(found))
print("rows", (ctypes.c_float * found.dims[0]).from_address(found.data)[:])
call("result_free", result)

try:
    call("broadcast", group, view(loss), 9, None, None)
except RuntimeError as error:
    print(error)
call("group_free", group)
