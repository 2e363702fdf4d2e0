"""Specifications of the devices of the atlas (the published timings that ship with the package)."""

from paradnn.platform.specifications import Hardware, find_hardware

#: The timed product variant of devices that were sold in several variants. For example, the
#: a100_sxm of aiconfigurator has 80 GiB and 2,039 GB/s.
_TIMED_PARTS = {"A100": "A100-SXM4-80GB", "A100 PCIe": "A100 80GB PCIe"}


def device_hardware(device: str) -> Hardware | None:
    """Return the specification of a device; None if it is unknown.

    Args:
        device: The atlas's name of a device, or the name of any other device.
    """
    return find_hardware(_TIMED_PARTS.get(device, device))
