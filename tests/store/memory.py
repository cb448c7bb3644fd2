"""What a process takes, as Linux tells it."""

from pathlib import Path


def resident() -> tuple[float, float]:
    """Resident memory now, and its peak so far, in MB."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    now, peak = (int(status[key].split()[0]) * 1024 / 1e6 for key in ("VmRSS", "VmHWM"))
    return now, peak


def bytes_read() -> int:
    """Bytes that the process has read from files."""
    return int(Path("/proc/self/io").read_text().split("rchar:")[1].split()[0])
