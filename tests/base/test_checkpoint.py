"""fedpd uses a checkpoint only if it is intact and belongs to this run; otherwise the error says why not."""

import ast
import logging
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.numpy import save_file

import fedpd
from fedpd import FedpdError, algorithms, oracles, problems, simulate
from fedpd.base.checkpoint import (
    Arrays,
    CheckpointError,
    fingerprint,
    flatten,
    load_newest,
    peek,
    read,
    save_round,
    unflatten,
    write,
)

META = {"round": 3, "seconds": 0.1, "diverged": [None, [2, "why"]], "label": "µ"}
ARRAYS: Arrays = {
    "scalar": np.array(0.1),
    "empty": np.zeros((0, 3)),
    "flags": np.array([True, False, True]),
    "counts": np.array([[-(2**62), 2**62]]),
    "int32": np.array(-7, np.int32),
    "float32": np.array([0.1, 1e-45, np.inf], np.float32),
    "float64": np.array([0.1, -0.0, 5e-324, np.nan, np.pi]),
}
quick = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)


class Agent(NamedTuple):
    x: Any
    memory: Any


def assert_same_bits(found: Arrays, expected: Arrays) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


def whole(folder: Path) -> bytes:
    """A checkpoint's bytes, written once per folder."""
    path = folder / "whole.safetensors"
    if not path.exists():
        write(path, ARRAYS, META)
    return path.read_bytes()


def identified(**changes: Any) -> dict[str, Any]:
    return {"algorithm": "fedpd(eta=0.1)", "data": "abc", "seeds": [0]} | changes


def test_what_is_written_is_read_back_bit_for_bit(tmp_path: Path) -> None:
    write(tmp_path / "one.safetensors", ARRAYS, META)
    arrays, meta = read(tmp_path / "one.safetensors")
    assert_same_bits(arrays, ARRAYS)
    assert meta == META


def test_the_same_moment_makes_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "other"):
        write(tmp_path / name, dict(sorted(ARRAYS.items(), reverse=name == "one")), META)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_arrays_in_any_memory_order_are_read_back(tmp_path: Path) -> None:
    table = np.arange(12.0).reshape(3, 4)
    write(tmp_path / "one.safetensors", {"transposed": table.T, "strided": table[:, ::2]}, {})
    arrays, _ = read(tmp_path / "one.safetensors")
    np.testing.assert_array_equal(arrays["transposed"], table.T)
    np.testing.assert_array_equal(arrays["strided"], table[:, ::2])


@quick
@given(data=st.data(), flip=st.integers(1, 255))
def test_a_flipped_byte_is_refused(tmp_path: Path, data: st.DataObject, flip: int) -> None:
    path, content = tmp_path / "one.safetensors", bytearray(whole(tmp_path))
    place = data.draw(st.integers(0, len(content) - 1))
    blank = content[place] == ord(" ") and content[place - 1] in b" }"  # the header ends in blanks, which mean nothing
    content[place] ^= flip
    path.write_bytes(content)
    if not blank:
        with pytest.raises(CheckpointError, match=r"one\.safetensors: .*[.]$"):
            read(path)


def test_a_flipped_bit_of_a_number_is_named_as_such(tmp_path: Path) -> None:
    path, content = tmp_path / "one.safetensors", bytearray(whole(tmp_path))
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"one\.safetensors: its checksum does not match: .*another folder\.$"):
        read(path)


@quick
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_is_refused(tmp_path: Path, share: float) -> None:
    path, content = tmp_path / "one.safetensors", whole(tmp_path)
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(CheckpointError, match=r"one\.safetensors: is not a complete safetensors file \("):
        read(path)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_a_foreign_file_is_refused(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    save_file({"weight": np.ones(2)}, tmp_path / "model.safetensors", metadata)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: fedpd did not write it\. Give the folder of a run"):
        read(tmp_path / "model.safetensors")


def test_a_full_disk_is_a_sentence_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("fedpd.base.checkpoint.save_file", full)
    with pytest.raises(FedpdError, match=r"one\.safetensors cannot be written \(.*No space left.*Make room there"):
        write(tmp_path / "one.safetensors", ARRAYS, META)
    assert not list(tmp_path.iterdir())


def test_a_missing_file_is_an_error_of_this_package(tmp_path: Path) -> None:
    with pytest.raises(FedpdError, match=r"none\.safetensors: .*No such file"):
        read(tmp_path / "none.safetensors")


def test_a_tree_is_flattened_to_names_and_back() -> None:
    tree = (Agent({"w": np.ones((2, 3)), "b": jnp.zeros(2)}, None), np.array([1, 2]))
    arrays = flatten("state", tree)
    assert sorted(arrays) == ["state[0].x['b']", "state[0].x['w']", "state[1]"]
    back = unflatten("state", tree, arrays)
    assert isinstance(back[0], Agent)
    assert back[0].memory is None
    np.testing.assert_array_equal(back[0].x["w"], tree[0].x["w"])
    assert back[0].x["b"].dtype == np.float32
    assert back[1].tolist() == [1, 2]


def test_scalars_and_empty_arrays_survive_flattening() -> None:
    tree = {"scalar": np.float64(0.1), "count": jnp.int32(3), "empty": np.zeros((0, 2)), "flag": np.array(True)}
    back = unflatten("", tree, flatten("", tree))
    assert {name: leaf.shape for name, leaf in back.items()} == {"scalar": (), "count": (), "empty": (0, 2), "flag": ()}
    assert (back["scalar"], back["count"], back["flag"]) == (0.1, 3, True)


def test_a_tree_that_does_not_fit_is_refused() -> None:
    arrays = {"state['w']": np.ones(3)}
    for like in ({"w": np.ones(2)}, {"w": np.ones(3, np.float32)}):
        with pytest.raises(CheckpointError, match=r"has float64\[3\], but state\['w'\] must be float\d\d\[\d\]"):
            unflatten("state", like, arrays)
    with pytest.raises(CheckpointError, match=r"has nothing, but state\['b'\] must be float64\[1\]"):
        unflatten("state", {"b": np.ones(1)}, arrays)


def test_a_fingerprint_sees_names_types_shapes_and_bytes() -> None:
    trees: list[Any] = [
        {"a": np.zeros(4)},
        {"b": np.zeros(4)},
        {"a": np.zeros(4, np.int64)},
        {"a": np.zeros((2, 2))},
        {"a": np.array([0.0, 0, 0, -0.0])},
        {"a": np.zeros(4), "b": np.zeros(0)},
        {"a": np.zeros(())},
    ]
    prints = [fingerprint(tree) for tree in trees]
    assert len(set(prints)) == len(trees)
    assert prints[0] == fingerprint({"a": np.zeros(8)[::2]})
    assert fingerprint(np.ones(1), np.zeros(1)) != fingerprint(np.zeros(1), np.ones(1))


def test_only_the_newest_two_are_kept(tmp_path: Path) -> None:
    for done in (50, 100, 150, 1000):
        save_round(tmp_path, done, {"x": np.array([float(done)])}, identified())
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "round-000000150.safetensors",
        "round-000001000.safetensors",
    ]
    found = load_newest(tmp_path, identified())
    assert found is not None
    assert found[0]["x"] == [1000.0]


