"""Run the model `word_count` without a server. Use: python try_word_count.py"""

import sys
from pathlib import Path

import numpy as np

import triton_python_backend_utils as pb_utils

sys.path.insert(0, str(Path(__file__).parent / "models" / "word_count" / "1"))
from model import TritonPythonModel

text = np.array([[b"one two three"]], dtype=object)
request = pb_utils.InferenceRequest(inputs=[pb_utils.Tensor("TEXT", text)])
[response] = TritonPythonModel().execute([request])
print(pb_utils.get_output_tensor_by_name(response, "WORDS").as_numpy())
