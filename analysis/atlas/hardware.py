"""Specifications of the devices that the atlas's sources timed."""

from paradnn.platform.specifications import Hardware, find_hardware

#: Devices that exist as several parts, with the part that was timed: that of aiconfigurator's
#: a100_sxm has 80 GiB and 2,039 GB/s.
_TIMED_PARTS = {"A100": "A100-SXM4-80GB", "A100 PCIe": "A100 80GB PCIe"}


def device_hardware(device: str) -> Hardware | None:
    """Return the specification of a device of the atlas, or of another one by its name.

    Returns:
        None if it is unknown.
    """
    return find_hardware(_TIMED_PARTS.get(device, device))
