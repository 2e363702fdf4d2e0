"""Software stacks, made for real from a package that is as small as it can be and needs no network."""

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
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one wheel."""
    folder = tmp_path_factory.mktemp("shelf")
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
def cache(tmp_path: Path, shelf: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the stacks in this test; installers see the shelf alone."""
    for name in [name for name in os.environ if name.startswith("UV_")]:
        monkeypatch.delenv(name)
    settings = {"XDG_CACHE_HOME": tmp_path / "cache", "UV_FIND_LINKS": shelf, "UV_NO_INDEX": 1}
    for name, value in settings.items():
        monkeypatch.setenv(name, str(value))
    return tmp_path / "cache" / "paradnn" / "stacks"


def opened(stack: Stack) -> tuple[tuple[str, ...], list[str]]:
    """Return the packages of a stack, released again, and the messages."""
    said: list[str] = []
    with open_stack(stack, said.append) as packages:
        return packages, said


def folders(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir()} - {".locks"}


def test_a_stack_is_made_once(cache: Path) -> None:
    found, said = opened(TINYSTACK)
    assert said == [
        f"installing the software stack tiny (Python {PYTHON}, tinystack==1.0), which takes a few minutes"
    ]
    assert "tinystack==1.0" in found
    answer = subprocess.run(
        [TINYSTACK.python, "-c", "import tinystack; print(tinystack.answer)"], capture_output=True
    )
    assert answer.stdout == b"42\n"
    again, said = opened(TINYSTACK)
    assert said == []
    assert again == found
    assert folders(cache) == {TINYSTACK.key}


def test_half_made_and_changed_stacks_are_made_anew(cache: Path) -> None:
    (cache / f"{TINYSTACK.key}.making-1" / "lib").mkdir(parents=True)
    TINYSTACK.python.parent.mkdir(parents=True)
    assert "is incomplete" in opened(TINYSTACK)[1][0]
    assert folders(cache) == {TINYSTACK.key}
    [metadata] = TINYSTACK.folder.rglob("tinystack-1.0.dist-info")
    shutil.rmtree(metadata)
    found, said = opened(TINYSTACK)
    assert "has changed since it was installed" in said[0]
    assert "tinystack==1.0" in found
    TINYSTACK.python.unlink()
    assert "no longer runs" in opened(TINYSTACK)[1][0]


def test_two_processes_make_it_once(cache: Path) -> None:
    code = (
        "from paradnn.platform.stack import Stack, open_stack; "
        f"held = open_stack({TINYSTACK!r}, lambda text: print(text, flush=True)); "
        "print(held.__enter__(), flush=True); input()"
    )
    # The lock is held until both processes report that they wait. The first to acquire it then uses
    # the stack for long.
    (cache / ".locks").mkdir(parents=True)
    with (cache / ".locks" / f"{TINYSTACK.key}.lock").open("w") as lock, ExitStack() as running:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [sys.executable, "-c", code]
        pipe = subprocess.PIPE
        making = partial(started, command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        both = [running.enter_context(making()) for _ in range(2)]
        for process in both:
            assert process.stdout.readline().startswith("waiting for another process that installs")
        fcntl.flock(lock, fcntl.LOCK_UN)
        said = ""
        for process in both:
            while "tinystack==1.0'" not in (line := process.stdout.readline()):
                said += line
                assert line
        assert said.count("installing the software stack") == 1
        for process in both:
            process.communicate("\n", timeout=PATIENCE)
            assert process.returncode == 0


def test_a_failed_installation_reports_the_reason_and_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(WorkerError, match=r"^uv: .*nosuch-package was not found") as error:
        opened(MISSING)
    assert len(str(error.value).splitlines()) == 1
    with pytest.raises(WorkerError, match=r"^uv: No interpreter found for Python 3\.99"):
        opened(Stack("new", "3.99", ("tinystack==1.0",)))
    monkeypatch.delenv("UV_NO_INDEX")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://user:secret@127.0.0.1:9/token/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(WorkerError, match=r"\(could not reach a package index\)") as offline:
        opened(MISSING)
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
        "error: software=current: is not a stack"
    )


@pytest.mark.usefixtures("cache")
@pytest.mark.framework
def test_a_sweep_goes_on_without_the_stacks_that_cannot_be_made(store: Store) -> None:
    """This interpreter, a stack that lacks the framework, and one that cannot be made, two points
    each.
    """
    stacks = "software.requirements=choice([],['tinystack==1.0'],['nosuch-package==9'])"
    command = ["paradnn.train", "-m", *TINY, stacks, "model.nodes=8,9"]
    done = succeeded(command, store)
    assert done.stderr.count("installing the software stack") == 2
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
    # Once more: the one that is made is reused, the other tried once, and their points are known.
    again = run(command, store)
    assert again.stderr.count("installing the software stack") == 1
    assert "6 skipped" in again.stdout
    assert len(store.runs()) == 6


def test_the_same_requirements_are_the_same_stack() -> None:
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
def test_workers_are_kept_while_there_is_memory() -> None:
    before = workers()
    keys = [
        WorkerKey.of(read_point({"model": {"name": "fc"}, "platform": {"threads": n}}))
        for n in (1, 2)
    ]
    for share, kept in ((1.0, 2), (0.0, 1)):
        with WorkerPool(share=share) as pool:
            for key in keys:
                pool.prepare(key)
            assert len(workers() - before) == kept
    assert workers() == before
