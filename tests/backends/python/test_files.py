"""The file of a model: default_model_filename, inside the version's folder."""

from __future__ import annotations

import msgspec
import pytest

from tests.backends.python.conftest import Serve
from tpy.errors import InvalidArgument

MODEL = """
class TritonPythonModel:
    def execute(self, requests):
        return [answer(tensor(np.float32([7]))) for _ in requests]
"""


def test_the_file_that_the_configuration_names(make: Serve, isolation: str) -> None:
    served = make(MODEL, isolation)
    (served.context.version_directory / "model.py").rename(served.context.version_directory / "other.py")
    config = msgspec.structs.replace(served.context.config, default_model_filename="other.py")
    served.context = msgspec.structs.replace(served.context, config=config)
    assert served.output().tolist() == [7]


@pytest.mark.parametrize("name", ["../1/model.py", "/etc/passwd", "x/../../model.py"])
def test_a_file_outside_the_version_folder_is_refused(make: Serve, name: str) -> None:
    served = make(MODEL)
    config = msgspec.structs.replace(served.context.config, default_model_filename=name)
    with pytest.raises(InvalidArgument, match=f"model 'm': model filename '{name}' must be inside the version directory"):
        served.backend.load(msgspec.structs.replace(served.context, config=config))
