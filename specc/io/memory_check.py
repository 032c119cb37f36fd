"""Measure the free memory of the machine and its cgroup, and raise E0804 if a model needs more."""

import os
from pathlib import Path

from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text

_MEMINFO_FILE = Path("/proc/meminfo")
_CGROUP_FILES = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
    (
        *(Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
        "total_inactive_file",
    ),
)
"""For cgroup v2 and v1: the directory, limit file, usage file and key of the page cache size."""


def get_free_memory() -> int | None:
    """Return the memory in bytes, including swap, that is available to this process, or None."""
    free = _get_machine_memory()
    amounts = (free, *(_get_cgroup_memory(*files) for files in _CGROUP_FILES))
    return min((amount for amount in amounts if amount is not None), default=None)


def _get_machine_memory() -> int | None:
    """Return the free memory of the machine in bytes, or None if it is unknown."""
    try:
        lines = _MEMINFO_FILE.read_text(encoding="ascii").splitlines()
        fields = (line.partition(":") for line in lines)
        kibibytes = {key: int(size.split()[0]) for key, _, size in fields}
        return (kibibytes["MemAvailable"] + kibibytes.get("SwapFree", 0)) * 1024
    except (OSError, ValueError, KeyError, IndexError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None  # Windows lacks `sysconf`, and macOS lacks `SC_AVPHYS_PAGES`


def _get_cgroup_memory(
    directory: Path, limit_file: str, usage_file: str, cached_key: str
) -> int | None:
    """Return the free memory in bytes of the cgroup `directory`, or None if it has no limit.
    `cached_key` is the key of the reclaimable page cache in `memory.stat`.
    """
    try:
        limit_bytes = int((directory / limit_file).read_text(encoding="ascii"))
        used_bytes = int((directory / usage_file).read_text(encoding="ascii"))
        lines = (directory / "memory.stat").read_text(encoding="ascii").splitlines()
        cached_bytes = dict(line.split(" ", 1) for line in lines).get(cached_key, "0")
        return max(limit_bytes - used_bytes + int(cached_bytes), 0)
    except (OSError, ValueError):
        return None  # no such file, or `max`, which means no limit


def _find_insufficient_memory(needed_bytes: int) -> int | None:
    """Return the number of free bytes in memory if it is below `needed_bytes`, otherwise None."""
    free = get_free_memory()
    return free if free is not None and needed_bytes > free else None


def check_free_memory(name: str, needed_bytes: int, stored_bytes: int, weight_count: int) -> None:
    """Raise E0804 if the weights of the model `name` do not fit into free memory. The model's
    `weight_count` parameters occupy `needed_bytes` in memory and `stored_bytes` on disk.
    """
    if (free := _find_insufficient_memory(needed_bytes)) is None:
        return
    raise_error(
        "E0804",
        f"`{escape_text(name)}` needs about {_format_gigabytes(needed_bytes)} of memory, but "
        f"only {_format_gigabytes(free)} are free",
        notes=[_describe_weight_memory(needed_bytes, stored_bytes, weight_count)],
        helps=[
            _describe_largest_model(weight_count, free),
            f"or run it on a machine with {_format_gigabytes(needed_bytes)} free",
        ],
    )


def describe_memory_shortage(
    needed_bytes: int, stored_bytes: int, weight_count: int
) -> tuple[str, ...]:
    """Return a note if the weights do not fit into the free memory of this machine, or ()."""
    if (free := _find_insufficient_memory(needed_bytes)) is None:
        return ()
    return (
        f"{_describe_weight_memory(needed_bytes, stored_bytes, weight_count)}; "
        f"{_format_gigabytes(free)} of memory are free here: "
        f"{_describe_largest_model(weight_count, free)}",
    )


def _describe_weight_memory(needed_bytes: int, stored_bytes: int, weight_count: int) -> str:
    """Describe the size of the weights on disk and in memory."""
    return (
        f"its weights are {weight_count / 1e9:.2f} billion parameters: "
        f"{_format_gigabytes(stored_bytes)} on disk, "
        f"{_format_gigabytes(needed_bytes)} in memory at run time"
    )


def _describe_largest_model(weight_count: int, free_bytes: int) -> str:
    """Describe the largest float32 model that fits into `free_bytes`. Suggest the largest bit width
    (8 or 4) at which a model with `weight_count` parameters fits.
    """
    bit_widths = [bits for bits in (8, 4) if weight_count * bits // 8 <= free_bytes]
    maximum = f"{free_bytes / 4e9:.2f} billion parameters in float32"
    if not bit_widths:
        return f"the maximum is {maximum}"
    size = _format_gigabytes(weight_count * bit_widths[0] // 8)
    return f"the maximum is {maximum}, or this model with weights of {bit_widths[0]} bits ({size})"


def _format_gigabytes(count: int) -> str:
    """Format a number of bytes in gigabytes, such as `13.5 GB`."""
    return f"{count / 1e9:.3g} GB" if count >= 1e8 else f"{count / 1e6:.3g} MB"
