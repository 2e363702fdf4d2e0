"""Names of points whose options this version does not know."""

import pytest

from analysis.point_names import model_name


@pytest.mark.parametrize(
    ("options", "name"),
    [
        pytest.param({"transport": "tcp", "pattern": "latency", "bytes": 8}, "tcp latency 8 B"),
        pytest.param({"transport": "baidu", "pattern": "all_reduce", "bytes": 8}, ""),
    ],
    ids=["known", "imported"],
)
def test_the_family_remains_of_options_that_this_version_lacks(
    options: dict[str, object], name: str
) -> None:
    values = {f"model.{key}": value for key, value in options.items()}

    assert model_name({"family": "channel", **values}) == f"channel {name}".strip()
