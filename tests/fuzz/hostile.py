"""Values that users and programs really pass by mistake, and those that break parsers."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

NUMBERS: list[Any] = [
    *(0, -1, 1, 2, 7, 2**31 - 1, 2**31, 2**32, 2**63, 10**400, -(10**400), True, False),
    *(0.0, -0.0, 0.1, 0.5, 1.0, -1.0, 2.5, 1e-320, 1e300, 1.7e308, float("inf"), float("-inf"), float("nan")),
]
TEXTS = [
    *(
        "",
        " ",
        "auto",
        "none",
        "fast",
        "ten",
        "0.1",
        "nan",
        "=1+1",
        "@x",
        "-5",
        "../..",
        "/",
        "a/b",
        "\0",
        "\n",
        "ß" * 9,
    ),
    *("$\\frac", "[bold]x[/bold]", "{0}", "%s", "x" * 300, "os:getcwd", "nothing:here", "people.parquet", "🎲"),
]
NESTED = st.recursive(
    st.sampled_from(NUMBERS) | st.sampled_from(TEXTS) | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "step", "x", ""]), inner),
    max_leaves=5,
)
# Of ten values, six are numbers at the edge of what is possible, and three are texts.
TOML_VALUES = st.integers(0, 9).flatmap(
    lambda die: st.sampled_from(NUMBERS) if die < 6 else st.sampled_from(TEXTS) if die < 9 else NESTED
)
OBJECTS: list[Any] = [
    *(
        None,
        object(),
        [],
        {},
        (),
        set(),
        b"bytes",
        1j,
        np.nan,
        np.float32(0.5),
        np.int64(3),
        np.zeros(0),
        np.zeros((2, 3)),
    ),
    *(np.array([1j, 2]), np.array(["a", 1], object), np.ma.masked_array([1.0, 2.0], [True, False]), lambda *a: 2),
    *(lambda r, q: -1.0, lambda r: float("nan"), int, [[1], [1, 2]], range(3), iter([1])),
]
VALUES = st.sampled_from(OBJECTS) | TOML_VALUES
