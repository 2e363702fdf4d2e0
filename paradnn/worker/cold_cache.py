"""Fill the caches of a device with other data, so that the next step starts cold."""

import re
from collections.abc import Callable
from pathlib import Path

#: Size of the array relative to all caches. Caches do not evict exactly the least recently used
#: data, so an array of the same size would leave some of the step's data.
_SIZE_FACTOR = 2
#: Bytes of the array on a device whose caches are unknown.
_DEFAULT_BYTES = 2**28
#: Fewest bytes of the array on any device.
_MIN_BYTES = 2**24
_UNITS = {"K": 2**10, "M": 2**20, "": 1}


class ColdCache:
    """Fills the caches of the open device by reading a large array with the imported framework.

    Args:
        platform: The kind of device: "cpu", "gpu" or "tpu".

    Attributes:
        nbytes: Size of the array in bytes.
    """

    def __init__(self, platform: str) -> None:
        known = _SIZE_FACTOR * cache_bytes() if platform == "cpu" else 0
        self.nbytes = max(known or _DEFAULT_BYTES, _MIN_BYTES)
        import numpy as np
        from keras import ops

        # Fill the array with ones: the kernel may map unwritten pages to a single page of zeros.
        array = ops.convert_to_tensor(np.ones(self.nbytes // 4, np.float32))
        self._sum: Callable[[], object] = lambda: ops.convert_to_numpy(ops.sum(array))
        self()

    def __call__(self) -> None:
        """Fill the caches, and wait until the device has finished."""
        self._sum()


def cache_bytes(root: Path = Path("/sys/devices/system/cpu")) -> int:
    """Return the total size of the processors' data caches in bytes; 0 if unknown.

    A cache that several cores share counts once.

    Args:
        root: The folder in which Linux describes the processors.
    """
    sizes: dict[tuple[str, str], int] = {}
    for cache in root.glob("cpu[0-9]*/cache/index*"):
        try:
            kind = (cache / "type").read_text().strip()
            level = (cache / "level").read_text().strip()
            cores = (cache / "shared_cpu_list").read_text().strip()
            size = (cache / "size").read_text().strip()
        except OSError:
            continue
        match = re.fullmatch(r"(\d+)([KM]?)", size)
        if kind != "Instruction" and match:
            sizes[level, cores] = int(match[1]) * _UNITS[match[2]]
    return sum(sizes.values())
