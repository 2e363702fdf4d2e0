"""Software stacks, which are really installed from a minimal package without network access."""

import fcntl
import os
import shutil
import subprocess
import sys
import zipfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from paradnn.config.point import Software
from paradnn.config.reading import read_point
from paradnn.core.errors import WorkerError
from paradnn.platform.stack import Stack, open_stack
from paradnn.session.workers import WorkerKey, WorkerPool
from tests.conftest import ROOT, TINY, Store, run, succeeded
from tests.processes import PATIENCE, started
from tests.session.test_worker_process import workers

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
TINYSTACK = Stack("tiny", PYTHON, ("tinystack==1.0",))
MISSING = Stack("missing", PYTHON, ("nosuch-package==9",))


@pytest.fixture(scope="module")
def wheel_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a wheel of the package tinystack."""
    folder = tmp_path_factory.mktemp("wheels")
    with zipfile.ZipFile(folder / "tinystack-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tinystack.py", "answer = 42\n")
        wheel.writestr(
            "tinystack-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: tinystack\nVersion: 1.0\n",
        )
        wheel.writestr(
            "tinystack-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n"
        )
        names = (
            "tinystack.py",
            *(f"tinystack-1.0.dist-info/{name}" for name in ("METADATA", "WHEEL", "RECORD")),
        )
        wheel.writestr("tinystack-1.0.dist-info/RECORD", "".join(f"{name},,\n" for name in names))
    return folder


@pytest.fixture
def cache(tmp_path: Path, wheel_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the stacks of this test; installers use only the wheels of the test."""
    for name in [name for name in os.environ if name.startswith("UV_")]:
        monkeypatch.delenv(name)
    settings = {
        "XDG_CACHE_HOME": tmp_path / "cache",
        "UV_FIND_LINKS": wheel_folder,
        "UV_NO_INDEX": 1,
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, str(value))
    return tmp_path / "cache" / "paradnn" / "stacks"


def open_and_release(stack: Stack) -> tuple[tuple[str, ...], list[str]]:
    """Open and release a stack; return its packages and the messages."""
    messages: list[str] = []
    with open_stack(stack, messages.append) as packages:
        return packages, messages


def folders(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir()} - {".locks"}


def test_a_stack_is_installed_once(cache: Path) -> None:
    packages, messages = open_and_release(TINYSTACK)
    assert messages == [
        f"installing the software stack tiny (Python {PYTHON}, tinystack==1.0), which takes a few minutes"
    ]
    assert "tinystack==1.0" in packages
    answer = subprocess.run(
        [TINYSTACK.python, "-c", "import tinystack; print(tinystack.answer)"], capture_output=True
    )
    assert answer.stdout == b"42\n"
    repeated, messages = open_and_release(TINYSTACK)
    assert messages == []
    assert repeated == packages
    assert folders(cache) == {TINYSTACK.key}


def test_incomplete_and_changed_stacks_are_installed_again(cache: Path) -> None:
    (cache / f"{TINYSTACK.key}.making-1" / "lib").mkdir(parents=True)
    TINYSTACK.python.parent.mkdir(parents=True)
    assert "is incomplete" in open_and_release(TINYSTACK)[1][0]
    assert folders(cache) == {TINYSTACK.key}
    [metadata] = TINYSTACK.folder.rglob("tinystack-1.0.dist-info")
    shutil.rmtree(metadata)
    packages, messages = open_and_release(TINYSTACK)
    assert "has changed since it was installed" in messages[0]
    assert "tinystack==1.0" in packages
    TINYSTACK.python.unlink()
    assert "no longer runs" in open_and_release(TINYSTACK)[1][0]


