"""Writes a folder as TensorFlow Serving is started with. The SavedModel in it is an empty file: enough to look at."""

import sys
from pathlib import Path

MODELS = """\
model_config_list {
  config {
    name: "half_plus_two"
    base_path: "/models/half_plus_two"
    model_platform: "tensorflow"
    model_version_policy { latest { num_versions: 2 } }
    version_labels { key: "stable" value: 42 }
  }
}
"""

folder = Path(sys.argv[1])
version = folder / "half_plus_two" / "42"
version.mkdir(parents=True)
(version / "saved_model.pb").touch()
(folder / "models.config").write_text(MODELS)
(folder / "batching_parameters.txt").write_text("max_batch_size { value: 128 }\nbatch_timeout_micros { value: 1000 }\n")
print(f"{folder}/models.config: half_plus_two")
