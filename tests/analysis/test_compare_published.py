"""Measured models compared with published platforms: matched precisions and lower bounds."""

import pandas as pd
import pytest

import analysis
from analysis.analyses.compare_published import ComparePublishedOptions, compare_published
from analysis.cli import main, make_parser
from analysis.options import read_arguments
from analysis.result import Result
from paradnn.core.errors import InsufficientData
from tests.analysis.planted import ROW

#: A fully connected model with published steps on TPU v2 (bfloat16) and V100 (float16).
FC = {
    "family": "fc",
    "model.layers": 4,
    "model.nodes": 512,
    "model.input_size": 2000,
    "model.output_size": 1000,
    "batch_size": 512,
}
LSTM = {
    "family": "lstm",
    "model.layers": 1,
    "model.embedding_size": 100,
    "model.sequence_length": 10,
    "batch_size": 64,
}


def run(model: dict[str, object], rate: float, **columns: object) -> dict[str, object]:
    row = {**ROW, "precision": "float16", "examples_per_second": rate, **model, **columns}
    names = ("family", "model.nodes", "model.embedding_size", "precision", "compile", "mode")
    row["point_id"] = "-".join(str(row.get(name)) for name in names)
    return row


def compare(*rows: dict[str, object], platforms: tuple[str, ...] = ("V100",)) -> Result:
    frame = pd.DataFrame(rows)
    frame["run_id"] = [f"run-{number}" for number in range(len(frame))]
    return compare_published(frame, ComparePublishedOptions(platform_of=platforms))


def test_replicates_count_as_their_median() -> None:
    result = compare(run(FC, 100.0), run(FC, 300.0), run(FC, 120.0))
    (row,) = result.table.to_dict("records")

    assert row["here"] == 120.0
    assert row["ratio"] == pytest.approx(row["there"] / 120.0)


def test_the_former_function_still_works_and_is_deprecated() -> None:
    with pytest.deprecated_call(match="is now analysis.compare_published"):
        former = analysis.beside

    assert former is compare_published


def test_the_former_options_still_work_and_are_deprecated() -> None:
    with pytest.deprecated_call():
        assert analysis.BesideOptions is ComparePublishedOptions


def test_the_former_command_still_works_and_is_deprecated(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["beside", "--help"])

    out, err = capsys.readouterr()
    assert out.startswith("usage: python -m analysis compare-published")
    assert err == "warning: the command beside is now compare-published\n"


def test_platforms_are_repeatable_on_the_command_line() -> None:
    words = ["compare-published", "--platform-of", "H200", "--platform-of", "V100"]
    options = read_arguments(ComparePublishedOptions, make_parser().parse_args(words))

    assert options.platform_of == ("H200", "V100")


@pytest.mark.parametrize(
    ("precision", "platform", "expected"),
    [
        pytest.param("float16", "V100", ("float16", "published"), id="the same step"),
        pytest.param(
            "float32", "V100", ("float32", "predicted"), id="same precision, although predicted"
        ),
        pytest.param("float16", "TPU v2", ("bfloat16", "published"), id="different 16-bit format"),
        pytest.param("float32", "TPU v2", ("bfloat16", "published"), id="no similar precision"),
    ],
)
def test_the_most_similar_precision_is_compared(
    precision: str, platform: str, expected: tuple[str, str]
) -> None:
    (row,) = compare(run(FC, 100.0, precision=precision), platforms=(platform,)).table.to_dict(
        "records"
    )
    assert (row["precision"], row["source"]) == expected


def test_precisions_of_different_width_are_summarized_separately() -> None:
    half = run(FC, 100.0, precision="bfloat16")
    full = run(FC, 50.0, precision="float32")
    result = compare(half, full, platforms=("TPU v2",))
    text = result.text()

    assert "(bfloat16; published): " in text
    assert "(float32 here, bfloat16 there; published): " in text

    headline = result.headline()
    assert headline is not None
    assert "TPU v2 ran 1 point " in headline.words


def test_the_headline_states_that_input_and_dispatch_limit_a_published_time() -> None:
    headline = compare(run(FC, 100.0)).headline()
    assert headline is not None
    assert "limited by input and dispatch, not by the device" in headline.words


def test_eager_runs_are_omitted_if_the_model_was_also_compiled() -> None:
    result = compare(run(FC, 100.0, compile="graph"), run(FC, 20.0, compile="eager"))
    assert result.table["here"].tolist() == [100.0]
    assert "Omitted: 1 eager point" in result.text()


def test_compile_modes_are_not_pooled() -> None:
    larger_fc = {**FC, "model.nodes": 1024}
    result = compare(run(FC, 100.0, compile="graph"), run(larger_fc, 20.0, compile="eager"))

    assert sorted(result.table["settings"]) == ["eager", "graph"]
    assert result.text().count("times as fast on 1 point") == 2


def test_a_lower_bound_is_marked_and_excluded_from_means() -> None:
    wide_lstm = {**LSTM, "model.embedding_size": 200}
    rows = [run(model, 1000.0, precision="float32") for model in (LSTM, wide_lstm)]
    result = compare(*rows)

    assert result.table["is_floor"].all()
    assert result.table["there"].nunique() == 1
    assert "at most" in result.text()
    assert "geometric mean" not in result.text()
    assert result.headline() is None

    labels = [text.get_text() for text in result.picture().legends[0].get_texts()]
    assert "V100 in float32, at most (dispatch floor)" in labels


def test_published_runs_alone_are_rejected() -> None:
    with pytest.raises(InsufficientData, match="experiment=quick"):
        compare(run(FC, 100.0, source="published"))
