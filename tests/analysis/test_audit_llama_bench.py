"""`audit` reads every output of llama-bench that states its rates."""

import json
import math
from pathlib import Path

import pytest

from analysis.audit import AuditFinding, draw_conclusions, read_results
from analysis.audit.series import Results

TABLE = """\
ggml_cuda_init: found 1 CUDA devices:
| model              |     size |  params | backend | ngl |           test |           t/s |
| ------------------ | -------: | ------: | ------- | --: | -------------: | ------------: |
| llama 8B Q4_K - M  | 4.58 GiB |  8.03 B | CUDA    |  99 |          pp512 | 800.00 ± 4.00 |
| llama 8B Q4_K - M  | 4.58 GiB |  8.03 B | CUDA    |  99 |  tg128 @ d4096 |  40.00 ± 0.20 |

build: 067de93 (200)
"""
CSV = """\
build_commit,model_filename,model_type,model_size,n_threads,n_prompt,n_gen,n_depth,avg_ts,stddev_ts
"067de93","a.gguf","llama 8B Q4_K, M","4917000000","8","512","0","0","800.0","4.0"
"067de93","a.gguf","llama 8B Q4_K, M","4917000000","8","0","128","4096","40.0","0.2"
"""


def read_one(folder: Path, text: str) -> Results:
    path = folder / "results.txt"
    path.write_text(text)
    [results] = read_results(path)
    return results


def findings(results: Results) -> list[AuditFinding]:
    return list(draw_conclusions([results], []))


@pytest.mark.parametrize(
    ("text", "conditions"),
    [
        pytest.param(
            TABLE,
            {"backend": "CUDA", "model": "llama 8B Q4_K - M", "ngl": "99", "size": "4.58 GiB"},
            id="markdown",
        ),
        pytest.param(
            CSV,
            {"model_size": "4917000000", "model_type": "llama 8B Q4_K, M", "n_threads": "8"},
            id="csv",
        ),
        pytest.param(
            f"$ llama-bench -o csv\n{CSV}done\n",
            {"model_size": "4917000000", "model_type": "llama 8B Q4_K, M", "n_threads": "8"},
            id="csv in a log",
        ),
    ],
)
def test_tables_and_csv_have_means_deviations_and_settings(
    text: str, conditions: dict[str, str], tmp_path: Path
) -> None:
    results = read_one(tmp_path, text)

    prompt, generation = results.series
    assert (prompt.name, prompt.center, prompt.stddev) == ("pp512", 800.0, 4.0)
    assert (generation.name, generation.center, generation.stddev) == ("tg128 @ d4096", 40.0, 0.2)
    assert {series.better for series in results.series} == {"higher"}
    assert {series.unit for series in results.series} == {"tokens/s"}
    assert results.conditions == conditions


def test_a_deviation_without_a_count_is_reported_as_such(tmp_path: Path) -> None:
    prompt, _ = findings(read_one(tmp_path, TABLE))

    assert prompt.sentence == (
        "800 tokens/s, mean over an unstated number of runs, standard deviation 0.5%, one session."
    )


@pytest.mark.parametrize("rate", ["800.00", "800.00 ± 0.00"])
def test_one_repetition_is_a_single_number(rate: str, tmp_path: Path) -> None:
    results = read_one(tmp_path, TABLE.replace("800.00 ± 4.00", rate))

    assert math.isnan(results.series[0].stddev)
    assert findings(results)[0].sentence == (
        "800 tokens/s, a single number: its repeatability is unknown."
    )


@pytest.mark.parametrize("sign", ["+-", "+/-"])
def test_consoles_without_a_plus_minus_sign_are_read(sign: str, tmp_path: Path) -> None:
    results = read_one(tmp_path, TABLE.replace("±", sign))

    assert [series.stddev for series in results.series] == [4.0, 0.2]


def test_tables_of_2023_name_the_same_tests(tmp_path: Path) -> None:
    results = read_one(tmp_path, TABLE.replace("pp512", "pp 512").replace("tg128", "tg 128"))

    assert [series.name for series in results.series] == ["pp512", "tg128 @ d4096"]


def test_models_of_one_name_are_distinguished_by_their_size(tmp_path: Path) -> None:
    other_model = TABLE.replace("4.58 GiB", "5.33 GiB")

    results = read_one(tmp_path, TABLE + other_model)

    assert [series.name for series in results.series] == [
        "pp512 (size=4.58 GiB)",
        "tg128 @ d4096 (size=4.58 GiB)",
        "pp512 (size=5.33 GiB)",
        "tg128 @ d4096 (size=5.33 GiB)",
    ]
    assert "size" not in results.conditions


def test_json_models_of_one_type_are_distinguished_by_their_size(tmp_path: Path) -> None:
    tests = [
        {"model_type": "llama 8B", "model_size": size, "n_prompt": 512, "n_gen": 0, "avg_ts": 1.0}
        for size in (4_917_000_000, 5_723_000_000)
    ]

    results = read_one(tmp_path, json.dumps(tests))

    assert [series.name for series in results.series] == [
        "pp512 (model_size=4917000000)",
        "pp512 (model_size=5723000000)",
    ]


def test_other_tables_in_the_file_are_ignored(tmp_path: Path) -> None:
    other = "| name | test | seconds |\n| --- | --- | --- |\n| a | pp512 | 3.0 |\n"

    assert len(read_one(tmp_path, other + TABLE + other).series) == 2


def test_json_of_an_interrupted_run_has_the_completed_tests(tmp_path: Path) -> None:
    test = {"model_type": "llama 8B", "n_prompt": 512, "n_gen": 0, "avg_ts": 1.0}
    complete = json.dumps([{**test, "samples_ts": [7.0, 9.0]}, test], indent=2)
    interrupted = complete[: complete.rindex("n_gen")]

    results = read_one(tmp_path, interrupted)

    assert [(series.name, series.values) for series in results.series] == [("pp512", (7.0, 9.0))]
    assert results.notes == ("a part of the file is not JSON and was not read",)


def test_lines_that_are_not_csv_are_skipped(tmp_path: Path) -> None:
    too_long_for_a_field = "x" * 200_000

    results = read_one(tmp_path, f"{too_long_for_a_field}\n{CSV}")

    assert [series.name for series in results.series] == ["pp512", "tg128 @ d4096"]


@pytest.mark.parametrize("rate", ["1.2.3", ".", "nan ± nan", "-5.00 ± 1.00", ""])
def test_rows_without_a_rate_are_skipped(rate: str, tmp_path: Path) -> None:
    results = read_one(tmp_path, TABLE.replace("800.00 ± 4.00", rate))

    assert [series.name for series in results.series] == ["tg128 @ d4096"]
