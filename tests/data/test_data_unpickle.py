import collections
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.tiny_sources import attacks

from ocil.data.unpickle import load_pickle
from ocil.errors import OcilError


def restricted(content: bytes) -> Any:
    return load_pickle(io.BytesIO(content), "file")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_and_containers_survive(protocol: int) -> None:
    square = np.arange(12, dtype=np.uint8).reshape(3, 4)
    original: dict[Any, Any] = {
        "plain": [1, "two", 3.0, (4, None, True)],
        b"bytes": b"\x00\xff",
        "square": square,
        "fortran": np.asfortranarray(square),
        "turned": np.arange(24).reshape(2, 3, 4).transpose(1, 0, 2),
        "big endian": np.arange(3, dtype=">i4"),
        "empty": np.zeros((0, 5), np.float32),
        "scalar": np.int64(7),
    }
    loaded = restricted(pickle.dumps(original, protocol=protocol))
    assert loaded["plain"] == original["plain"]
    assert loaded[b"bytes"] == original[b"bytes"]
    for key in ("square", "fortran", "turned", "big endian", "empty", "scalar"):
        np.testing.assert_array_equal(loaded[key], original[key])
        assert loaded[key].dtype.newbyteorder("=") == original[key].dtype.newbyteorder("=")


def test_python_2_pickle_of_an_array() -> None:
    # What Python 2 wrote for {'data': numpy.array([[1, 200]], uint8), 'labels': [3]}: text and data are byte strings.
    content = (
        b"\x80\x02}q\x01(U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x01K\x02\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89U\x02\x01\xc8tbU\x06labels]K\x03au."
    )
    loaded = restricted(content)
    np.testing.assert_array_equal(loaded["data"], np.array([[1, 200]], np.uint8))
    assert loaded["labels"] == [3]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_malicious_pickles_run_nothing(which: int, protocol: int, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    content = pickle.dumps({"data": [attacks(marker)[which]]}, protocol=protocol)
    with pytest.raises(OcilError, match=r"it asks for '.*(system|eval)'"):
        restricted(content)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.array([{}, []], dtype=object), "array of object"),
        (np.array(["text"]), "array of <U"),
        (np.zeros(2, dtype=[("a", "u1")]), "array of"),
        (np.datetime64("2020-01-01"), "array of|asks for"),
        (collections.OrderedDict(a=1), "asks for 'collections.OrderedDict'"),
        (slice(3), "asks for"),
    ],
)
def test_everything_else_is_refused(value: Any, message: str) -> None:
    with pytest.raises(OcilError, match=message):
        restricted(pickle.dumps(value))


@pytest.mark.parametrize(
    "content",
    [
        # A shape far beyond the data, a direct call of ndarray, another encoding, and a change to an allowed function.
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR(I1\n(I999999999\ntcnumpy\ndtype\n(S'u1'\ntRI00\nS'ab'\ntb.",
        b"cnumpy\nndarray\n((I1000000000000\nttR.",
        b"c_codecs\nencode\n(S'abc'\nS'rot13'\ntR.",
        b"c_codecs\nencode\n(dS'__doc__'\nS'x'\nsb.",
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\ndtype\n(I0\ntS'b'\ntR.",
        b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(S'i8'\ntRS'x'\ntR.",
        b"cnumpy\ndtype\n(S'u1'\ntR(I3\nS'|'\nS'x'\nNNtb.",
        b"cnumpy\ndtype\n(I3\ntR.",
    ],
)
def test_crafted_pickles_are_refused(content: bytes) -> None:
    with pytest.raises(OcilError, match="file is refused") as caught:
        restricted(content)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"nonsense", pickle.dumps(np.arange(9))[:-20], b"Pid\n."])
def test_broken_pickles_are_one_line(content: bytes) -> None:
    with pytest.raises(OcilError, match="file is cut short or not a pickle"):
        restricted(content)
