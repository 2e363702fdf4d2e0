"""Names of points, some with options that this version does not know."""

import pytest

from analysis.point_names import model_name


@pytest.mark.parametrize(
    ("options", "name"),
    [
        pytest.param(
            {"transport": "tcp", "pattern": "latency", "bytes": 8}, "tcp latency 8 B", id="known"
        ),
        pytest.param(
            {"transport": "baidu", "pattern": "all_reduce", "bytes": 8}, "", id="unknown transport"
        ),
    ],
)
def test_a_point_with_unknown_options_is_named_after_its_family(
    options: dict[str, object], name: str
) -> None:
    values = {f"model.{key}": value for key, value in options.items()}

    assert model_name({"family": "channel", **values}) == f"channel {name}".strip()
