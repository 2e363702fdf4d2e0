"""Names of processors in the formats of /proc/cpuinfo on different architectures."""

import pytest

from paradnn.platform.environment import processor_name

X86 = """\
processor	: 0
vendor_id	: AuthenticAMD
cpu family	: 25
model		: 1
model name	: AMD EPYC 7R13 Processor
cpu MHz		: 2650.000
"""
ARM_SERVER = """\
processor	: 0
BogoMIPS	: 243.75
Features	: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics
CPU implementer	: {implementer}
CPU architecture: 8
CPU variant	: 0x3
CPU part	: {part}
CPU revision	: 1
"""
RASPBERRY_PI = (
    ARM_SERVER.format(implementer="0x41", part="0xd08")
    + """
Hardware	: BCM2835
Revision	: c03111
Model		: Raspberry Pi 4 Model B Rev 1.1
"""
)
POWER = """\
processor	: 0
cpu		: POWER9, altivec supported
clock		: 3800.000000MHz
revision	: 2.2 (pvr 004e 1202)

timebase	: 512000000
platform	: PowerNV
model		: 8335-GTH
machine		: PowerNV 8335-GTH
"""
RISC_V = """\
processor	: 0
hart		: 1
isa		: rv64imafdc
mmu		: sv39
uarch		: sifive,u74-mc
"""


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        pytest.param(X86, "AMD EPYC 7R13 Processor", id="x86"),
        pytest.param(
            ARM_SERVER.format(implementer="0x41", part="0xd0c"), "Arm Neoverse-N1", id="Arm server"
        ),
        pytest.param(
            ARM_SERVER.format(implementer="0x46", part="0x001"), "Fujitsu A64FX", id="A64FX"
        ),
        pytest.param(
            ARM_SERVER.format(implementer="0x41", part="0xfff"),
            "Arm core, implementer 0x41, part 0xfff",
            id="Arm core without a known name",
        ),
        pytest.param(RASPBERRY_PI, "BCM2835", id="board with a name"),
        pytest.param(POWER, "POWER9, altivec supported", id="POWER"),
        pytest.param(RISC_V, "sifive,u74-mc", id="RISC-V"),
        pytest.param("model name\t:\n", "", id="container that hides the processor"),
        pytest.param("", "", id="no /proc/cpuinfo"),
    ],
)
def test_the_processor_name_is_found_on_all_architectures(cpuinfo: str, name: str) -> None:
    assert processor_name(cpuinfo) == name