def test_two_processes_install_a_stack_once(cache: Path) -> None:
    code = (
        "from paradnn.platform.stack import Stack, open_stack; "
        f"stack = open_stack({TINYSTACK!r}, lambda text: print(text, flush=True)); "
        "print(stack.__enter__(), flush=True); input()"
    )
    # This test keeps the lock until both processes report that they wait. The first to acquire it
    # then uses the stack for long.
    (cache / ".locks").mkdir(parents=True)
    with (cache / ".locks" / f"{TINYSTACK.key}.lock").open("w") as lock, ExitStack() as running:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [sys.executable, "-c", code]
        pipe = subprocess.PIPE
        start_process = partial(started, command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        processes = [running.enter_context(start_process()) for _ in range(2)]
        for process in processes:
            assert process.stdout.readline().startswith("waiting for another process that installs")
        fcntl.flock(lock, fcntl.LOCK_UN)
        output = ""
        for process in processes:
            line = ""
            while "tinystack==1.0'" not in line:
                line = process.stdout.readline()
                assert line
                output += line
        assert output.count("installing the software stack") == 1
        for process in processes:
            process.communicate("\n", timeout=PATIENCE)
            assert process.returncode == 0


@pytest.mark.parametrize(
    ("stack", "reason"),
    [
        pytest.param(MISSING, r"^uv: .*nosuch-package was not found", id="missing package"),
        pytest.param(
            Stack("new", "3.99", ("tinystack==1.0",)),
            r"^uv: No interpreter found for Python 3\.99",
            id="missing interpreter",
        ),
    ],
)
def test_a_failed_installation_reports_the_reason_and_leaves_no_files(
    cache: Path, stack: Stack, reason: str
) -> None:
    with pytest.raises(WorkerError, match=reason) as error:
        open_and_release(stack)

    assert len(str(error.value).splitlines()) == 1
    assert folders(cache) == set()


def test_an_unreachable_package_index_is_reported_without_its_credentials(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UV_NO_INDEX")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://user:secret@127.0.0.1:9/token/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")

    with pytest.raises(WorkerError, match=r"\(could not reach a package index\)") as offline:
        open_and_release(MISSING)

    assert not any(word in str(offline.value) for word in ("secret", "token"))
    assert folders(cache) == set()


def test_a_stack_in_use_is_not_removed(cache: Path) -> None:
    with open_stack(TINYSTACK, lambda _: None):
        refused = run(["paradnn.stacks", "remove", "tiny"])
    assert refused.returncode == 2
    assert "is in use; remove it when the sweep has ended" in refused.stderr
    listed = run(["paradnn.stacks"]).stdout
    assert f"{TINYSTACK.key}: installed" in listed
    assert "tensorflow-2.16    not installed" in listed
    assert run(["paradnn.stacks", "remove", "tiny"]).stdout == f"removed {TINYSTACK.folder}\n"
    assert folders(cache) == set()
    assert run(["paradnn.stacks", "remove", "tiny"]).stdout.startswith("no stack tiny in")
    assert run(["paradnn.stacks", "make", "current"]).stderr.startswith(
        "error: software=current: uses an existing interpreter, so ParaDnn installs no stack for "
        "it; choose one of "
    )


@pytest.mark.usefixtures("cache")
@pytest.mark.framework
def test_a_sweep_continues_without_stacks_that_cannot_be_installed(store: Store) -> None:
    """Measure two points each with this interpreter and with two unusable stacks.

    One stack lacks the framework, and the other cannot be installed.
    """
    stacks = "software.requirements=choice([],['tinystack==1.0'],['nosuch-package==9'])"
    command = ["paradnn.train", "-m", *TINY, stacks, "model.nodes=8,9"]
    completed = succeeded(command, store)
    assert completed.stderr.count("installing the software stack") == 2
    points = {
        outcome: [point for point in store.runs() if point["outcome"] == outcome]
        for outcome in ("ok", "unavailable")
    }
    assert [len(group) for group in points.values()] == [2, 4]
    reasons = {point["reason"] for point in points["unavailable"]}
    assert any("tensorflow is not installed in" in reason for reason in reasons)
    [unmade] = [reason for reason in reasons if "nosuch-package was not found" in reason]
    assert unmade.startswith("the software stack current cannot be installed: uv: ")
    [(uri,), *_] = store.query(
        "SELECT artifact_uri FROM runs JOIN tags USING (run_uuid) WHERE value LIKE '%is not installed in%'"
    )
    assert "tinystack==1.0\n" in (Path(uri.removeprefix("file://")) / "stack.txt").read_text()
    # The repeated sweep reuses the installed stack, and tries the other one once. It skips all
    # points, whose outcomes are known.
    repeated = run(command, store)
    assert repeated.stderr.count("installing the software stack") == 1
    assert "6 skipped" in repeated.stdout
    assert len(store.runs()) == 6


def test_a_stack_does_not_depend_on_the_order_of_requirements() -> None:
    one, two = (
        Stack.of(Software("a", None, entries, "3.11")) for entries in (("x==1", "y"), ("y", "x==1"))
    )
    assert one
    assert two
    assert one.key == two.key
    assert Stack("a", "3.12", one.requirements).key != one.key
    assert Stack.of(Software()) is None
    assert Stack("../../etc", "3.11", ("x",)).folder.parent == one.folder.parent


@pytest.mark.framework
def test_workers_are_kept_while_enough_memory_is_free() -> None:
    workers_before = workers()
    keys = [
        WorkerKey.of(read_point({"model": {"name": "fc"}, "platform": {"threads": n}}))
        for n in (1, 2)
    ]
    for share, kept in ((1.0, 2), (0.0, 1)):
        with WorkerPool(share=share) as pool:
            for key in keys:
                pool.prepare(key)
            assert len(workers() - workers_before) == kept
    assert workers() == workers_before