def test_the_one_before_is_used_where_the_newest_is_torn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for done in (50, 100):
        save_round(tmp_path, done, {"x": np.array([float(done)])}, identified(round=done))
    newest = tmp_path / "round-000000100.safetensors"
    newest.write_bytes(newest.read_bytes()[:-3])
    with caplog.at_level(logging.WARNING, logger="fedpd"):
        found = load_newest(tmp_path, identified())
    assert found is not None
    assert found[0]["x"] == [50.0]
    assert found[1] == identified(round=50)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "round-000000100.safetensors: is not a complete safetensors file" in record.getMessage()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "damaged-round-000000100.safetensors",
        "round-000000050.safetensors",
    ]


def test_fresh_checkpoints_stay_where_later_ones_were_torn(tmp_path: Path) -> None:
    for done in (900, 1000):
        (tmp_path / f"round-{done:09d}.safetensors").write_bytes(b"torn")
    assert load_newest(tmp_path, identified()) is None
    for done in (50, 100):
        save_round(tmp_path, done, {"x": np.array([float(done)])}, identified())
    found = load_newest(tmp_path, identified())
    assert found is not None
    assert found[0]["x"] == [100.0]


def test_a_look_at_some_arrays_reads_and_checks_only_these(tmp_path: Path) -> None:
    save_round(tmp_path, 50, {"model": np.arange(3.0), "history.loss": np.array([2.0, 1.0])}, identified())
    found = peek(tmp_path, "history.")
    assert found is not None
    assert list(found[0]) == ["history.loss"]
    path = tmp_path / "round-000000050.safetensors"
    content = path.read_bytes()
    path.write_bytes(content.replace(np.array([2.0, 1.0]).tobytes(), np.array([2.0, 0.5]).tobytes()))
    assert peek(tmp_path, "history.") is None
    path.write_bytes(content.replace(b"fedpd(eta=0.1)", b"fedpd(eta=0.2)"))
    assert peek(tmp_path, "history.") is None


def test_there_may_be_nothing_to_resume_from(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load_newest(tmp_path / "none", identified()) is None
    assert load_newest(tmp_path, identified()) is None
    (tmp_path / "round-000000050.safetensors").write_bytes(b"")
    assert not caplog.records
    assert load_newest(tmp_path, identified()) is None
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"algorithm": "fedavg()"}, r"its algorithm is 'fedpd\(eta=0\.1\)', not 'fedavg\(\)'"),
        ({"seeds": [0, 1]}, r"its seeds is \[0\], not \[0, 1\]"),
        ({"metrics_every": 5}, r"its metrics_every is None, not 5"),
    ],
)
def test_the_checkpoint_of_another_run_is_an_error_that_names_the_difference(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    save_round(tmp_path, 50, {"x": np.ones(1)}, identified())
    with pytest.raises(CheckpointError, match=rf"000000050\.safetensors: it belongs to another run: {said}\. Choose"):
        load_newest(tmp_path, identified(**changes))


def test_a_run_with_a_scalar_in_its_model_can_be_resumed(tmp_path: Path) -> None:
    def losses(model: Any, batch: Any) -> Any:
        return (batch - model["centre"]) ** 2 / 2

    problem = problems.from_losses(losses, [np.zeros(1), np.full(2, 2.0)], {"centre": np.float64(0)})
    algorithm = algorithms.fedavg(oracle=oracles.gd(step=0.5, iterations=1))
    simulate(algorithm, problem, rounds=2, checkpoints=tmp_path)
    assert simulate(algorithm, problem, rounds=3, checkpoints=tmp_path).model["centre"] == 0.875


def test_a_pickle_is_refused_and_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return print, ("it ran",)

    (tmp_path / "round-000000050.safetensors").write_bytes(pickle.dumps(Payload()))
    assert load_newest(tmp_path, identified()) is None
    assert "it ran" not in capsys.readouterr().out


def test_nothing_in_the_package_imports_a_pickler() -> None:
    imported = set()
    for path in Path(fedpd.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").split(".")[0])
            elif isinstance(node, ast.keyword):
                assert node.arg != "allow_pickle"
    assert "safetensors" in imported
    assert not imported & {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
