"""`python -m paradnn.ceilings`: measure and record the peak rates and idle power of this machine.

  python -m paradnn.ceilings                                 measure the CPU of this machine
  python -m paradnn.ceilings platform=gpu framework=jax      measure its GPU, with JAX

The command accepts the keys of `python -m paradnn.train`, but only platform, framework and software
have an effect. A sweep measures missing peak rates automatically. Use this command to inspect peak
rates, or to measure them again.
"""

import sys

from omegaconf import DictConfig

from paradnn.cli.command import run_command
from paradnn.cli.program import program


def _measure_ceilings(config: DictConfig) -> int:
    """Measure and print the ceilings of this machine, and return the exit code.

    Ceilings are the peak FLOP/s, the peak memory bandwidth, and the idle power.

    Args:
        config: The composed configuration. Only platform, framework and software have an effect.
    """
    from paradnn.cli.console import si
    from paradnn.config.reading import read_point
    from paradnn.config.settings import read_settings
    from paradnn.config.space import plain
    from paradnn.core.errors import ConfigError
    from paradnn.session.session import measure_ceilings

    content = plain(config)
    settings = read_settings(content)
    if settings.sweep.plan or settings.sweep.grids:
        raise ConfigError(
            "experiment",
            settings.sweep.name,
            "is a sweep, but this command measures the peak performance of one platform",
            "omit it, and run one command per platform",
        )
    ceilings, where = measure_ceilings(read_point(content), settings)
    if ceilings is None:
        return 1
    for precision, rate in ceilings.flops_per_second.items():
        share = ceilings.emulated_share(precision)
        if share:
            note = f"  ({share:.2f} of float32: emulated, not accelerated)"
        else:
            note = ""
        print(f"matmul, {precision:9} {si(rate)}FLOP/s{note}")
    if ceilings.bytes_per_second:
        print(f"main memory       {si(ceilings.bytes_per_second)}B/s")
    if ceilings.idle_watts:
        print(f"idle power        {ceilings.idle_watts:.3g} W")
    elif ceilings.idle_source:
        print(f"idle power        {ceilings.idle_source}")
    print(f"run               {ceilings.run_id} in {where}")
    return 0


@program
def main() -> int:
    """Run `python -m paradnn.ceilings platform=cpu` and return its exit code."""
    return run_command(_measure_ceilings, __doc__)


if __name__ == "__main__":
    sys.exit(main())
