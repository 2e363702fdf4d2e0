"""Imports without names that only Linux has: all packages as on macOS, the analysis as on Windows.

A process removes the names that the other system lacks, according to typeshed, before it imports
the packages. The tests do not call functions on those systems.
"""

import importlib
import os
import pkgutil
import select
import signal
import socket
import sys

import pytest

from tests.processes import run_in_new_interpreter

#: Names that Linux has and macOS lacks, by module.
NOT_ON_MACOS = {
    os: (
        "eventfd getrandom memfd_create O_DIRECT O_PATH O_TMPFILE pidfd_open pipe2 "
        "posix_fadvise posix_fallocate sched_getaffinity sched_setaffinity setns splice unshare"
    ),
    select: "epoll",
    signal: "pidfd_send_signal sigtimedwait sigwaitinfo SIGRTMAX SIGRTMIN",
    socket: "AF_NETLINK AF_PACKET AF_VSOCK SO_BINDTODEVICE SOCK_CLOEXEC SOCK_NONBLOCK",
}
#: Names that macOS has and Windows lacks, by module.
NOT_ON_WINDOWS = {
    os: (
        "chown fork getegid geteuid getgid getloadavg getpgid getpriority getuid killpg mkfifo "
        "O_ASYNC O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK pread pwrite register_at_fork "
        "setpriority setsid statvfs sysconf uname wait4 waitid WNOHANG"
    ),
    select: "poll",
    signal: (
        "alarm pause pthread_sigmask setitimer SIGALRM SIGCHLD SIGCONT SIGHUP siginterrupt SIGIO "
        "SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 sigwait"
    ),
    socket: "AF_UNIX",
}
MODULES_NOT_ON_WINDOWS = ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty")
#: Modules of other projects that have separate code for each system. They are imported first, with
#: all names.
OTHERS = (
    "concurrent.futures.process",
    "ctypes.util",
    "hydra.main",
    "matplotlib.pyplot",
    "mlflow.tracking",
    "multiprocessing.pool",
    "pandas",
    "psutil",
    "pyarrow.dataset",
    "requests",
    "rich.progress",
    "scipy.optimize",
    "scipy.stats",
    "sklearn.ensemble",
    "sqlalchemy",
    "statsmodels.api",
    "urllib.request",
)
#: Prefixes of modules that import a framework, which need not be installed.
FRAMEWORKS = ("paradnn.families.parts.", "paradnn.worker.frameworks.")


def import_everything(system: str, packages: tuple[str, ...]) -> None:
    """Remove the names that a system lacks, and import every module of the packages."""
    for name in OTHERS:
        importlib.import_module(name)
    missing = [NOT_ON_MACOS]
    if system == "windows":
        missing.append(NOT_ON_WINDOWS)
        sys.modules.update(dict.fromkeys(MODULES_NOT_ON_WINDOWS))
    for table in missing:
        for module, names in table.items():
            for name in names.split():
                vars(module).pop(name, None)  # Python 3.11 lacks some

    imported = 0
    for package in packages:
        parent = importlib.import_module(package)
        for module in pkgutil.walk_packages(parent.__path__, f"{package}."):
            if module.name.endswith("__main__") or module.name.startswith(FRAMEWORKS):
                continue
            importlib.import_module(module.name)
            imported += 1
    assert imported > 50


@pytest.mark.parametrize(
    ("system", "packages"),
    [
        pytest.param("macos", ("paradnn", "analysis", "hydra_plugins"), id="macos"),
        pytest.param("windows", ("analysis",), id="windows"),
    ],
)
def test_modules_import_without_names_of_linux(system: str, packages: tuple[str, ...]) -> None:
    run_in_new_interpreter(import_everything, system, packages)
