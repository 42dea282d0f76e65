"""Numbers as `tutti bench` prints and reads them, and the error of a wrong command line or file."""
import math
import os
import re


class UsageError(Exception):
    """The program prints it in one line and exits with 64."""


def plural(count, one):
    return f"{count} {one}{'s' * (count != 1)}"


def size_text(size):
    """ "1 KiB"; one decimal unless `size` is a multiple of its unit."""
    power = min((max(size, 1).bit_length() - 1) // 10, 5)
    unit = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")[power]
    number, rest = divmod(size, 1 << 10 * power)
    return f"{size / (1 << 10 * power):.1f} {unit}" if rest else f"{number} {unit}"


def us_text(us):
    return f"{us:.{3 if us < 10 else 2 if us < 100 else 1}f}"


def gbps_text(gbps):
    if gbps is None:
        return "n/a"
    if 0 < gbps < 0.001:
        return f"{gbps:.2e}".replace("e-0", "e-")
    return f"{gbps:.{5 if gbps < 0.1 else 3 if gbps < 100 else 1}f}"


BYTES = {"": 1, "B": 1, **{f"{letter}{rest}": (1000 if rest == "B" else 1024) ** (power + 1)
                           for power, letter in enumerate("KMGT") for rest in ("", "iB", "B")}}
MICROSECONDS = {"ns": 1e-3, "us": 1, "µs": 1, "ms": 1e3, "s": 1e6, "m": 60e6, "h": 3600e6}


def parse_number(text, what, expected, fits=lambda number: True):
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or not fits(number):
        raise UsageError(f"{what} '{text}': expected {expected}")
    return number


def parse_quantity(text, units, what, expected):
    """The product of a number and its unit, one of BYTES or MICROSECONDS."""
    found = re.fullmatch(r"([\d.]+)\s*(\w*)", text)
    if not found or found[2] not in units:
        raise UsageError(f"{what} '{text}': expected {expected}")
    return parse_number(found[1], what, expected) * units[found[2]]


def parse_share(text, what):
    """0.05 of "5%" or "5"."""
    return parse_number(text.removesuffix("%"), what, "percent above 0 and below 100, such as 5%", lambda n: 0 < n < 100) / 100


def write_file(path, data):
    """Writes a file that appears complete or not at all."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None
